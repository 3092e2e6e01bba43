from __future__ import annotations

import pytest

from guard import Effect, Guard, GuardAction, Ladder, Outcome, ToolCall, ToolTraits, action_for

ALLOW, WARN, BLOCK, HALT = GuardAction.ALLOW, GuardAction.WARN, GuardAction.BLOCK, GuardAction.HALT
READ = {"look": ToolTraits(Effect.READ_ONLY)}


@pytest.mark.parametrize(("occurrence", "expected"), [(1, ALLOW), (2, WARN), (3, BLOCK), (4, HALT), (9, HALT)])
def test_read_only_ladder(occurrence: int, expected: GuardAction) -> None:
    assert action_for(Ladder(2, 3, 4), occurrence) is expected


@pytest.mark.parametrize(("occurrence", "expected"), [(1, ALLOW), (2, BLOCK), (3, HALT)])
def test_mutating_ladder_has_no_warning(occurrence: int, expected: GuardAction) -> None:
    assert action_for(Ladder(None, 2, 3), occurrence) is expected


@pytest.mark.parametrize("rungs", [(3, 2, 4), (0, 1, 2), (2, 2, 3), (None, None, None)])
def test_a_ladder_that_does_not_climb_is_refused(rungs: tuple[int | None, ...]) -> None:
    with pytest.raises(ValueError, match="climbs"):
        Ladder(*rungs)


def _level(guard: Guard, call: ToolCall, outcome: Outcome) -> GuardAction:
    decision = guard.before(call)
    if not decision.execute:
        return decision.action
    return max(decision.action, guard.after(call, outcome).action, key=lambda action: action.severity)


def test_identical_reads_climb_warn_block_halt() -> None:
    guard = Guard(tools=READ)
    call = ToolCall("look", {"at": "p1"})
    assert [_level(guard, call, Outcome.ok("same")) for _ in range(4)] == [ALLOW, WARN, BLOCK, HALT]


def test_a_new_result_starts_the_count_again() -> None:
    guard = Guard(tools=READ)
    call = ToolCall("look", {"at": "p1"})
    results = ["a", "a", "b", "b", "b"]
    assert [_level(guard, call, Outcome.ok(r)) for r in results] == [ALLOW, WARN, BLOCK, HALT, HALT]
    guard = Guard(tools=READ)
    assert [_level(guard, call, Outcome.ok(r)) for r in ["a", "b", "c"]] == [ALLOW] * 3


def test_a_write_that_succeeded_is_blocked_at_once_and_says_where_it_was_done() -> None:
    guard = Guard()
    call = ToolCall("save", {"title": "x"})
    assert _level(guard, call, Outcome.ok("saved")) is ALLOW
    decision = guard.before(call)
    assert decision.action is BLOCK
    assert decision.tool_result is not None
    assert "step 1" in decision.tool_result.text
    assert decision.tool_result.seen_before is not None
    assert decision.tool_result.seen_before.step == 1
    assert _level(guard, call, Outcome.ok("saved")) is HALT


def test_a_write_that_failed_may_be_tried_again() -> None:
    guard = Guard()
    call = ToolCall("save", {"title": "x"})
    failed = Outcome.failed("LOCKED_ROW")
    assert [_level(guard, call, failed) for _ in range(4)] == [ALLOW, WARN, BLOCK, HALT]


def test_another_successful_write_between_restarts_a_write() -> None:
    guard = Guard()
    first, second = ToolCall("save", {"n": 1}), ToolCall("save", {"n": 2})
    levels = [_level(guard, call, Outcome.ok("saved")) for call in (first, second, first, second, first, second)]
    # The second lap brings nothing new, so it restarts nothing; the third is a cycle.
    assert levels == [ALLOW, ALLOW, ALLOW, WARN, BLOCK, HALT]


def test_progress_restarts_other_calls_from_the_next_message_on() -> None:
    guard = Guard(tools=READ)
    look = ToolCall("look", {"at": "p1"}, turn=1)
    assert _level(guard, look, Outcome.ok("same")) is ALLOW
    assert _level(guard, ToolCall("save", {"n": 1}, turn=2), Outcome.ok("saved")) is ALLOW
    assert _level(guard, ToolCall("look", {"at": "p1"}, turn=2), Outcome.ok("same")) is WARN
    assert _level(guard, ToolCall("look", {"at": "p1"}, turn=3), Outcome.ok("same")) is ALLOW


def test_a_transient_error_moves_the_read_ladder_one_step() -> None:
    guard = Guard(tools=READ)
    call = ToolCall("look", {"at": "p1"})
    assert [_level(guard, call, Outcome.failed("HTTP_503")) for _ in range(5)] == [ALLOW, ALLOW, WARN, BLOCK, HALT]


