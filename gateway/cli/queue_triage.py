"""Decide at a terminal: one case in one screen, a numbered choice, the next."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from types import FrameType
from typing import NoReturn

from gateway.cli import queue_desk as desk
from gateway.cli.queue_choices import Choice, NotUsable, choices_for, decision, suggested
from gateway.cli.queue_desk import Held
from gateway.cli.queue_screen import choice_line, empty_sentence, screen
from gateway.cli.remote import Refused, Remote
from gateway.cli.terminal import Output

UNDO_S = 8
"""How long a decision at the terminal can be taken back, as in the console."""
_STAYS_OURS = frozenset({400, 412, 422})
"""Refusals after which the case is still in one's hands, and another choice may be made."""
_LOST = 409


class End(Enum):
    """How a case was left."""

    DECIDED = "decided"
    SKIPPED = "skipped"


@dataclass(frozen=True, slots=True)
class Triage:
    """A reviewer at a terminal."""

    remote: Remote
    output: Output
    read_line: Callable[[str], str]
    """Prompts for a line; raises `EOFError`, `KeyboardInterrupt`."""
    lease_s: float

    def run(self, filters: Mapping[str, str], *, case_id: str | None, goes_on: bool) -> None:
        """Review one case, or all until none is left. Raises `RemoteError`, `KeyboardInterrupt`."""
        skipped: set[str] = set()
        while True:
            held = self._take(filters, case_id)
            if held is None or held.id in skipped:
                if held is not None:
                    desk.let_go(self.remote, held)
                    self.output.say("Only cases that you skipped are left.")
                return
            if self._review(held) is End.SKIPPED:
                skipped.add(held.id)
            if case_id is not None or not goes_on:
                return

    def _take(self, filters: Mapping[str, str], case_id: str | None) -> Held | None:
        if case_id is not None:
            return desk.claim(self.remote, case_id, self.lease_s)
        taken = desk.claim_next(self.remote, filters, self.lease_s)
        if isinstance(taken, Held):
            return taken
        if self.output.as_json:
            self.output.row(taken)
        self.output.say(empty_sentence(taken))
        return None

    def _review(self, held: Held) -> End:
        is_ours = True
        try:
            with desk.kept_alive(self.remote, held, self.lease_s, self.output.complain), _interrupted_by_signals():
                end = self._choose(held)
                is_ours = end is End.SKIPPED
                return end
        except Refused as error:
            is_ours = error.http_status != _LOST
            raise
        finally:
            if is_ours:
                desk.let_go(self.remote, held)

    def _choose(self, held: Held) -> End:
        packet = desk.read_case(self.remote, held.id)
        held = Held(packet.body, held.token, packet.etag, held.lease)
        choices = choices_for(held.case)
        hint = suggested(held.case, choices)
        self._show(screen(held.case, desk.read_item(self.remote, held.case), choices, hint, datetime.now(UTC)))
        while True:
            typed = self._ask("> ", at_end="s").strip().lower()
            if typed in {"s", "skip"}:
                return End.SKIPPED
            choice = next((one for one in choices if str(one.number) == typed), None)
            if choice is None:
                self._show([choice_line(choices, hint)])
                continue
            try:
                if self._sent(held, choice):
                    return End.DECIDED
            except NotUsable as error:
                self.output.complain(str(error))
            except Refused as error:
                if error.http_status not in _STAYS_OURS:
                    raise
                self.output.complain(error.public)
                packet = desk.read_case(self.remote, held.id)
                held = Held(packet.body, held.token, packet.etag, held.lease)

    def _sent(self, held: Held, choice: Choice) -> bool:
        made = decision(choice, held.case, lambda question: self._ask(f"{question}: "))
        if made is None:
            return False
        answer = desk.resolve(self.remote, held, made, key=desk.new_key(), undo_s=UNDO_S)
        if self.output.as_json:
            self.output.row(answer.body)
        hint = f" (undo {UNDO_S}s with `sluicegate queue undo`)" if answer.body.get("apply_at") else ""
        self.output.say(f"sent: {choice.label}{hint}")
        return True

    def _ask(self, prompt: str, at_end: str = "") -> str:
        """The line that was typed; `at_end` where no more lines come."""
        try:
            return self.read_line(prompt)
        except EOFError:
            return at_end

    def _show(self, lines: list[str]) -> None:
        for line in lines:
            self.output.progress.print(line, soft_wrap=True)


@contextmanager
def _interrupted_by_signals() -> Iterator[None]:
    """A terminal that is closed, or a polite end, is answered as Ctrl-C is: the case is given back."""
    before = {one: signal.signal(one, _interrupt) for one in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


def _interrupt(_number: int, _frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt
