"""What a request to the model may cost, before it is made: for so much money is set aside.

Tokens of text are reckoned at three bytes each, which is more than most languages need; those of pictures by the price
table; for the answer a fixed number, since nobody knows it before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal

from pydantic_ai import ModelMessage, ModelMessagesTypeAdapter, ModelRequest, ToolDefinition, UserPromptPart

from gateway.agent.estimate import Estimate
from gateway.agent.prices import Prices
from prefilters.facts import FactValue

_BYTES_PER_TOKEN = 3
_UNMEASURED_LOOK_TOKENS = 1600
"""Of a picture whose size nobody measured: the most that the families count, before their factor."""
_MESSAGE_TOKENS = 20
"""What frames one message or one tool."""


@dataclass(frozen=True, slots=True)
class Meter:
    """Reckons one item's requests. Without `is_paid` they cost nothing: the offline writer asks nobody."""

    prices: Prices
    output_tokens: int
    look_tokens: Mapping[str, int] = field(default_factory=dict)
    """Of each picture, by its part."""
    is_paid: bool = True

    @classmethod
    def of(
        cls,
        prices: Prices,
        seen: Iterable[tuple[str, Mapping[str, FactValue]]],
        *,
        output_tokens: int,
        is_paid: bool = True,
    ) -> Meter:
        """For an item with files of these facts."""
        price = prices.reference
        unmeasured = int(_UNMEASURED_LOOK_TOKENS * price.factor)
        looks = {part: price.image_tokens(facts) or unmeasured for part, facts in seen}
        return cls(prices, output_tokens, looks, is_paid)

    def conversation(
        self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition], pictures: Iterable[str]
    ) -> Estimate:
        """The next request of a conversation that shows these pictures."""
        tokens = _MESSAGE_TOKENS * (len(messages) + len(tools))
        tokens += sum(_tokens(text) for text in _texts(messages))
        tokens += sum(_tokens(f"{tool.name}{tool.description}{tool.parameters_json_schema}") for tool in tools)
        return self._estimate(tokens + (self._looks(pictures) if _shows_any(messages) else 0))

    def single(self, texts: Iterable[str], pictures: Iterable[str]) -> Estimate:
        """One request by itself."""
        return self._estimate(_MESSAGE_TOKENS + sum(map(_tokens, texts)) + self._looks(pictures))

    def _looks(self, pictures: Iterable[str]) -> int:
        unmeasured = int(_UNMEASURED_LOOK_TOKENS * self.prices.reference.factor)
        return sum(self.look_tokens.get(part, unmeasured) for part in pictures)

    def _estimate(self, input_tokens: int) -> Estimate:
        if not self.is_paid:
            return Estimate(0, 0, Decimal(0))
        cost = self.prices.cost(input_tokens=input_tokens, output_tokens=self.output_tokens)
        return Estimate(input_tokens, self.output_tokens, cost)


def _tokens(text: str) -> int:
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def _shows_any(messages: Sequence[ModelMessage]) -> bool:
    return any(
        isinstance(part, UserPromptPart) and not isinstance(part.content, str) and len(part.content) > 1
        for message in messages
        if isinstance(message, ModelRequest)
        for part in message.parts
    )


def _texts(messages: Sequence[ModelMessage]) -> Iterable[str]:
    """All that is said, without the bytes of pictures."""
    for message in messages:
        if isinstance(message, ModelRequest):
            yield message.instructions or ""
            for part in message.parts:
                content = part.content if isinstance(part, UserPromptPart) else getattr(part, "content", "")
                pieces = content if isinstance(content, list | tuple) else [content]
                yield from (piece for piece in pieces if isinstance(piece, str))
        else:
            yield ModelMessagesTypeAdapter.dump_json([message]).decode("utf-8", "replace")
