"""Write an item's copy on its route: by the agent, or by one request; with the configured model, or without any."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fallback.route import Capabilities, Route
from fallback.text_only import Answer, Brief, OutputInvalid, draft, request_text
from gateway.agent import evidence, offline
from gateway.agent.executor import (
    LOST,
    AgentRun,
    ChatModel,
    build_guard,
    exhausted_sentence,
    out_of_budget,
    own_budget_is_spent,
    own_budget_sentence,
)
from gateway.agent.journal import Journal, with_unknown
from gateway.agent.meter import Meter
from gateway.agent.models import ModelFailed, OpenAiCompatibleModel, endpoint_of
from gateway.agent.offline_model import OfflineModel
from gateway.agent.outcome import Failed, WritingOutcome, Written
from gateway.agent.packet import stop_packet
from gateway.agent.policing import Limits, limits_of, picture_facts, policy_of
from gateway.agent.tools import Workbench, tools_of
from gateway.decision import ScreenedFile
from gateway.item import Item
from gateway.profiles import Profile
from gateway.store.budgets import BudgetExhausted
from gateway.store.steps import StepKind, StepRow
from gateway.wiring import Services
from prefilters.media import MediaKind

_ROUTE_HINTS = {
    Route.TEXT_ONLY: "No usable picture text was found; work from the text alone and do not describe pictures.",
    Route.SINGLE_LOOK: "The pictures carry hardly any text; describe only what is plainly visible in them.",
}


def write_copy(
    services: Services,
    journal: Journal,
    item: Item,
    profile: Profile,
    files: Sequence[ScreenedFile],
    route: Route,
    capabilities: Capabilities,
) -> WritingOutcome:
    """The copy of one item, or why there is none yet. Raises `StaleLease`, `ModelCallsPaused`."""
    if route is Route.AGENT:
        return _write_by_agent(services, journal, item, profile, files, capabilities)
    is_offline = services.settings.model_url is None
    brief = evidence.gather(
        services,
        item,
        profile,
        files,
        capabilities,
        read_pictures=is_offline or route is Route.TEXT_ONLY,
    )
    brief = replace(brief, hints=(_ROUTE_HINTS[route], *_advice(journal)))
    if is_offline:
        return _write_offline(journal, profile, brief, files)
    return _write_by_one_request(services, journal, item, profile, brief, _meter(services, files))


def _write_by_agent(
    services: Services,
    journal: Journal,
    item: Item,
    profile: Profile,
    files: Sequence[ScreenedFile],
    capabilities: Capabilities,
) -> WritingOutcome:
    brief = evidence.gather(services, item, profile, files, capabilities, read_pictures=False, read_documents=False)
    tools = tools_of(profile)
    limits = limits_of(item, profile)
    model: ChatModel
    endpoint = endpoint_of(services.settings)
    if endpoint is None:
        model = OfflineModel(brief, _kinds(files), evidence.seen_facts(files))
    else:
        model = OpenAiCompatibleModel(endpoint, deadline_s=limits.seconds)
    guard = build_guard(journal, policy_of(profile, limits), tools.values(), picture_facts(files))
    run = AgentRun(
        journal=journal,
        guard=guard,
        model=model,
        bench=Workbench(services, item, profile, files),
        tools=tools,
        limits=limits,
        prices=services.prices,
        meter=_meter(services, files),
        pictures={picture.part: picture for picture in brief.pictures},
    )
    return run.run(brief)


def _meter(services: Services, files: Sequence[ScreenedFile]) -> Meter:
    return Meter.of(
        services.prices,
        evidence.seen_facts(files),
        output_tokens=services.settings.model_output_reserve,
        is_paid=services.settings.model_url is not None,
    )


def _kinds(files: Sequence[ScreenedFile]) -> dict[str, MediaKind]:
    return {file.record.part: file.screening.media.kind for file in files if file.is_worth_reading}


def _advice(journal: Journal) -> list[str]:
    """What a reviewer said when sending the item here."""
    return [
        str(row.intent["text"]) for row in journal.current if row.kind is StepKind.CONTROL and row.intent.get("text")
    ]


def _write_offline(journal: Journal, profile: Profile, brief: Brief, files: Sequence[ScreenedFile]) -> WritingOutcome:
    output = offline.offline_draft(brief, evidence.seen_facts(files))
    if profile.output_errors(output):
        return Failed(
            "no_model",
            f"The offline writer cannot fill the profile {profile.name}; a model must be configured "
            "(SLUICEGATE_MODEL_URL).",
            retryable=True,
            usage=journal.usage(),
        )
    return Written({**output, "produced_by": offline.PRODUCED_BY}, journal.usage())


def _write_by_one_request(
    services: Services, journal: Journal, item: Item, profile: Profile, brief: Brief, meter: Meter
) -> WritingOutcome:
    endpoint = endpoint_of(services.settings)
    assert endpoint is not None
    limits = limits_of(item, profile)
    model = OpenAiCompatibleModel(endpoint, deadline_s=limits.seconds)
    _close_lost_request(services, journal)
    text = request_text(brief)
    intent = {"request": 1, "model": endpoint.model, "text": text}
    estimate = meter.single((profile.prompt, text), [picture.part for picture in brief.pictures])
    if own_budget_is_spent(journal, estimate, services.prices, limits):
        return _out_of_budget(journal, profile, limits, own_budget_sentence(limits))
    try:
        row = journal.begin_request(intent, estimate)
    except BudgetExhausted as refused:
        return _out_of_budget(journal, profile, limits, exhausted_sentence(refused))
    try:
        made = draft(brief, model, instructions=profile.prompt, check=profile.output_errors)
    except ModelFailed as error:
        journal.finish(row, {"error": error.code, **_spent(services, row, unknown=error.unknown_requests)})
        return Failed(error.code, error.public, error.retryable, journal.usage())
    except OutputInvalid as error:
        journal.finish(row, {"error": error.code, **_spent_on(services, row, error.answer)})
        return Failed(error.code, error.public, error.retryable, journal.usage())
    assert made.answer is not None
    journal.finish(row, {"text": made.answer.text, **_spent_on(services, row, made.answer)})
    return Written({**made.output, "produced_by": made.produced_by}, journal.usage())


def _out_of_budget(journal: Journal, profile: Profile, limits: Limits, sentence: str) -> WritingOutcome:
    usage = journal.usage()
    return out_of_budget(profile, stop_packet(sentence, journal, usage, limits.steps), usage)


def _close_lost_request(services: Services, journal: Journal) -> None:
    """A request whose worker died counts as made and paid for."""
    for row in journal.current:
        if row.kind is StepKind.MODEL and row.outcome is None:
            journal.finish(row, {"error": LOST, **_spent(services, row, unknown=1)}, is_progress=False)


def _spent_on(services: Services, row: StepRow, answer: Answer) -> dict[str, Any]:
    return _spent(services, row, (answer.input_tokens, answer.output_tokens), unknown=answer.unknown_requests)


def _spent(services: Services, row: StepRow, tokens: tuple[int, int] = (0, 0), *, unknown: int) -> dict[str, Any]:
    """What a step cost; requests of which nobody knows what became of them count as what was set aside for each."""
    input_tokens, output_tokens = with_unknown(row, tokens, requests=unknown)
    cost = services.prices.cost(input_tokens=input_tokens, output_tokens=output_tokens)
    return {"input_tokens": input_tokens, "output_tokens": output_tokens, "cost": str(cost), "at": time.time()}
