"""What one request to the model may cost at most."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal


@dataclass(frozen=True, slots=True)
class Estimate:
    """Tokens and money of one request."""

    input_tokens: int
    output_tokens: int
    cost: Decimal
