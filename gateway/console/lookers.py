"""Who else looks at a case just now: kept in this process's memory, forgotten after half a minute."""

from __future__ import annotations

import time
from collections import OrderedDict

_FORGOTTEN_S = 40.0
_MOST_CASES = 2_000


class Lookers:
    """Names by case. Only a courtesy: nothing is decided by it, and other API processes do not share it."""

    def __init__(self) -> None:
        self._seen: OrderedDict[str, dict[str, float]] = OrderedDict()

    def look(self, case_id: str, name: str) -> None:
        """This person has the case before them."""
        self._seen.setdefault(case_id, {})[name] = time.monotonic()
        self._seen.move_to_end(case_id)
        while len(self._seen) > _MOST_CASES:
            self._seen.popitem(last=False)

    def others(self, case_id: str, name: str) -> list[str]:
        """Who looks at it beside this person."""
        since = time.monotonic() - _FORGOTTEN_S
        return sorted(other for other, at in self._seen.get(case_id, {}).items() if other != name and at > since)
