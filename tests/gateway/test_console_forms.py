"""What reviewers write into the console's forms becomes a decision of the API, or a sentence that says what stands against it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from gateway.console import notices
from gateway.console.decisions import FormProblem, decision_of
from gateway.console.visit import Visit
from gateway.console.words import speaker
from gateway.escalation import EscalationRecord, EscalationStatus
from gateway.review.errors import AlreadyClaimed

CASE = cast(EscalationRecord, SimpleNamespace(packet={"open_calls": [{"call_id": "call_1"}]}))


def decided(choice: str, **fields: str) -> Any:
    return decision_of({"choice": choice, **fields}, [], CASE, "token", speaker("en"))


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ('{"size": "10 cm"}', {"size": "10 cm"}),
        ("10 cm", "10 cm"),
        ('{"size": NaN}', '{"size": NaN}'),
        (r'{"size": "\ud800"}', r'{"size": "\ud800"}'),
        (r'"\u0000"', r'"\u0000"'),
        ("[" * 2000, "[" * 2000),
    ],
)
def test_answer_for_a_tool_is_json_that_can_be_kept_or_else_text(text: str, result: Any) -> None:
    assert decided("answer_tool", result=text).result == result


@pytest.mark.parametrize("text", ["{", "[1]", '{"size": NaN}', r'{"size": "\ud800"}', '{"a": 1, "a": 2}', "[" * 2000])
def test_arguments_that_cannot_be_kept_are_refused_with_the_reason(text: str) -> None:
    with pytest.raises(FormProblem, match=r"arguments"):
        decided("edit_call", call_args=text)


def test_case_that_waits_for_its_submitter_is_not_said_to_be_in_somebodys_hands() -> None:
    waits = SimpleNamespace(
        status=EscalationStatus.WAITING_SUBMITTER, holder="person:li", lease_expires_ms=None,
        resolution={"action": "ask_submitter", "question": "What size is it?"},
    )  # fmt: skip
    visit = cast(Visit, SimpleNamespace(say=speaker("en")))
    notice = notices.refused(AlreadyClaimed(cast(EscalationRecord, waits)), visit)
    assert (notice.title, notice.detail) == ("The submitter was asked.", "What size is it?")
