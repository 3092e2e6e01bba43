"""A real service for all tests that talk to one; each test uses titles and external ids of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
import yaml

from gateway.profiles import loader
from gateway.store import keys
from gateway.store.engine import Database
from tests.contracts.fixtures import database, database_url, empty_url, postgres, postgres_url
from tests.gateway.running import Service, running, until

__all__ = ["database", "database_url", "empty_url", "postgres", "postgres_url"]

SHIPPED_PROFILE = Path(loader.__file__).with_name("product-copy.yaml")


@pytest.fixture(scope="session")
def profiles_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kinds of work beside the shipped one: `one-look` looks once at a photo without print, `all-or-none` wants all files."""
    folder = tmp_path_factory.mktemp("profiles")
    shipped = yaml.safe_load(SHIPPED_PROFILE.read_text("utf-8"))
    one_look = {**shipped, "name": "one-look", "edge": {**shipped["edge"], "sparse_text": "single_look"}}
    all_or_none = {**shipped, "name": "all-or-none", "require_all_files": True}
    for profile in (one_look, all_or_none):
        (folder / f"{profile['name']}.yaml").write_text(yaml.safe_dump(profile, allow_unicode=True), "utf-8")
    return folder


@pytest.fixture(scope="session")
def service(tmp_path_factory: pytest.TempPathFactory, profiles_dir: Path) -> Iterator[Service]:
    """API and worker, keyless on loopback, with the offline writer."""
    with running("up", tmp_path_factory.mktemp("service"), profiles_dir=profiles_dir) as started:
        yield started


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made


@pytest.fixture
def name() -> str:
    """A word that no other test uses: as external id, title or key."""
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """The API alone, which answers at once: what needs a worker stays `queued`. Requests may have 4 MiB.

    Whatever the tests send it, at the end it must be the same process, ready, with a clean log and no half uploads.
    """
    folder = tmp_path_factory.mktemp("api")
    with running("serve", folder, default_wait_s=0, max_request_bytes=4 * 1024 * 1024) as started:
        yield started
        with started.client() as client:
            assert client.get("/readyz").status_code == 200
        log = started.log.read_text("utf-8")
        assert "request.failed" not in log
        assert "Traceback" not in log
        until(lambda: not started.incoming)


@pytest.fixture
def api_client(api: Service) -> Iterator[httpx.Client]:
    with api.client() as made:
        yield made


@pytest.fixture(scope="session")
def alpha(api: Service) -> str:
    """A key of a tenant of its own, with all scopes."""
    return store_key(api, "alpha")


@pytest.fixture(scope="session")
def beta(api: Service) -> str:
    """A key of another tenant."""
    return store_key(api, "beta")


def store_key(service: Service, tenant: str, *scopes: str) -> str:
    """A new key in the service's database, as `sluicegate keys create` makes it; gives its secret."""
    database = Database(f"sqlite:///{service.data_dir / 'sluicegate.db'}")
    _, secret = database.transact(
        lambda connection: keys.create(connection, tenant=tenant, name=None, scopes=scopes or keys.SCOPES, at_ms=1)
    )
    database.close()
    return secret
