"""Databases and servers for tests that must hold on each of them; a conftest takes the ones it needs by importing them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.store import migrate
from gateway.store.engine import Database
from tests.contracts.servers import PostgreSQL, Redis, postgresql, rabbitmq_server, redis_server, s3_server

_TEMPLATE = "migrated"


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgreSQL]:
    """A PostgreSQL, with one database that has the schema and is copied for each test."""
    with postgresql() as server:
        with server.connect() as admin:
            admin.execute(f"CREATE DATABASE {_TEMPLATE}")  # type: ignore[call-overload]
        database = Database(server.url(_TEMPLATE))
        migrate.upgrade(database)
        database.close()
        yield server


@pytest.fixture(scope="session")
def redis() -> Iterator[Redis]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="session")
def rabbitmq_url() -> Iterator[str]:
    """The address of a RabbitMQ; only `./dev chaos` installs one."""
    with rabbitmq_server() as url:
        yield url


@pytest.fixture(scope="session")
def s3() -> Iterator[str]:
    """The endpoint of an S3."""
    with s3_server() as endpoint:
        yield endpoint


@pytest.fixture
def postgres_url(postgres: PostgreSQL) -> Iterator[str]:
    """A PostgreSQL database with the schema, for one test."""
    with postgres.database(_TEMPLATE) as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a database with the schema; each test runs on both kinds."""
    if request.param == "postgresql":
        yield request.getfixturevalue("postgres_url")
        return
    url = f"sqlite:///{tmp_path / 'sluicegate.db'}"
    made = Database(url)
    migrate.upgrade(made)
    made.close()
    yield url


@pytest.fixture
def database(database_url: str) -> Iterator[Database]:
    made = Database(database_url)
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of a database without any table."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'empty.db'}"
        return
    server: PostgreSQL = request.getfixturevalue("postgres")
    with server.database() as url:
        yield url
