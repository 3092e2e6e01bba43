"""How large a reliability case is: small in `./dev test`, as its recipe says in `./dev chaos --cases`."""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

IS_FULL = os.environ.get("SLUICEGATE_CASES") == "full"


def sized(quick: T, full: T) -> T:
    """One of the two."""
    return full if IS_FULL else quick
