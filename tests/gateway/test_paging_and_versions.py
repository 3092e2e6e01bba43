"""What a list and a change have in common on every route: cursors, and `If-Match`."""

from __future__ import annotations

import pytest
from starlette.requests import Request

from gateway.api import paging, versions
from gateway.api.problems import ApiProblem


def asking(if_match: str | None) -> Request:
    headers = [] if if_match is None else [(b"if-match", if_match.encode())]
    return Request({"type": "http", "headers": headers})


def test_page_leads_to_the_next_one_until_nothing_follows() -> None:
    rows = [(7, "a"), (7, "b"), (9, "c"), (12, "d|e")]
    wanted, seen = {"limit": "1"}, []
    for _ in rows:
        asked = paging.asked_in(wanted)
        found = [row for row in rows if asked.after is None or row > asked.after][: asked.enough]
        body = asked.listing("rows", found, show=lambda row: row[1], place=lambda row: row)
        seen += body["rows"]
        wanted = {"limit": "1", "cursor": body["next_cursor"] or ""}
    assert (seen, wanted["cursor"]) == (["a", "b", "c", "d|e"], "")


@pytest.mark.parametrize("cursor", ["", "?", "x", "Nw", "N3xhfGI", "eHxh", "N3zDpA", "7|a"])
def test_cursor_that_no_page_gave_is_refused(cursor: str) -> None:
    with pytest.raises(ApiProblem, match="The cursor is not valid"):
        paging.asked_in({"cursor": cursor})


@pytest.mark.parametrize(
    ("sent", "matched", "expected", "is_refused"),
    [
        (None, None, None, False),
        ("*", None, None, False),
        ('"7"', 7, 7, False),
        ('W/"7"', 7, 7, False),
        ("7", 7, 7, False),
        ('"8"', 8, 8, True),
        ('"abc"', None, -1, True),
        ('"12345678901"', None, -1, True),
        ('"٧"', None, -1, True),
    ],
)
def test_version_that_was_read_is_held_against_version_seven(
    sent: str | None, matched: int | None, expected: int | None, is_refused: bool
) -> None:
    request = asking(sent)
    assert (versions.version_matched(request), versions.expected_version(request)) == (matched, expected)
    if is_refused:
        with pytest.raises(ApiProblem, match="The thing has version 7 now") as refused:
            versions.refuse_mismatch(request, 7, "thing")
        assert refused.value.code == "conflict_version"
    else:
        versions.refuse_mismatch(request, 7, "thing")


def test_change_without_the_version_that_was_read_is_refused_where_it_is_required() -> None:
    for need in (lambda r: versions.require_match(r, 7, "thing"), lambda r: versions.required_version(r, "thing")):
        with pytest.raises(ApiProblem, match="Send `If-Match`") as refused:
            need(asking(None))
        assert refused.value.code == "precondition_required"
    assert versions.required_version(asking('"7"'), "thing") == 7
