"""JSON from strangers: what RFC 8259 allows, and nothing that a database, a log or a JSON answer would choke on."""

from __future__ import annotations

import json
import math
from typing import Any

MAX_DEPTH = 32
_MAX_INTEGER = 2**63


class JsonRefused(ValueError):
    """The text is not JSON that we take. `str(error)` is safe to show; `pointer` says where, if known."""

    def __init__(self, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.pointer = pointer


def loads(raw: bytes | str) -> Any:
    """The value of a JSON text.

    Raises `JsonRefused` for broken UTF-8, NaN and infinities (also spelt `1e999`), integers past 64 bits, duplicate keys,
    lone surrogates, NUL characters, and nesting deeper than `MAX_DEPTH`.
    """
    text = _decoded(raw)
    try:
        value = json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            parse_int=_bounded,
            object_pairs_hook=_unique,
        )
    except RecursionError:
        raise JsonRefused(f"The JSON is nested too deeply; at most {MAX_DEPTH} levels are taken.") from None
    except json.JSONDecodeError as error:
        raise JsonRefused(
            f"The JSON is broken at line {error.lineno}, column {error.colno}: {error.msg.lower()}."
        ) from error
    _check(value, "", 1)
    return value


def _decoded(raw: bytes | str) -> str:
    if isinstance(raw, str):
        return raw
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise JsonRefused(f"The JSON is not UTF-8: byte {error.start} cannot be read.") from error


def _refuse_constant(name: str) -> Any:
    raise JsonRefused(f"{name} is not a JSON number; leave the field out or send a finite number.")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise JsonRefused(f"The number {text[:24]} is too large to be represented.")
    return number


def _bounded(text: str) -> int:
    if len(text) > 20 or abs(int(text)) > _MAX_INTEGER:
        raise JsonRefused(f"The integer {text[:24]} is too large; 64 bits are taken.")
    return int(text)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise JsonRefused(f"The key {key[:40]!r} appears twice in one object.")
        result[key] = value
    return result


def _check(value: Any, pointer: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise JsonRefused(f"The JSON is nested too deeply; at most {MAX_DEPTH} levels are taken.", pointer)
    if isinstance(value, str):
        _check_text(value, pointer)
    elif isinstance(value, dict):
        for key, child in value.items():
            _check_text(key, pointer)
            _check(child, f"{pointer}/{_escaped(key)}", depth + 1)
    elif isinstance(value, list):
        for index, child in enumerate(value):
            _check(child, f"{pointer}/{index}", depth + 1)


def _check_text(text: str, pointer: str) -> None:
    problem = text_problem(text)
    if problem:
        raise JsonRefused(problem, pointer)


def text_problem(text: str) -> str | None:
    """Why a text cannot be stored or sent on as UTF-8, or None if it can."""
    if "\x00" in text:
        return "The text contains a NUL character; please remove it."
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return "The text contains half of a surrogate pair, which is no character; please send valid Unicode."
    return None


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def canonical(value: Any) -> str:
    """One spelling for equal JSON values: keys sorted, no spaces, `1.0` written as `1`."""
    return json.dumps(_integral(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def _integral(value: Any) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, dict):
        return {key: _integral(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_integral(child) for child in value]
    return value
