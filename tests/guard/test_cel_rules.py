"""Meta-rules as YAML: typed, refused with line and rule, and doing what their effect says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from guard import (
    Effect,
    Guard,
    GuardAction,
    GuardPolicy,
    NextStep,
    OnLoop,
    Outcome,
    PolicyError,
    ToolCall,
    ToolTraits,
    Trace,
    after_halt,
)
from guard.cel_rules import RUN_FACTS, Origin, load_rules, parse_rules, shipped_rules
from guard.policy_file import load_policy, parse_policy
from prefilters.errors import RuleSetInvalid

TOOLS = {"ocr_extract": ToolTraits(Effect.READ_ONLY, group="vision"), "look": ToolTraits(Effect.READ_ONLY)}


def _rule(when: str = 'call.tool == "look"', effect: str = "close_group", **more: str) -> str:
    entries = {"id": "r1", "when": f"'{when}'", "effect": effect, "reason": "It helps no more.", "since": "1", **more}
    return "rules:\n  - " + "\n    ".join(f"{key}: {value}" for key, value in entries.items()) + "\n"


def _guard(text: str, **guard: Any) -> Guard:
    return Guard(tools=TOOLS, rules=parse_rules(text.encode(), name="r.yaml"), **guard)


def test_the_shipped_rule_is_an_expression_and_is_on_by_default() -> None:
    assert [rule.id for rule in shipped_rules()] == ["close_vision_on_sparse_text"]
    guard = Guard(tools=TOOLS, facts={"text.tokens": 3})
    for number in range(2):
        call = ToolCall("ocr_extract", {"file": f"p{number}"})
        guard.before(call)
        guard.after(call, Outcome.failed("LOW_CONFIDENCE", f"p{number}"))
    decision = guard.before(ToolCall("ocr_extract", {"file": "p3"}))
    assert decision.action is GuardAction.BLOCK
    assert decision.reason is not None
    assert decision.reason.rule == "close_vision_on_sparse_text"
    assert "hardly any readable text" in decision.reason.text
    assert [finding.rule for finding in decision.explanation if finding.rule] == ["close_vision_on_sparse_text"]
    off = Guard(GuardPolicy(vision_rule=False), tools=TOOLS, facts={"text.tokens": 3})
    assert off._rules == ()


@pytest.mark.parametrize(
    ("effect", "action", "escalates", "following"),
    [
        ("close_group", GuardAction.BLOCK, False, None),
        ("reroute", GuardAction.HALT, False, NextStep.FALLBACK),
        ("escalate", GuardAction.HALT, True, NextStep.HUMAN),
        ("reject", GuardAction.HALT, False, NextStep.STOP),
    ],
)
def test_each_effect_does_what_it_says(
    effect: str, action: GuardAction, escalates: bool, following: NextStep | None
) -> None:
    guard = _guard(_rule(effect=effect))
    decision = guard.before(ToolCall("look", {"a": 1}))
    assert (decision.action, decision.escalates) == (action, escalates)
    assert guard.before(ToolCall("ocr_extract", {"a": 1})).execute is (action is GuardAction.BLOCK)
    if following is not None:
        assert after_halt(GuardPolicy(on_loop=OnLoop.FALLBACK), decision, guard.halts) is following
    rebuilt = Guard.from_trace(Trace.from_jsonl(guard.trace.to_jsonl()), tools=TOOLS)
    assert rebuilt.snapshot() == guard.snapshot()


@pytest.mark.parametrize(
    ("when", "holds_at"),
    [
        ('call.group == "vision"', 1),
        ('call.effect == "read" && call.step == 3', 3),
        ("history.steps >= 2", 3),
        ("history.same_call >= 1", 2),
        ("history.tool_errors_in_row >= 2", 3),
        ("history.group_failures_in_row >= 2", 3),
        ("history.distinct_results_in_group >= 1", 2),
        ('history.last_error_code == "LOW"', 2),
        ("history.cost >= 0.5", 3),
        ("image.sharpness < 0.36", 1),
        ("text.tokens < 4", None),
        ("!(text.tokens < 4)", None),
    ],
)
def test_conditions_see_the_flat_facts_and_an_unknown_one_never_holds(when: str, holds_at: int | None) -> None:
    guard = _guard(_rule(when.replace("'", "''")), facts={"image.sharpness": 0.2, "text.tokens": "many"})
    held = None
    for step in range(1, 4):
        call = ToolCall("ocr_extract", {"file": "p1"})
        decision = guard.before(call)
        if decision.reason is not None and decision.reason.rule == "r1":
            held = step
            break
        guard.after(call, Outcome.failed("LOW", f"low {step}", cost=0.25))
    assert held == holds_at


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (_rule('call.tol == "look"'), r"r.yaml:3: rule r1: .*did you mean 'call.tool'"),
        (_rule('history.steps == "two"'), "r.yaml:3: rule r1"),
        (_rule("history.steps + 1"), "r.yaml:3: rule r1: .*not true or false"),
        (_rule("call.tool =="), "r.yaml:3: rule r1"),
        (_rule(effect="close_grup"), "r.yaml:4: rule r1: .*did you mean 'close_group'"),
        (_rule(resaon="x"), "r.yaml:7: rule r1: unknown key 'resaon'; did you mean 'reason'"),
        (_rule().replace("    since: 1\n", ""), "r.yaml:2: rule r1: 'since' is missing"),
        (_rule() + _rule().removeprefix("rules:\n"), "r1: the id stands here twice"),
        ("rules: {}", "r.yaml:1"),
        ("- a", "r.yaml:1"),
        ("", "r.yaml:1"),
        ("rules: [", "r.yaml:1"),
        ("rules: &a [*a]", "r.yaml:1"),
        ("rules: [1]", "r.yaml:1"),
    ],
)
def test_a_broken_rule_file_is_refused_with_line_and_rule(text: str, says: str) -> None:
    with pytest.raises(RuleSetInvalid) as refused:
        parse_rules(text.encode(), name="r.yaml")
    assert any(re.search(says, problem) for problem in refused.value.problems), refused.value.problems


def test_only_rules_written_by_hand_may_reject(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(_rule(effect="reject"))
    assert load_rules(path)[0].id == "r1"
    with pytest.raises(RuleSetInvalid) as refused:
        load_rules(path, Origin.LEARNT)
    assert "only a rule written by hand may reject" in refused.value.problems[0]


def test_every_fact_of_the_run_is_one_that_rules_are_given() -> None:
    from dataclasses import fields

    from guard import History, RuleCall

    given = {f"call.{f.name}" for f in fields(RuleCall)} | {f"history.{f.name}" for f in fields(History)}
    assert set(RUN_FACTS) == given


def test_a_policy_is_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("counting: strict\noff: [stale]\nladders:\n  run: [5, null, 9]\nbudget: {steps: 20}\n")
    policy = load_policy(path)
    assert policy.to_mapping()["counting"] == "strict"
    assert policy.off == frozenset({"stale"})
    assert policy.ladders.run.halt_at == 9
    assert parse_policy(b"", name="p.yaml") == GuardPolicy()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("mode: shadow\ncountin: strict\n", "p.yaml:2: .*did you mean 'counting'"),
        ("ladders:\n  read_onyl: [2, 3, 4]\n", "p.yaml:2: .*did you mean 'read_only'"),
        ("mode: shadow\nmode: enforce\n", "p.yaml:2: 'mode' stands here twice"),
        ("budget: {steps: many}\n", "p.yaml:1: .*steps"),
        ("budget: {steps: 3, steps: 4}\n", "p.yaml:1: 'steps' stands here twice"),
        ("\nbudget:\n  steps: 3\n  cost: .nan\n", "p.yaml:4: .*give a number"),
        ("budget: 3\n", "p.yaml:1: .*give a mapping"),
        ("counting:\n", "p.yaml:1: .*there are progress, strict"),
        ("mode: [", "p.yaml:1"),
        ("- shadow", "p.yaml:1: a policy is a mapping"),
        ("? [a]\n: b\n", "p.yaml:1: a name of an entry"),
        ("mode: !!python/name:os.system x\n", "p.yaml:1: could not determine"),
    ],
)
def test_a_typo_in_a_policy_file_is_refused_with_its_line(text: str, says: str) -> None:
    with pytest.raises(PolicyError, match=says) as refused:
        parse_policy(text.encode(), name="p.yaml")
    assert "\n" not in refused.value.public
