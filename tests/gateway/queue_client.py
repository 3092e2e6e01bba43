"""A reviewer's client of the human queue, and cases raised for it as a worker raises them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from gateway.ids import new_id
from gateway.item import Mode, Status
from gateway.profiles import Profile, load_profiles
from gateway.store import escalations as case_store
from gateway.store import items as item_store
from gateway.store import keys
from gateway.store.engine import Database
from gateway.store.items import NewItem
from tests.gateway.running import Service, bearer

HOUR_MS = 3_600_000


@dataclass
class Queue:
    """The queue of a tenant of its own."""

    service: Service
    tenant: str
    key: str
    client: httpx.Client
    database: Database

    def raised(
        self,
        *,
        reason: str = "repeated_tool_calls",
        tool: str | None = "ocr_extract",
        due_ms: int = 4 * HOUR_MS,
        expires_ms: int = 72 * HOUR_MS,
        can_resume: bool = True,
        packet: Mapping[str, Any] | None = None,
        **terms: Any,
    ) -> str:
        """A case on an item of its own; gives the case's id."""
        shown = {
            "question": "How should the run go on?",
            "evidence": [1],
            "resume_point": 5 if can_resume else None,
            **(packet or {}),
        }

        def write(connection: Any) -> str:
            at_ms = item_store.now_ms(connection)
            item = item_store.insert(connection, new_item(self.tenant, at_ms), actor="test", at_ms=at_ms)
            lease = item_store.claim(connection, item.id, owner="test", lease_ms=60_000)
            assert lease is not None
            case = case_store.raise_case(
                connection,
                case_store.NewEscalation(
                    tenant=self.tenant, item_id=item.id, attempt=1, profile="product-copy", reason=reason, tool=tool,
                    packet=shown, due_after_ms=due_ms, expires_after_ms=expires_ms, **terms,
                ),
            )  # fmt: skip
            moved = item_store.transition(
                connection, item.id, expected=(Status.INSPECTING,), to=Status.AWAITING_HUMAN, actor="test",
                fence=lease.fence, reason=reason, values={"escalation_id": case, "route": "agent"},
            )  # fmt: skip
            assert moved is not None
            return case

        return self.database.transact(write)

    def raised_again(self, case: str, *, reason: str = "repeated_error") -> str:
        """The same incident once more on the item of a decided case, as after a resumed run that stopped again."""
        item_id = self.get(case)["item"]

        def write(connection: Any) -> str:
            lease = item_store.claim(connection, item_id, owner="test", lease_ms=60_000)
            assert lease is not None
            again = case_store.raise_case(
                connection,
                case_store.NewEscalation(
                    tenant=self.tenant, item_id=item_id, attempt=1, profile="product-copy", reason=reason,
                    tool="ocr_extract", packet={"resume_point": 9}, due_after_ms=HOUR_MS, expires_after_ms=HOUR_MS,
                ),
            )  # fmt: skip
            moved = item_store.transition(
                connection, item_id, expected=(Status.INSPECTING,), to=Status.AWAITING_HUMAN, actor="test",
                fence=lease.fence, reason=reason, values={"escalation_id": again},
            )  # fmt: skip
            assert moved is not None
            return again

        return self.database.transact(write)

    def get(self, case: str) -> dict[str, Any]:
        answer = self.client.get(f"/v1/escalations/{case}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def item(self, case: str) -> dict[str, Any]:
        found: dict[str, Any] = self.client.get(f"/v1/items/{self.get(case)['item']}").json()
        return found

    def listed(self, **query: Any) -> list[str]:
        answer = self.client.get("/v1/escalations", params=query)
        assert answer.status_code == 200, answer.text
        return [case["id"] for case in answer.json()["escalations"]]

    def post(self, path: str, body: dict[str, Any] | None = None, **headers: str) -> httpx.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.post(f"/v1/escalations/{path}", json=body or {}, headers=named)

    def claimed(self, case: str, **body: Any) -> tuple[str, str]:
        """Lease token and ETag."""
        answer = self.post(f"{case}/claim", body)
        assert answer.status_code == 200, answer.text
        return answer.json()["lease"]["token"], answer.headers["ETag"]

    def decide(self, case: str, action: str, *, key: str | None = None, **body: Any) -> httpx.Response:
        """Claim and resolve."""
        token, etag = self.claimed(case)
        headers = {"If_Match": etag} if key is None else {"If_Match": etag, "Idempotency_Key": key}
        return self.post(f"{case}/resolve", {"lease_token": token, "action": action, **body}, **headers)

    def decided(self, case: str, action: str, **body: Any) -> dict[str, Any]:
        """Claim and resolve; the answer's body."""
        answer = self.decide(case, action, **body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def audit(self, case: str) -> list[dict[str, Any]]:
        answer = self.client.get(f"/v1/escalations/{case}/audit")
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["audit"]
        return found

    def whats(self, case: str) -> list[str]:
        """What happened to a case, oldest first."""
        return [entry["what"] for entry in self.audit(case)]

    def events_of(self, resource: str) -> list[dict[str, Any]]:
        """The tenant's events about one case or item."""
        found: list[dict[str, Any]] = []
        after = 0
        while True:
            page = self.client.get("/v1/events", params={"after": after, "limit": 200}).json()
            if not page["events"]:
                return found
            found += [event for event in page["events"] if event["resource"] == resource]
            after = page["after"]


@contextlib.contextmanager
def queue_of(service: Service, tenant: str, database_url: str | None = None) -> Iterator[Queue]:
    """The queue of a new tenant of a running service."""
    database = Database(database_url or f"sqlite:///{service.data_dir / 'sluicegate.db'}")
    _, key = database.transact(
        lambda connection: keys.create(connection, tenant=tenant, name=None, scopes=keys.SCOPES, at_ms=1)
    )
    with service.client(headers=bearer(key)) as client:
        yield Queue(service, tenant, key, client, database)
    database.close()


@functools.cache
def _profile() -> Profile:
    return load_profiles()["product-copy"]


def new_item(tenant: str, at_ms: int) -> NewItem:
    item_id = new_id("itm", now_ms=at_ms)
    profile = _profile()
    submission = {"title": item_id, "attributes": {}, "text": None, "language": "en", "mode": "generate"}
    return NewItem(
        id=item_id, tenant=tenant, external_id=None, mode=Mode.GENERATE, profile=profile.name,
        profile_version=profile.version, ruleset="rs_1", submission=submission, notes=(), content_key=item_id,
        duplicate_of=None, retention_ms=HOUR_MS, files=(),
    )  # fmt: skip


def refused(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    assert (answer.status_code, answer.json().get("code")) == (status, code), answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    found: dict[str, Any] = answer.json()
    return found
