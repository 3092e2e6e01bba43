"""Copies of files in a bucket, on machines that used them: none stays for ever, none goes from under who is about to read it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gateway import retention
from gateway.copies import Copies, Copy
from gateway.item import FileRecord
from gateway.object_blobs import ObjectBlobs, bucket_of
from gateway.retention import CopiesUpkeep
from gateway.settings import Settings
from gateway.store.engine import Database
from tests import media
from tests.contracts.fixtures import s3
from tests.contracts.test_blobs import bucket, s3_settings
from tests.gateway.running import running, until
from tests.gateway.test_retention import add, put, services_of

__all__ = ["s3"]

HOUR_S = 3600.0
Host = Callable[[str], ObjectBlobs]


@pytest.fixture
def host(s3: str, tmp_path: Path) -> Host:
    """The same bucket as the machine of that name sees it."""
    settings = Settings(**s3_settings(s3, bucket(s3)))
    return lambda name: ObjectBlobs(bucket_of(settings), tmp_path / name, cache_bytes=10_000_000)


def age(path: Path, *, written_s: float = 2 * HOUR_S, used_s: float = 2 * HOUR_S) -> None:
    os.utime(path, (time.time() - used_s, time.time() - written_s))


def copies_of(blobs: ObjectBlobs) -> set[str]:
    return {copy.sha256 for copy in blobs.copies.all()}


def only_copy(blobs: ObjectBlobs) -> Copy:
    (copy,) = blobs.copies.all()
    return copy


def test_copies_go_with_the_last_item_that_names_them_and_when_nobody_uses_them(database: Database, host: Host) -> None:
    api, worker = host("api"), host("worker")
    files: dict[str, FileRecord] = {
        name: put(api, name.encode() * 100)
        for name in ("named", "purged", "purged and used", "unused", "not stored yet", "kept again")
    }
    item_ids = {name: add(database, file) for name, file in files.items() if name != "not stored yet"}
    for name, file in files.items():
        age(api.path("default", file.sha256), used_s=25 * HOUR_S if name == "unused" else HOUR_S)
    age(api.path("default", files["not stored yet"].sha256), written_s=HOUR_S / 2, used_s=HOUR_S / 2)
    for name in ("purged", "purged and used", "kept again"):
        assert retention.purge(services_of(database, worker), item_ids[name], actor="test")
    api.path("default", files["purged and used"].sha256)
    put(api, b"kept again" * 100)
    upkeep = CopiesUpkeep(services_of(database, api))
    assert upkeep.round() == 2
    left = {name for name, file in files.items() if file.sha256 in copies_of(api)}
    assert left == {"named", "purged and used", "not stored yet", "kept again"}
    age(api.path("default", files["purged and used"].sha256), used_s=HOUR_S)
    assert (upkeep.round(), upkeep.round()) == (1, 0)
    assert api.path("default", files["unused"].sha256).read_bytes() == b"unused" * 100, "the bucket has it"


def test_copies_are_looked_at_piece_by_piece(database: Database, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "COPIES_A_ROUND", 2)
    blobs = host("api")
    for number in range(5):
        age(blobs.path("default", put(blobs, b"%d" % number).sha256))
    upkeep = CopiesUpkeep(services_of(database, blobs))
    assert [upkeep.round() for _ in range(4)] == [2, 2, 1, 0]


def test_copy_that_is_asked_for_after_it_was_looked_at_stays(host: Host) -> None:
    blobs = host("api")
    file = put(blobs, b"wanted")
    age(blobs.path("default", file.sha256))
    seen = only_copy(blobs)
    path = host("api").path("default", file.sha256)  # by another process of this machine
    assert not blobs.copies.drop(seen)
    assert not blobs.copies.drop(only_copy(blobs)), "it was handed out a moment ago"
    assert path.read_bytes() == b"wanted"


def test_who_reads_a_copy_that_is_removed_reads_on(host: Host) -> None:
    blobs = host("api")
    file = put(blobs, b"wanted")
    path = blobs.path("default", file.sha256)
    with path.open("rb") as reader:
        age(path)
        assert blobs.copies.drop(only_copy(blobs))
        assert reader.read() == b"wanted"
    assert copies_of(blobs) == set()


@pytest.mark.parametrize("again", ["path", "keep"])
def test_copy_that_is_removed_while_it_is_handed_out_is_fetched_again(
    host: Host, monkeypatch: pytest.MonkeyPatch, again: str
) -> None:
    blobs, touch = host("api"), Copies.touch
    file = put(blobs, b"wanted")
    age(blobs.path("default", file.sha256))
    removed: list[Path] = []

    def after_removal(self: Copies, path: Path, *, is_written: bool = False) -> Path:
        if not removed:
            age(path)  # its digest was taken just now, which counts as a use on most disks
            assert self.drop(only_copy(blobs))
            removed.append(path)
        return touch(self, path, is_written=is_written)

    monkeypatch.setattr(Copies, "touch", after_removal)
    if again == "keep":
        put(blobs, b"wanted")
    path = blobs.path("default", file.sha256)
    assert (removed, path.read_bytes()) == ([path], b"wanted")


def test_api_alone_lets_go_of_what_nobody_uses(s3: str, tmp_path: Path) -> None:
    settings = s3_settings(s3, bucket(s3))
    with running("serve", tmp_path, default_wait_s=0, **settings) as api, api.client() as client:
        headers = {"Content-Type": "image/jpeg", "Prefer": "respond-async"}
        item = client.post("/v1/items", content=media.thumbnail(side=300), headers=headers).json()
        (digest,) = api.blobs
        assert digest == item["files"][0]["sha256"]
        age(tmp_path / "blobs" / "by-tenant" / "default" / digest, used_s=25 * HOUR_S)
        until(lambda: not api.blobs, within_s=60.0)
