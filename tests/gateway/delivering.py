"""A dispatcher under a clock of the test's own, over a real database and real HTTP."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, field
from typing import Any

import sqlalchemy as sa

from gateway.store import events, webhook_deliveries, webhooks
from gateway.store.engine import Database
from gateway.store.tables import webhook_deliveries as delivery_rows
from gateway.webhooks import signing
from gateway.webhooks.dispatcher import Dispatcher
from gateway.webhooks.model import Attempt, BodyStyle, Delivery, Endpoint
from gateway.webhooks.outbox import Clock, Outbox
from gateway.webhooks.schedule import Health, RetryPolicy
from gateway.webhooks.sender import Sender
from gateway.webhooks.targets import TargetPolicy, parse_private_networks
from gateway.webhooks.vault import Vault

LOOPBACK = TargetPolicy(ports=(), private_networks=parse_private_networks(["127.0.0.0/8"]))
_TLS = ssl.create_default_context()
NOON_MS = 1_796_000_000_000


@dataclass
class Ground:
    """Endpoints, events and what delivers them."""

    database: Database
    policy: RetryPolicy = field(default_factory=RetryPolicy)
    now_ms: int = NOON_MS
    secrets: dict[str, str] = field(default_factory=dict)
    vault: Vault = field(default_factory=lambda: Vault(()))
    chance: float = 0.5
    """In the middle: no jitter."""

    def dispatcher(self, *, timeout_s: float = 5.0, is_hinted: bool = False) -> Dispatcher:
        return Dispatcher(
            self.database,
            Sender(LOOPBACK, tls=_TLS, timeout_s=timeout_s),
            self.vault,
            self.policy,
            timeout_s=timeout_s,
            clock=self.clock(),
            chance=lambda: self.chance,
            is_hinted=is_hinted,
        )

    def clock(self) -> Clock:
        return Clock(database_ms=lambda connection: self.now_ms, wall_s=lambda: self.now_ms / 1000)

    def outbox(self) -> Outbox:
        return Outbox(self.database, clock=self.clock())

    def later(self, seconds: float) -> None:
        self.now_ms += int(seconds * 1000)

    def endpoint(self, url: str, *filters: str, tenant: str = "default", body: BodyStyle = BodyStyle.THIN) -> Endpoint:
        secret = signing.new_secret()
        new = webhooks.NewEndpoint(tenant, url, None, filters or ("*",), body, True, self.vault.seal(secret))
        made = self.database.transact(lambda c: webhooks.create(c, new, at_ms=self.now_ms))
        self.secrets[made.id] = secret
        return made

    def rotate(self, endpoint: Endpoint, *, overlap_s: float = 24 * 3600) -> str:
        secret = signing.new_secret()
        self.database.transact(
            lambda c: webhooks.rotate(
                c,
                endpoint.id,
                tenant=endpoint.tenant,
                sealed=self.vault.seal(secret),
                overlap_ms=int(overlap_s * 1000),
                at_ms=self.now_ms,
            )
        )
        return secret

    def event(
        self, kind: str = "item.succeeded", *, resource: str = "itm_1", tenant: str = "default", **body: Any
    ) -> None:
        self.database.transact(
            lambda c: events.append(
                c, tenant=tenant, kind=kind, resource=resource, version=1, at_ms=self.now_ms, body=body
            )
        )

    def step(self, dispatcher: Dispatcher | None = None) -> None:
        """Rounds until nothing more is due."""

        async def rounds() -> None:
            at_work = dispatcher or self.dispatcher()
            while True:
                has_more = await at_work.step()
                is_idle = not at_work._in_hand
                await at_work.settled()
                if is_idle and not has_more:
                    return

        asyncio.run(rounds())

    def deliveries(self, **where: Any) -> list[Delivery]:
        """Oldest event first."""
        with self.database.read() as connection:
            wanted = webhook_deliveries.DeliveryFilter(**where)
            found = webhook_deliveries.page(connection, tenant="default", where=wanted, after=None, limit=1000)
        return sorted(found, key=lambda delivery: delivery.event_seq)

    def log(self, delivery: Delivery) -> list[Attempt]:
        with self.database.read() as connection:
            return webhook_deliveries.attempts_of(connection, delivery.id)

    def health(self, endpoint: Endpoint) -> Health:
        with self.database.read() as connection:
            return webhooks.health_of(connection, [endpoint.id])[endpoint.id]

    def get(self, endpoint: Endpoint) -> Endpoint:
        with self.database.read() as connection:
            found = webhooks.get(connection, endpoint.id)
        assert found is not None
        return found

    def event_types(self) -> list[str]:
        with self.database.read() as connection:
            return [row.type for row in events.page(connection, tenant="default", after=0, limit=1000)]

    def redeliver(self, delivery: Delivery) -> None:
        self.database.transact(
            lambda c: webhook_deliveries.redeliver(c, delivery.id, tenant=delivery.tenant, at_ms=self.now_ms)
        )

    def count(self, **values: object) -> int:
        with self.database.read() as connection:
            where = [delivery_rows.c[name] == value for name, value in values.items()]
            query = sa.select(sa.func.count()).select_from(delivery_rows).where(*where)
            return int(connection.execute(query).scalar_one())
