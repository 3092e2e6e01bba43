from __future__ import annotations

import copy
import json

import pytest

from guard import Effect, Guard, Outcome, ToolCall, ToolTraits
from guard.large import MAX_WALKED, large_text
from guard.results import EXCERPT_CHARS, digest_of, excerpt_of, normalise


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("at 2026-11-30T17:48:27.123Z done", "at 2026-11-30T17:50:01Z done"),
        ("2026-11-30 17:48 ok", "2026-12-01 09:12 ok"),
        ("Mon, 30 Nov 2026 17:48:27 GMT", "Tue, 01 Dec 2026 01:02:03 GMT"),
        ("[30/Nov/2026:17:48:27 +0000] GET", "[01/Dec/2026:07:48:27 +0000] GET"),
        ("Mon Nov 30 17:48:27 UTC 2026", "Tue Dec  1 07:48:27 UTC 2026"),
        ("11/30/2026, 5:48 PM", "12/1/2026, 6:12 AM"),
        ("20261130T174827Z", "20261201T174827Z"),
        ("id 5b1c7c5e-1111-4222-8333-123456789abc.", "id 0f00d0aa-9999-4222-8333-cba987654321."),
        ("took 0.31 s", "took 12.5s"),
        ("took 12 ms", "took 900ms"),
        ("用时 12 毫秒", "用时 7 毫秒"),
        ("text\n[guard] That is enough.", "text"),
        ("text\n[guard] One.\n", "text\n[guard] Two.\n"),
    ],
)
def test_volatile_parts_make_no_difference(one: str, other: str) -> None:
    assert normalise(one) == normalise(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("takes 40 s", "takes 50 s"),
        ("due 2026-11-30", "due 2026-12-01"),
        ("open at 17:48", "open at 18:48"),
        ("0.31 g", "0.32 g"),
        ("3 of 5", "4 of 5"),
        ("v1.2.3 s", "v1.2.4 s"),
        ("12 months", "13 months"),
        ("5 msgs", "6 msgs"),
        ("03", "10"),
    ],
)
def test_content_stays(one: str, other: str) -> None:
    assert normalise(one) != normalise(other)


def test_status_and_code_are_part_of_a_result() -> None:
    outcomes = [Outcome.ok("x"), Outcome.failed("A", result="x"), Outcome.failed("B", result="x")]
    assert len({digest_of(outcome) for outcome in outcomes}) == 3


def test_a_message_counts_where_there_is_no_result() -> None:
    assert digest_of(Outcome.failed("A", "one")) != digest_of(Outcome.failed("A", "two"))
    assert digest_of(Outcome.failed("A", "one", result="r")) == digest_of(Outcome.failed("A", "two", result="r"))


def test_declared_volatile_fields_are_dropped_at_every_depth_from_text_and_json() -> None:
    volatile = ("took", "meta.id")
    one = {"rows": [{"n": 1, "took": 3}], "meta": {"id": 1, "kind": "x"}}
    other = {"rows": [{"n": 1, "took": 4}], "meta": {"id": 2, "kind": "x"}}
    assert digest_of(Outcome.ok(one), volatile) == digest_of(Outcome.ok(other), volatile)
    texts = ('{"n": 1, "took": 3}', '{"took": 4, "n": 1.0}')
    assert len({digest_of(Outcome.ok(text), volatile) for text in texts}) == 1
    assert digest_of(Outcome.ok("no JSON"), volatile) != digest_of(Outcome.ok("other"), volatile)


def test_missing_and_null_results_are_the_empty_result() -> None:
    assert digest_of(Outcome.ok()) == digest_of(Outcome.ok(None)) == digest_of(Outcome.ok(""))


def test_a_digest_stands_for_the_result() -> None:
    assert digest_of(Outcome(result_digest="d1")) == digest_of(Outcome(result_digest="d1", result="kept apart"))
    assert digest_of(Outcome(result_digest="d1")) != digest_of(Outcome(result_digest="d2"))


def test_an_excerpt_is_one_short_printable_line() -> None:
    excerpt = excerpt_of(Outcome.ok("line one\nline \ud800 two " + "x" * 9_999))
    assert len(excerpt) <= EXCERPT_CHARS
    assert "\n" not in excerpt
    assert excerpt.encode("utf-8")


def _deep(bottom: object, depth: int = 5_000) -> object:
    value = bottom
    for _ in range(depth):
        value = [value]
    return value


def _cyclic(first: int) -> list[object]:
    value: list[object] = [first]
    value.append(value)
    return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param([*range(30_000), 1], [*range(30_000), 2], id="the last of 30,000 values"),
        pytest.param(
            {"rows": [{"n": n, "at": 1} for n in range(12_000)]},
            {"rows": [{"n": n, "at": 1 + (n == 11_999)} for n in range(12_000)]},
            id="a field of the last row",
        ),
        pytest.param(dict.fromkeys(map(str, range(30_000))), dict.fromkeys(map(str, range(30_001))), id="one key more"),
        pytest.param(_deep(1), _deep(2), id="5,000 levels down"),
        pytest.param(_deep(1), _deep(1, 5_001), id="one level more"),
        pytest.param(_cyclic(1), _cyclic(2), id="lists that contain themselves"),
        pytest.param([*range(30_000), {1, 2}], [*range(30_000), {1, 3}], id="a set behind many values"),
        pytest.param({1: [0] * 30_000, "b": 1}, {1: [0] * 30_000, "b": 2}, id="names that are no text"),
    ],
)
def test_results_too_large_for_the_canonical_form_are_told_apart(one: object, other: object) -> None:
    digests = [digest_of(Outcome.ok(result)) for result in (one, copy.deepcopy(one) if _is_flat(one) else one, other)]
    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def _is_flat(value: object) -> bool:
    """Whether `deepcopy` can follow it."""
    try:
        json.dumps(value)
    except (RecursionError, ValueError, TypeError):
        return False
    return True


def test_the_order_of_keys_makes_no_difference_in_a_large_result() -> None:
    rows = {str(n): {"a": n, "b": 1} for n in range(15_000)}
    turned = {name: dict(reversed(row.items())) for name, row in reversed(rows.items())}
    assert digest_of(Outcome.ok(rows)) == digest_of(Outcome.ok(turned))


def test_what_is_read_of_an_endless_result_is_bounded() -> None:
    inner: list[object] = []
    inner.extend([inner] * 50_000)
    reads = 0

    def leaf(value: object) -> str:
        nonlocal reads
        reads += 1
        return str(value)

    large_text([inner, *range(200_000), object()], leaf)
    assert reads <= MAX_WALKED


def test_a_large_result_that_changes_is_no_repeat() -> None:
    guard = Guard(tools={"rows": ToolTraits(Effect.READ_ONLY)})
    for number in range(6):
        call = ToolCall("rows", {"of": "shop"}, call_id=f"c{number}", turn=number)
        assert guard.before(call).execute
        guard.after(call, Outcome.ok([*range(25_000), number]))
