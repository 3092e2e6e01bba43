"""What a look at a picture costs a vision model, so that a refusal can say what it saved."""

from __future__ import annotations

from math import ceil


def openai_tile_tokens(width: int, height: int) -> int:
    """Input tokens of one picture at detail `high` under OpenAI's tile formula: 85, and 170 for each 512 px tile.

    The picture is first fitted into 2048 x 2048 px and then shrunk until its short side has 768 px. Source: OpenAI's
    guide "Images and vision", section "Calculating costs" (gpt-4o family).
    """
    scale = min(1.0, 2048 / max(width, height))
    scale = min(scale, 768 / min(width, height))
    return 85 + 170 * max(1, ceil(width * scale / 512)) * max(1, ceil(height * scale / 512))
