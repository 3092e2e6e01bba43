"""A call that a person let through runs once, wherever the worker that runs it dies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from gateway.item import Status
from gateway.resolution import DECISIONS, Reviewer, apply
from gateway.settings import Settings
from gateway.store.engine import Database
from gateway.store.steps import StepKind
from gateway.wiring import Services, open_services
from tests.acceptance.conftest import POLICIES, SHIPPED
from tests.acceptance.reviewing import Desk
from tests.acceptance.talking_model import Message, Talk, TalkingModel, calls, saves
from tests.acceptance.test_killed_steps import MortalDatabase, Run
from tests.acceptance.test_killed_workers import QUICK, Crew
from tests.gateway.running import running

WISH = {"name": "material", "value": "olive oil", "source": "p1"}
BETTER = {**WISH, "value": "coconut oil"}


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, model: TalkingModel) -> Iterator[Services]:
    """What a worker works with, under a policy that asks before a property is stated."""
    folder = tmp_path_factory.mktemp("consent")
    own: Path = folder / "profiles"
    own.mkdir()
    shipped = yaml.safe_load(SHIPPED.read_text("utf-8"))
    (own / "product-copy.yaml").write_text(yaml.safe_dump({**shipped, **POLICIES["asks-first"]}), "utf-8")
    settings = Settings(
        data_dir=folder, model_url=model.url, model_attempts=1, decoder_workers=1, ocr_workers=1, profiles_dir=own
    )
    opened = open_services(settings)
    mortal = replace(opened, database=MortalDatabase(settings.sqlalchemy_url))
    yield mortal
    mortal.database.close()
    opened.close()


def states_first(talk: Talk) -> Message:
    return saves() if talk.calls_before else calls(("set_attribute", WISH))


def decided(services: Services, model: TalkingModel, title: str, **decision: Any) -> tuple[Run, Talk]:
    """An item whose agent has asked, and was answered; the next worker finds it queued."""
    talk = model.plays(title, states_first)
    run = Run(services, title)
    run.work()
    assert run.item().reason == "approval_needed"
    [case] = run.cases()
    [call] = case.packet["open_calls"]
    wanted = DECISIONS.validate_python({"lease_token": "t", "call_id": call["call_id"], **decision})
    Database.transact(
        run.database, lambda connection: apply(connection, services.profiles, case, wanted, Reviewer("person:ann"))
    )
    return run, talk


@pytest.mark.parametrize(
    ("decision", "stated"),
    [({"action": "approve_call"}, WISH), ({"action": "edit_call", "args": BETTER}, BETTER)],
    ids=["approved", "edited"],
)
def test_worker_killed_at_any_write_runs_the_call_once(
    services: Services, model: TalkingModel, decision: dict[str, Any], stated: dict[str, str]
) -> None:
    calm, _ = decided(services, model, f"calm {decision['action']}", **decision)
    writes = calm.work()
    assert calm.item().status is Status.SUCCEEDED
    moments = (False, True) if decision["action"] == "approve_call" else (True,)
    for at in range(1, writes + 1):
        for is_written in moments:
            title = f"{decision['action']} killed {'after' if is_written else 'at'} {at}"
            run, talk = decided(services, model, title, **decision)
            run.work((at, is_written))
            assert run.kills == 1, title
            run.work_to_the_end()
            item = run.item()
            assert (item.status, item.attempt, item.result) == (Status.SUCCEEDED, 1, calm.item().result), title
            assert [effect.arguments for effect in item.effects] == [stated], title
            stating = next(row for row in run.steps() if row.kind is StepKind.TOOL and row.intent["execute"])
            assert (stating.intent["grant"]["call_id"], stating.outcome is not None) == (
                stating.intent["call_id"],
                True,
            )
            assert stating.executions <= 2, title
            results = [message["content"] for message in talk.messages if message["role"] == "tool"]
            assert len(results) == 1, title
            assert stated["value"] in results[0], title


@pytest.fixture
def crew(tmp_path_factory: pytest.TempPathFactory, model: TalkingModel, profiles_dir: Path) -> Iterator[Crew]:
    settings: dict[str, object] = {**QUICK, "model_url": model.url, "profiles_dir": profiles_dir}
    with running("serve", tmp_path_factory.mktemp("consent-crew"), **settings) as service:
        made = Crew(service, settings)
        made.hire()
        yield made
        made.dismiss()


def test_real_workers_killed_around_an_approved_call_run_it_once(
    crew: Crew, model: TalkingModel, name: str, sheet: bytes
) -> None:
    """One dies as soon as it has the item again, the next with the call done and the model's answer outstanding."""
    killed: list[int] = []

    def kills_once(talk: Talk) -> Message:
        if talk.calls_before and len(killed) < 2:
            killed.append(2)
            crew.kill_holder(item_id)
        return states_first(talk)

    model.plays(name, kills_once)
    with crew.service.client() as client:
        desk = Desk(client, crew.service.data_dir)
        item_id = desk.submit(name, sheet, profile="asks-first")
        assert desk.settled(item_id, within_s=120)["reason"] == "approval_needed"
        case = desk.only_case(item_id)
        desk.decided(case["id"], "approve_call", call_id=case["open_calls"][0]["call_id"])
        killed.append(1)
        crew.kill_holder(item_id)
        item = desk.settled(item_id, within_s=120)
        assert (item["status"], item["attempt"]) == ("succeeded", 1), item["reason"]
        assert [effect["arguments"] for effect in item["effects"]] == [WISH]
        assert [step["reason"] for step in desk.history(item_id)].count("worker_lost") == len(crew.killed_at) == 2
