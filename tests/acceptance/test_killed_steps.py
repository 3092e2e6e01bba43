"""A worker may die between any two writes: whoever takes over ends the run the same way, and nothing is done twice."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from decimal import Decimal
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from sqlalchemy.engine import Connection

from gateway import pipeline
from gateway.blobs import FolderBlobs
from gateway.escalation import allowed_actions
from gateway.ids import new_id
from gateway.item import FileRecord, Item, Lease, Mode, Status
from gateway.resolution import DECISIONS, Reviewer, apply
from gateway.settings import Settings
from gateway.store import escalations as case_store
from gateway.store import items as item_store
from gateway.store import steps as step_store
from gateway.store.engine import Database
from gateway.store.escalations import CaseFilter
from gateway.store.items import NewItem
from gateway.store.steps import StepKind, StepRow
from gateway.store.tables import history
from gateway.store.tables import items as items_table
from gateway.wiring import Services, open_services
from gateway.work.sweeper import MAX_LOST_CLAIMS, sweep
from tests import media
from tests.acceptance.talking_model import Message, Talk, TalkingModel, calls, fumbles, saves, talking_model
from tests.gateway.model_stub import COPY

T = TypeVar("T")


class Killed(BaseException):
    """The worker is gone at this very place."""


class MortalDatabase(Database):
    """A worker's database that kills it at a chosen write: before it, or when it is written and nothing more was done."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.writes = 0
        self.dies_at: tuple[int, bool] | None = None

    def transact(self, work: Callable[[Connection], T]) -> T:
        self.writes += 1
        at, is_written = self.dies_at or (0, False)
        if self.writes == at and not is_written:
            raise Killed
        result = super().transact(work)
        if self.writes == at:
            raise Killed
        return result


@pytest.fixture(scope="module")
def model() -> Iterator[TalkingModel]:
    with talking_model() as started:
        yield started


@pytest.fixture(scope="module")
def services(tmp_path_factory: pytest.TempPathFactory, model: TalkingModel) -> Iterator[Services]:
    """What a worker works with; its database can be made to kill it."""
    folder = tmp_path_factory.mktemp("killed")
    settings = Settings(data_dir=folder, model_url=model.url, model_attempts=1, decoder_workers=1, ocr_workers=1)
    opened = open_services(settings)
    mortal = replace(opened, database=MortalDatabase(settings.sqlalchemy_url))
    yield mortal
    mortal.database.close()
    opened.close()


class Run:
    """One item, worked on by one worker after another."""

    def __init__(self, services: Services, title: str) -> None:
        self.services = services
        self.database = services.database
        assert isinstance(self.database, MortalDatabase)
        self.mortal = self.database
        self.kills = 0
        self.costs: list[Decimal] = []
        new = _new_item(services, title)
        self.item_id = new.id
        self._calmly(
            lambda connection: item_store.insert(connection, new, actor="test", at_ms=item_store.now_ms(connection))
        )

    def work(self, dies_at: tuple[int, bool] | None = None) -> int:
        """One worker's turn; gives how many writes it made. Counts a kill if it died."""
        lease = self._calmly(
            lambda connection: item_store.claim(connection, self.item_id, owner="worker", lease_ms=60_000)
        )
        assert isinstance(lease, Lease)
        self.mortal.writes, self.mortal.dies_at = 0, dies_at
        try:
            pipeline.process(self.services, lease)
        except Killed:
            self.kills += 1
            self.mortal.dies_at = None
            self._lapse()
        finally:
            self.mortal.dies_at = None
        self.costs.append(sum((Decimal((row.outcome or {}).get("cost", "0")) for row in self.steps()), Decimal(0)))
        return self.mortal.writes

    def work_to_the_end(self) -> None:
        for _ in range(10):
            if self.item().status is not Status.QUEUED:
                return
            self.work()

    def _lapse(self) -> None:
        """The dead worker's lease runs out, and the sweeper finds it; unless it had settled the item before it died."""
        table = items_table
        held = table.update().where(table.c.id == self.item_id, table.c.lease_expires_ms.is_not(None))
        self._calmly(lambda connection: connection.execute(held.values(lease_expires_ms=1)))
        sweep(self.services)

    def _calmly(self, work: Callable[[Connection], T]) -> T:
        return Database.transact(self.database, work)

    def item(self) -> Item:
        with self.database.read() as connection:
            found = item_store.get(connection, self.item_id)
        assert found is not None
        return found

    def steps(self) -> list[StepRow]:
        with self.database.read() as connection:
            return step_store.all_of(connection, self.item_id)

    def cases(self) -> list[Any]:
        with self.database.read() as connection:
            where = CaseFilter(item_id=self.item_id)
            return case_store.page(connection, tenant="default", where=where, after=None, limit=10)

    def statuses(self) -> list[str]:
        with self.database.read() as connection:
            return [str(row.to_status) for row in item_store.history_of(connection, self.item_id)]


