"""Signatures: what never makes a difference, and what always does."""

from __future__ import annotations

import json
import unicodedata
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guard import ToolCall
from guard import call as call_module
from guard.call import fold_text, read_keys

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=12),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)
ARGS = st.dictionaries(st.text(max_size=6), JSON, max_size=5)


def signature(args: Any = None, raw: str | None = None, tool: str = "t") -> str:
    return read_keys(ToolCall(tool, args, raw)).signature


def _reversed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _reversed(value[key]) for key in reversed(list(value))}
    return [_reversed(item) for item in value] if isinstance(value, list) else value


def _decomposed(value: Any) -> Any:
    if isinstance(value, dict):
        forms = {unicodedata.normalize("NFD", key): _decomposed(item) for key, item in value.items()}
        return forms if len(forms) == len(value) else value
    if isinstance(value, list):
        return [_decomposed(item) for item in value]
    return unicodedata.normalize("NFD", value) if isinstance(value, str) else value


@settings(max_examples=80, deadline=None)
@given(ARGS)
def test_key_order_and_spacing_never_change_a_signature(args: dict[str, Any]) -> None:
    expected = signature(args)
    assert signature(_reversed(args)) == expected
    for layout in ({"indent": 3}, {"separators": (",", ":")}, {"ensure_ascii": False}, {"sort_keys": True}):
        assert signature(raw=json.dumps(args, **layout)) == expected


@settings(max_examples=80, deadline=None)
@given(ARGS)
def test_unicode_form_never_changes_a_signature(args: dict[str, Any]) -> None:
    composed = json.loads(unicodedata.normalize("NFC", json.dumps(args, ensure_ascii=False)))
    assert signature(_decomposed(composed)) == signature(composed)


@settings(max_examples=100, deadline=None)
@given(st.integers(-(10**15), 10**15))
def test_number_form_never_changes_a_signature(number: int) -> None:
    expected = signature({"n": number})
    for form in (f"{number}.0", f"{number}e0", f"{number * 10}e-1", f"{number}.000"):
        assert signature(raw=f'{{"n": {form}}}') == expected


@pytest.mark.parametrize("forms", [("0.1", "1e-1", "0.10"), ("-0", "0", "0.0", "-0.0"), ("1e3", "1000", "1E+3")])
def test_equal_numbers_have_one_signature(forms: tuple[str, ...]) -> None:
    assert len({signature(raw=f'{{"n": {form}}}') for form in forms}) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"n": 1}, {"n": "1"}),
        ({"n": 1}, {"n": True}),
        ({"n": 0}, {"n": False}),
        ({"n": None}, {}),
        ({"n": 1}, {"m": 1}),
        ({"n": [1, 2]}, {"n": [2, 1]}),
        ({"n": [1]}, {"n": 1}),
        ({"n": float("inf")}, {"n": float("-inf")}),
        ({"n": float("nan")}, {"n": None}),
        ({"n": 5e-324}, {"n": 0}),
        ({"n": 10**400}, {"n": 10**400 + 1}),
        ({"n": "a"}, {"n": "A"}),
        ({"n": {"a": 1}}, {"n": {"a": {}}}),
        ({"n": b"x"}, {"n": b"y"}),
        ({"n": {1, 2}}, {"n": {1, 3}}),
    ],
)
def test_different_arguments_have_different_signatures(one: Any, other: Any) -> None:
    assert signature(one) != signature(other)


def test_the_tool_is_part_of_the_signature() -> None:
    assert signature({"a": 1}, tool="t") != signature({"a": 1}, tool="u")


def test_ignored_arguments_make_no_difference() -> None:
    ignored = frozenset({"request_id", "meta.trace"})
    keys = [
        read_keys(ToolCall("t", {"q": "x", "request_id": n, "meta": {"trace": n, "kept": 1}}), ignored) for n in (1, 2)
    ]
    assert keys[0] == keys[1]
    assert keys[0].signature == read_keys(ToolCall("t", {"q": "x", "meta": {"kept": 1}})).signature


def test_missing_arguments_are_the_empty_object() -> None:
    assert signature(None) == signature({}) == signature(raw="{}")


def test_positions_do_not_depend_on_key_order() -> None:
    one = read_keys(ToolCall("t", {"a": 1.5, "b": [2, 3.25]}))
    other = read_keys(ToolCall("t", {"b": [2, 3.25], "a": 1.5}))
    assert one == other
    assert dict(zip(one.paths, one.numbers, strict=True)) == {"a": 1.5, "b.0": 2, "b.1": 3.25}


@pytest.mark.parametrize("number", ["1e999", "-Infinity", "NaN", "5e-324", "9" * 5_000, "0"])
def test_odd_numbers_are_numbers(number: str) -> None:
    usual, odd = (read_keys(ToolCall("t", args_raw=f'{{"q": "x", "n": {n}}}')) for n in ("1.5", number))
    assert odd.shape == usual.shape
    assert odd.paths == ("n",)
    assert odd.signature != usual.signature


@pytest.mark.parametrize(
    ("spellings", "folded"),
    [
        (["Blue Kettle", " blue  kettle ", "BLUE\tKETTLE.", "blue, kettle!", "blue kettle。"], "blue kettle"),
        (["./notes/a.md", "notes/a.md", "notes//a.md", "notes/../notes/a.md", "notes/a.md/"], "notes/a.md"),
        (["?"], "?"),
        (["C++"], "c++"),
        (["C#"], "c#"),
        (["->"], "->"),
        (["HTTP://Shop/a//b"], "http://shop/a//b"),
        (["...", "... "], None),
    ],
)
def test_folding(spellings: list[str], folded: str | None) -> None:
    for text in spellings:
        assert fold_text(text) == (text if folded is None else folded)


@settings(max_examples=300, deadline=None)
@given(
    st.dictionaries(
        st.text(max_size=4) | st.sampled_from(["a", "b.c", "d"]),
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | st.text(max_size=8)
        | st.sampled_from(["Blue Kettle", "blue kettle", "./x//y", "é", "e\u0301", 2**53 + 1, 10**400, -0.0, 5.0])
        | st.lists(st.integers(-9, 9) | st.floats(-2, 2) | st.text(max_size=4) | st.booleans(), max_size=4),
        max_size=5,
    ),
    st.sampled_from([frozenset(), frozenset({"a"})]),
)
def test_the_short_way_through_plain_arguments_gives_the_keys_of_the_long_one(
    args: dict[str, Any], ignored: frozenset[str]
) -> None:
    quick = call_module.read_call(ToolCall("t", args), ignored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(call_module, "_read_plain", lambda *_: None)
        assert call_module.read_call(ToolCall("t", args), ignored) == quick


@pytest.mark.parametrize("spelling", ["Blue Kettle", "blue  kettle", "BLUE kettle!", " blue kettle"])
def test_a_plain_spelling_and_a_fancy_one_fold_to_the_same_key(spelling: str) -> None:
    plain, fancy = (read_keys(ToolCall("t", {"q": text, "n": 1, "l": [text]})) for text in ("blue kettle", spelling))
    assert plain.signature != fancy.signature
    assert plain.folded == fancy.folded
