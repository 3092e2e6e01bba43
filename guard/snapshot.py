"""Typed values to plain JSON values and back: for traces, and for the state that is cached beside them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from guard.memory import BoundedMap

T = TypeVar("T")


def dump(value: object) -> Any:
    """`value` as JSON values: dataclasses become objects, enums their values."""
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BoundedMap):
        return {
            "limit": value.limit,
            "values": [[key, dump(item)] for key, item in value.items()],
            "once": list(value.seen_once()),
        }
    if is_dataclass(value):
        return {f.name: dump(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Mapping):
        return {str(k): dump(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [dump(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(dump(item) for item in value)
    raise TypeError(f"cannot store a {type(value).__name__}")


def load(kind: type[T], stored: Any) -> T:
    """A `kind` from what `dump` made of it; entries that are missing take their defaults, unknown ones are ignored.

    Raises ValueError, TypeError or KeyError when `stored` is no such thing.
    """
    value: T = _load(kind, stored)
    return value


@cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _load(kind: Any, stored: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _load_union(get_args(kind), stored)
    if origin is BoundedMap:
        (item,) = get_args(kind)
        return BoundedMap(stored["limit"], ((key, _load(item, v)) for key, v in stored["values"]), stored["once"])
    if origin is dict:
        return {k: _load(get_args(kind)[1], v) for k, v in stored.items()}
    if origin in (list, tuple):
        item = get_args(kind)[0]
        return origin(_load(item, v) for v in stored)
    if isinstance(kind, type):
        if is_dataclass(kind):
            hints = _hints(kind)
            return kind(**{f.name: _load(hints[f.name], stored[f.name]) for f in fields(kind) if f.name in stored})
        if issubclass(kind, Enum):
            return kind(stored)
        if kind is not object and not isinstance(stored, (kind, int) if kind is float else kind):
            raise TypeError(f"expected {kind.__name__}, found {type(stored).__name__}")
    return stored


def _load_union(kinds: tuple[Any, ...], stored: Any) -> Any:
    if stored is None:
        return None
    options = [kind for kind in kinds if kind is not type(None)]
    return _load(options[0], stored) if len(options) == 1 else stored
