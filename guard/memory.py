"""Memory with an upper bound, so that an endless run costs no more than a long one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedMap(Generic[V]):
    """A mapping from text that forgets beyond `limit` entries: first the oldest that were put once, then the oldest.

    All operations take constant time.
    """

    __slots__ = ("_once", "_values", "get", "limit")

    get: Callable[[str], V | None]
    """The value under a key, or None."""

    def __init__(self, limit: int = 10_000, values: Iterable[tuple[str, V]] = (), once: Iterable[str] = ()) -> None:
        self.limit = limit
        self._values: OrderedDict[str, V] = OrderedDict(values)
        self._once: OrderedDict[str, None] = OrderedDict.fromkeys(once)
        # The dictionary's own method: lookups are most of what the detectors do.
        self.get = self._values.get

    def put(self, key: str, value: V) -> None:
        """Store `value`; a second put under the same key marks it as seen more than once."""
        values, once = self._values, self._once
        if key in values:
            values[key] = value
            if key in once:
                del once[key]
            return
        values[key] = value
        once[key] = None
        if len(values) > self.limit:
            # The newest entry is never the victim, even when all others were seen more than once.
            if len(self._once) > 1:
                oldest, _ = self._once.popitem(last=False)
                del self._values[oldest]
            else:
                self._values.popitem(last=False)

    def pop(self, key: str) -> V | None:
        """Remove and return the value under `key`, or None."""
        if key not in self._values:
            return None
        self._once.pop(key, None)
        return self._values.pop(key)

    def items(self) -> Iterable[tuple[str, V]]:
        """All entries, the oldest first."""
        return self._values.items()

    def seen_once(self) -> Iterable[str]:
        """The keys that were put once, the oldest first."""
        return self._once

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)