def _new_item(services: Services, title: str) -> NewItem:
    blobs = FolderBlobs(services.settings.data_dir / "blobs")
    with blobs.writer() as writer:
        writer.write(media.pdf_text())
        blob = writer.finish()
        blobs.keep("default", blob)
    file = FileRecord(
        id=new_id("fil"), part="p1", role=None, file_name="facts.pdf", declared_type="application/pdf", sha256=blob.sha256,
        bytes=blob.bytes, media_type="application/pdf", verdict=None, screening=None,
    )  # fmt: skip
    profile = services.profiles["product-copy"]
    return NewItem(
        id=new_id("itm"), tenant="default", external_id=None, mode=Mode.GENERATE, profile=profile.name,
        profile_version=profile.version, ruleset="rs_1", submission={"title": title, "attributes": {"brand": "Fjord"}},
        notes=(), content_key=title, duplicate_of=None, retention_ms=3_600_000, files=(file,),
    )  # fmt: skip


def finishes(talk: Talk) -> Message:
    """Two calls, one of them in a message with a bad one, then the copy."""
    done = len(talk.calls_before)
    if done == 0:
        return calls(("lookup_attributes", {"query": "brand"}))
    if done == 1:
        return calls(("read_pdf", {"file": "p1"}), ("nothing_like_it", {}))
    return saves()


def writes_its_copy_as_text(talk: Talk) -> Message:
    return {"role": "assistant", "content": json.dumps(COPY)}


def loops_on_what_works(talk: Talk) -> Message:
    """Falls back once, then hands in its copy."""
    if talk.was_told("is closed for the rest of this run"):
        return saves()
    return calls(("lookup_attributes", {"query": "brand"}))


PLAYS: dict[str, tuple[Callable[[Talk], Message], Status]] = {
    "a loop that ends before a person": (fumbles, Status.AWAITING_HUMAN),
    "a run that ends with copy": (finishes, Status.SUCCEEDED),
    "copy as text": (writes_its_copy_as_text, Status.SUCCEEDED),
    "a fallback": (loops_on_what_works, Status.SUCCEEDED),
}


@pytest.mark.parametrize("play", PLAYS)
def test_worker_killed_before_or_after_any_write_changes_nothing_of_the_end(
    services: Services, model: TalkingModel, play: str
) -> None:
    behave, status = PLAYS[play]
    title = f"calm {play}"
    calm_talk = model.plays(title, behave)
    calm = Run(services, title)
    writes = calm.work()
    assert calm.item().status is status
    moments = (True,) if play == "a fallback" else (False, True)
    for at in range(1, writes + 1):
        for is_written in moments:
            title = f"{play} killed {'after' if is_written else 'at'} {at}"
            talk = model.plays(title, behave)
            run = Run(services, title)
            run.work((at, is_written))
            assert run.kills == 1
            run.work_to_the_end()
            _assert_ended_like(run, calm, title)
            assert len(talk.requests) <= len(calm_talk.requests) + 1, title


def test_workers_killed_at_every_step_of_one_run_change_nothing_of_its_end(
    services: Services, model: TalkingModel
) -> None:
    """Each dies with the next step in flight: before the answer of the model, or of the tool, is written down."""
    model.plays("calm at every step", fumbles)
    calm = Run(services, "calm at every step")
    calm.work()
    talk = model.plays("killed at every step", fumbles)
    run = Run(services, "killed at every step")
    run.work((5, False))  # screened, running, prompt, request begun; its answer is lost
    # Closes the lost request, asks again, begins the call; then finishes that call and begins the next request.
    for dies_at in itertools.cycle((6, 5)):
        if run.item().status is not Status.QUEUED:
            break
        run.work((dies_at, False))
    assert run.kills >= 9
    _assert_ended_like(run, calm, "every step")
    assert max(row.executions for row in run.steps()) == 2
    assert len(talk.requests) <= 5 + run.kills


