"""People of the console and their sessions. Whatever ends a person's rights ends the sessions in the same transaction."""

from __future__ import annotations

import hashlib
import secrets
import unicodedata
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from gateway.ids import new_id
from gateway.person import Role, actor_of
from gateway.store import escalation_leases
from gateway.store.tables import people, sessions

NAME_MOST = 64
_MARKS = "._@+-"
_SEEN_EVERY_MS = 60_000
"""A session's last use is written at most this often."""


class SessionEnd(StrEnum):
    """Why a session ended before its time."""

    LOGGED_OUT = "logged_out"
    PASSWORD_CHANGED = "password_changed"  # noqa: S105 - a reason, no password
    ROLE_CHANGED = "role_changed"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class PersonRecord:
    """A person as they may be shown: never the password's hash."""

    id: str
    tenant: str
    name: str
    role: Role
    version: int
    created_ms: int
    updated_ms: int
    last_login_ms: int | None
    disabled_ms: int | None

    @property
    def actor(self) -> str:
        """The name in the audit."""
        return actor_of(self.name)


@dataclass(frozen=True, slots=True)
class SessionLimits:
    """How long a session lasts."""

    idle_ms: int
    """Without a request."""
    total_ms: int
    """From the login on."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a session's token stands for."""

    person: PersonRecord
    ended: SessionEnd | None
    """Set where the person's rights changed under the session; None while it is alive."""


class NameTaken(Exception):
    """Somebody has this name, in whatever tenant: one logs in by the name alone."""

    code = "name_taken"
    retryable = False
    public = "Somebody has this name already."


def name_problem(name: str) -> str | None:
    """What is wrong with a name, or None."""
    is_known = all(letter.isalnum() or letter in _MARKS for letter in name)
    if not 1 <= len(name) <= NAME_MOST or not is_known or not name[0].isalnum():
        return f"A name has 1 to {NAME_MOST} letters, digits or {' '.join(_MARKS)}, and begins with a letter or digit."
    return None


def login_of(name: str) -> str:
    """The one spelling of a name under which it is looked up."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())[:128]


def token_hash(token: str) -> str:
    """How a session's token is kept: it has 256 random bits, so no slow hash is needed."""
    return hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()


def add(connection: Connection, *, tenant: str, name: str, role: Role, password_hash: str, at_ms: int) -> PersonRecord:
    """A new person. Raises `NameTaken`."""
    if _by_login(connection, name) is not None:
        raise NameTaken
    person_id = new_id("usr", now_ms=at_ms)
    values = {
        "id": person_id,
        "tenant": tenant,
        "name": unicodedata.normalize("NFC", name),
        "login": login_of(name),
        "role": role.value,
        "password_hash": password_hash,
        "created_ms": at_ms,
        "updated_ms": at_ms,
    }
    try:
        with connection.begin_nested():
            connection.execute(people.insert(), values)
    except sa.exc.IntegrityError as error:
        raise NameTaken from error
    made = get(connection, person_id, tenant=tenant)
    assert made is not None
    return made


def get(connection: Connection, person_id: str, *, tenant: str) -> PersonRecord | None:
    """One person of a tenant."""
    row = connection.execute(sa.select(people).where(people.c.id == person_id, people.c.tenant == tenant)).first()
    return None if row is None else _record(row)


def find(connection: Connection, name: str) -> tuple[PersonRecord, str] | None:
    """The person of this name, in whatever spelling, with the password's hash."""
    row = _by_login(connection, name)
    return None if row is None else (_record(row), row.password_hash)


def page(
    connection: Connection, *, tenant: str | None, after: tuple[int, str] | None = None, limit: int = 1000
) -> list[PersonRecord]:
    """People of a tenant, or of all, the oldest first."""
    query = sa.select(people).order_by(people.c.created_ms, people.c.id).limit(limit)
    if tenant is not None:
        query = query.where(people.c.tenant == tenant)
    if after is not None:
        query = query.where(sa.tuple_(people.c.created_ms, people.c.id) > sa.tuple_(*map(sa.literal, after)))
    return [_record(row) for row in connection.execute(query)]


def any_active(connection: Connection) -> bool:
    """Whether at least one person can log in."""
    return connection.execute(sa.select(people.c.id).where(people.c.disabled_ms.is_(None)).limit(1)).first() is not None


@dataclass(frozen=True, slots=True)
class Change:
    """What is to be different about a person; None leaves it."""

    role: Role | None = None
    password_hash: str | None = None
    is_disabled: bool | None = None