def test_an_announced_wait_that_was_kept_starts_afresh() -> None:
    guard = Guard(tools=READ)
    call, busy = ToolCall("look", {"at": "p1"}), Outcome.failed("HTTP_429", retry_after_s=30)
    now = 0.0
    for _ in range(8):
        assert guard.before(call, now=now).action is ALLOW
        assert guard.after(call, busy, now=now).action is ALLOW
        now += 31
    # Not kept: the ladder climbs.
    actions = []
    for _ in range(4):
        decision = guard.before(call, now=now)
        actions.append(guard.after(call, busy, now=now).action if decision.execute else decision.action)
        now += 5
    assert actions == [ALLOW, ALLOW, WARN, BLOCK]


def test_a_poller_may_wait_eight_steps_longer() -> None:
    guard = Guard(tools={"wait": ToolTraits(Effect.READ_ONLY, poller=True)})
    levels = [_level(guard, ToolCall("wait", {"job": 1}), Outcome.ok("running")) for _ in range(12)]
    assert levels == [ALLOW] * 9 + [WARN, BLOCK, HALT]


def test_an_identical_call_of_one_message_shares_the_first_result() -> None:
    guard = Guard(tools=READ)
    decisions = guard.before_batch([ToolCall("look", {"at": "p1"}, call_id=f"c{n}") for n in range(1, 5)])
    assert [d.execute for d in decisions] == [True, False, False, False]
    assert [d.same_as for d in decisions] == [None, "c1", "c1", "c1"]
    assert [d.action for d in decisions] == [ALLOW, WARN, BLOCK, HALT]


def test_an_identical_write_of_one_message_is_blocked() -> None:
    guard = Guard()
    decisions = guard.before_batch([ToolCall("save", {"n": 1}, call_id=f"c{n}") for n in range(1, 3)])
    assert [(d.action, d.execute) for d in decisions] == [(ALLOW, True), (BLOCK, False)]


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Outcome.failed("GONE", retryable=False), [ALLOW, WARN, HALT]),
        (Outcome.failed("LOW_CONFIDENCE"), [ALLOW, WARN, WARN, HALT]),
        (Outcome.failed("ODD", retryable=True), [ALLOW, ALLOW, WARN, WARN, HALT]),
        (Outcome.failed("HTTP_502"), [ALLOW, ALLOW, WARN, WARN, HALT]),
        (Outcome.failed("MINE"), [ALLOW, ALLOW, WARN, WARN, HALT]),
    ],
    ids=["permanent", "unknown", "transient by its word", "transient by the table", "transient by the tool"],
)
def test_errors_in_a_row_climb_by_their_class(outcome: Outcome, expected: list[GuardAction]) -> None:
    guard = Guard(tools={"search": ToolTraits(Effect.READ_ONLY, retryable_codes=("MINE",))})
    levels = [_level(guard, ToolCall("search", {"q": f"query {'x' * n}"}), outcome) for n in range(len(expected))]
    assert levels == expected


def test_a_row_of_errors_halts_and_escalates_after_the_outcome() -> None:
    guard = Guard(tools={"ocr": ToolTraits(Effect.READ_ONLY)})
    for number in range(4):
        call = ToolCall("ocr", {"q": "x" * number})
        assert guard.before(call).execute
        decision = guard.after(call, Outcome.failed("LOW_CONFIDENCE", result=f"confidence 0.{12 + number}", cost=0.25))
    assert decision.action is HALT
    assert decision.ends_turn
    assert decision.escalates
    assert decision.end_reason is not None
    assert decision.end_reason.value == "repeated_error"
    escalation = decision.escalation
    assert escalation is not None
    assert escalation.evidence == (1, 2, 3, 4)
    assert (escalation.attempts, escalation.occurrence, escalation.resume_point, escalation.cost) == (4, 1, 4, 1.0)
    assert "LOW_CONFIDENCE" in escalation.question
    assert escalation.first_answer == "confidence 0.12"


def test_another_code_neither_counts_nor_resets() -> None:
    guard = Guard(tools={"search": ToolTraits(Effect.READ_ONLY)})
    codes = ["A", "A", "B", "A", "A"]
    levels = [_level(guard, ToolCall("search", {"q": "y" * n}), Outcome.failed(c)) for n, c in enumerate(codes)]
    assert levels == [ALLOW, WARN, ALLOW, WARN, HALT]


def test_calls_of_one_message_count_once_for_error_codes() -> None:
    guard = Guard(tools={"search": ToolTraits(Effect.READ_ONLY)})
    for turn, expected in ((1, ALLOW), (2, WARN), (3, WARN), (4, HALT)):
        calls = [ToolCall("search", {"q": f"{turn} {'z' * n}"}, call_id=f"{turn}-{n}", turn=turn) for n in range(5)]
        assert all(d.execute for d in guard.before_batch(calls))
        actions = {guard.after(call, Outcome.failed("LOW")).action for call in calls}
        assert actions == {expected}
