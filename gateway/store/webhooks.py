"""Rows of webhook endpoints, of the origins that items may call back, and of the items that do."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import Connection

from gateway.ids import new_id
from gateway.store import events
from gateway.store.tables import (
    callback_origins,
    item_callbacks,
    webhook_deliveries,
    webhook_endpoints,
    webhook_lanes,
)
from gateway.webhooks import catalogue
from gateway.webhooks.model import (
    BodyStyle,
    DeliveryStatus,
    DisabledReason,
    Endpoint,
    EndpointStatus,
    ErrorClass,
    StoredSecret,
)
from gateway.webhooks.schedule import Health

MOST_ENDPOINTS = 100
"""Endpoints of one tenant."""
MOST_CALLBACKS = 5
"""Callback addresses of one item; later submissions of the same content may bring others."""


@dataclass(frozen=True, slots=True)
class NewEndpoint:
    """What is known of an endpoint when it is made."""

    tenant: str
    url: str
    description: str | None
    events: tuple[str, ...]
    body: BodyStyle
    allow_insecure: bool
    sealed_secret: str


def create(connection: Connection, new: NewEndpoint, *, at_ms: int) -> Endpoint:
    """A new endpoint, which gets what happens from now on."""
    endpoint_id = new_id("whe", now_ms=at_ms)
    connection.execute(
        webhook_endpoints.insert(),
        {
            "id": endpoint_id,
            "tenant": new.tenant,
            "url": new.url,
            "description": new.description,
            "events": list(new.events),
            "body": new.body.value,
            "allow_insecure": new.allow_insecure,
            "status": EndpointStatus.ENABLED.value,
            "secrets": [_secret_row(StoredSecret(new.sealed_secret, at_ms, None))],
            "cursor_seq": events.newest(connection),
            "created_ms": at_ms,
            "updated_ms": at_ms,
        },
    )
    connection.execute(webhook_lanes.insert(), {"id": endpoint_id, "endpoint_id": endpoint_id})
    made = get(connection, endpoint_id, tenant=new.tenant)
    assert made is not None
    return made


def get(connection: Connection, endpoint_id: str, *, tenant: str | None = None) -> Endpoint | None:
    """The endpoint; None if there is none of that id (in this tenant)."""
    query = sa.select(webhook_endpoints).where(webhook_endpoints.c.id == endpoint_id)
    if tenant is not None:
        query = query.where(webhook_endpoints.c.tenant == tenant)
    row = connection.execute(query).first()
    return None if row is None else _endpoint(row)


def count(connection: Connection, *, tenant: str) -> int:
    """How many endpoints a tenant has."""
    query = sa.select(sa.func.count()).select_from(webhook_endpoints).where(webhook_endpoints.c.tenant == tenant)
    return int(connection.execute(query).scalar_one())


def page(connection: Connection, *, tenant: str, after: tuple[int, str] | None, limit: int) -> list[Endpoint]:
    """Up to `limit` endpoints of a tenant, newest first."""
    columns = webhook_endpoints.c
    query = sa.select(webhook_endpoints).where(columns.tenant == tenant)
    if after is not None:
        query = query.where(sa.tuple_(columns.created_ms, columns.id) < sa.tuple_(*map(sa.literal, after)))
    rows = connection.execute(query.order_by(columns.created_ms.desc(), columns.id.desc()).limit(limit))
    return [_endpoint(row) for row in rows]


def all_of(connection: Connection) -> list[Endpoint]:
    """Every tenant's endpoints: what a process that delivers looks after."""
    return [_endpoint(row) for row in connection.execute(sa.select(webhook_endpoints).order_by(webhook_endpoints.c.id))]


def health_of(connection: Connection, lanes: Sequence[str]) -> dict[str, Health]:
    """How addresses have answered of late, by lane."""
    rows = connection.execute(sa.select(webhook_lanes).where(webhook_lanes.c.id.in_(lanes)))
    return {row.id: health_in(row) for row in rows}


def health_in(row: sa.Row[Any]) -> Health:
    """The health in a lane's row."""
    return Health(
        failures=row.failures,
        failing_since_ms=row.failing_since_ms,
        spread_ms=row.spread_ms,
        noticed_ms=row.noticed_ms,
        paused_until_ms=row.paused_until_ms,
        last_failure_ms=row.last_failure_ms,
        last_success_ms=row.last_success_ms,
    )


