"""Rules: what they decide, what is refused when they are loaded, and how they explain themselves."""

from __future__ import annotations

import os
import textwrap
import threading
from pathlib import Path

import pytest

from prefilters import (
    CheckOutcome,
    DecodeLimits,
    Effect,
    Next,
    RuleSet,
    RuleSetInvalid,
    RuleSource,
    Stage,
    VerdictKind,
    evaluate,
    load_rules,
)
from prefilters.facts import FACT_BY_NAME, FactValue
from prefilters.rules.codes import NOTING_CODES, REFUSING_CODES, ROUTING_CODES
from prefilters.rules.loader import parse_rules

SNIFFED: dict[str, FactValue] = {
    "file.bytes": 50_000,
    "media.kind": "image",
    "media.format": "jpeg",
    "media.supported": True,
    "media.type_mismatch": False,
}
HEADER: dict[str, FactValue] = SNIFFED | {
    "image.width": 1200,
    "image.height": 900,
    "image.short_side": 900,
    "image.long_side": 1200,
    "image.pixels": 1_080_000,
    "image.aspect": 4 / 3,
    "image.frames": 1,
    "image.animated": False,
}
PHOTO: dict[str, FactValue] = HEADER | {
    "decode.status": "ok",
    "image.sharpness": 0.6,
    "image.featureless": False,
    "image.brightness": 0.5,
    "image.contrast": 0.8,
    "image.blank": False,
    "image.near_complete": False,
    "text.tokens": 12,
    "text.unread": 0,
}
PDF: dict[str, FactValue] = SNIFFED | {
    "media.kind": "pdf",
    "media.format": "pdf",
    "decode.status": "ok",
    "pdf.pages": 3,
    "pdf.page_side_pt": 842.0,
    "pdf.encrypted": False,
    "pdf.owner_password": False,
    "pdf.repaired": False,
    "pdf.active_content": False,
    "text.tokens": 200,
    "text.unread": 0,
    "text.hidden": False,
}
SPEECH: dict[str, FactValue] = SNIFFED | {
    "media.kind": "audio",
    "media.format": "mp3",
    "decode.status": "ok",
    "audio.duration_s": 9.0,
    "audio.declared_s": 9.0,
    "audio.peak_dbfs": -6.0,
    "audio.cut": False,
    "audio.speech_s": 7.0,
}

