"""Policies as YAML files, for people; the guard itself takes values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml
from yaml.constructor import SafeConstructor

from guard.policy import GuardPolicy, PolicyError
from prefilters.errors import RuleSetInvalid
from prefilters.rules.loader import compose_plain

_MOST_BYTES = 64 * 1024


def load_policy(path: Path) -> GuardPolicy:
    """The policy of a file, entries as `GuardPolicy.from_mapping` reads them.

    Raises PolicyError with file and line, and OSError where the file cannot be read.
    """
    with open(path, "rb") as file:
        return parse_policy(file.read(_MOST_BYTES + 1), name=str(path))


def parse_policy(raw: bytes, *, name: str) -> GuardPolicy:
    """The policy that `raw` says; `name` stands in the complaint. Raises PolicyError."""
    if len(raw) > _MOST_BYTES:
        raise PolicyError(f"{name}: larger than {_MOST_BYTES // 1024} KB")
    try:
        root = compose_plain(raw, name)
    except RuleSetInvalid as exc:
        raise PolicyError("; ".join(exc.problems)) from exc
    if root is None:
        return GuardPolicy()
    if not isinstance(root, yaml.MappingNode):
        raise PolicyError(f"{name}:{_line(root)}: a policy is a mapping of names to values")
    return GuardPolicy.from_mapping(_read_mapping(root, (), name))


def _read_mapping(node: yaml.MappingNode, above: tuple[str, ...], name: str) -> dict[str, Any]:
    """The entries of a mapping, each of which was tried by itself: a complaint names its own line."""
    entries: dict[str, Any] = {}
    for key_node, value_node in node.value:
        where = f"{name}:{_line(key_node)}"
        if not isinstance(key_node, yaml.ScalarNode):
            raise PolicyError(f"{where}: a name of an entry is a plain text")
        key = str(key_node.value)
        if key in entries:
            raise PolicyError(f"{where}: {key!r} stands here twice")
        if not above and isinstance(value_node, yaml.MappingNode):
            _try({key: {}}, where)
            entries[key] = _read_mapping(value_node, (key,), name)
            continue
        try:
            entries[key] = SafeConstructor().construct_document(value_node)
        except yaml.MarkedYAMLError as exc:
            raise PolicyError(f"{where}: {exc.problem}") from exc
        except (ValueError, yaml.YAMLError) as exc:
            raise PolicyError(f"{where}: {exc}") from exc
        tried: dict[str, Any] = {key: entries[key]}
        for outer in above:
            tried = {outer: tried}
        _try(tried, where)
    return entries


def _try(entries: dict[str, Any], where: str) -> None:
    try:
        GuardPolicy.from_mapping(entries)
    except PolicyError as exc:
        raise PolicyError(f"{where}: {exc.public}") from exc


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
