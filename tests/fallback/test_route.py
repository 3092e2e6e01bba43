"""Where an item goes is a table."""

from __future__ import annotations

import itertools

import pytest

from fallback.route import CAPABILITIES, FileOutcome, Route, choose_route
from prefilters.verdict import VerdictKind

ACCEPT, TEXT, LOOK, REJECT, ESCALATE = (
    VerdictKind.ACCEPT,
    VerdictKind.TEXT_ONLY,
    VerdictKind.SINGLE_LOOK,
    VerdictKind.REJECT,
    VerdictKind.ESCALATE,
)

TABLE: list[tuple[tuple[VerdictKind, ...], bool, Route | None, int | None]] = [
    # verdicts, profile wants all, route, index of the deciding file
    ((), False, Route.TEXT_ONLY, None),
    ((), True, Route.TEXT_ONLY, None),
    ((ACCEPT,), False, Route.AGENT, 0),
    ((TEXT,), False, Route.TEXT_ONLY, 0),
    ((LOOK,), False, Route.SINGLE_LOOK, 0),
    ((REJECT,), False, None, 0),
    ((ESCALATE,), False, Route.HUMAN, 0),
    ((REJECT, ACCEPT), False, Route.AGENT, 1),
    ((REJECT, TEXT), False, Route.TEXT_ONLY, 1),
    ((TEXT, LOOK), False, Route.SINGLE_LOOK, 1),
    ((TEXT, LOOK, ACCEPT), False, Route.AGENT, 2),
    ((ACCEPT, ACCEPT), False, Route.AGENT, 0),
    ((ACCEPT, ESCALATE), False, Route.HUMAN, 1),
    ((REJECT, REJECT), False, None, 0),
    ((ACCEPT, REJECT), True, None, 1),
    ((ACCEPT, ACCEPT), True, Route.AGENT, 0),
    ((ESCALATE, REJECT), True, None, 1),
    ((ESCALATE, REJECT), False, Route.HUMAN, 0),
]


@pytest.mark.parametrize(("kinds", "wants_all", "route", "deciding"), TABLE)
def test_item_takes_the_best_route_that_its_usable_files_allow(
    kinds: tuple[VerdictKind, ...], wants_all: bool, route: Route | None, deciding: int | None
) -> None:
    files = [FileOutcome(f"fil_{index}", kind) for index, kind in enumerate(kinds)]
    chosen = choose_route(files, require_all_files=wants_all)
    assert chosen.route is route
    assert chosen.deciding_file == (None if deciding is None else f"fil_{deciding}")


@pytest.mark.parametrize("wants_all", [False, True])
def test_order_of_files_never_changes_the_route(wants_all: bool) -> None:
    for kinds in itertools.combinations_with_replacement(VerdictKind, 3):
        routes = {
            choose_route([FileOutcome(str(i), kind) for i, kind in enumerate(order)], require_all_files=wants_all).route
            for order in itertools.permutations(kinds)
        }
        assert len(routes) == 1


def test_every_kind_of_verdict_has_a_route() -> None:
    assert {choose_route([FileOutcome("f", kind)]).route for kind in VerdictKind} == {*Route, None}


@pytest.mark.parametrize(
    ("route", "images", "tools", "visual_tools", "requests"),
    [
        (Route.AGENT, True, True, True, None),
        (Route.SINGLE_LOOK, True, False, False, 1),
        (Route.TEXT_ONLY, False, False, False, 1),
        (Route.HUMAN, False, False, False, 0),
    ],
)
def test_route_says_what_a_run_may_use(
    route: Route, images: bool, tools: bool, visual_tools: bool, requests: int | None
) -> None:
    allowed = CAPABILITIES[route]
    assert (allowed.images, allowed.tools, allowed.visual_tools, allowed.max_requests) == (
        images,
        tools,
        visual_tools,
        requests,
    )


def test_rejected_item_may_use_nothing() -> None:
    allowed = choose_route([FileOutcome("f", REJECT)]).capabilities
    assert (allowed.images, allowed.tools, allowed.max_requests) == (False, False, 0)
