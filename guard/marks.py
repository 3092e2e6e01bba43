"""Where a run stands: the numbers that every detector measures its counts against."""

from __future__ import annotations

from dataclasses import dataclass, field

from guard.call import Number
from guard.finding import ReasonCode


@dataclass(frozen=True, slots=True)
class Write:
    """A successful new write; it restarts all counts but its own from the next message on."""

    tool: str
    signature: str
    folded: str
    shape: str | None
    numbers: tuple[Number, ...]
    digest: str


@dataclass(slots=True)
class Marks:
    """Counters of one run. A count that was taken under an older `progress` number has been restarted since."""

    step: int = 0
    """Calls so far."""
    turn: int = 0
    """Model messages so far."""
    turn_key: str | int | None = None
    progress: int = 0
    """How often counting began anew: new writes, and resumes."""
    epoch: int = 0
    """How often the run was resumed."""
    resumed: bool = False
    """Since the last resume nothing new has happened: old signatures are refused at once."""
    writes: int = 0
    """Successful writes so far."""
    pending: list[Write] = field(default_factory=list)
    """New writes of the current message."""
    spoken: int = 0
    """Texts said to the model so far."""
    halts: int = 0
    halted: ReasonCode | None = None
    """Why the run stands still; None while it runs."""
    halted_tool: str | None = None
    cancelled: bool = False
    paused: bool = False
    incidents: dict[str, int] = field(default_factory=dict)
    """Halts so far by tool and reason."""
    escalated: list[str] = field(default_factory=list)
    """Tool and reason of what already escalated since the last resume."""
    approved: list[str] = field(default_factory=list)
    """Signatures that a person agreed to and that have not run yet."""

    @property
    def stands_still(self) -> bool:
        """Whether no call may run."""
        return self.halted is not None or self.cancelled or self.paused
