"""Results that are too large, too deep or too odd for the canonical form, as text that still tells them apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Collection, Mapping
from itertools import islice
from typing import Final

MAX_ENCODED: Final = 1_000_000
"""Values that are compared whole, in about 0.4 s. One object that stands in many places counts in each of them."""

MAX_WALKED: Final = 50_000
"""Values that are read one by one, in about 0.1 s, where the JSON encoder cannot; of what is beyond only the size counts."""

_HOLDERS: Final = (dict, list, tuple)
_HOLDER: Final = 10  # looking into one costs about as much as ten values

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def large_text(value: object, leaf: Callable[[object], str]) -> str:
    """A text that is equal for equal values and differs for others; `leaf` writes one value that holds no others.

    JSON of up to `MAX_ENCODED` values costs one run of the encoder over it (20 ms for 100,000). What is larger, nests deeper
    than the encoder can follow, contains itself or is no JSON is told apart by its first `MAX_WALKED` values.
    """
    if _is_encodable(value):
        try:
            return _encode(value)
        except (TypeError, ValueError, RecursionError):
            pass  # no JSON after all: read one by one
    return f"digest {_digest_of_walk(value, leaf)}"


def _is_encodable(value: object) -> bool:
    """Whether the encoder would come to an end soon: lists of lists of one and the same list grow without bound."""
    count = 0
    ahead: list[Collection[object]] = [[value]]
    while ahead:
        items: Collection[object] = ahead.pop()
        count += len(items) + _HOLDER
        if count > MAX_ENCODED:
            return False
        ahead.extend(
            [[*item.values()] if isinstance(item, dict) else item for item in items if isinstance(item, _HOLDERS)]
        )
    return True


def _digest_of_walk(value: object, leaf: Callable[[object], str]) -> str:
    digest, ahead, room = hashlib.sha256(), [value], MAX_WALKED
    while ahead:
        value = ahead.pop()
        below: list[object] = []
        if isinstance(value, Mapping):
            named = sorted(
                ((key if isinstance(key, str) else leaf(key), item) for key, item in value.items()),
                key=lambda pair: pair[0],
            )
            text = f"object {[name for name, _ in named]!a}"
            below = [item for _, item in named[:room]]
        elif isinstance(value, (list, tuple)):
            text = f"list {len(value)}"
            below = list(islice(value, room))
        else:
            text = leaf(value)
        digest.update(f"{len(text)} {text}".encode("utf-8", "surrogatepass"))
        room -= len(below)
        ahead.extend(reversed(below))
    return digest.hexdigest()
