"""What the console says: every sentence has its Chinese, with the same gaps; numbers and times read as people read them."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gateway.console import choices, words

CONSOLE = Path(words.__file__).parent
_IN_TEMPLATE = re.compile(r"""(?<![\w.])t\(\s*("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')""")


def _sentences() -> Iterator[str]:
    for template in sorted((CONSOLE / "templates").glob("*.html")):
        yield from (ast.literal_eval(found) for found in _IN_TEMPLATE.findall(template.read_text("utf-8")))
    for module in sorted(CONSOLE.glob("*.py")):
        for node in ast.walk(ast.parse(module.read_text("utf-8"))):
            name = node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else None
            if name == "say" and isinstance(node, ast.Call) and isinstance(node.args[0], ast.Constant):
                yield str(node.args[0].value)
    every = (
        "resume",
        "reroute",
        "answer_item",
        "ask_submitter",
        "reject_item",
        "dismiss",
        "answer_tool",
        "retry",
        "close",
    )
    for choice in choices.choices_for((*every, "approve_call", "edit_call", "deny_call"), words.speaker("en")):
        yield from (choice.label, choice.hint, choice.submit)


def test_every_sentence_has_its_chinese_with_the_same_gaps() -> None:
    known = yaml.safe_load((CONSOLE / "locales" / "zh.yaml").read_text("utf-8"))
    sentences = set(_sentences())
    assert len(sentences) > 300
    assert sorted(sentences - set(known)) == []
    gaps = re.compile(r"\{\w+\}")
    assert [s for s, chinese in known.items() if set(gaps.findall(s)) != set(gaps.findall(chinese))] == []


@pytest.mark.parametrize(
    ("amount", "shown"),
    [("0", "$0"), ("0.0018", "$0.0018"), ("0.15", "$0.15"), ("12.3456", "$12.35"), ("0.00045", "$0.00045"), ("x", "–")],
)
def test_money_has_as_many_digits_as_tell_it_from_nothing(amount: str, shown: str) -> None:
    assert words.money(amount) == shown


@pytest.mark.parametrize(
    ("ms", "shown"),
    [
        (900, "0 s"),
        (59_000, "59 s"),
        (61_000, "1 min"),
        (3_660_000, "1 h 1 min"),
        (86_400_000, "1 d"),
        (90_000_000, "1 d 1 h"),
    ],
)
def test_times_have_two_parts_at_most(ms: int, shown: str) -> None:
    assert words.span(ms, words.speaker("en")) == shown


def test_signs_that_reorder_or_hide_are_replaced() -> None:
    assert words.plain("a\u202eb\x1b[2J\nc\td\u200f") == "a�b�[2J\nc\td�"