ACCEPT = "accept"
CASES: list[tuple[dict[str, FactValue], dict[str, FactValue], str, tuple[str, ...]]] = [
    (PHOTO, {}, ACCEPT, ()),
    (PDF, {}, ACCEPT, ()),
    (SPEECH, {}, ACCEPT, ("no_transcriber",)),
    (PHOTO, {"file.bytes": 0}, "reject:empty", ()),
    (PHOTO, {"file.bytes": 26_214_401}, "reject:too_large", ()),
    (PHOTO, {"file.bytes": 26_214_400}, ACCEPT, ()),
    (PHOTO, {"media.supported": False, "media.format": "zip", "media.kind": "other"}, "reject:unsupported_type", ()),
    (PHOTO, {"media.supported": False, "media.format": "unknown"}, "reject:unsupported_type", ()),
    (PHOTO, {"media.type_mismatch": True}, ACCEPT, ("type_mismatch",)),
    (PHOTO, {"decode.status": "empty"}, "reject:empty", ()),
    (PHOTO, {"decode.status": "corrupt"}, "reject:corrupt", ()),
    (PHOTO, {"decode.status": "truncated"}, "reject:corrupt", ()),
    (PHOTO, {"decode.status": "encrypted"}, "reject:encrypted", ()),
    (PHOTO, {"decode.status": "no_audio"}, "reject:no_audio", ()),
    (PHOTO, {"decode.status": "timeout"}, "reject:timeout", ()),
    (PHOTO, {"decode.status": "resource_limit"}, "reject:resource_limit", ()),
    (PHOTO, {"image.pixels": 50_000_001}, "reject:too_many_pixels", ()),
    (PHOTO, {"image.short_side": 63}, "reject:low_resolution", ()),
    (PHOTO, {"image.short_side": 64}, ACCEPT, ("small",)),
    (PHOTO, {"image.short_side": 200}, ACCEPT, ()),
    (PHOTO, {"image.pixels": 16_383}, "reject:low_resolution", ()),
    (PHOTO, {"image.pixels": 16_384}, ACCEPT, ()),
    (PHOTO, {"image.aspect": 100.1}, "reject:extreme_aspect", ()),
    (PHOTO, {"image.frames": 201, "image.animated": True}, "reject:too_many_frames", ()),
    (PHOTO, {"image.frames": 200, "image.animated": True}, ACCEPT, ("animated",)),
    (PHOTO, {"image.near_complete": True}, ACCEPT, ("repairable_damage",)),
    (PHOTO, {"image.brightness": 0.1}, ACCEPT, ("dark",)),
    (PHOTO, {"image.brightness": 0.95, "image.contrast": 0.1}, ACCEPT, ("light",)),
    (PHOTO, {"image.brightness": 0.95, "image.contrast": 0.6}, ACCEPT, ()),
    (PHOTO, {"image.blank": True, "image.brightness": 0.0}, ACCEPT, ("blank",)),
    (PHOTO, {"image.sharpness": 0.29}, "text_only:very_blurry", ()),
    (PHOTO, {"image.sharpness": 0.30}, ACCEPT, ("blurry",)),
    (PHOTO, {"image.sharpness": 0.36}, ACCEPT, ("soft",)),
    (PHOTO, {"image.sharpness": 0.45}, ACCEPT, ()),
    (PHOTO, {"text.tokens": 3}, "text_only:sparse_text", ()),
    (PHOTO, {"text.tokens": 4}, ACCEPT, ()),
    (PHOTO, {"text.tokens": 3, "text.unread": 1}, "text_only:sparse_text", ()),
    (PHOTO, {"text.tokens": 3, "text.unread": 2}, "text_only:unread_text", ()),
    (PHOTO, {"text.tokens": 40, "text.unread": 2}, ACCEPT, ()),
    (PDF, {"pdf.encrypted": True}, "reject:encrypted", ()),
    (PDF, {"pdf.pages": 0}, "reject:empty", ()),
    (PDF, {"pdf.pages": 201}, "reject:too_many_pages", ()),
    (PDF, {"pdf.page_side_pt": 14_401.0}, "reject:too_many_pixels", ()),
    (PDF, {"pdf.owner_password": True}, ACCEPT, ("owner_password",)),
    (PDF, {"pdf.repaired": True}, ACCEPT, ("repairable_damage",)),
    (PDF, {"pdf.active_content": True}, ACCEPT, ("active_content",)),
    (PDF, {"text.hidden": True}, ACCEPT, ("hidden_text",)),
    (PDF, {"text.tokens": 0, "text.hidden": True}, "text_only:sparse_text", ("hidden_text",)),
    (SPEECH, {"audio.duration_s": 0.1}, "reject:too_short", ()),
    (SPEECH, {"audio.duration_s": 7200.1}, "reject:too_long", ()),
    (SPEECH, {"audio.declared_s": 9000.0}, "reject:too_long", ()),
    (SPEECH, {"audio.declared_s": 1e9}, ACCEPT, ("no_transcriber",)),
    (SPEECH, {"audio.peak_dbfs": -60.0}, "reject:silent", ()),
    (SPEECH, {"audio.cut": True}, ACCEPT, ("repairable_damage", "no_transcriber")),
    (SPEECH, {"audio.speech_s": 0.0}, "text_only:sparse_text", ()),
    (SPEECH, {"text.tokens": 1, "text.unread": 0}, "text_only:sparse_text", ()),
]


@pytest.mark.parametrize(
    ("base", "changes", "expected", "notes"),
    CASES,
    ids=[f"{case[0]['media.kind']} {case[1] or 'fine'} {case[2]}" for case in CASES],
)
def test_shipped_rules(
    shipped_rules: RuleSet,
    base: dict[str, FactValue],
    changes: dict[str, FactValue],
    expected: str,
    notes: tuple[str, ...],
) -> None:
    verdict = evaluate(base | changes, shipped_rules, through=Stage.TEXT)
    got = verdict.kind.value if verdict.code is None else f"{verdict.kind.value}:{verdict.code}"
    assert (got, verdict.notes) == (expected, notes)
    assert verdict.decided


def test_every_file_verdict_code_that_facts_can_tell_has_a_rule(shipped_rules: RuleSet) -> None:
    # `rule` is for rules of a user's own; the other two are told by whoever sees all files of an item, or a profile.
    untold = {"rule", "duplicate_file", "marketplace_minimum"}
    assert {rule.code for rule in shipped_rules.rules} == (REFUSING_CODES | ROUTING_CODES | NOTING_CODES) - untold


def test_profile_may_ask_for_a_single_look(shipped_rules: RuleSet) -> None:
    rules = shipped_rules.with_parameters({"sparse_text": "single_look"})
    for unread, code in ((0, "sparse_text"), (2, "unread_text")):
        verdict = evaluate(PHOTO | {"text.tokens": 0, "text.unread": unread}, rules, through=Stage.TEXT)
        assert (verdict.kind, verdict.code) == (VerdictKind.SINGLE_LOOK, code)