def _assert_ended_like(run: Run, calm: Run, title: str) -> None:
    item, wanted = run.item(), calm.item()
    assert (item.status, item.reason, item.result, item.attempt) == (
        wanted.status, wanted.reason, wanted.result, wanted.attempt,
    ), title  # fmt: skip
    assert _verdicts(run) == _verdicts(calm), title
    executed = _executions(run)
    for name, count in _executions(calm).items():
        assert count <= executed[name] <= count + run.kills, title
    models = [row for row in run.steps() if row.kind is StepKind.MODEL]
    assert len(models) <= len([row for row in calm.steps() if row.kind is StepKind.MODEL]) + run.kills, title
    assert all(row.outcome is not None for row in run.steps()), title
    assert run.costs == sorted(run.costs), title
    assert Decimal(item.usage.cost) >= Decimal(wanted.usage.cost), title
    assert len(run.cases()) == len(calm.cases()), title
    assert run.statuses().count(wanted.status.value) == 1, title
    if wanted.status is Status.AWAITING_HUMAN:
        [case], [wanted_case] = run.cases(), calm.cases()
        for name in (
            "question",
            "why",
            "attempts",
            "evidence",
            "halt_number",
            "resume_point",
            "first_answer",
            "signature",
        ):
            assert case.packet[name] == wanted_case.packet[name], (title, name)
        assert case.occurrence_count == 1


def _verdicts(run: Run) -> list[tuple[str, str]]:
    return [
        (row.intent["tool"], (row.outcome or {}).get("action") or row.intent["action"])
        for row in run.steps()
        if row.kind is StepKind.TOOL
    ]


def _executions(run: Run) -> Counter[str]:
    counted: Counter[str] = Counter()
    for row in run.steps():
        if row.kind is StepKind.TOOL and row.intent["execute"]:
            counted[row.intent["tool"]] += row.executions
    return counted


def test_time_in_the_queue_is_no_part_of_the_time_budget(
    services: Services, model: TalkingModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    title = "long wait"
    model.plays(title, finishes)
    run = Run(services, title)
    run.work((6, False))
    waited_s = 10 * services.profiles["product-copy"].budget.max_seconds
    lost = history.update().where(history.c.item_id == run.item_id, history.c.reason == "worker_lost")
    run._calmly(lambda connection: connection.execute(lost.values(at_ms=history.c.at_ms - 1000 * waited_s)))
    later = SimpleNamespace(time=lambda: time.time() + waited_s, time_ns=time.time_ns)
    monkeypatch.setattr("gateway.agent.journal.time", later)
    run.work_to_the_end()
    assert (run.item().status, run.cases()) == (Status.SUCCEEDED, [])


def test_request_that_kills_every_worker_goes_to_a_person_after_three(services: Services, model: TalkingModel) -> None:
    title = "deadly request"
    talk = model.plays(title, fumbles)
    run = Run(services, title)
    run.work((5, False))  # the answer to the first request is never written down
    while run.item().status is Status.QUEUED:
        run.work((4, False))  # nor is any later one: running, the lost one closed, a new one begun
    item = run.item()
    assert (item.status, item.reason, item.claims) == (Status.AWAITING_HUMAN, "worker_lost", MAX_LOST_CLAIMS)
    assert run.kills == MAX_LOST_CLAIMS == len(talk.requests)
    [case] = run.cases()
    assert (case.tool, case.packet["usage"]["model_calls"]) == (None, 3)
    assert item.usage.model_calls == 3
    assert [action.value for action in allowed_actions(case)] == [
        "reroute", "answer_item", "reject_item", "retry", "ask_submitter",
    ]  # fmt: skip


def test_files_that_no_worker_survived_are_left_out_when_a_person_says_text_only(
    services: Services, model: TalkingModel
) -> None:
    title = "deadly file"
    talk = model.plays(title, writes_its_copy_as_text)
    run = Run(services, title)
    while run.item().status is Status.QUEUED:
        run.work((1, False))
    assert (run.item().reason, run.item().claims, talk.requests) == ("worker_lost", MAX_LOST_CLAIMS, [])
    [case] = run.cases()
    decision = DECISIONS.validate_python({"lease_token": "t", "action": "reroute", "route": "text_only"})
    reviewer = Reviewer("person:ann")
    Database.transact(run.database, lambda connection: apply(connection, services.profiles, case, decision, reviewer))
    assert run.item().lost_claims == 0
    run.work()
    item = run.item()
    assert (item.status, item.route, item.attempt) == (Status.SUCCEEDED, "text_only", 2)
    assert 'source=\\"p1\\"' not in json.dumps(talk.requests)
    assert 'source=\\"title\\"' in json.dumps(talk.requests)