def change(
    connection: Connection,
    person: PersonRecord,
    wanted: Change,
    *,
    by: str,
    at_ms: int,
    keep_session: str | None = None,
) -> PersonRecord | None:
    """Apply it, end the sessions (but `keep_session`, a token's hash) and give back the cases of who may decide no longer.

    None where the person changed since `person` was read.
    """
    values = _changed_values(person, wanted, at_ms)
    done = connection.execute(
        people.update()
        .where(people.c.id == person.id, people.c.version == person.version)
        .values(version=people.c.version + 1, updated_ms=at_ms, **values)
    )
    if done.rowcount != 1:
        return None
    after = get(connection, person.id, tenant=person.tenant)
    assert after is not None
    reason = _ending(person, after, wanted)
    if reason is not None:
        end_all(connection, person.id, reason=reason, at_ms=at_ms, but=keep_session)
    if _decides(person) and not _decides(after):
        escalation_leases.free_all_of(
            connection, tenant=person.tenant, holder=person.actor, actor=by, why="role_revoked"
        )
    return after


def _changed_values(person: PersonRecord, wanted: Change, at_ms: int) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if wanted.role is not None:
        values["role"] = wanted.role.value
    if wanted.password_hash is not None:
        values["password_hash"] = wanted.password_hash
    if wanted.is_disabled is not None:
        values["disabled_ms"] = (person.disabled_ms or at_ms) if wanted.is_disabled else None
    return values


def _ending(before: PersonRecord, after: PersonRecord, wanted: Change) -> SessionEnd | None:
    if after.disabled_ms is not None and before.disabled_ms is None:
        return SessionEnd.DISABLED
    if after.role is not before.role:
        return SessionEnd.ROLE_CHANGED
    return SessionEnd.PASSWORD_CHANGED if wanted.password_hash is not None else None


def _decides(person: PersonRecord) -> bool:
    return person.disabled_ms is None and person.role.includes(Role.REVIEWER)


def start_session(connection: Connection, person: PersonRecord, *, at_ms: int, limits: SessionLimits) -> str:
    """Log a person in; gives the token, which is not kept."""
    token = secrets.token_urlsafe(32)
    connection.execute(sessions.delete().where(sessions.c.expires_ms < at_ms))
    connection.execute(
        sessions.insert(),
        {
            "token_hash": token_hash(token),
            "person_id": person.id,
            "created_ms": at_ms,
            "seen_ms": at_ms,
            "expires_ms": at_ms + limits.total_ms,
        },
    )
    connection.execute(people.update().where(people.c.id == person.id).values(last_login_ms=at_ms))
    return token


def session(connection: Connection, hashed_token: str, *, at_ms: int, limits: SessionLimits) -> Found | None:
    """Whose session this is: None for one that is unknown, was logged out, or ran out."""
    row = connection.execute(
        sa.select(sessions.c.ended_reason, *people.c)
        .join(people, people.c.id == sessions.c.person_id)
        .where(
            sessions.c.token_hash == hashed_token,
            sessions.c.expires_ms > at_ms,
            sessions.c.seen_ms > at_ms - limits.idle_ms,
        )
    ).first()
    if row is None or row.ended_reason == SessionEnd.LOGGED_OUT:
        return None
    return Found(_record(row), None if row.ended_reason is None else SessionEnd(row.ended_reason))


def is_unseen(connection: Connection, hashed_token: str, *, at_ms: int) -> bool:
    """Whether the session's last use is due to be written."""
    seen = connection.execute(sa.select(sessions.c.seen_ms).where(sessions.c.token_hash == hashed_token)).scalar()
    return seen is not None and seen <= at_ms - _SEEN_EVERY_MS


def mark_seen(connection: Connection, hashed_token: str, *, at_ms: int) -> None:
    """Write that the session is in use."""
    connection.execute(
        sessions.update()
        .where(sessions.c.token_hash == hashed_token, sessions.c.ended_ms.is_(None), sessions.c.seen_ms < at_ms)
        .values(seen_ms=at_ms)
    )


def end_session(connection: Connection, hashed_token: str, *, at_ms: int) -> None:
    """Log out here."""
    _end(connection, sessions.c.token_hash == hashed_token, reason=SessionEnd.LOGGED_OUT, at_ms=at_ms)


def end_all(connection: Connection, person_id: str, *, reason: SessionEnd, at_ms: int, but: str | None = None) -> None:
    """Log a person out everywhere, except in the session `but`."""
    where = sessions.c.person_id == person_id
    if but is not None:
        where = sa.and_(where, sessions.c.token_hash != but)
    _end(connection, where, reason=reason, at_ms=at_ms)


def _end(connection: Connection, where: sa.ColumnElement[bool], *, reason: SessionEnd, at_ms: int) -> None:
    connection.execute(
        sessions.update().where(where, sessions.c.ended_ms.is_(None)).values(ended_ms=at_ms, ended_reason=reason.value)
    )


def _by_login(connection: Connection, name: str) -> sa.Row[Any] | None:
    return connection.execute(sa.select(people).where(people.c.login == login_of(name))).first()


def _record(row: sa.Row[Any]) -> PersonRecord:
    return PersonRecord(
        id=row.id,
        tenant=row.tenant,
        name=row.name,
        role=Role(row.role),
        version=row.version,
        created_ms=row.created_ms,
        updated_ms=row.updated_ms,
        last_login_ms=row.last_login_ms,
        disabled_ms=row.disabled_ms,
    )
