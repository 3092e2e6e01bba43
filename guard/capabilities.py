"""Which tools a run may still reach."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from guard.finding import Detector, Finding, ReasonCode
from guard.ladder import action_for
from guard.marks import Marks
from guard.policy import GuardPolicy
from guard.streak import Streak, count, standing


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The tools of an agent, and what is left of them. A value: shrinking makes a new one."""

    tools: frozenset[str]
    closed: frozenset[str] = frozenset()

    def without(self, tools: Iterable[str]) -> Capabilities:
        """These capabilities with `tools` closed."""
        return Capabilities(self.tools, self.closed | frozenset(tools))

    def allows(self, tool: str) -> bool:
        """Whether the tool exists and is open."""
        return tool in self.tools and tool not in self.closed

    @property
    def open(self) -> frozenset[str]:
        """The tools that can still be called."""
        return self.tools - self.closed

    @property
    def is_text_only(self) -> bool:
        """Whether no tool is left."""
        return not self.open


@dataclass(slots=True)
class ClosedTools:
    """Tools that this run lost, and how often it asked for each all the same."""

    banned: list[str] = field(default_factory=list)
    """By a person; they stay closed over resumes."""
    fallen_back: list[str] = field(default_factory=list)
    """By the fallback after a halt; a resume opens them again."""
    asked: dict[str, Streak] = field(default_factory=dict)

    def names(self) -> tuple[str, ...]:
        """All closed tools, in the order in which they were closed."""
        if not self.banned and not self.fallen_back:
            return ()
        return tuple(dict.fromkeys([*self.banned, *self.fallen_back]))


def find(
    memory: ClosedTools, tool: str, marks: Marks, policy: GuardPolicy, *, is_spent: bool = False
) -> Finding | None:
    """Before a call: refuses a tool that is closed or has spent its own budget, and halts a model that keeps asking."""
    is_closed = tool in memory.banned or tool in memory.fallen_back
    if not is_closed and not is_spent:
        return None
    occurrence = standing(memory.asked.get(tool), marks) + 1
    action = action_for(policy.ladders.closed_tool, occurrence)
    if is_closed:
        return Finding(Detector.CONTROL, ReasonCode.TOOL_BANNED, occurrence, action)
    return Finding(Detector.BUDGET, ReasonCode.TOOL_BUDGET, occurrence, action)


def observe_refusal(memory: ClosedTools, tool: str, marks: Marks, step: int) -> None:
    """Fold in that the model asked for a closed tool."""
    count(memory.asked.setdefault(tool, Streak()), marks, step)
