"""What tokens cost, from a dated table, and what a refusal saved by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from gateway.profiles import Profile
from gateway.settings import Settings, money

_TABLE = Path(__file__).with_name("prices.yaml")
REFERENCE_MODEL = "gpt-5-mini"
"""By whose price savings are stated where the configured model has none (a model of your own, or no model at all)."""


@dataclass(frozen=True, slots=True)
class Price:
    """Per million tokens."""

    model: str
    input: Decimal
    output: Decimal
    currency: str

    def cost(self, *, input_tokens: int, output_tokens: int) -> Decimal:
        """What a request costs."""
        return (self.input * input_tokens + self.output * output_tokens) / Decimal(1_000_000)


class Prices:
    """The price of the configured model, and the reference by which savings are stated."""

    def __init__(self, settings: Settings) -> None:
        document = yaml.safe_load(_TABLE.read_text("utf-8"))
        currency = str(document["currency"])
        table = {
            name: Price(name, Decimal(row["input"]), Decimal(row["output"]), currency)
            for name, row in document["models"].items()
        }
        own = _own_price(settings, currency)
        self.currency = currency
        self.as_of = str(document["as_of"])
        self.model: Price | None = own or _by_name(table, settings.model)
        self.reference: Price = self.model or table[REFERENCE_MODEL]

    def cost(self, *, input_tokens: int, output_tokens: int) -> Decimal:
        """What a request to the configured model costs; 0 for a model without a price."""
        if self.model is None:
            return Decimal(0)
        return self.model.cost(input_tokens=input_tokens, output_tokens=output_tokens)

    def saved(self, profile: Profile, *, image_tokens: int, spent_requests: int = 0) -> Mapping[str, Any]:
        """What not running the agent saved, at least: the profile's typical run on this content, less what was spent.

        `tokens`, `cost` (decimal string), `currency`, and `method`, which says how they were reckoned.
        """
        run = profile.typical_run
        requests = max(run.model_requests - spent_requests, 0)
        input_tokens = requests * (run.prompt_tokens + image_tokens)
        output_tokens = requests * run.output_tokens
        cost = self.reference.cost(input_tokens=input_tokens, output_tokens=output_tokens)
        return {
            "tokens": input_tokens + output_tokens,
            "cost": money(cost),
            "currency": self.currency,
            "method": f"{requests} model requests of a typical {profile.name} run at the price of {self.reference.model} "
            f"({self.as_of})",
        }


def _own_price(settings: Settings, currency: str) -> Price | None:
    if settings.model_input_price is None or settings.model_output_price is None:
        return None
    return Price(settings.model, settings.model_input_price, settings.model_output_price, currency)


def _by_name(table: Mapping[str, Price], model: str) -> Price | None:
    """By exact name, or by the longest listed name that a dated one (`gpt-5-mini-2026-01-01`) begins with."""
    for name in sorted(table, key=len, reverse=True):
        if model == name or model.startswith(f"{name}-20"):
            return table[name]
    return None
