"""What a look at a picture costs a vision model, per family of models, so that a refusal can say what it saved."""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt

LOOK_SIDE = 1024
"""Pixels of the long side to which a picture is reduced before it is sent. Vision models look at tiles of 512 and reduce
what is larger than about 2,048 on the long and 768 on the short side themselves; more pixels cost upload time and, with
some, money, and show them nothing."""

_OPENAI_MOST_PATCHES = 1536
_ANTHROPIC_MOST_SIDE = 1568
_ANTHROPIC_MOST_TOKENS = 1568
_GEMINI_TILE_TOKENS = 258


def image_costs(width: int, height: int) -> Mapping[str, int]:
    """The `cost.*` facts of a picture of this size, as it would be sent: reduced to `LOOK_SIDE`."""
    scale = min(1.0, LOOK_SIDE / max(width, height))
    width, height = max(1, round(width * scale)), max(1, round(height * scale))
    return {
        "cost.openai_tiles": openai_tile_tokens(width, height),
        "cost.openai_patches": openai_patch_tokens(width, height),
        "cost.anthropic": anthropic_tokens(width, height),
        "cost.gemini": gemini_tokens(width, height),
    }


def openai_tile_tokens(width: int, height: int) -> int:
    """Input tokens at detail `high` under OpenAI's tile formula: 85, and 170 for each 512 px tile.

    The picture is first fitted into 2048 x 2048 px and then shrunk until its short side has 768 px. Source: OpenAI's
    guide "Images and vision", section "Calculating costs", in the numbers of gpt-4o and gpt-4.1; other models of the
    kind charge a fixed multiple of both numbers (gpt-5: 70 and 140).
    """
    scale = min(1.0, 2048 / max(width, height))
    scale = min(scale, 768 / min(width, height))
    return 85 + 170 * max(1, ceil(width * scale / 512)) * max(1, ceil(height * scale / 512))


def openai_patch_tokens(width: int, height: int) -> int:
    """Input tokens under OpenAI's patch formula, before the model's multiplier: one for each 32 px patch, 1536 at most.

    A picture of more patches is shrunk to r = sqrt(1536 * 32^2 / (width * height)), and then a little more until its
    patches fill whole rows or columns. Source: OpenAI's guide "Images and vision", section "Calculating costs"
    (gpt-5-mini and -nano, gpt-4.1-mini and -nano, o4-mini).
    """
    if ceil(width / 32) * ceil(height / 32) <= _OPENAI_MOST_PATCHES:
        return ceil(width / 32) * ceil(height / 32)
    scale = sqrt(_OPENAI_MOST_PATCHES * 32**2 / (width * height))
    across, down = width * scale / 32, height * scale / 32
    scale *= min(max(1, int(side)) / side for side in (across, down))
    patches = max(1, ceil(round(width * scale / 32, 6))) * max(1, ceil(round(height * scale / 32, 6)))
    return min(_OPENAI_MOST_PATCHES, patches)


def anthropic_tokens(width: int, height: int) -> int:
    """Input tokens for Claude: one for each 28 px patch of the picture as it is shrunk to the model's limits.

    Those are 1,568 px on the long side and about 1,568 tokens. Source: Anthropic's guide "Vision", sections "Evaluate
    image size" and "Calculate image costs" (which rounds 28 x 28 = 784 down to "width x height / 750").
    """
    scale = min(1.0, _ANTHROPIC_MOST_SIDE / max(width, height))
    scale = min(scale, sqrt(_ANTHROPIC_MOST_TOKENS * 28**2 / (width * height)))
    patches = max(1, ceil(width * scale / 28)) * max(1, ceil(height * scale / 28))
    return min(_ANTHROPIC_MOST_TOKENS, patches)


def gemini_tokens(width: int, height: int) -> int:
    """Input tokens for Gemini 2: 258 for a picture within 384 x 384 px, else 258 for each 768 px tile.

    Source: Google's guide "Understand and count tokens", section on multimodal tokens.
    """
    if max(width, height) <= 384:
        return _GEMINI_TILE_TOKENS
    return _GEMINI_TILE_TOKENS * ceil(width / 768) * ceil(height / 768)
