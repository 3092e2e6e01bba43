"""Results that are too large, too deep or too odd for the canonical form, as text that still tells them apart."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from itertools import islice
from typing import Final

MAX_WALKED: Final = 100_000
"""Values that are read one by one, in about 0.2 s, where the JSON encoder cannot; of what is beyond only the size counts."""

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


def large_text(value: object, leaf: Callable[[object], str]) -> str:
    """A text that is equal for equal values and differs for others; `leaf` writes one value that holds no others.

    JSON values cost one run of the encoder over them (20 ms for 100,000), whatever their number. Values that nest deeper
    than it can follow, contain themselves or are no JSON are told apart by their first `MAX_WALKED` values.
    """
    try:
        return _encode(value)
    except (TypeError, ValueError, RecursionError):
        return f"digest {_digest_of_walk(value, leaf)}"


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
