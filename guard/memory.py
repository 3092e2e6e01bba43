"""Memory with an upper bound, so that an endless run costs no more than a long one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedMap(Generic[V]):
    """A mapping from text that forgets beyond `limit` entries: first the oldest that were put once, then the oldest.

    All operations take constant time.
    """

    __slots__ = ("limit", "often", "once")

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self.once: OrderedDict[str, V] = OrderedDict()
        self.often: OrderedDict[str, V] = OrderedDict()

    def get(self, key: str) -> V | None:
        """The value under `key`, or None."""
        value = self.once.get(key)
        return self.often.get(key) if value is None else value

    def put(self, key: str, value: V) -> None:
        """Store `value`; a second put under the same key marks it as seen more than once."""
        if key in self.often:
            self.often[key] = value
        elif key in self.once:
            del self.once[key]
            self.often[key] = value
        else:
            self.once[key] = value
            if len(self.once) + len(self.often) > self.limit:
                # The newest entry is never the victim, even when all others were seen more than once.
                (self.once if len(self.once) > 1 else self.often or self.once).popitem(last=False)

    def pop(self, key: str) -> V | None:
        """Remove and return the value under `key`, or None."""
        value = self.once.pop(key, None)
        return self.often.pop(key, None) if value is None else value

    def __len__(self) -> int:
        return len(self.once) + len(self.often)

    def __iter__(self) -> Iterator[str]:
        yield from self.once
        yield from self.often
