"""One run from start to verdict: set up, send and kill, wait for rest, hold the service against the ledger."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import httpx

from gateway.store import migrate
from gateway.store.engine import Database
from tests.chaos.clients import Clients
from tests.chaos.ledger import Book
from tests.chaos.plan import Dispatch, Plan, Target
from tests.chaos.processes import Crew, Program, service_program
from tests.chaos.verdict import Verdict, judge, wait_until_at_rest
from tests.contracts.servers import free_port, postgresql, rabbitmq, redis_command

REST_S = 60.0
"""How long after the last kill an item may take to come to rest."""
_READY_S = 120.0
_LATE_S = 300.0
"""How long clients go on after the planned time with what was not accepted yet."""
_WORKER_KILLERS = (Target.WORKER, Target.ALL, Target.SUPERVISOR)
"""What ends a worker; a supervisor that is killed takes its children with it."""


@dataclass(frozen=True, slots=True)
class Setup:
    """A service that can be started."""

    url: str
    programs: list[Program]


def run(
    plan: Plan, folder: Path, *, broker: str, settings: Mapping[str, object], say: Callable[[str], None]
) -> Verdict:
    """Carry out a plan in a folder of its own. The ledger stays there; all processes are gone afterwards."""
    (folder / "data").mkdir(parents=True)
    with (
        _model(folder) as model_url,
        _service(plan.dispatch, folder, broker, {"model_url": model_url, **settings}) as setup,
    ):
        crew = Crew(setup.programs)
        crew.start()
        try:
            _wait_ready(setup.url)
            verdict = _send_and_kill(plan, crew, setup.url, folder, say)
        finally:
            badly_ended = crew.stop()
    verdict.faults += [f"{name} ended with {status} when it was told to stop" for name, status in badly_ended.items()]
    return verdict


def _send_and_kill(plan: Plan, crew: Crew, url: str, folder: Path, say: Callable[[str], None]) -> Verdict:
    answers, kills = Book(folder / "clients.jsonl"), Book(folder / "kills.jsonl")
    clients = Clients(url, plan.products, answers)
    sending = threading.Thread(target=clients.run, name="clients")
    began = killed_at = time.monotonic()
    sending.start()
    for kill in plan.kills:
        time.sleep(max(0.0, began + kill.at_s - time.monotonic()))
        kills.write(target=kill.target.value, pids=crew.kill(kill))
        killed_at = time.monotonic()
    time.sleep(max(0.0, began + plan.seconds - time.monotonic()))
    clients.begin_no_more()
    _wait_ready(url)
    sending.join(_LATE_S)
    clients.give_up()
    sending.join()
    begun = {entry["marker"] for entry in answers}
    products = [product for product in plan.products if product.marker in begun]
    made = ", ".join(f"{count} x {target.value}" for target, count in crew.kills.items() if count)
    say(f"{len(products):,} products sent in {time.monotonic() - began:.0f} s; killed: {made}")
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as client:
        wait_until_at_rest(client, within_s=REST_S)
        say(f"at rest {time.monotonic() - killed_at:.1f} s after the latest kill")
        worker_kills = sum(crew.kills[target] for target in _WORKER_KILLERS)
        return judge(client, products, answers, folder, worker_kills)


@contextlib.contextmanager
def _model(folder: Path) -> Iterator[str]:
    """The ledger's process."""
    command = [sys.executable, "-m", "tests.chaos.ledger", str(folder)]
    with subprocess.Popen(["setpriv", "--pdeathsig", "TERM", *command], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.terminate()


@contextlib.contextmanager
def _service(dispatch: Dispatch, folder: Path, broker: str, settings: Mapping[str, object]) -> Iterator[Setup]:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    if dispatch is Dispatch.EMBEDDED:
        yield Setup(url, [service_program("service", folder, {"port": port, **settings}, "up")])
        return
    with postgresql() as server, server.database() as database_url:
        database = Database(database_url)
        migrate.upgrade(database)
        database.close()
        broker_url, programs = _broker(broker, folder)
        shared = {**settings, "database_url": database_url, "dispatch": "celery", "broker_url": broker_url}
        workers = [
            service_program(f"worker-{number}", folder, shared, "worker", "--dispatch", "celery") for number in (1, 2)
        ]
        yield Setup(url, [*programs, service_program("api", folder, {"port": port, **shared}, "serve"), *workers])


def _broker(kind: str, folder: Path) -> tuple[str, list[Program]]:
    """Its address, and the programs that it consists of; `broker` is the one that may be killed."""
    log = folder / "broker.log"
    if kind == "redis":
        port = free_port()
        return f"redis://127.0.0.1:{port}/0", [Program("broker", tuple(redis_command(port)), dict(os.environ), log)]
    made = rabbitmq(folder)
    return made.url, [
        Program("names", tuple(made.names), made.environment, log),
        Program("broker", tuple(made.node), made.environment, log),
    ]


def _wait_ready(url: str) -> None:
    deadline = time.monotonic() + _READY_S
    while True:
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/readyz", trust_env=False, timeout=5).status_code == 200:
                return
        assert time.monotonic() < deadline, "the service did not get ready"
        time.sleep(0.1)
