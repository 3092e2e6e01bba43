from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields
from pathlib import Path
from typing import Any

import pytest

from guard import (
    Budget,
    Counting,
    Effect,
    GuardPolicy,
    Ladder,
    Ladders,
    Mode,
    OnLoop,
    PolicyError,
    ToolTraits,
    number_args_of,
)
from guard.adapters.plain import traits
from guard.policy import DEFAULT_LADDERS, defaults_as_markdown

ROOT = Path(__file__).parent.parent.parent


def test_the_documentation_shows_the_defaults_that_the_code_uses() -> None:
    assert defaults_as_markdown() in (ROOT / "docs" / "guard.md").read_text("utf-8")


def test_each_ladder_of_the_policy_is_one_line_of_the_table() -> None:
    assert {row.name: row.ladder for row in DEFAULT_LADDERS} == {
        field.name: getattr(Ladders(), field.name) for field in fields(Ladders)
    }


def test_a_policy_is_read_from_plain_values() -> None:
    policy = GuardPolicy.from_mapping(
        {
            "counting": "strict",
            "mode": "shadow",
            "on_loop": "halt",
            "budget": {"steps": 20, "cost": 0.15},
            "ladders": {"read_only": [3, 4, 5], "run": [5, None, 9]},
            "off": ["stale"],
        }
    )
    assert policy == GuardPolicy(
        counting=Counting.STRICT,
        mode=Mode.SHADOW,
        on_loop=OnLoop.HALT,
        budget=Budget(steps=20, cost=0.15),
        ladders=Ladders(read_only=Ladder(3, 4, 5), run=Ladder(5, None, 9)),
        off=frozenset({"stale"}),
    )


@pytest.mark.parametrize(
    "policy",
    [
        GuardPolicy(),
        GuardPolicy(
            counting=Counting.STRICT,
            budget=Budget(20, cost=0.5),
            ladders=Ladders(run=Ladder(None, 3, None)),
            off=frozenset({"stale", "run"}),
        ),
    ],
)
def test_a_policy_survives_the_way_through_json(policy: GuardPolicy) -> None:
    assert GuardPolicy.from_mapping(json.loads(json.dumps(policy.to_mapping()))) == policy


@pytest.mark.parametrize(
    ("stored", "says"),
    [
        ({"countin": "strict"}, "did you mean 'counting'"),
        ({"counting": "sometimes"}, "counting: unknown value 'sometimes'; there are progress, strict"),
        ({"mode": "shadw"}, "did you mean 'shadow'"),
        ({"mode": Counting.STRICT}, "there are enforce, shadow"),
        ({"ladders": {"read_onyl": [2, 3, 4]}}, "did you mean 'read_only'"),
        ({"ladders": {"read_only": [4, 3, 2]}}, "climbs"),
        ({"ladders": {"read_only": [2, 3]}}, r"read_only: .*give \[warn, block, halt\]"),
        ({"ladders": {"read_only": [2.5, 3, 4]}}, "each a whole number"),
        ({"ladders": {"read_only": [True, 3, 4]}}, "each a whole number"),
        ({"ladders": {"read_only": [2, "x", 4]}}, "each a whole number"),
        ({"ladders": {"read_only": 3}}, r"give \[warn"),
        ({"ladders": {"read_only": "2"}}, r"give \[warn"),
        ({"ladders": [2, 3, 4]}, "give a mapping"),
        ({"budget": 3}, "give a mapping"),
        ({"budget": {"steps": "many"}}, "steps"),
        ({"budget": {"steps": -1}}, "steps"),
        ({"budget": {"step": 2}}, "did you mean 'steps'"),
        ({"max_signatures": 1.5}, "max_signatures"),
        ({"max_signatures": 0}, "1 or more"),
        ({"vision_rule": "yes"}, "vision_rule"),
        ({"off": "stale"}, "off"),
        ({"off": ["stael"]}, "did you mean 'stale'"),
    ],
)
def test_a_typo_in_a_policy_is_refused_by_name(stored: dict[str, Any], says: str) -> None:
    with pytest.raises(PolicyError, match=says):
        GuardPolicy.from_mapping(stored)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: GuardPolicy(counting=_any("strict")), "Counting.STRICT"),
        (lambda: GuardPolicy(budget=_any(3)), "3 is no Budget"),
        (lambda: GuardPolicy(ladders=_any({"run": [1, 2, 3]})), "is no Ladders"),
        (lambda: Budget(steps=_any("20")), "budget.steps: '20' does not fit; give a whole number"),
        (lambda: Budget(cost=float("nan")), "budget.cost: nan does not fit"),
        (lambda: ToolTraits(_any("read")), "Effect.READ_ONLY"),
        (lambda: ToolTraits(Effect.READ_ONLY, ignore_args=_any("id")), "one text"),
        (lambda: traits(Effect.READ_ONLY, number_args="contrast"), "one text"),
    ],
    ids=["policy", "budget", "ladders", "limit", "no number", "effect", "list", "decorator"],
)
def test_a_value_of_another_kind_is_refused_and_not_read_as_something_else(
    make: Callable[[], object], says: str
) -> None:
    with pytest.raises(PolicyError, match=says):
        make()


def _any(value: object) -> Any:
    return value


def test_traits_are_read_as_the_api_spells_them() -> None:
    traits = ToolTraits.from_mapping({"name": "x", "effect": "read", "poll": True, "ignore_args": ["id"]})
    assert traits == ToolTraits(Effect.READ_ONLY, poller=True, ignore_args=("id",))
    assert ToolTraits.from_mapping({"effect": "unknown"}).effect is Effect.MUTATING


def test_numbers_of_a_schema_are_knobs_and_integers_are_not() -> None:
    schema = {"properties": {"contrast": {"type": "number"}, "page": {"type": "integer"}, "q": {"type": "string"}}}
    assert number_args_of(schema) == ("contrast",)
    assert number_args_of({}) == ()


def test_policies_are_immutable() -> None:
    with pytest.raises(FrozenInstanceError):
        GuardPolicy().mode = Mode.SHADOW  # type: ignore[misc]


def test_importing_the_guard_loads_nothing_but_the_standard_library() -> None:
    script = (
        "import sys; before = set(sys.modules); import guard, guard.adapters.plain; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-S", "-c", script], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    assert set(loaded) <= set(sys.stdlib_module_names) | {"guard"}