def test_verdict_explains_itself(shipped_rules: RuleSet) -> None:
    verdict = evaluate(HEADER | {"image.short_side": 40}, shipped_rules, through=Stage.HEADER)
    assert verdict.rule == "edge.low_resolution.short_side"
    assert verdict.measured == {"image.short_side": 40}
    assert verdict.limit == {"image.short_side": 64}
    assert verdict.next is Next.FIX_INPUT
    assert verdict.ruleset == shipped_rules.version
    assert verdict.checks[-1].passes_when == "image.short_side >= 64"
    assert verdict.checks[-1].outcome is CheckOutcome.FAIL


def test_time_out_asks_the_caller_to_try_again(shipped_rules: RuleSet) -> None:
    verdict = evaluate(HEADER | {"decode.status": "timeout"}, shipped_rules, through=Stage.PIXELS)
    assert verdict.next is Next.RETRY


def test_missing_fact_is_unknown_and_does_not_match(shipped_rules: RuleSet) -> None:
    facts = {name: value for name, value in PHOTO.items() if name not in ("image.sharpness", "text.tokens")}
    verdict = evaluate(facts, shipped_rules, through=Stage.TEXT)
    outcomes = {check.rule: check.outcome for check in verdict.checks}
    assert verdict.kind is VerdictKind.ACCEPT
    assert outcomes["edge.very_blurry"] is CheckOutcome.UNKNOWN
    assert outcomes["edge.sparse_text"] is CheckOutcome.UNKNOWN
    assert outcomes["edge.small"] is CheckOutcome.PASS


def test_fact_of_a_wrong_type_never_matches(shipped_rules: RuleSet) -> None:
    verdict = evaluate(HEADER | {"image.short_side": "tiny"}, shipped_rules, through=Stage.HEADER)
    assert verdict.kind is VerdictKind.ACCEPT


def test_nothing_is_decided_while_later_rules_may_match(shipped_rules: RuleSet) -> None:
    assert not evaluate(PHOTO, shipped_rules, through=Stage.PIXELS).decided
    assert evaluate(PHOTO, shipped_rules, through=Stage.TEXT).decided


def test_rules_of_later_stages_are_not_asked(shipped_rules: RuleSet) -> None:
    verdict = evaluate(PHOTO | {"text.tokens": 0}, shipped_rules, through=Stage.HEADER)
    assert verdict.kind is VerdictKind.ACCEPT
    assert all(check.stage <= Stage.HEADER for check in verdict.checks)


def test_same_facts_and_rules_give_the_same_verdict(shipped_rules: RuleSet) -> None:
    assert evaluate(PHOTO, shipped_rules, through=Stage.TEXT) == evaluate(PHOTO, load_rules(), through=Stage.TEXT)


