"""Counting in a row when one model message counts once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from guard.marks import Marks

MAX_EVIDENCE: Final = 8


@dataclass(slots=True)
class Streak:
    """A count of messages in a row; whatever restarts it does so from the next message on."""

    progress: int = 0
    turn: int = -1
    carried: int = 0
    """The count before message `turn`."""
    hit: bool = False
    """Message `turn` counts."""
    restart: int | None = None
    """The count after message `turn`, when something in it restarted the row."""
    steps: tuple[int, ...] = ()
    """The latest steps that were counted."""


def standing(streak: Streak | None, marks: Marks) -> int:
    """The count without the current message."""
    if streak is None or streak.progress != marks.progress:
        return 0
    if streak.turn == marks.turn:
        return streak.carried
    return streak.carried + streak.hit if streak.restart is None else streak.restart


def count(streak: Streak, marks: Marks, step: int) -> None:
    """The current message is one more in the row."""
    if streak.turn != marks.turn or streak.progress != marks.progress:
        _open(streak, marks)
    streak.hit = True
    streak.steps = (*streak.steps[1 - MAX_EVIDENCE :], step)


def restart(streak: Streak, marks: Marks, at: int) -> None:
    """The row begins anew with the next message, which follows a count of `at`."""
    if streak.turn != marks.turn or streak.progress != marks.progress:
        _open(streak, marks)
    streak.restart = at


def forget(streak: Streak, marks: Marks) -> None:
    """The row begins anew at once."""
    streak.progress, streak.turn, streak.carried, streak.hit, streak.restart = (
        marks.progress,
        marks.turn,
        0,
        False,
        None,
    )
    streak.steps = ()


def _open(streak: Streak, marks: Marks) -> None:
    """Begin the current message."""
    streak.carried = standing(streak, marks)
    if streak.carried == 0:
        streak.steps = ()
    streak.progress = marks.progress
    streak.turn = marks.turn
    streak.hit = False
    streak.restart = None
