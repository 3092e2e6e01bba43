"""What the guard did, for Prometheus: the same counters for our own agent and for agents that ask over HTTP."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from typing import Final

from gateway import metrics
from guard import Decision, Flag, Guard, GuardAction, Phase

MAX_NAMES: Final = 100
"""Different tools that one process tells apart; they are named by whoever opens a run."""

_MAX_CHARS: Final = 64
_UNKNOWN: Final = "unknown"
_OTHER: Final = "other"


class ToolNames:
    """Labels for tools: the first `limit` declared names are told apart, so that callers cannot make series without end."""

    def __init__(self, limit: int = MAX_NAMES) -> None:
        self._limit = limit
        self._names: set[str] = set()
        self._lock = threading.Lock()

    def label(self, tool: str, declared: Collection[str]) -> str:
        """The name, `other` beyond the limit, and `unknown` for a tool that the model made up."""
        if tool not in declared:
            return _UNKNOWN
        if tool in self._names:
            return tool
        with self._lock:
            if len(self._names) >= self._limit or len(tool) > _MAX_CHARS or not tool.isprintable():
                return _OTHER
            self._names.add(tool)
            return tool


_names = ToolNames()


def _action(decision: Decision) -> str:
    """What was done; in shadow mode `shadow_block` and the like, where it would have been something else than nothing."""
    would_be = decision.shadow_action
    if would_be is None or would_be is GuardAction.ALLOW:
        return str(decision.action.value)
    return f"shadow_{would_be.value}"


def count(decisions: Iterable[Decision], guard: Guard, declared: Collection[str]) -> None:
    """Count decisions that are committed. Calls that were not run are avoided calls.

    What one would have cost is not known; the mean of the run so far stands for it.
    """
    avoided = 0
    for decision in decisions:
        reason = "" if decision.reason is None else decision.reason.code.value
        tool = _names.label(decision.tool, declared)
        metrics.guard_decisions.labels(_action(decision), reason, tool).inc()
        avoided += decision.phase is Phase.BEFORE and not decision.execute and Flag.ENDED not in decision.flags
    if avoided:
        spent = guard.spent
        metrics.avoided_calls.inc(avoided)
        metrics.avoided_cost.inc(avoided * spent.cost / max(spent.steps, 1))