def change(
    connection: Connection, endpoint_id: str, *, tenant: str, version: int, values: Mapping[str, Any], at_ms: int
) -> Endpoint | None:
    """Change fields of an endpoint of this version; None if it has another one by now.

    One that is enabled again starts without its failures, and with what happens from now on: its cursor went on meanwhile, for
    the sake of callbacks.
    """
    changes = dict(values)
    is_enabling = changes.get("status") == EndpointStatus.ENABLED.value
    if is_enabling:
        changes["disabled_reason"] = None
    if changes.get("status") == EndpointStatus.DISABLED.value:
        changes["disabled_reason"] = DisabledReason.OPERATOR.value
    row = connection.execute(
        webhook_endpoints.update()
        .where(
            webhook_endpoints.c.id == endpoint_id,
            webhook_endpoints.c.tenant == tenant,
            webhook_endpoints.c.version == version,
        )
        .values(**changes, version=version + 1, updated_ms=at_ms)
        .returning(*webhook_endpoints.c)
    ).first()
    if row is None:
        return None
    if is_enabling or "url" in changes:
        reset_health(connection, endpoint_id)
    if changes.get("status") == EndpointStatus.DISABLED.value:
        end_pending(connection, endpoint_id, at_ms=at_ms)
        announce(connection, _endpoint(row), catalogue.DISABLED, {"reason": row.disabled_reason}, at_ms=at_ms)
    return _endpoint(row)


def rotate(
    connection: Connection, endpoint_id: str, *, tenant: str, sealed: str, overlap_ms: int, at_ms: int
) -> Endpoint | None:
    """Make `sealed` the secret; the one before signs as well for the overlap, older ones not any more."""
    query = sa.select(webhook_endpoints).where(
        webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.tenant == tenant
    )
    if connection.dialect.name == "postgresql":
        query = query.with_for_update()
    row = connection.execute(query).first()
    if row is None:
        return None
    current = _endpoint(row).secrets[0]
    kept = [StoredSecret(sealed, at_ms, None)]
    if overlap_ms > 0:
        kept.append(StoredSecret(current.sealed, current.created_ms, at_ms + overlap_ms))
    changed = connection.execute(
        webhook_endpoints.update()
        .where(webhook_endpoints.c.id == endpoint_id)
        .values(secrets=[_secret_row(secret) for secret in kept], version=row.version + 1, updated_ms=at_ms)
        .returning(*webhook_endpoints.c)
    ).one()
    return _endpoint(changed)


def delete(connection: Connection, endpoint_id: str, *, tenant: str) -> bool:
    """Remove an endpoint with its deliveries; False if there is none of that id in this tenant."""
    changed = connection.execute(
        webhook_endpoints.delete().where(webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.tenant == tenant)
    )
    return changed.rowcount == 1


def disable(connection: Connection, endpoint_id: str, reason: DisabledReason, *, at_ms: int) -> bool:
    """Send nothing more there: what waits is dead (and can be sent again), and an event says so. False if it was disabled."""
    row = connection.execute(
        webhook_endpoints.update()
        .where(webhook_endpoints.c.id == endpoint_id, webhook_endpoints.c.status == EndpointStatus.ENABLED.value)
        .values(
            status=EndpointStatus.DISABLED.value,
            disabled_reason=reason.value,
            version=webhook_endpoints.c.version + 1,
            updated_ms=at_ms,
        )
        .returning(*webhook_endpoints.c)
    ).first()
    if row is None:
        return False
    end_pending(connection, endpoint_id, at_ms=at_ms)
    announce(connection, _endpoint(row), catalogue.DISABLED, {"reason": reason.value}, at_ms=at_ms)
    return True


def announce(connection: Connection, endpoint: Endpoint, kind: str, body: Mapping[str, Any], *, at_ms: int) -> None:
    """An event about the endpoint itself. Its URL is not told: other endpoints' owners may read it."""
    events.append(
        connection, tenant=endpoint.tenant, kind=kind, resource=endpoint.id, version=endpoint.version, at_ms=at_ms,
        body={"endpoint": endpoint.id, "description": endpoint.description, **body},
    )  # fmt: skip


def end_pending(connection: Connection, endpoint_id: str, *, at_ms: int) -> None:
    """What waits for the endpoint's own URL is dead; callbacks go elsewhere and go on."""
    columns = webhook_deliveries.c
    connection.execute(
        webhook_deliveries.update()
        .where(
            columns.lane == endpoint_id,
            columns.status == DeliveryStatus.PENDING.value,
            columns.is_test.is_(False),
        )
        .values(
            status=DeliveryStatus.DEAD.value,
            last_error=ErrorClass.ENDPOINT_DISABLED.value,
            next_attempt_ms=None,
            leased_until_ms=None,
            finished_ms=at_ms,
            updated_ms=at_ms,
        )
    )


def reset_health(connection: Connection, lane: str) -> None:
    """Forget what failed."""
    connection.execute(
        webhook_lanes.update()
        .where(webhook_lanes.c.id == lane)
        .values(failures=0, failing_since_ms=None, spread_ms=None, noticed_ms=None, paused_until_ms=None)
    )


