"""Typed values to plain JSON values and back: for traces, and for the state that is cached beside them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin, get_type_hints

from guard.memory import BoundedMap

T = TypeVar("T")
_Load = Callable[[Any], Any]

_PLAIN: Final = frozenset({type(None), str, int, float, bool})


def dump(value: object) -> Any:
    """`value` as JSON values: dataclasses become objects, enums their values."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    names = _field_names(kind)
    if names:
        # A record is dumped with each call that is stored: most of its values are plain, and need no call of their own.
        return {name: v if type(v := getattr(value, name)) in _PLAIN else dump(v) for name in names}
    if isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BoundedMap):
        return {
            "limit": value.limit,
            "values": [[key, dump(item)] for key, item in value.items()],
            "once": list(value.seen_once()),
        }
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
    wanted: Any = kind
    value: T = _loader(wanted)(stored)
    return value


@cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Of a dataclass; none of anything else."""
    return tuple(f.name for f in fields(kind)) if is_dataclass(kind) else ()


@cache
def _loader(kind: Any) -> _Load:
    """What reads a `kind`. Made once for each: a trace is read record by record, and hints are slow to look at."""
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _of_union(get_args(kind))
    if origin is BoundedMap:
        (item,) = map(_loader, get_args(kind))
        return lambda stored: BoundedMap(stored["limit"], ((k, item(v)) for k, v in stored["values"]), stored["once"])
    if origin is dict or origin is OrderedDict:
        item, mapping = _loader(get_args(kind)[1]), origin
        return lambda stored: mapping({k: item(v) for k, v in stored.items()})
    if origin is list or origin is tuple:
        item, make = _loader(get_args(kind)[0]), origin
        return lambda stored: make([item(v) for v in stored])
    if not isinstance(kind, type) or kind is object:
        return _as_it_is
    if is_dataclass(kind):
        return _of_dataclass(kind)
    return kind if issubclass(kind, Enum) else _of_plain(kind)


def _of_dataclass(kind: Any) -> _Load:
    hints = get_type_hints(kind)
    readers = [(f.name, _loader(hints[f.name])) for f in fields(kind)]
    needed = [f.name for f in fields(kind) if f.default is MISSING and f.default_factory is MISSING]

    def read(stored: Any) -> Any:
        values = {name: read(stored[name]) for name, read in readers if name in stored}
        try:
            return kind(**values)
        except TypeError:
            missing = [name for name in needed if name not in values]
            raise ValueError(f"{', '.join(map(repr, missing))} missing") from None

    return read


def _of_union(kinds: tuple[Any, ...]) -> _Load:
    options = [kind for kind in kinds if kind is not type(None)]
    read = _loader(options[0]) if len(options) == 1 else _as_it_is
    return lambda stored: None if stored is None else read(stored)


def _of_plain(kind: type) -> _Load:
    allowed = (kind, int) if kind is float else (kind,)

    def read(stored: Any) -> Any:
        if not isinstance(stored, allowed):
            raise TypeError(f"expected {kind.__name__}, found {type(stored).__name__}")
        return stored

    return read


def _as_it_is(stored: Any) -> Any:
    return stored
