"""Each test here runs on all databases, blob stores or ways of dispatch that it is about."""

from __future__ import annotations

from tests.contracts.fixtures import database, database_url, empty_url, postgres, postgres_url, rabbitmq_url, redis, s3
from tests.contracts.ground import ground

__all__ = [
    "database", "database_url", "empty_url", "ground", "postgres", "postgres_url", "rabbitmq_url", "redis", "s3",
]  # fmt: skip
