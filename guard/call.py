"""A tool call, and the keys under which the guard recognises it again."""

from __future__ import annotations

import hashlib
import json
import math
import posixpath
import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

MAX_DEPTH: Final = 100
"""Levels of nesting that are read; deeper arguments are judged by their text, or by their first values."""

MAX_NODES: Final = 20_000
"""Values that are read in one call's arguments; a larger tree is judged like one that is too deep."""

MAX_NUMBERS: Final = 64
"""A call with more numbers than this has no shape: it is never compared number by number."""

MAX_PATH_CHARS: Final = 4_096
"""Of all positions of numbers in one call together; beyond it the call has no shape either."""

MAX_FOLDED_CHARS: Final = 2_000
"""Longer texts keep their spelling: documents differ by more than case and blanks."""


@dataclass(slots=True)
class ToolCall:
    """What the model asked for, as it asked for it."""

    tool: str
    args: object = None
    """The parsed arguments, normally a mapping; a `str` is read like `args_raw`."""
    args_raw: str | None = None
    """The arguments as the model's text. Wins over `args`, and need not be JSON."""
    call_id: str | None = None
    """The provider's id; None, repeated and reused ids are all allowed."""
    turn: str | int | None = None
    """The model message this call belongs to; None means a message of its own."""


@dataclass(slots=True)
class CallKeys:
    """The forms in which one call is compared with earlier ones: digests and numbers, no argument text.

    Written once, like all values that are made for each call; not frozen, because that makes them five times as dear.
    """

    signature: str
    """`sha256:` over tool and canonical arguments: equal for key order, number form and Unicode form."""
    folded: str
    """The same with case, blanks, path forms and sentence punctuation folded away."""
    shape: str | None
    """The same with every number left out; None when the call holds no number, or too many."""
    paths: tuple[str, ...] = ()
    """Where the numbers stand, as dotted paths (`region.0`), in canonical order."""
    numbers: tuple[Number, ...] = ()
    """The numbers themselves, `1.0` as 1; as text where JSON readers disagree (beyond 2**53, infinite, undefined)."""
    is_json: bool = True
    """False when the arguments are no JSON: then all such calls of a tool share one signature."""


Number = int | float | str


class _NumberText(str):
    """A number that JSON text cannot carry: infinite, undefined or very long."""

    __slots__ = ()


_NUMBERS: Final = frozenset({int, float, _NumberText})


class _Unreadable(Exception):
    """The arguments nest too deep, hold too much, or contain themselves."""


@dataclass(slots=True)
class _Scan:
    ignored: frozenset[str]
    nodes: int = 0
    folds: bool = False
    paths: list[str] = field(default_factory=list)
    numbers: list[Number] = field(default_factory=list)


_LONG: Final = 2**2_000
_EXACT: Final = 2**53
_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=True, check_circular=False).encode
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_is_plain_text: Final = re.compile(r"(?:[a-z0-9_\-]+(?: [a-z0-9_\-]+)*)?").fullmatch
"""Folding leaves such texts as they are."""
_first: Final = itemgetter(0)
_is_normalized: Final = unicodedata.is_normalized
_MAX_PLAIN: Final = 64
_SENTENCE_END = ".,;:!?…。，；：！？、"
NO_IGNORED: Final[frozenset[str]] = frozenset()


def read_keys(call: ToolCall, ignored: frozenset[str] = NO_IGNORED) -> CallKeys:
    """The keys of `call`; `ignored` names arguments (dotted paths) that never make a difference.

    Never raises: arguments that are no JSON, too deep, too large or cyclic get keys too.
    """
    return read_call(call, ignored)[0]


