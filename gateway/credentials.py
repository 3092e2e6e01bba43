"""Keys and people: made, changed and ended by somebody who is named in the event log."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.engine import Connection

from gateway import passwords
from gateway.person import Role
from gateway.store import escalation_leases, events, items, keys, people
from gateway.store.engine import Database
from gateway.store.keys import KeyRecord
from gateway.store.people import Change, PersonRecord

OPERATOR = "operator"
"""Whoever works at the command line of the service's own machine."""
MOST_OVERLAP_S = 30 * 24 * 3600
NAME_MOST = 120


class CredentialRefused(Exception):
    """A name or a password that is not taken; `public` says why."""

    code = "credential_refused"
    retryable = False

    def __init__(self, field: str, public: str) -> None:
        super().__init__(public)
        self.field = field
        self.public = public


class Changed(Exception):
    """The person was changed since it was read."""

    code = "conflict_version"
    retryable = True
    public = "The person was changed meanwhile."


@dataclass(frozen=True, slots=True)
class NewKey:
    """What a key is to be."""

    tenant: str
    name: str | None
    scopes: tuple[str, ...]
    expires_ms: int | None = None


def make_key(database: Database, new: NewKey, *, by: str) -> tuple[KeyRecord, str]:
    """A key and its secret, which is shown this once."""

    def work(connection: Connection) -> tuple[KeyRecord, str]:
        at_ms = items.now_ms(connection)
        made = keys.create(
            connection,
            tenant=new.tenant,
            name=new.name,
            scopes=new.scopes,
            at_ms=at_ms,
            expires_ms=new.expires_ms,
        )
        _tell_key(connection, "key.created", made[0], by, at_ms)
        return made

    return database.transact(work)


def rotate_key(
    database: Database, key_id: str, *, overlap_s: int, by: str, tenant: str | None = None
) -> tuple[KeyRecord, str] | None:
    """A new secret for a live key; None if there is none of this id (in this tenant)."""

    def work(connection: Connection) -> tuple[KeyRecord, str] | None:
        if keys.get(connection, key_id, tenant=tenant) is None:
            return None
        at_ms = items.now_ms(connection)
        rotated = keys.rotate(connection, key_id, overlap_ms=overlap_s * 1000, at_ms=at_ms)
        if rotated is not None:
            _tell_key(connection, "key.rotated", rotated[0], by, at_ms)
        return rotated

    return database.transact(work)


def revoke_key(database: Database, key_id: str, *, by: str, tenant: str | None = None) -> KeyRecord | None:
    """End a key and give back the cases that it holds; the key as it was, or None if there is none of this id."""

    def work(connection: Connection) -> KeyRecord | None:
        record = keys.get(connection, key_id, tenant=tenant)
        if record is None:
            return None
        at_ms = items.now_ms(connection)
        if keys.revoke(connection, key_id, at_ms=at_ms):
            _tell_key(connection, "key.revoked", record, by, at_ms)
            escalation_leases.free_all_of(
                connection, tenant=record.tenant, holder=f"key:{key_id}", actor=by, why="key_revoked"
            )
        return record

    return database.transact(work)


def add_person(database: Database, *, tenant: str, name: str, role: Role, password: str, by: str) -> PersonRecord:
    """Somebody who can log in. Raises `CredentialRefused`."""
    problem = people.name_problem(name)
    if problem is not None:
        raise CredentialRefused("name", problem)
    hashed = _hashed(password, name)

    def work(connection: Connection) -> PersonRecord:
        at_ms = items.now_ms(connection)
        made = people.add(connection, tenant=tenant, name=name, role=role, password_hash=hashed, at_ms=at_ms)
        _tell_person(connection, "person.added", made, by, at_ms)
        return made

    try:
        return database.transact(work)
    except people.NameTaken as error:
        raise CredentialRefused("name", error.public) from error


def change_person(
    database: Database,
    person: PersonRecord,
    *,
    by: str,
    role: Role | None = None,
    password: str | None = None,
    is_disabled: bool | None = None,
    keep_session: str | None = None,
) -> PersonRecord:
    """Change them as they were read, log them out everywhere but in one session, give back cases they may not decide.

    Raises `CredentialRefused`, `Changed`.
    """
    wanted = Change(role, None if password is None else _hashed(password, person.name), is_disabled)

    def work(connection: Connection) -> PersonRecord:
        at_ms = items.now_ms(connection)
        after = people.change(connection, person, wanted, by=by, at_ms=at_ms, keep_session=keep_session)
        if after is None:
            raise Changed
        _tell_person(connection, "person.changed", after, by, at_ms)
        return after

    return database.transact(work)


def _hashed(password: str, name: str) -> str:
    problem = passwords.problem_of(password, login=name)
    if problem is not None:
        raise CredentialRefused("password", problem)
    return passwords.hashed(password)


def _tell_key(connection: Connection, kind: str, record: KeyRecord, by: str, at_ms: int) -> None:
    events.append(
        connection, tenant=record.tenant, kind=kind, resource=record.id, version=1, at_ms=at_ms,
        body={"by": by, "scopes": list(record.scopes)},
    )  # fmt: skip


def _tell_person(connection: Connection, kind: str, person: PersonRecord, by: str, at_ms: int) -> None:
    events.append(
        connection, tenant=person.tenant, kind=kind, resource=person.id, version=person.version, at_ms=at_ms,
        body={"by": by, "role": person.role.value, "disabled": person.disabled_ms is not None},
    )  # fmt: skip
