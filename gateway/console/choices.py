"""What a reviewer may choose: a number, a button that states the consequence, and the fields that it needs."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from gateway.console.words import Say


@dataclass(frozen=True, slots=True)
class Choice:
    """One way on. `value` is what the form sends."""

    value: str
    action: str
    """The action of the API that it stands for."""
    label: str
    """The consequence, in a few words."""
    hint: str
    submit: str
    needs: str | None = None
    """The piece of the form that it opens; None where it needs nothing."""
    key: str | None = None
    is_final: bool = False
    """Whether the submitter hears of it at once."""


_ORDER = (
    Choice(
        "text_only", "reroute", "Write copy from text only", "No more image calls; a new attempt begins now.",
        "Write copy from text only", "advice_optional", key="1",
    ),
    Choice(
        "resume", "resume", "Go on with my advice", "The same run continues; finished calls are not made again.",
        "Let the agent go on with this advice", "advice", key="2",
    ),
    Choice(
        "answer_item", "answer_item", "Write the copy myself", "Your copy becomes the item's result.",
        "Use this copy as the result", "copy", key="3",
    ),
    Choice(
        "ask_submitter", "ask_submitter", "Ask for a new photo", "The clock stops until the submitter answers.",
        "Ask the submitter", "question", key="4",
    ),
    Choice(
        "reject_item", "reject_item", "Reject the item", "The submitter gets your friendly text.",
        "Reject and tell the submitter", "message", key="5", is_final=True,
    ),
    Choice(
        "dismiss", "dismiss", "False alarm", "The agent goes on; this call's count starts again.",
        "It was a false alarm: go on", None, key="6",
    ),
    Choice(
        "answer_tool", "answer_tool", "Answer for the tool", "The agent gets your text as the result; the tool is not run.",
        "Give this answer to the agent", "result",
    ),
    Choice(
        "approve_call", "approve_call", "Let the call run", "The held call is made as it stands, once.",
        "Let this call run", None,
    ),
    Choice(
        "edit_call", "edit_call", "Run an edited call", "The guard judges your version again before it runs.",
        "Run my version of the call", "call",
    ),
    Choice(
        "deny_call", "deny_call", "Refuse the call", "The call is never made; the agent is told why.",
        "Refuse this call", "message",
    ),
    Choice(
        "single_look", "reroute", "One look, no tools", "One request with the picture, then copy.",
        "Write copy from one look", "advice_optional",
    ),
    Choice(
        "agent", "reroute", "Start over with the agent", "A new attempt with all tools that you leave open.",
        "Start over with the agent", "advice_optional",
    ),
    Choice("retry", "retry", "Try the same again", "A new attempt on the same way.", "Try the same way again", "reason"),
    Choice(
        "close", "close", "End the run here", "Whoever runs the agent gets your message.", "End this run", "message_optional",
        key="5", is_final=True,
    ),
)  # fmt: skip

_BY_VALUE = {choice.value: choice for choice in _ORDER}


def choices_for(allowed: Collection[str], say: Say) -> list[Choice]:
    """Those that are possible, in the order of their numbers, in the reader's language."""
    return [_spoken(choice, say) for choice in _ORDER if choice.action in allowed]


def known(value: str) -> Choice | None:
    """The choice that a form sends; None for no choice of ours."""
    return _BY_VALUE.get(value)


def name_of(action: str | None, route: str | None, say: Say) -> str:
    """A decision that was taken, in two or three words."""
    value = route if action == "reroute" and route in _BY_VALUE else action
    choice = _BY_VALUE.get(value or "")
    return say(choice.label) if choice is not None else (action or "–").replace("_", " ")


def _spoken(choice: Choice, say: Say) -> Choice:
    return Choice(
        choice.value,
        choice.action,
        say(choice.label),
        say(choice.hint),
        say(choice.submit),
        choice.needs,
        choice.key,
        choice.is_final,
    )


def split(choices: Collection[Choice]) -> tuple[list[Choice], list[Choice]]:
    """Those with a number, and the others."""
    numbered: Iterator[Choice] = (choice for choice in choices if choice.key is not None)
    return list(numbered), [choice for choice in choices if choice.key is None]
