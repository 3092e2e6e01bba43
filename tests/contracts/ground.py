"""Where workers of the service work: a database and a way of dispatch, with processes that come and go."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gateway.blobs import FolderBlobs
from gateway.ids import new_id
from gateway.item import FileRecord, Status
from gateway.profiles import load_profiles
from gateway.settings import Settings
from gateway.store import items, migrate
from gateway.store.engine import Database
from gateway.wiring import open_dispatch
from gateway.work.dispatch import Dispatch
from gateway.work.signals import Signals, signal_folder
from tests.contracts.queue import new_item, ways
from tests.contracts.sizes import sized
from tests.gateway.running import environment, until

SOON_S = 60.0
QUICK = {"sweep_s": 0.3, "hint_again_s": 0.6, "lease_s": 2, "heartbeat_s": 0.4, "ocr_workers": 1, "decoder_workers": 1}


@dataclass(frozen=True)
class Ground:
    """A database and a way of dispatch."""

    settings: dict[str, object]
    database: Database

    @property
    def folder(self) -> Path:
        """The data folder, whose blobs all processes share."""
        return Path(str(self.settings["data_dir"]))

    @property
    def shared(self) -> dict[str, object]:
        """The settings without the data folder."""
        return {name: value for name, value in self.settings.items() if name != "data_dir"}

    @contextlib.contextmanager
    def dispatch(self) -> Iterator[Dispatch]:
        """The sending side, as an API process has it."""
        settings = Settings(**self.settings)
        signals = Signals(signal_folder(settings.sqlalchemy_url))
        made = open_dispatch(settings, signals)
        yield made
        made.close()
        signals.close()


@pytest.fixture(scope="module", params=["embedded", "celery", *sized((), ("celery-rabbitmq",))])
def ground(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """Embedded on SQLite, Celery over Redis on PostgreSQL: the two ways that people run. At full size over RabbitMQ too."""
    folder = tmp_path_factory.mktemp("dispatch")
    if request.param == "embedded":
        database = Database(f"sqlite:///{folder / 'sluicegate.db'}")
        migrate.upgrade(database)
        yield Ground({"data_dir": folder, **QUICK}, database)
        database.close()
        return
    is_redis = request.param == "celery"
    broker_url = request.getfixturevalue("redis").url() if is_redis else request.getfixturevalue("rabbitmq_url")
    with request.getfixturevalue("postgres").database("migrated") as url:
        database = Database(url)
        settings = {"data_dir": folder, "database_url": url, "dispatch": "celery", "broker_url": broker_url, **QUICK}
        yield Ground(settings, database)
        database.close()


def add(ground: Ground, count: int, photo: bytes | None = None) -> list[str]:
    """Waiting items: without a photo the offline writer finishes them at once by their titles, with one they take a while."""
    profile = load_profiles()["product-copy"]
    made = []
    for _ in range(count):
        title = "Oak table, oiled, 180 cm"
        submission = {"title": title, "attributes": {}, "text": None, "language": "en", "mode": "generate"}
        files = () if photo is None else (_kept(ground, photo),)
        new = new_item(profile=profile.name, profile_version=profile.version, submission=submission, files=files)
        ground.database.transact(
            lambda c, new=new: items.insert(c, new, actor="test", at_ms=items.now_ms(c))  # type: ignore[misc]
        )
        made.append(new.id)
    return made


def _kept(ground: Ground, photo: bytes) -> FileRecord:
    blobs = FolderBlobs(ground.folder / "blobs")
    with blobs.writer() as writer:
        writer.write(photo)
        blob = writer.finish()
        blobs.keep("default", blob)
    return FileRecord(
        id=new_id("fil"),
        part="p1",
        role=None,
        file_name="photo.jpg",
        declared_type="image/jpeg",
        sha256=blob.sha256,
        bytes=blob.bytes,
        media_type="image/jpeg",
        verdict=None,
        screening=None,
    )


def assert_all_done_once(ground: Ground, item_ids: list[str]) -> None:
    def all_over() -> bool:
        return all(
            statuses and statuses[-1] is Status.SUCCEEDED for statuses in ways(ground.database, item_ids).values()
        )

    until(all_over, within_s=SOON_S, every_s=0.1)
    found = ways(ground.database, item_ids)
    for item_id in item_ids:
        assert found[item_id].count(Status.SUCCEEDED) == 1
        assert found[item_id][-1] is Status.SUCCEEDED
        with ground.database.read() as connection:
            item = items.get(connection, item_id)
        assert item is not None
        assert (item.claims, item.lost_claims) == (1, 0)


@contextlib.contextmanager
def worker_of(folder: Path, settings: dict[str, object], *options: str) -> Iterator[subprocess.Popen[bytes]]:
    """A worker with options of the command line, ended in good order unless it was killed."""
    with process_of(folder, settings, "worker", *options) as process:
        yield process


@contextlib.contextmanager
def process_of(folder: Path, settings: dict[str, object], *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """Any command that works until it is told to stop, and then has to end well."""
    log = folder / f"{words[0]}-{time.monotonic_ns()}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", *words], env=environment(folder, settings), stderr=output
        )
    started = "webhooks.started" if words[0] == "deliver" else "worker.started"
    try:
        until(lambda: started in log.read_text("utf-8", "replace"), within_s=60)
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        status = process.wait(30)
    assert status == 0, log.read_text("utf-8", "replace")[-2000:]
