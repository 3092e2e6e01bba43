from __future__ import annotations

import itertools

import pytest

from guard import Decision, Effect, Guard, GuardPolicy, Language, Outcome, ReasonCode, ToolCall, ToolTraits
from guard.finding import Detector, Finding
from guard.guidance import Said, guidance, question
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


@pytest.mark.parametrize(
    ("call", "code", "mends"),
    [
        (ToolCall("look", args_raw='{"at": '), "BAD_JSON", ("one JSON object", "JSON object", "JSON 对象")),
        (ToolCall("look", {"where": 1}), "INVALID_ARGUMENTS", ("description", "which argument", "参数")),
        (ToolCall("lok", {"at": 1}), "UNKNOWN_TOOL", ("list of tools", "listed", "列表")),
    ],
    ids=["no JSON", "arguments that do not fit", "a tool that does not exist"],
)
@pytest.mark.parametrize("language", Language)
def test_a_call_that_was_written_wrongly_is_told_how_to_mend_it_each_time(
    call: ToolCall, code: str, mends: tuple[str, ...], language: Language
) -> None:
    guard, texts = Guard(GuardPolicy(language=language), tools=TOOLS), []
    for number in range(3):  # new arguments each time, where the arguments can be read at all
        tried = call if call.args is None else ToolCall(call.tool, {**_object(call.args), "n": "x" * number})
        decision = guard.before(tried)
        if decision.execute:
            decision = guard.after(tried, Outcome.failed(code, "it says why"))
        if decision.reason is not None:
            texts.append(decision.reason.text)
    assert len(texts) == 2
    assert all(any(mend in text for mend in mends) for text in texts)
    assert not any("already asked" in text or "Do something different" in text for text in texts)


def test_an_identical_call_whose_arguments_do_not_fit_is_told_how_to_mend_it() -> None:
    guard, call, texts = Guard(tools=TOOLS), ToolCall("look", {"where": 1}), []
    for _ in range(3):
        decision = guard.before(call)
        if decision.execute:
            decision = guard.after(call, Outcome.failed("INVALID_ARGUMENTS", "'at' is missing"))
        if decision.reason is not None:
            texts.append(decision.reason.text)
    assert ["description" in texts[0], "which argument" in texts[1]] == [True, True]
    assert "Not run." in texts[1]


def _object(args: object) -> dict[str, object]:
    assert isinstance(args, dict)
    return args


def test_a_spelling_variant_is_told_the_step_of_the_first_one() -> None:
    guard = Guard(tools=TOOLS)
    for spelling in ("Red tea", "red tea", "RED TEA", "red  tea"):
        call = ToolCall("look", {"at": spelling})
        decision = guard.before(call)
        if decision.execute:
            decision = guard.after(call, Outcome.ok("nothing"))
        if decision.reason is not None:
            assert "step 1" in decision.reason.text
    assert decision.action is GuardAction.BLOCK


def test_an_unbroken_run_is_not_told_that_nothing_changed() -> None:
    texts = [text for text in _texts(Guard(tools=TOOLS), 22) if "in a row" in text]
    assert len(texts) == 11
    assert not any("nothing changed" in text or "clock 0" in text for text in texts)


@pytest.mark.parametrize("language", Language)
@pytest.mark.parametrize("reason", ReasonCode)
@pytest.mark.parametrize("code", ["", "UNKNOWN_TOOL"])
def test_a_person_is_asked_one_plain_question(language: Language, reason: ReasonCode, code: str) -> None:
    finding = Finding(Detector.RULE, reason, 3, GuardAction.HALT)
    asked = question(finding, Said("look", 3, 1, code=code, detail="The picture is blank."), language)
    assert asked[-1] in "?？"
    assert "look" in asked or reason.value.endswith("_budget")
    assert not any(odd in asked for odd in ("..", ".。", "{", "_"))


def test_the_shipped_rule_speaks_the_language_of_the_policy() -> None:
    texts = {}
    for language in Language:
        guard = Guard(
            GuardPolicy(language=language),
            tools={"look": ToolTraits(Effect.READ_ONLY, group="vision")},
            facts={"text.tokens": 1},
        )
        for number in range(2):
            call = ToolCall("look", {"at": number})
            guard.before(call)
            guard.after(call, Outcome.failed(f"E{number}"))
        decision = guard.before(ToolCall("look", {"at": 3}))
        assert decision.reason is not None
        texts[language] = decision.reason.text
    assert "hardly any readable text" in texts[Language.ENGLISH]
    assert "picture" not in texts[Language.CHINESE]


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