def test_many_threads_may_judge_at_once(shipped_rules: RuleSet) -> None:
    wrong: list[VerdictKind] = []

    def judge() -> None:
        for tokens in [0, 9] * 100:
            kind = evaluate(PHOTO | {"text.tokens": tokens}, shipped_rules, through=Stage.TEXT).kind
            if kind is not (VerdictKind.ACCEPT if tokens else VerdictKind.TEXT_ONLY):
                wrong.append(kind)

    threads = [threading.Thread(target=judge) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


# --- parameters and versions ---


def test_shipped_parameters_are_the_decode_limits_defaults(shipped_rules: RuleSet) -> None:
    assert shipped_rules.with_limits(DecodeLimits()).parameters == shipped_rules.parameters


def test_limits_of_a_profile_become_parameters(shipped_rules: RuleSet) -> None:
    rules = shipped_rules.with_limits(DecodeLimits(min_short_side=500))
    assert evaluate(HEADER | {"image.short_side": 400}, rules, through=Stage.HEADER).code == "low_resolution"


def test_version_changes_with_rules_and_parameters_and_not_with_comments(shipped_rules: RuleSet) -> None:
    raw = (Path(__file__).parents[2] / "prefilters/rules/edge.yaml").read_bytes()
    assert shipped_rules.version.startswith("rs_")
    assert parse_rules(raw + b"\n# a comment\n", name="x").version == shipped_rules.version
    assert (
        parse_rules(raw.replace(b"min_short_side: 64", b"min_short_side: 65"), name="x").version
        != shipped_rules.version
    )
    changed = shipped_rules.with_parameters({"min_short_side": 100})
    assert changed.version != shipped_rules.version
    assert changed.with_parameters({"min_short_side": 64}).version == shipped_rules.version


def test_whole_number_stands_for_a_float_parameter(shipped_rules: RuleSet) -> None:
    assert shipped_rules.with_parameters({"max_aspect": 5}).parameters["max_aspect"] == 5.0


@pytest.mark.parametrize(
    ("overrides", "complaint"),
    [
        ({"min_shrt_side": 64}, "unknown parameter 'min_shrt_side'"),
        ({"min_short_side": 64.5}, "must be int"),
        ({"min_short_side": True}, "must be int"),
        ({"max_aspect": float("nan")}, "finite"),
        ({"sparse_text": "maybe"}, "one of text_only, single_look"),
        ({"has_transcriber": "yes"}, "must be bool"),
    ],
)
def test_wrong_override_is_refused(shipped_rules: RuleSet, overrides: dict[str, FactValue], complaint: str) -> None:
    with pytest.raises(RuleSetInvalid, match=complaint):
        shipped_rules.with_parameters(overrides)


# --- what is refused at load ---

GOOD = textwrap.dedent("""\
    parameters:
      least: 10
    rules:
      - id: mine.small
        stage: header
        when: image.width < param.least
        effect: reject
        code: rule
        compares: image.width >= param.least
        reason: Because.
        since: 1.0.0
    """)


def load(text: str | bytes) -> RuleSet:
    return parse_rules(text if isinstance(text, bytes) else text.encode(), name="mine.yaml")


def test_small_rule_file_works() -> None:
    rules = load(GOOD)
    assert evaluate({"image.width": 9}, rules, through=Stage.HEADER).kind is VerdictKind.REJECT
    assert rules.rules[0].effect is Effect.REJECT


REFUSED = {
    "misspelt fact": ("image.width < param", "image.widht < param",
        r"mine.yaml:6: rule mine.small: .*'image.widht'; did you mean 'image.width'"),
    "misspelt parameter": ("< param.least", "< param.lest", r"mine.yaml:6: rule mine.small: .*did you mean 'param.least'"),
    "wrong type": ("image.width < param.least", "image.width < 'ten'", r"mine.yaml:6: rule mine.small: .*no matching overload"),
    "int against float": ("image.width < param.least", "image.width < 1.5", "no matching overload"),
    "no truth value": ("image.width < param.least", "image.width", "gives int, not true or false"),
    "syntax": ("image.width < param.least", "image.width <", "mine.yaml:6: .*Syntax error"),
    "unknown stage": ("stage: header", "stage: heder", "mine.yaml:5: rule mine.small: no stage 'heder'"),
    "fact of a later stage": ("stage: header", "stage: sniff", "image.width is known at stage header at the earliest"),
    "unknown effect": ("effect: reject", "effect: destroy", "mine.yaml:7: rule mine.small: no effect 'destroy'"),
    "unknown code": ("code: rule", "code: too_ugly", "mine.yaml:8: rule mine.small: no code 'too_ugly'"),
    "code of another effect": ("code: rule", "code: blurry", "no code 'blurry' for the effect 'reject'"),
    "missing reason": ("    reason: Because.\n", "", "rule mine.small: 'reason' is missing"),
    "empty reason": ("reason: Because.", "reason: ''", "'reason' is missing"),
    "unknown key": ("    since: 1.0.0", "    since: 1.0.0\n    when_not: x",
        "mine.yaml:12: rule mine.small: unknown key 'when_not'"),
    "key twice": ("    since: 1.0.0", "    since: 1.0.0\n    since: 2.0.0", "'since' stands here twice"),
    "compares nonsense": ("compares: image.width >= param.least", "compares: wide enough",
        "mine.yaml:9: .*must read like"),
    "compares unknown fact": ("compares: image.width", "compares: image.wide",
        "no fact 'image.wide'; did you mean 'image.width'"),
    "compares other types": ("compares: image.width >= param.least", "compares: image.width >= 0.5",
        "its limit 0.5 is not"),
    "top-level key": ("parameters:", "paramters:", "mine.yaml:2: unknown key 'paramters'"),
    "tab": ("  least: 10", "\tleast: 10", "mine.yaml:2"),
    "list as parameter": ("least: 10", "least: [1]", "parameter 'least' must be"),
    "not a number": ("least: 10", "least: .nan", "parameter 'least' must be"),
    "half written": ("        code: rule", "        code: [", "mine.yaml"),
    "next": ("    since: 1.0.0", "    since: 1.0.0\n    next: pray", "no next 'pray'; one of fix_input, retry, person"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_broken_rule_is_refused_with_file_line_and_rule(name: str) -> None:
    old, new, complaint = REFUSED[name]
    text = GOOD.replace(old, new) if old in GOOD else GOOD.replace(old.strip(), new.strip())
    assert text != GOOD
    with pytest.raises(RuleSetInvalid, match=complaint):
        load(text)


def test_all_problems_are_told_at_once() -> None:
    broken = GOOD.replace("stage: header", "stage: heder").replace("effect: reject", "effect: destroy")
    with pytest.raises(RuleSetInvalid) as caught:
        load(broken)
    assert len(caught.value.problems) == 2


def test_rules_must_stand_by_stage_and_under_names_of_their_own() -> None:
    second = GOOD.split("rules:\n")[1]
    with pytest.raises(RuleSetInvalid, match="this id stands here twice"):
        load(GOOD + second)
    early = second.replace("mine.small", "mine.early").replace("header", "sniff").replace("image.width", "file.bytes")
    with pytest.raises(RuleSetInvalid, match=r"rule mine\.early: a rule of stage sniff stands behind a later stage's"):
        load(GOOD + early)


HOSTILE: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)),
    "10 MB": b"# " + b"x" * 10_000_000,
    "alias bomb": b"a: &a [x, x]\nb: &b [*a, *a]\nrules: [*b, *b]\n",
    "deep": b"[" * 50_000,
    "a date": b"parameters: {day: 2026-11-30}\nrules: []\n",
    "python object": b"rules: [!!python/object/apply:os.system [true]]\n",
    "list": b"- 1\n",
    "rules as text": b"rules: all of them\n",
    "endless condition": GOOD.replace("image.width < param.least", "true || " * 1_000 + "true").encode(),
    "deep condition": GOOD.replace("image.width < param.least", "(" * 900 + "true" + ")" * 900).encode(),
    "parameter of no plain name": GOOD.replace("least: 10", "'a b; c': 10").encode(),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_rule_file_is_refused(name: str) -> None:
    with pytest.raises(RuleSetInvalid):
        load(HOSTILE[name])


# --- reading again ---


def write(path: Path, text: str | bytes, *, at: float) -> None:
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    os.utime(path, (at, at))


def test_changed_file_is_in_force_at_the_next_look(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write(path, GOOD, at=1000)
    source = RuleSource(path, clock=lambda: 5000.0)
    first = source.current()
    assert source.current() is first
    write(path, GOOD.replace("least: 10", "least: 20"), at=2000)
    assert source.current().parameters["least"] == 20
    assert source.problem is None


@pytest.mark.parametrize("broken", ["half", "10 MB", "binary", "gone", "misspelt"])
def test_broken_file_leaves_the_old_set_in_force_and_says_so(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "mine.yaml"
    write(path, GOOD, at=1000)
    source = RuleSource(path, clock=lambda: 5000.0)
    first = source.current()
    texts = {"half": GOOD[:90], "misspelt": GOOD.replace("image.width <", "image.widht <"), **HOSTILE}
    if broken == "gone":
        path.unlink()
    else:
        write(path, texts[broken], at=2000)
    assert source.current() is first
    assert source.problem
    assert source.current() is first
    write(path, GOOD.replace("least: 10", "least: 30"), at=3000)
    assert source.current().parameters["least"] == 30
    assert source.problem is None


def test_file_mended_back_to_what_is_in_force_clears_the_problem(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write(path, GOOD, at=1000)
    source = RuleSource(path, clock=lambda: 5000.0)
    write(path, GOOD[:90], at=2000)
    source.current()
    write(path, GOOD, at=3000)
    assert source.current().parameters["least"] == 10
    assert source.problem is None


def test_file_that_comes_back_as_it_was_clears_the_problem(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write(path, GOOD, at=1000)
    source = RuleSource(path, clock=lambda: 5000.0)
    path.rename(tmp_path / "away")
    source.current()
    assert source.problem
    (tmp_path / "away").rename(path)
    source.current()
    assert source.problem is None


def test_change_within_one_time_stamp_is_seen_while_the_file_is_young(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write(path, GOOD, at=1000)
    source = RuleSource(path, clock=lambda: 1000.5)
    source.current()
    write(path, GOOD.replace("least: 10", "least: 77"), at=1000)
    assert source.current().parameters["least"] == 77


def test_source_needs_a_good_file_to_begin_with(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    write(path, GOOD[:90], at=1000)
    with pytest.raises(RuleSetInvalid):
        RuleSource(path)
    with pytest.raises(FileNotFoundError):
        RuleSource(tmp_path / "none.yaml")


def test_facts_used_here_are_in_the_table() -> None:
    assert {name for base in (PHOTO, PDF, SPEECH) for name in base} <= set(FACT_BY_NAME)
