from __future__ import annotations

import pytest

from guard import Outcome
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
