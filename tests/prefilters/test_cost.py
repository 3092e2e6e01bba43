"""Tokens of a picture, family by family, against numbers that the providers publish or that were billed."""

from __future__ import annotations

import pytest

from prefilters.probes.cost import (
    anthropic_tokens,
    gemini_tokens,
    image_costs,
    openai_patch_tokens,
    openai_tile_tokens,
)


@pytest.mark.parametrize(
    ("size", "expected"), [((512, 512), 255), ((1024, 1024), 765), ((2048, 4096), 1105), ((8, 8), 255)]
)
def test_tile_tokens_follow_the_published_examples(size: tuple[int, int], expected: int) -> None:
    # 1024 x 1024 and 2048 x 4096 are worked out in OpenAI's own guide.
    assert openai_tile_tokens(*size) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1024, 1024), 1024),
        ((1800, 2400), 1452),
        ((256, 256), 64),
        ((1280, 720), 920),
        ((2048, 768), 1536),
        ((1, 1), 1),
    ],
)
def test_patch_tokens_follow_the_published_examples(size: tuple[int, int], expected: int) -> None:
    # 1024 x 1024 and 1800 x 2400 are worked out in OpenAI's own guide; the others are what was billed, less the multiplier.
    assert openai_patch_tokens(*size) == expected


@pytest.mark.parametrize(
    ("size", "expected"),
    [((256, 256), 100), ((512, 512), 361), ((768, 768), 784), ((1024, 1024), 1369), ((1280, 720), 1196)],
)
def test_anthropic_tokens_are_those_that_were_billed(size: tuple[int, int], expected: int) -> None:
    assert anthropic_tokens(*size) == expected


@pytest.mark.parametrize(
    ("size", "expected"), [((384, 384), 258), ((385, 100), 258), ((769, 768), 516), ((1024, 1024), 1032)]
)
def test_gemini_tokens_are_counted_in_tiles(size: tuple[int, int], expected: int) -> None:
    assert gemini_tokens(*size) == expected


@pytest.mark.parametrize("size", [(1, 1), (1, 20_000), (20_000, 1), (7_000, 7_000), (4_000, 3_000), (333, 77)])
def test_no_size_costs_nothing_or_more_than_the_most_that_a_family_asks_for(size: tuple[int, int]) -> None:
    assert 85 < openai_tile_tokens(*size) <= 85 + 170 * 8
    assert 1 <= openai_patch_tokens(*size) <= 1536
    assert 1 <= anthropic_tokens(*size) <= 1568


def test_a_look_is_reckoned_in_the_size_in_which_pictures_are_sent() -> None:
    assert image_costs(4096, 3072) == image_costs(1024, 768)
    assert image_costs(4096, 3072) == {
        "cost.openai_tiles": 765,
        "cost.openai_patches": 768,
        "cost.anthropic": 1036,
        "cost.gemini": 516,
    }