@dataclass(frozen=True, slots=True)
class AllowedOrigin:
    """An origin that items of a tenant may name as callback."""

    id: str
    tenant: str
    origin: str
    created_by: str
    created_ms: int


def allow_origin(
    connection: Connection, *, tenant: str, origin: str, actor: str, at_ms: int
) -> tuple[AllowedOrigin, bool]:
    """The origin on the tenant's list, and whether it is new there."""
    found = _origin(connection, callback_origins.c.origin == origin, tenant=tenant)
    if found is not None:
        return found, False
    made = AllowedOrigin(new_id("cbo", now_ms=at_ms), tenant, origin, actor, at_ms)
    connection.execute(
        insert_or_leave(connection, callback_origins),
        {"id": made.id, "tenant": tenant, "origin": origin, "created_by": actor, "created_ms": at_ms},
    )
    found = _origin(connection, callback_origins.c.origin == origin, tenant=tenant)
    assert found is not None
    return found, found.id == made.id


def origins(connection: Connection, *, tenant: str) -> list[AllowedOrigin]:
    """A tenant's list, in alphabetical order."""
    query = sa.select(callback_origins).where(callback_origins.c.tenant == tenant).order_by(callback_origins.c.origin)
    return [AllowedOrigin(**row._mapping) for row in connection.execute(query)]


def forbid_origin(connection: Connection, origin_id: str, *, tenant: str) -> bool:
    """Take an origin off the list; False if it was not on it. Items that name it already are still answered."""
    changed = connection.execute(
        callback_origins.delete().where(callback_origins.c.id == origin_id, callback_origins.c.tenant == tenant)
    )
    return changed.rowcount == 1


def is_allowed(connection: Connection, origin: str, *, tenant: str) -> bool:
    """Whether the origin is on the tenant's list."""
    return _origin(connection, callback_origins.c.origin == origin, tenant=tenant) is not None


def _origin(connection: Connection, where: sa.ColumnElement[bool], *, tenant: str) -> AllowedOrigin | None:
    row = connection.execute(sa.select(callback_origins).where(where, callback_origins.c.tenant == tenant)).first()
    return None if row is None else AllowedOrigin(**row._mapping)


@dataclass(frozen=True, slots=True)
class Callback:
    """Where the outcome of one item goes, and whose secret signs it."""

    url: str
    origin: str
    endpoint_id: str

    @property
    def url_key(self) -> str:
        """Tells several callbacks of an item apart."""
        return hashlib.sha256(self.url.encode()).hexdigest()[:32]

    @property
    def lane(self) -> str:
        """All callbacks to one origin under one secret wait for each other, and for nobody else."""
        digest = hashlib.sha256(f"{self.endpoint_id}\x00{self.origin}".encode()).hexdigest()[:32]
        return f"cb_{digest}"


def add_callback(connection: Connection, item_id: str, callback: Callback) -> None:
    """Tell this address of the item from now on; not where the endpoint that would sign is gone by now."""
    signer = sa.select(webhook_endpoints.c.id).where(webhook_endpoints.c.id == callback.endpoint_id)
    if connection.dialect.name == "postgresql":
        signer = signer.with_for_update(read=True, key_share=True)
    if connection.execute(signer).first() is None:
        return
    query = sa.select(sa.func.count()).select_from(item_callbacks).where(item_callbacks.c.item_id == item_id)
    if connection.execute(query).scalar_one() >= MOST_CALLBACKS:
        return
    connection.execute(
        insert_or_leave(connection, webhook_lanes), {"id": callback.lane, "endpoint_id": callback.endpoint_id}
    )
    connection.execute(
        insert_or_leave(connection, item_callbacks),
        {
            "item_id": item_id,
            "url_key": callback.url_key,
            "url": callback.url,
            "endpoint_id": callback.endpoint_id,
            "lane": callback.lane,
        },
    )


def insert_or_leave(connection: Connection, table: sa.Table) -> Any:
    """An insert that does nothing where such a row is there."""
    made = sqlite.insert(table) if connection.dialect.name == "sqlite" else postgresql.insert(table)
    return made.on_conflict_do_nothing()


def _secret_row(secret: StoredSecret) -> dict[str, Any]:
    return {"sealed": secret.sealed, "created_ms": secret.created_ms, "expires_ms": secret.expires_ms}


def _endpoint(row: sa.Row[Any]) -> Endpoint:
    return Endpoint(
        id=row.id,
        tenant=row.tenant,
        url=row.url,
        description=row.description,
        events=tuple(row.events),
        body=BodyStyle(row.body),
        allow_insecure=row.allow_insecure,
        status=EndpointStatus(row.status),
        disabled_reason=None if row.disabled_reason is None else DisabledReason(row.disabled_reason),
        secrets=tuple(StoredSecret(**secret) for secret in row.secrets),
        cursor_seq=row.cursor_seq,
        version=row.version,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
    )
