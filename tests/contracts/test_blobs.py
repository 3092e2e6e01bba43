"""What a store of uploaded files promises, for the folder and for the bucket."""

from __future__ import annotations

import hashlib
import os
import time
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import obstore
import pytest

from gateway import blobs
from gateway.blobs import BlobDamaged, BlobMissing, Blobs, BlobStoreUnreachable, BlobUnusable, FolderBlobs
from gateway.object_blobs import ObjectBlobs, bucket_of
from gateway.settings import Settings
from tests import media
from tests.contracts.servers import free_port
from tests.gateway.running import running, settled

Open = Callable[[], Blobs]
"""The same store as another process would open it."""


def bucket(endpoint: str) -> str:
    """The address of a new bucket."""
    name = f"b-{uuid.uuid4().hex[:12]}"
    made = urllib.request.Request(f"{endpoint}/{name}", method="PUT")
    urllib.request.urlopen(made, timeout=10).close()
    return f"s3://{name}/uploads"


def s3_settings(endpoint: str, url: str) -> dict[str, object]:
    return {
        "blob_url": url,
        "blob_endpoint_url": endpoint,
        "blob_access_key_id": "test",
        "blob_secret_access_key": "test",
    }


@pytest.fixture(params=["folder", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    if request.param == "folder":
        yield lambda: FolderBlobs(tmp_path / "blobs")
        return
    endpoint = request.getfixturevalue("s3")
    settings = Settings(**s3_settings(endpoint, bucket(endpoint)))
    hosts = iter(range(100))
    yield lambda: ObjectBlobs(bucket_of(settings), tmp_path / f"host-{next(hosts)}", cache_bytes=10_000_000)


def put(blobs: Blobs, tenant: str, content: bytes) -> str:
    """Upload in pieces, as requests do."""
    with blobs.writer() as writer:
        for start in range(0, len(content), 70_000):
            writer.write(content[start : start + 70_000])
        blob = writer.finish()
        assert blobs.keep(tenant, blob).read_bytes() == content
    return blob.sha256


def test_what_one_process_keeps_another_reads(store: Open) -> None:
    content = os.urandom(300_000)
    digest = put(store(), "alpha", content)
    assert digest == hashlib.sha256(content).hexdigest()
    assert store().path("alpha", digest).read_bytes() == content


def test_kept_files_are_listed_by_tenant_and_removed_for_every_process(store: Open) -> None:
    contents = [os.urandom(1000) for _ in range(3)]
    digests = {put(store(), "alpha", content) for content in contents[:2]} | {put(store(), "beta", contents[2])}
    reader = store()
    assert {(blob.tenant, blob.sha256) for blob in reader.kept()} == {
        ("beta" if digest == hashlib.sha256(contents[2]).hexdigest() else "alpha", digest) for digest in digests
    }
    assert all(abs(blob.kept_at - time.time()) < 60 for blob in reader.kept())
    removed = hashlib.sha256(contents[0]).hexdigest()
    reader.path("alpha", removed)
    assert reader.holds("alpha", removed)
    reader.remove("alpha", removed)
    reader.remove("alpha", removed)
    assert not reader.holds("alpha", removed)
    with pytest.raises(BlobMissing):
        reader.path("alpha", removed)
    assert removed not in {blob.sha256 for blob in reader.kept()}


def test_large_upload_arrives_whole(store: Open) -> None:
    content = os.urandom(20_000_000)
    assert store().path("alpha", put(store(), "alpha", content)).read_bytes() == content


def test_same_content_may_be_kept_again_and_by_several_at_once(store: Open) -> None:
    blobs, content = store(), os.urandom(50_000)
    with ThreadPoolExecutor(8) as pool:
        digests = set(pool.map(lambda _: put(blobs, "alpha", content), range(16)))
    assert len(digests) == 1
    assert store().path("alpha", digests.pop()).read_bytes() == content


def test_tenants_never_see_each_others_files(store: Open) -> None:
    digest = put(store(), "alpha", b"only for alpha")
    with pytest.raises(BlobMissing):
        store().path("beta", digest)


def test_upload_that_is_not_kept_is_nowhere(store: Open) -> None:
    blobs = store()
    with blobs.writer() as writer:
        writer.write(b"given up")
        digest = writer.finish().sha256
    with pytest.raises(BlobUnusable):
        blobs.path("alpha", digest)
    assert not writer.path.exists()


def test_changed_bytes_are_noticed_and_mended_by_the_next_upload_of_the_same(tmp_path: Path) -> None:
    content = os.urandom(10_000)
    blobs = FolderBlobs(tmp_path)
    digest = put(blobs, "alpha", content)
    path = blobs.path("alpha", digest)
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    for reader in (blobs, FolderBlobs(tmp_path)):
        with pytest.raises(BlobDamaged):
            reader.path("alpha", digest)
    put(blobs, "alpha", content)
    assert FolderBlobs(tmp_path).path("alpha", digest).read_bytes() == content


def test_damaged_local_copy_is_fetched_again_and_a_damaged_object_is_refused(s3: str, tmp_path: Path) -> None:
    objects = bucket_of(Settings(**s3_settings(s3, bucket(s3))))
    blobs = ObjectBlobs(objects, tmp_path, cache_bytes=1_000_000)
    digest = put(blobs, "alpha", b"as it was")
    blobs.path("alpha", digest).write_bytes(b"something else")
    assert blobs.path("alpha", digest).read_bytes() == b"as it was"
    obstore.put(objects, f"alpha/{digest[:2]}/{digest}", b"as it is not")
    blobs.path("alpha", digest).unlink()
    with pytest.raises(BlobDamaged):
        blobs.path("alpha", digest)
    assert list((tmp_path / "incoming").iterdir()) == []


def test_local_copies_are_bounded_and_those_in_use_stay(s3: str, tmp_path: Path) -> None:
    blobs = ObjectBlobs(bucket_of(Settings(**s3_settings(s3, bucket(s3)))), tmp_path, cache_bytes=100_000)
    digests = [put(blobs, "alpha", os.urandom(30_000)) for _ in range(3)]
    copies = tmp_path / "by-tenant" / "alpha"
    for digest in digests[:2]:
        os.utime(copies / digest, (time.time() - 3600, time.time()))
    in_use = blobs.path("alpha", digests[0])
    digests.append(put(blobs, "alpha", os.urandom(30_000)))
    assert {path.name for path in copies.iterdir()} == {in_use.name, digests[2], digests[3]}
    assert blobs.path("alpha", digests[1]).stat().st_size == 30_000


def test_bucket_that_does_not_answer_is_named_as_such(tmp_path: Path) -> None:
    nowhere = s3_settings(f"http://127.0.0.1:{free_port()}", "s3://nobody")
    blobs = ObjectBlobs(bucket_of(Settings(**nowhere)), tmp_path, cache_bytes=1)
    with pytest.raises(BlobStoreUnreachable):
        put(blobs, "alpha", b"x")
    assert not blobs.is_writable()
    assert list((tmp_path / "incoming").iterdir()) == []


# --- in the service ---


def test_service_with_a_bucket_needs_nothing_of_another_hosts_folder(
    s3: str, tmp_path: Path, postgres_url: str
) -> None:
    """The API on one host takes the photo, a worker on another one judges it."""
    shared = {**s3_settings(s3, bucket(s3)), "database_url": postgres_url}
    photo = media.thumbnail(side=300)
    with running("serve", tmp_path / "one", default_wait_s=0, **shared) as api, api.client() as client:
        answer = client.post(
            "/v1/items", content=photo, headers={"Content-Type": "image/jpeg", "Prefer": "respond-async"}
        )
        assert answer.status_code == 202, answer.text
        assert client.get("/readyz").json()["checks"]["blobs"]["status"] == "ok"
        with running("worker", tmp_path / "two", **shared) as worker:
            item = settled(client, answer.json()["id"])
            assert item["status"] in {"succeeded", "rejected"}, item
            assert worker.blobs == {item["files"][0]["sha256"]}


def test_upload_while_the_bucket_is_away_is_503_and_may_be_sent_again(tmp_path: Path) -> None:
    away = s3_settings(f"http://127.0.0.1:{free_port()}", "s3://nobody")
    with running("serve", tmp_path, default_wait_s=0, **away) as api, api.client() as client:
        answer = client.post("/v1/items", content=media.thumbnail(side=300), headers={"Content-Type": "image/jpeg"})
        assert (answer.status_code, answer.json()["code"]) == (503, "dependency_unavailable")
        assert answer.json()["retryable"] is True
        assert answer.headers["retry-after"] == "5"
        assert client.get("/v1/items").json()["items"] == []
        assert client.get("/readyz").status_code == 503


def test_item_whose_stored_file_was_changed_fails_and_says_so(tmp_path: Path) -> None:
    with running("serve", tmp_path, default_wait_s=0) as api, api.client() as client:
        kept = _photo(client)
    (stored,) = (tmp_path / "blobs" / "by-tenant").rglob(kept["files"][0]["sha256"])
    stored.write_bytes(stored.read_bytes()[:-1])
    with running("up", tmp_path, default_wait_s=0) as service, service.client() as client:
        item = settled(client, kept["id"])
        assert (item["status"], item["failure"]["code"]) == ("failed", "file_unreadable")


def _photo(client: httpx.Client) -> dict[str, object]:
    headers = {"Content-Type": "image/jpeg", "Prefer": "respond-async"}
    answer = client.post("/v1/items", content=media.thumbnail(side=300), headers=headers)
    assert answer.status_code == 202, answer.text
    found: dict[str, object] = answer.json()
    return found


def test_each_process_makes_sure_of_a_tenants_folder_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one may have made it a moment ago, and not yet have it on the disk."""
    synced: list[Path] = []
    sync = blobs._sync_folder
    monkeypatch.setattr(blobs, "_sync_folder", lambda folder: (synced.append(folder), sync(folder)))
    for content in (b"one", b"two"):
        store = FolderBlobs(tmp_path)
        for more in (b"", b"!"):
            with store.writer() as writer:
                writer.write(content + more)
                kept = store.keep("alpha", writer.finish())
        assert kept.read_bytes() == content + b"!"
        tenant = tmp_path / "by-tenant" / "alpha"
        assert [synced.count(folder) for folder in (tmp_path, tenant.parent, tenant)] == [1, 1, 2]
        synced.clear()
