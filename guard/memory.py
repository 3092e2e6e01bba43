"""Memory with an upper bound, so that an endless run costs no more than a long one."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedMap(Generic[V]):
    """A mapping from text that forgets beyond `limit` entries: the oldest of those put once, else the oldest of all.

    All operations take constant time.
    """

    __slots__ = ("_often", "_once", "_values", "get", "limit")

    get: Callable[[str], V | None]
    """The value under a key, or None."""

    def __init__(self, limit: int = 10_000, values: Iterable[tuple[str, V]] = (), once: Iterable[str] = ()) -> None:
        self.limit = limit
        self._values: dict[str, V] = dict(values)
        # Ordered dictionaries, because the first key of a plain one is slow to find when many before it are gone.
        self._once: OrderedDict[str, None] = OrderedDict.fromkeys(once)
        self._often: OrderedDict[str, None] = OrderedDict.fromkeys(k for k in self._values if k not in self._once)
        # The dictionary's own method: lookups are most of what the detectors do.
        self.get = self._values.get

    def put(self, key: str, value: V) -> None:
        """Store `value`; a second put under the same key marks it as seen more than once."""
        values = self._values
        if key in values:
            values[key] = value
            self.touch(key)
            return
        values[key] = value
        once = self._once
        once[key] = None
        if len(values) > self.limit:
            # The newest entry is never the victim, even when all others were seen more than once.
            oldest, _ = (once if len(once) > 1 or not self._often else self._often).popitem(last=False)
            del values[oldest]

    def touch(self, key: str) -> None:
        """Mark `key` as seen more than once, when its value was changed in place."""
        if key in self._once:
            del self._once[key]
            self._often[key] = None

    def pop(self, key: str) -> V | None:
        """Remove and return the value under `key`, or None."""
        if key not in self._values:
            return None
        if key in self._once:
            del self._once[key]
        else:
            del self._often[key]
        return self._values.pop(key)

    def items(self) -> Iterable[tuple[str, V]]:
        """All entries, those that will be forgotten last first."""
        values = self._values
        return [(key, values[key]) for keys in (self._often, self._once) for key in keys]

    def seen_once(self) -> Iterable[str]:
        """The keys that were put once, the oldest first."""
        return self._once

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)
