"""From "how often" to "what now": the only place that turns an occurrence into an action."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise


class GuardAction(Enum):
    """What the guard does with a call, from mildest to hardest."""

    ALLOW = "allow"
    WARN = "warn"
    """The call runs; guidance is appended to its result."""
    BLOCK = "block"
    """The call does not run; a synthetic error closes it."""
    HALT = "halt"
    """As block, and the turn ends. Everything learned is kept, and the run can be resumed."""

    severity: int
    """0 for allow to 3 for halt."""

    def __init__(self, value: str) -> None:
        self.severity = ("allow", "warn", "block", "halt").index(value)

    @property
    def refuses(self) -> bool:
        """Whether the call is kept from running."""
        return self is GuardAction.BLOCK or self is GuardAction.HALT


@dataclass(frozen=True, slots=True)
class Ladder:
    """The occurrence at which each step is reached, counted from 1; None leaves the step out."""

    warn_at: int | None
    block_at: int | None
    halt_at: int | None

    def __post_init__(self) -> None:
        rungs = [rung for rung in (self.warn_at, self.block_at, self.halt_at) if rung is not None]
        if not rungs or rungs[0] < 1 or any(low >= high for low, high in pairwise(rungs)):
            raise ValueError(f"a ladder climbs from 1 upwards, got {rungs}")

    def later(self, by: int) -> Ladder:
        """The same ladder with every step `by` occurrences later."""
        if not by:
            return self
        return Ladder(*(None if rung is None else rung + by for rung in (self.warn_at, self.block_at, self.halt_at)))


def action_for(ladder: Ladder, occurrence: int) -> GuardAction:
    """The action that `ladder` asks for at this occurrence; the first call is occurrence 1."""
    if ladder.halt_at is not None and occurrence >= ladder.halt_at:
        return GuardAction.HALT
    if ladder.block_at is not None and occurrence >= ladder.block_at:
        return GuardAction.BLOCK
    if ladder.warn_at is not None and occurrence >= ladder.warn_at:
        return GuardAction.WARN
    return GuardAction.ALLOW