def read_call(call: ToolCall, ignored: frozenset[str] = NO_IGNORED) -> tuple[CallKeys, str | None]:
    """The keys of `call`, and the canonical text of its arguments where they could be read."""
    raw = call.args_raw if call.args_raw is not None else call.args if isinstance(call.args, str) else None
    args = call.args
    if raw is not None:
        try:
            args = _parse(raw)
        except RecursionError:
            return _keys_of_text(call.tool, raw), None
        except ValueError:
            return _keys_of_broken(call.tool), None
    if type(args) is dict:
        plain = _read_plain(call.tool, args, ignored)
        if plain is not None:
            return plain
    scan = _Scan(ignored)
    try:
        normal = _walk({} if args is None else args, "", 0, scan)
        text = _encode(normal)
    except (_Unreadable, RecursionError):
        return (_keys_of_text(call.tool, raw) if raw is not None else _keys_of_head(call.tool, args)), None
    signature = _digest(call.tool, text)
    places = "\n".join(scan.paths)
    has_shape = 0 < len(scan.numbers) <= MAX_NUMBERS and len(places) <= MAX_PATH_CHARS
    keys = CallKeys(
        signature,
        _digest(call.tool, _encode(_mapped(normal, _folded_leaf))) if scan.folds else signature,
        _shape(call.tool, _without_numbers(normal), len(scan.paths), places) if has_shape else None,
        tuple(scan.paths) if has_shape else (),
        tuple(scan.numbers) if has_shape else (),
    )
    return keys, text


