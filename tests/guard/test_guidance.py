from __future__ import annotations

import itertools

import pytest

from guard import Decision, Effect, Guard, GuardPolicy, Language, Outcome, ReasonCode, ToolCall, ToolTraits
from guard.finding import Detector, Finding
from guard.guidance import Said, guidance
from guard.ladder import GuardAction
from guard.results import OWN_WORDS, normalise

TOOLS = {"look": ToolTraits(Effect.READ_ONLY)}


def _texts(guard: Guard, calls: int) -> list[str]:
    call, texts = ToolCall("look", {"at": "p1"}), []
    for number in range(calls):
        decision = guard.before(call)
        said = [decision]
        if decision.execute:
            said.append(guard.after(call, Outcome.ok(f"clock {number}")))
        texts += [d.reason.text for d in said if d.reason is not None]
    return texts


@pytest.mark.parametrize("language", Language)
def test_the_model_never_reads_the_same_words_twice_in_a_row(language: Language) -> None:
    texts = _texts(Guard(GuardPolicy(language=language), tools=TOOLS), 22)
    assert len(texts) > 8
    words = ["".join(c for c in text if not c.isdigit()) for text in texts]
    assert all(one != other for one, other in itertools.pairwise(words))


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("reason", ReasonCode)
@pytest.mark.parametrize("action", GuardAction)
def test_every_text_is_one_short_line_in_both_wordings(
    language: Language, reason: ReasonCode, action: GuardAction
) -> None:
    finding = Finding(Detector.REPEAT, reason, 3, action)
    said = Said("ocr_extract", 3, 1, "confidence {0.12}", "LOW_CONFIDENCE", "A reason.", 2)
    texts = {guidance(finding, action, said, language, spoken, done=False) for spoken in (0, 1, 2)}
    assert len(texts) == 2
    for text in texts:
        assert text.startswith(OWN_WORDS)
        assert "\n" not in text
        assert len(text) < 400
        assert normalise(f"result\n{text}") == "result"


def _blocked() -> Decision:
    guard = Guard(tools=TOOLS)
    call = ToolCall("look", {"at": "p1"})
    for _ in range(2):
        guard.before(call)
        guard.after(call, Outcome.ok("two words"))
    return guard.before(call)


def test_a_refusal_says_what_was_tried_what_came_of_it_how_often_and_what_to_do() -> None:
    decision = _blocked()
    assert decision.tool_result is not None
    text = decision.tool_result.text
    for part in ("look", "step 1", "two words", "3"):
        assert part in text


def test_a_decision_explains_which_detector_saw_what() -> None:
    seen = {finding.detector: finding.occurrence for finding in _blocked().explanation}
    assert seen[Detector.REPEAT] == 3
    assert seen[Detector.FOLDING] == 3
    assert seen[Detector.RUN] == 3


def test_guidance_that_comes_back_in_a_result_does_not_make_it_new() -> None:
    guard = Guard(tools=TOOLS)
    call = ToolCall("look", {"at": "p1"})
    guard.before(call)
    guard.after(call, Outcome.ok("text"))
    guard.before(call)
    decision = guard.after(call, Outcome.ok("text\n[guard] This was said."))
    assert decision.action is GuardAction.WARN
