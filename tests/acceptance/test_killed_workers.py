"""The incident with real workers, each killed with a step in flight: the same end, one case, little done twice."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from gateway.store.engine import Database
from gateway.store.steps import StepKind
from gateway.store.tables import items
from tests.acceptance.reviewing import Desk
from tests.acceptance.talking_model import Message, Talk, TalkingModel, calls, wanders
from tests.gateway.running import Service, environment, running, until

QUICK: dict[str, object] = {
    "lease_s": 2, "heartbeat_s": 0.4, "sweep_s": 0.2, "decoder_workers": 1, "ocr_workers": 1, "model_attempts": 1,
}  # fmt: skip
STANDBY = 2


@dataclass
class Crew:
    """Workers, of whom one may be killed at any time and another takes over."""

    service: Service
    settings: dict[str, object]
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    killed_at: list[float] = field(default_factory=list)

    def hire(self) -> None:
        log = self.service.data_dir / f"worker-{time.monotonic_ns()}.log"
        with log.open("wb") as output:
            command = [sys.executable, "-m", "gateway", "worker"]
            env = environment(self.service.data_dir, self.settings)
            process = subprocess.Popen(command, env=env, stderr=output, start_new_session=True)
        self.processes.append(process)
        until(lambda: process.poll() is not None or "worker.started" in log.read_text("utf-8", "replace"), within_s=90)

    def kill_holder(self, item_id: str) -> None:
        """SIGKILL for the worker that has the item in hand; another one is hired beside those that are left."""
        pid = until(lambda: self.holder(item_id), within_s=10, every_s=0.002)
        os.kill(pid, signal.SIGKILL)
        self.killed_at.append(time.monotonic())
        threading.Thread(target=self.hire, daemon=True).start()

    def holder(self, item_id: str) -> int | None:
        database = Database(f"sqlite:///{self.service.data_dir / 'sluicegate.db'}")
        with database.read() as connection:
            owner = connection.execute(sa.select(items.c.lease_owner).where(items.c.id == item_id)).scalar()
        database.close()
        return None if owner is None else int(owner.rsplit(":", 1)[1])

    def dismiss(self) -> None:
        for process in self.processes:
            process.terminate()
        for process in self.processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(30)
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory, model: TalkingModel, profiles_dir: Path) -> Iterator[Crew]:
    settings = {**QUICK, "model_url": model.url, "profiles_dir": profiles_dir}
    with running("serve", tmp_path_factory.mktemp("crew"), **settings) as service:
        made = Crew(service, settings)
        for _ in range(STANDBY):
            made.hire()
        yield made
        made.dismiss()


@pytest.fixture
def desk(crew: Crew) -> Iterator[Desk]:
    with crew.service.client() as client:
        yield Desk(client, crew.service.data_dir)


class Saboteur:
    """Kills the item's worker the first time that each step is in flight: a request by its number, or the call it led to.

    A call is caught by putting a pipe in the place of the stored file: whoever opens it for reading is at work on it.
    """

    def __init__(self, crew: Crew) -> None:
        self.crew = crew
        self.item_id = ""
        self.killed: list[str] = []
        self.trap: tuple[threading.Event, threading.Thread] | None = None

    def __call__(self, talk: Talk) -> Message:
        number = len(talk.calls_before) + 1
        self.disarm()
        if f"model {number}" not in self.killed:
            self._kill(f"model {number}")
        elif f"tool {number}" not in self.killed:
            self._arm(f"tool {number}")
        return wanders(talk)

    def _kill(self, step: str) -> None:
        self.killed.append(step)
        self.crew.kill_holder(self.item_id)

    def _arm(self, step: str) -> None:
        root = self.crew.service.data_dir / "blobs" / "by-tenant"
        [blob] = [path for path in root.rglob("*") if len(path.name) == 64]
        pipe, aside = self.crew.service.data_dir / "pipe", self.crew.service.data_dir / "aside"
        aside.write_bytes(blob.read_bytes())
        os.mkfifo(pipe)
        os.replace(pipe, blob)
        off = threading.Event()
        thread = threading.Thread(target=self._catch, args=(step, blob, aside, off))
        self.trap = off, thread
        thread.start()

    def _catch(self, step: str, blob: Path, aside: Path, off: threading.Event) -> None:
        while not off.wait(0.002):
            try:
                writing = os.open(blob, os.O_WRONLY | os.O_NONBLOCK)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                continue  # nobody reads it yet
            self._kill(step)
            os.replace(aside, blob)
            os.close(writing)
            return
        os.replace(aside, blob)

    def disarm(self) -> None:
        """The call before this request was refused, or is over: nobody will open the pipe any more."""
        if self.trap is not None:
            off, thread = self.trap
            off.set()
            thread.join(30)
            self.trap = None


@pytest.mark.case
def test_worker_killed_at_every_step_of_the_incident(
    crew: Crew, desk: Desk, model: TalkingModel, name: str, label: bytes
) -> None:
    """S10, with arguments that wander."""
    saboteur = Saboteur(crew)
    talk = model.plays(name, saboteur)
    saboteur.item_id = desk.submit(name, label)
    item = desk.settled(saboteur.item_id, within_s=240)
    saboteur.disarm()
    assert (item["status"], item["attempt"]) == ("awaiting_human", 1), item["reason"]
    assert item["reason"] in {"repeated_tool_calls", "repeated_error"}
    kills = len(crew.killed_at)
    history = desk.history(saboteur.item_id)
    lost = [step for step in history if step["reason"] == "worker_lost"]
    assert len(saboteur.killed) == kills >= 7
    assert len(lost) >= kills
    actions = desk.actions(saboteur.item_id)
    assert (actions[:2], actions[-1], actions.count("halt")) == (["allow", "warn"], "halt", 1)
    rows = desk.steps(saboteur.item_id)
    executed = [row for row in rows if row.kind is StepKind.TOOL and row.intent["execute"]]
    requests = [row for row in rows if row.kind is StepKind.MODEL]
    assert len(executed) <= 4
    assert sum(row.executions for row in executed) <= 4 + len(lost)
    assert len(talk.requests) <= 5 + len(lost)
    assert [row.executions for row in executed if f"tool {row.intent['step']}" in saboteur.killed] != []
    assert all(row.executions >= 2 for row in executed if f"tool {row.intent['step']}" in saboteur.killed)
    costs = [Decimal(row.outcome["cost"]) for row in requests if row.outcome]
    assert (len(costs), min(costs) > 0) == (len(requests), True)
    assert Decimal(item["usage"]["cost"]) == sum(costs).quantize(Decimal("0.000001"))
    case = desk.only_case(saboteur.item_id)
    assert (case["halt_number"], case["occurrence_count"], case["tool"]) == (1, 1, "ocr_extract")
    assert [step["to"] for step in history].count("awaiting_human") == 1
    model.plays(name, wanders)
    desk.decided(case["id"], "reroute", route="text_only")
    ended = desk.settled(saboteur.item_id)
    assert (ended["status"], ended["attempt"]) == ("succeeded", 2)
    assert Decimal(ended["usage"]["cost"]) > Decimal(item["usage"]["cost"])
    print(
        f"{kills} kills: "
        + ", ".join(f"{seconds:.1f}" for seconds in _resumed_after(history))
        + " s from lapse to resume"
    )


class EqualCalls:
    """A model that asks for the same reading for ever, whose worker is killed after the first, second and third of them."""

    MOST_KILLS = 3

    def __init__(self, crew: Crew, desk: Desk) -> None:
        self.crew = crew
        self.desk = desk
        self.item_id = ""
        self.kills = 0
        self.spent: list[Decimal] = []

    def __call__(self, talk: Talk) -> Message:
        rows = self.desk.steps(self.item_id)
        self.spent.append(sum((Decimal((row.outcome or {}).get("cost", "0")) for row in rows), Decimal(0)))
        if len(talk.calls_before) == self.kills + 1 and self.kills < self.MOST_KILLS:
            self.kills += 1
            self.crew.kill_holder(self.item_id)
        return calls(("ocr_extract", {"file": "p1"}))


@pytest.mark.case
def test_equal_calls_of_a_run_whose_workers_are_killed_climb_the_ladder_once(
    crew: Crew, desk: Desk, model: TalkingModel, name: str, label: bytes
) -> None:
    """S10: resume replays results and never calls; what is counted is counted on."""
    killed_before = len(crew.killed_at)
    behave = EqualCalls(crew, desk)
    talk = model.plays(name, behave)
    behave.item_id = desk.submit(name, label, profile="loop-human")
    item = desk.settled(behave.item_id, within_s=240)
    kills = len(crew.killed_at) - killed_before
    lost = [step for step in desk.history(behave.item_id) if step["reason"] == "worker_lost"]
    assert (item["status"], item["reason"]) == ("awaiting_human", "repeated_tool_calls")
    assert (behave.kills, kills) == (3, 3)
    assert desk.actions(behave.item_id) == ["allow", "warn", "block", "halt"]
    executed = [row for row in desk.steps(behave.item_id) if row.kind is StepKind.TOOL and row.intent["execute"]]
    without_kills = 2
    assert without_kills <= sum(row.executions for row in executed) <= without_kills + min(len(lost), 3)
    assert len(talk.requests) <= 4 + len(lost)
    assert behave.spent == sorted(behave.spent)
    assert Decimal(item["usage"]["cost"]) >= behave.spent[-1] > 0


def _resumed_after(history: list[dict[str, Any]]) -> list[float]:
    """Seconds between a lost lease found and the item taken again."""
    times = [(step["to"], step["reason"], datetime.fromisoformat(step["at"])) for step in history]
    return [
        (after[2] - before[2]).total_seconds()
        for before, after in pairwise(times)
        if before[1] == "worker_lost" and after[0] == "inspecting"
    ]