def _shape(tool: str, rest: object, numbers: int, places: str) -> str:
    """`rest` is the normal form without its so many numbers, which stood at `places`."""
    # Only the guard itself compares shapes, so the cheapest faithful text will do.
    tagged = f"{tool}\n{rest!a}{numbers} {places}"
    return hashlib.blake2b(tagged.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _read_plain(tool: str, args: dict[Any, Any], ignored: frozenset[str]) -> tuple[CallKeys, str] | None:
    """What the walk would give, at a third of its cost, for an object of plain values and short flat lists of them.

    Nearly all calls are such; None for the others.
    """
    if len(args) > _MAX_PLAIN:
        return None
    try:
        names = sorted(args)
    except TypeError:
        return None
    normal = args
    rest: dict[str, object] = {}
    folded: dict[str, object] = {}
    paths: list[str] = []
    numbers: list[Number] = []
    for name in names:
        # A dot in a name, or no name at all, could make two positions look like one.
        if type(name) is not str or not name or not name.isascii() or "." in name:
            return None
        if name in ignored:
            normal = {key: item for key, item in normal.items() if key != name}
            continue
        value = args[name]
        kind = type(value)
        if kind is int and -_EXACT <= value <= _EXACT:
            paths.append(name)
            numbers.append(value)
            continue
        if kind is str:
            if not _is_plain_text(value):
                if not value.isascii() and not _is_normalized("NFC", value):
                    return None
                spelling = fold_text(value)
                if spelling != value:
                    folded[name] = spelling
        elif kind is int or kind is float:
            number = _plain_number(value, name, paths, numbers)
            if number is None:
                return None
            if number is not value:
                normal = {**normal, name: number}
            continue
        elif kind is list:
            items = _plain_list(value, name, paths, numbers, folded)
            if items is None:
                return None
            if items is not value:
                normal = {**normal, name: items}
            value = _without_numbers(items)
        elif kind is not bool and value is not None:
            return None
        rest[name] = value
    places = "\n".join(paths)
    if len(numbers) > MAX_NUMBERS or len(places) > MAX_PATH_CHARS:
        return None
    text = _encode(normal)
    signature = _digest(tool, text)
    spelled = _digest(tool, _encode({**normal, **folded})) if folded else signature
    shape = _shape(tool, rest, len(numbers), places) if numbers else None
    return CallKeys(signature, spelled, shape, tuple(paths), tuple(numbers)), text


def _plain_number(value: int | float, path: str, paths: list[str], numbers: list[Number]) -> int | float | None:
    """`value` in normal form, written down; None when JSON has no short form for it."""
    if type(value) is float:
        if value.is_integer():
            value = int(value)
        elif not math.isfinite(value):
            return None
    if not -_LONG < value < _LONG:
        return None
    paths.append(path)
    numbers.append(value if -_EXACT <= value <= _EXACT else str(value))
    return value


def _plain_list(
    items: list[Any], path: str, paths: list[str], numbers: list[Number], folded: dict[str, object]
) -> list[Any] | None:
    """`items` in normal form, numbers and folded spelling written down; None when they are not plain."""
    if len(items) > _MAX_PLAIN:
        return None
    normal: list[Any] = []
    is_changed = is_folded = False
    for index, item in enumerate(items):
        kind = type(item)
        if kind is int or kind is float:
            number = _plain_number(item, f"{path}.{index}", paths, numbers)
            if number is None:
                return None
            is_changed = is_changed or number is not item
            item = number
        elif kind is str:
            if not _is_plain_text(item):
                if not item.isascii() and not _is_normalized("NFC", item):
                    return None
                is_folded = is_folded or fold_text(item) != item
        elif kind is not bool and item is not None:
            return None
        normal.append(item)
    if is_folded:
        folded[path] = [_folded_leaf(item) for item in normal]
    return normal if is_changed else items


def _without_numbers(value: Any) -> object:
    """A normal form without the numbers of its objects, and with 0 for those of its lists."""
    kind = type(value)
    if kind is dict:
        return {name: _without_numbers(item) for name, item in value.items() if type(item) not in _NUMBERS}
    if kind is list:
        return [0 if type(item) in _NUMBERS else _without_numbers(item) for item in value]
    return 0 if kind in _NUMBERS else value


def canonical_args(args: object) -> str:
    """`args` as canonical JSON text: keys sorted at every depth, NFC, one spelling per number.

    Raises ValueError when they nest too deep, hold too much or contain themselves.
    """
    try:
        return _encode(_walk(args, "", 0, _Scan(NO_IGNORED)))
    except (_Unreadable, RecursionError) as exc:
        raise ValueError("arguments are too deep, too large or cyclic") from exc


def leaf_text(value: object) -> str:
    """The canonical text of a value that is neither object nor list; a set of sets may be too deep even so."""
    try:
        return canonical_args(value)
    except ValueError:
        return f"a {type(value).__qualname__} that cannot be read"


def is_integral(number: Number) -> bool:
    """Whether an entry of `CallKeys.numbers` is whole."""
    return type(number) is int or (isinstance(number, str) and number.lstrip("-").isdigit())


def fold_text(text: str) -> str:
    """`text` without differences of case, blanks, path forms and sentence punctuation at word ends.

    A text that would be left empty keeps its spelling.
    """
    if _is_plain_text(text) or len(text) > MAX_FOLDED_CHARS:
        return text
    words = text.casefold().split()
    if len(words) == 1 and "/" in words[0] and "://" not in words[0]:
        words = [posixpath.normpath(words[0])]
    folded = " ".join(stripped for word in words if (stripped := word.rstrip(_SENTENCE_END)))
    return folded or text


def _parse(raw: str) -> object:
    try:
        return json.loads(raw)
    except json.JSONDecodeError:
        raise
    except ValueError:
        # CPython refuses to convert very long digit strings; for us they are numbers like any other.
        return json.loads(raw, parse_int=float)


def _walk(value: Any, path: str, depth: int, scan: _Scan) -> object:
    """The normal form of `value`; its numbers go into `scan`."""
    scan.nodes += 1
    kind = type(value)
    if kind is str:
        return _walk_text(value, scan)
    if kind is int or kind is float:
        return _walk_number(value, path, scan)
    if value is None or kind is bool:
        return value
    if depth > MAX_DEPTH or scan.nodes > MAX_NODES:
        raise _Unreadable
    if kind is dict or isinstance(value, Mapping):
        return _walk_mapping(value, path, depth, scan)
    if isinstance(value, (list, tuple)):
        if scan.nodes + len(value) > MAX_NODES:
            raise _Unreadable
        return [_walk(item, f"{path}.{i}" if path else str(i), depth + 1, scan) for i, item in enumerate(value)]
    return _walk_foreign(value, path, depth, scan)


def _walk_text(value: str, scan: _Scan) -> str:
    text = value if value.isascii() else unicodedata.normalize("NFC", value)
    if not scan.folds and fold_text(text) != text:
        scan.folds = True
    return text


def _walk_number(value: int | float, path: str, scan: _Scan) -> int | float | str:
    normal: int | float | str = value
    token: Number = value
    if type(value) is float and value.is_integer():
        normal = token = value = int(value)
    if isinstance(value, float):
        if not math.isfinite(value):
            token = repr(value)
            normal = _NumberText(f"number {value}")
    elif -_LONG < value < _LONG:
        if not -_EXACT <= value <= _EXACT:
            token = str(value)
    else:
        # Decimal digits of a huge integer may not be printable (and cost quadratic time); hexadecimal ones always are.
        normal = _NumberText(f"number {value:x}")
        token = f"number {hashlib.sha256(normal.encode()).hexdigest()}"
    scan.paths.append(path)
    scan.numbers.append(token)
    return normal


def _walk_mapping(value: Mapping[object, object], path: str, depth: int, scan: _Scan) -> dict[str, object]:
    normal: dict[str, object] = {}
    if scan.nodes + len(value) > MAX_NODES:
        raise _Unreadable
    named = [(key if type(key) is str and key.isascii() else _name_of(key), item) for key, item in value.items()]
    # Positions of numbers must not depend on the order in which the model wrote the keys.
    for name, item in sorted(named, key=_first):
        below = f"{path}.{name}" if path else name
        if scan.ignored and below in scan.ignored:
            continue
        while name in normal:
            name += "\x00"
        normal[name] = _walk(item, below, depth + 1, scan)
    return normal


def _mapped(value: object, leaf: Callable[[object], object]) -> object:
    """A normal form with `leaf` applied to everything that is neither object nor list."""
    if type(value) is dict:
        return {name: _mapped(item, leaf) for name, item in value.items()}
    if type(value) is list:
        return [_mapped(item, leaf) for item in value]
    return leaf(value)


def _folded_leaf(value: object) -> object:
    return fold_text(value) if type(value) is str else value


def _name_of(key: object) -> str:
    if isinstance(key, str):
        return key if key.isascii() else unicodedata.normalize("NFC", key)
    return f"{type(key).__name__} {_described(key)}"


def _described(value: object) -> str:
    try:
        return _ADDRESS.sub("", repr(value))
    except Exception:  # noqa: BLE001 - a foreign __repr__ may raise anything, and must not stop the agent
        return ""


def _walk_foreign(value: object, path: str, depth: int, scan: _Scan) -> object:
    """Values that JSON does not know, as plain Python functions get them."""
    if isinstance(value, str):
        return _walk_text(str.__str__(value), scan)
    if isinstance(value, int):
        return _walk_number(int(value), path, scan)
    if isinstance(value, float):
        return _walk_number(float(value), path, scan)
    if isinstance(value, (bytes, bytearray)):
        return f"bytes {hashlib.sha256(value).hexdigest()}"
    if isinstance(value, (set, frozenset)):
        return sorted(_encode(_walk(item, path, depth + 1, scan)) for item in value)
    return f"{type(value).__qualname__} {_described(value)}"


def _digest(tool: str, text: str) -> str:
    return "sha256:" + hashlib.sha256(f"{tool}\n{text}".encode("utf-8", "surrogatepass")).hexdigest()


def _keys_of_text(tool: str, raw: str) -> CallKeys:
    signature = _digest(tool, f"text {raw}")
    return CallKeys(signature, signature, None)


def _keys_of_head(tool: str, args: object) -> CallKeys:
    """Keys of a tree that is too deep, too large or cyclic: its first values stand for it."""
    text: list[str] = []
    ahead = [args]
    while ahead and len(text) < MAX_NODES:
        value = ahead.pop()
        if isinstance(value, Mapping):
            items = sorted(((_name_of(key), item) for key, item in value.items()), key=lambda pair: pair[0])
            text.append(f"mapping {[name for name, _ in items]}")
            ahead.extend(item for _, item in items)
        elif isinstance(value, (list, tuple)):
            text.append(f"list of {len(value)}")
            ahead.extend(value)
        else:
            text.append(leaf_text(value))
    signature = _digest(tool, "\n".join(text))
    return CallKeys(signature, signature, None)


def _keys_of_broken(tool: str) -> CallKeys:
    signature = _digest(tool, "no JSON")
    return CallKeys(signature, signature, None, is_json=False)
