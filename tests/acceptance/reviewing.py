"""What a submitter and a reviewer do over REST, and a look at the steps that were written down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from gateway.item import SETTLED, Status
from gateway.store import steps as step_store
from gateway.store.engine import Database
from gateway.store.steps import StepKind, StepRow
from tests.gateway.running import until


@dataclass
class Desk:
    """A client of one service, with a view into its database."""

    client: httpx.Client
    data_dir: Path

    def submit(self, title: str, *files: bytes, **item: Any) -> str:
        """Send a product; gives the item's id."""
        parts: dict[str, Any] = {"item": (None, json.dumps({"title": title, **item}), "application/json")}
        for number, content in enumerate(files, 1):
            parts[f"p{number}"] = (f"p{number}", content)
        answer = self.client.post("/v1/items", files=parts, headers={"Prefer": "respond-async"})
        assert answer.status_code in {201, 202}, answer.text
        return str(answer.json()["id"])

    def item(self, item_id: str) -> dict[str, Any]:
        answer = self.client.get(f"/v1/items/{item_id}")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def settled(self, item_id: str, *, within_s: float = 60.0) -> dict[str, Any]:
        """The item once no worker is busy with it."""

        def look() -> dict[str, Any] | None:
            item = self.item(item_id)
            return item if Status(item["status"]) in SETTLED else None

        return until(look, within_s=within_s)

    def written(self, title: str, *files: bytes, **item: Any) -> dict[str, Any]:
        """The item once it is settled."""
        return self.settled(self.submit(title, *files, **item))

    def cases(self, item_id: str) -> list[dict[str, Any]]:
        """All cases that the item ever was, oldest first."""
        answer = self.client.get("/v1/escalations", params={"item": item_id})
        assert answer.status_code == 200, answer.text
        found: list[dict[str, Any]] = answer.json()["escalations"]
        return sorted(found, key=lambda case: case["created_at"])

    def only_case(self, item_id: str) -> dict[str, Any]:
        [case] = self.cases(item_id)
        return case

    def claim(self, case: str, **body: Any) -> httpx.Response:
        return self.client.post(f"/v1/escalations/{case}/claim", json=body)

    def decide(self, case: str, action: str, **body: Any) -> httpx.Response:
        """Claim and resolve."""
        claimed = self.claim(case)
        assert claimed.status_code == 200, claimed.text
        decision = {"lease_token": claimed.json()["lease"]["token"], "action": action, **body}
        headers = {"If-Match": claimed.headers["ETag"]}
        return self.client.post(f"/v1/escalations/{case}/resolve", json=decision, headers=headers)

    def decided(self, case: str, action: str, **body: Any) -> dict[str, Any]:
        """Claim and resolve; the answer's body."""
        answer = self.decide(case, action, **body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def steps(self, item_id: str) -> list[StepRow]:
        """What was written down, oldest first."""
        database = Database(f"sqlite:///{self.data_dir / 'sluicegate.db'}")
        with database.read() as connection:
            rows = step_store.all_of(connection, item_id)
        database.close()
        return rows

    def actions(self, item_id: str) -> list[str]:
        """What the guard did at each call: the verdict on the result where it ran, else the refusal."""
        return [
            (row.outcome or {}).get("action") or row.intent["action"]
            for row in self.steps(item_id)
            if row.kind is StepKind.TOOL
        ]

    def history(self, item_id: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.client.get(f"/v1/items/{item_id}/explanation").json()["history"]
        return found
