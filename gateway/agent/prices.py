"""What tokens cost, from a dated table, and what a refusal saved by it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

from gateway.profiles import Profile
from gateway.settings import Settings, money
from prefilters.facts import Facts

_TABLE = Path(__file__).with_name("prices.yaml")
REFERENCE_MODEL = "gpt-5-mini"
"""By whose price savings are stated where the configured model has none (a model of your own, or no model at all)."""


class Look(StrEnum):
    """How a family of models counts the tokens of a picture; each is the last part of a fact's name, `cost.…`."""

    OPENAI_TILES = "openai_tiles"
    OPENAI_PATCHES = "openai_patches"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True)
class Price:
    """What one model costs, per million tokens, and how it counts a picture."""

    model: str
    input: Decimal
    output: Decimal
    currency: str
    look: Look
    factor: Decimal = Decimal(1)
    """What this model multiplies its family's tokens of a picture with."""

    def cost(self, *, input_tokens: int, output_tokens: int) -> Decimal:
        """What a request costs."""
        return (self.input * input_tokens + self.output * output_tokens) / Decimal(1_000_000)

    def image_tokens(self, facts: Facts) -> int:
        """Input tokens of one look at the picture with these facts; 0 for what is none, or was not measured so far."""
        return int(int(facts.get(f"cost.{self.look.value}", 0)) * self.factor)


class Prices:
    """The price of the configured model, and the reference by which savings are stated."""

    def __init__(self, settings: Settings) -> None:
        document = yaml.safe_load(_TABLE.read_text("utf-8"))
        currency = str(document["currency"])
        table = {name: _price(name, row, currency) for name, row in document["models"].items()}
        listed = _by_name(table, settings.model)
        own = _own_price(settings, currency, listed)
        self.currency = currency
        self.as_of = str(document["as_of"])
        self.model: Price | None = own or listed
        self.reference: Price = self.model or table[REFERENCE_MODEL]
        self._families = {Look(look): table[name] for look, name in document["families"].items()}

    def cost(self, *, input_tokens: int, output_tokens: int) -> Decimal:
        """What a request to the configured model costs; 0 for a model without a price."""
        if self.model is None:
            return Decimal(0)
        return self.model.cost(input_tokens=input_tokens, output_tokens=output_tokens)

    def saved(self, profile: Profile, files: Iterable[Facts], *, spent_requests: int = 0) -> Mapping[str, Any]:
        """What not running the agent saved, at least: the profile's typical run on these files, less what was spent.

        `tokens`, `cost` (decimal string), `currency`, `method`, which says how they were reckoned, and `families`: the
        same for one well-known model of each family.
        """
        facts = tuple(files)
        requests = max(profile.typical_run.model_requests - spent_requests, 0)
        return {
            **self._run(self.reference, profile, facts, requests),
            "currency": self.currency,
            "method": f"{requests} model requests of a typical {profile.name} run at the price of {self.reference.model} "
            f"({self.as_of})",
            "families": {
                look.value: {"model": price.model, **self._run(price, profile, facts, requests)}
                for look, price in self._families.items()
            },
        }

    def _run(self, price: Price, profile: Profile, files: tuple[Facts, ...], requests: int) -> dict[str, Any]:
        image_tokens = sum(price.image_tokens(facts) for facts in files)
        input_tokens = requests * (profile.typical_run.prompt_tokens + image_tokens)
        output_tokens = requests * profile.typical_run.output_tokens
        return {
            "tokens": input_tokens + output_tokens,
            "cost": money(price.cost(input_tokens=input_tokens, output_tokens=output_tokens)),
        }


def _price(name: str, row: Mapping[str, str], currency: str) -> Price:
    factor = Decimal(row.get("factor", "1"))
    return Price(name, Decimal(row["input"]), Decimal(row["output"]), currency, Look(row["look"]), factor)


def _own_price(settings: Settings, currency: str, listed: Price | None) -> Price | None:
    if settings.model_input_price is None or settings.model_output_price is None:
        return None
    look, factor = (_look_by_name(settings.model), Decimal(1)) if listed is None else (listed.look, listed.factor)
    return Price(settings.model, settings.model_input_price, settings.model_output_price, currency, look, factor)


def _look_by_name(model: str) -> Look:
    """The family that an unlisted model's name tells of; patches, the lowest count, where it tells nothing."""
    name = model.rpartition("/")[2].lower()
    if name.startswith("claude"):
        return Look.ANTHROPIC
    if name.startswith(("gemini", "gemma")):
        return Look.GEMINI
    return Look.OPENAI_TILES if name.startswith(("gpt-4o", "gpt-4.1", "o1", "o3")) else Look.OPENAI_PATCHES


def _by_name(table: Mapping[str, Price], model: str) -> Price | None:
    """By exact name, or by the longest listed name that a dated one (`gpt-5-mini-2026-01-01`) begins with."""
    for name in sorted(table, key=len, reverse=True):
        if model == name or model.startswith(f"{name}-20"):
            return table[name]
    return None
