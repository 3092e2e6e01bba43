"""Write an item's copy on its route: by the configured model, or by the offline writer where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

from fallback.route import Route, RouteDecision
from fallback.text_only import Answer, Brief, OutputInvalid, draft
from gateway.agent import evidence, offline
from gateway.decision import ScreenedFile
from gateway.item import Item, Usage
from gateway.profiles import Profile
from gateway.settings import money
from gateway.wiring import Services


@dataclass(frozen=True, slots=True)
class Written:
    """A finished piece of copy and what it cost."""

    result: Mapping[str, Any]
    usage: Usage


class WriteFailed(Exception):
    """No copy could be written; `public` is safe to show, `usage` is what was spent all the same."""

    def __init__(self, code: str, public: str, *, retryable: bool, usage: Usage) -> None:
        super().__init__(code)
        self.code = code
        self.public = public
        self.retryable = retryable
        self.usage = usage


_ROUTE_HINTS = {
    Route.TEXT_ONLY: "No usable picture text was found; work from the text alone and do not describe pictures.",
    Route.SINGLE_LOOK: "The pictures carry hardly any text; describe only what is plainly visible in them.",
}


def write_copy(
    services: Services, item: Item, profile: Profile, files: list[ScreenedFile], route: RouteDecision
) -> Written:
    """The copy of one item. Raises `WriteFailed`."""
    is_offline = services.settings.model_url is None
    brief = evidence.gather(
        services,
        item,
        profile,
        files,
        route.capabilities,
        read_pictures=is_offline or route.route is Route.TEXT_ONLY,
    )
    hint = None if route.route is None else _ROUTE_HINTS.get(route.route)
    brief = replace(brief, hints=(hint,) if hint else ())
    if is_offline:
        return _write_offline(item, profile, brief, files)
    return _write_by_model(services, item, profile, brief)


def _write_offline(item: Item, profile: Profile, brief: Brief, files: list[ScreenedFile]) -> Written:
    output = offline.offline_draft(brief, evidence.seen_facts(files))
    problems = profile.output_errors(output)
    if problems:
        raise WriteFailed(
            "no_model",
            f"The offline writer cannot fill the profile {profile.name}; a model must be configured "
            "(SLUICEGATE_MODEL_URL).",
            retryable=True,
            usage=item.usage,
        )
    return Written({**output, "produced_by": offline.PRODUCED_BY}, item.usage)


def _write_by_model(services: Services, item: Item, profile: Profile, brief: Brief) -> Written:
    from gateway.agent.models import ModelFailed, OpenAiCompatibleModel, endpoint_of

    endpoint = endpoint_of(services.settings)
    assert endpoint is not None
    deadline_s = float(item.submission.get("budget", {}).get("max_seconds") or profile.budget.max_seconds)
    model = OpenAiCompatibleModel(endpoint, deadline_s=min(deadline_s, profile.budget.max_seconds))
    try:
        made = draft(brief, model, instructions=profile.prompt, check=profile.output_errors)
    except ModelFailed as error:
        usage = replace(item.usage, model_calls=item.usage.model_calls + 1)
        raise WriteFailed(error.code, error.public, retryable=error.retryable, usage=usage) from error
    except OutputInvalid as error:
        usage = _spent(services, item.usage, error.answer)
        raise WriteFailed(error.code, error.public, retryable=error.retryable, usage=usage) from error
    assert made.answer is not None
    return Written({**made.output, "produced_by": made.produced_by}, _spent(services, item.usage, made.answer))


def _spent(services: Services, usage: Usage, answer: Answer) -> Usage:
    cost = services.prices.cost(input_tokens=answer.input_tokens, output_tokens=answer.output_tokens)
    return replace(
        usage,
        model_calls=usage.model_calls + 1,
        input_tokens=usage.input_tokens + answer.input_tokens,
        output_tokens=usage.output_tokens + answer.output_tokens,
        cost=money(Decimal(usage.cost) + cost),
    )
