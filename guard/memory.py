"""Memory with an upper bound, so that an endless run costs no more than a long one."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator
from typing import Generic, TypeVar

V = TypeVar("V")


class BoundedMap(Generic[V]):
    """A mapping from text that forgets beyond `limit` entries: the oldest of those put once, else the oldest of all.

    All operations but `pop` take constant time, spread over many of them.
    """

    __slots__ = ("_in_order", "_often", "_values", "get", "limit")

    get: Callable[[str], V | None]
    """The value under a key, or None."""

    def __init__(self, limit: int = 10_000, values: Iterable[tuple[str, V]] = (), once: Iterable[str] = ()) -> None:
        self.limit = limit
        self._values: dict[str, V] = dict(values)
        # In the order of their first put; those in `_often` are left in it until they reach its head. Most keys are put
        # once, and a queue costs them less than a second dictionary.
        self._in_order: deque[str] = deque(once)
        once = frozenset(self._in_order)
        # Ordered, because the first key of a plain dictionary is slow to find when many before it are gone.
        self._often: OrderedDict[str, None] = OrderedDict.fromkeys(k for k in self._values if k not in once)
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
        self._in_order.append(key)
        if len(values) > self.limit:
            del values[self._oldest()]

    def _oldest(self) -> str:
        """Take out the key to forget: never the newest, even when all others were seen more than once."""
        in_order, often = self._in_order, self._often
        if len(often) >= len(self._values) - 1 and often:
            newest = in_order.pop()
            in_order.clear()
            in_order.append(newest)
            return often.popitem(last=False)[0]
        while (key := in_order.popleft()) in often:
            pass
        return key

    def touch(self, key: str) -> None:
        """Mark `key` as seen more than once, when its value was changed in place."""
        if key not in self._often and key in self._values:
            self._often[key] = None

    def pop(self, key: str) -> V | None:
        """Remove and return the value under `key`, or None."""
        if key not in self._values:
            return None
        self._often.pop(key, None)
        if key in self._in_order:
            self._in_order.remove(key)
        return self._values.pop(key)

    def items(self) -> Iterable[tuple[str, V]]:
        """All entries, those that will be forgotten last first."""
        values = self._values
        return [(key, values[key]) for keys in (self._often, self.seen_once()) for key in keys]

    def seen_once(self) -> Iterable[str]:
        """The keys that were put once, the oldest first."""
        return [key for key in self._in_order if key not in self._often]

    def __len__(self) -> int:
        return len(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)
