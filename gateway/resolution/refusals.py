"""Why a decision cannot be carried out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.escalation import Action


@dataclass(frozen=True, slots=True)
class WrongField:
    """One field of a decision that does not fit the case: a JSON pointer, a code, and what to send instead."""

    pointer: str
    code: str
    detail: str


class NotAllowed(Exception):
    """This cannot be decided on this case; `public` says why, `allowed` what can, `fields` what to change."""

    retryable = False

    def __init__(
        self,
        public: str,
        allowed: tuple[Action, ...] = (),
        *,
        code: str = "action_not_allowed",
        fields: Sequence[WrongField] = (),
    ) -> None:
        super().__init__(public)
        self.public = public
        self.allowed = allowed
        self.code = code
        self.fields = tuple(fields)


class ItemMoved(Exception):
    """The item is no longer waiting for this decision."""

    code = "escalation_withdrawn"
    retryable = False


def wrong_field(pointer: str, code: str, detail: str) -> NotAllowed:
    """A refusal of one field that does not fit the case."""
    return NotAllowed(
        f"The decision is not valid at {pointer}: {detail}",
        code="invalid_request",
        fields=[WrongField(pointer, code, detail)],
    )


def check_tools(names: Sequence[str], known: Sequence[str], *, pointer: str = "/ban_tools") -> None:
    """Raise for the first name that is no tool of the run; an empty `known` means that nobody knows them."""
    for place, name in enumerate(names):
        if known and name not in known:
            raise wrong_field(
                f"{pointer}/{place}",
                "unknown_tool",
                f"There is no tool {name[:64]!r} here; there are: {', '.join(known)}.",
            )
