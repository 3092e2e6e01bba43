"""Policies as YAML files, for people; the guard itself takes values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

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
        raise PolicyError(f"{name}:1: a policy is a mapping of names to values")
    entries: dict[str, Any] = {}
    for key_node, value_node in root.value:
        line, key = key_node.start_mark.line + 1, str(key_node.value)
        if key in entries:
            raise PolicyError(f"{name}:{line}: {key!r} stands here twice")
        try:
            entries[key] = yaml.safe_load(yaml.serialize(value_node))
            GuardPolicy.from_mapping({key: entries[key]})
        except (PolicyError, ValueError, yaml.YAMLError) as exc:
            raise PolicyError(f"{name}:{line}: {exc}") from exc
    return GuardPolicy.from_mapping(entries)
