"""Hold the service against the ledger: what was lost, what was done twice, what was paid for more than needed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.clients import ACCEPTED
from tests.chaos.ledger import REQUESTS_WITHOUT_KILLS, Book, requests_by_marker
from tests.chaos.plan import Kind, Product

TERMINAL = frozenset({"succeeded", "rejected", "failed", "cancelled", "ready", "expired", "purged"})
AT_REST = TERMINAL | {"awaiting_human", "halted"}
MOST_WORKER_LOST = 0.01
_WANTED = {
    Kind.TITLE: ("succeeded", None),
    Kind.DOCUMENT: ("succeeded", None),
    Kind.PHOTO: ("succeeded", None),
    Kind.REFUSED: ("rejected", None),
    Kind.STUBBORN: ("awaiting_human", "repeated_tool_calls"),
}


@dataclass(frozen=True, slots=True)
class Seen:
    """One item as the service shows it in the end."""

    id: str
    marker: str
    status: str
    reason: str | None
    model_calls: int
    history: Sequence[Mapping[str, Any]]
    events: Sequence[str]
    cases: int

    @property
    def ended_leases(self) -> int:
        """How often its worker was lost, or gave it back unfinished."""
        return sum(step["reason"] in {"worker_lost", "worker_stopped"} for step in self.history)


@dataclass(slots=True)
class Verdict:
    """What was found, product by product."""

    submissions: int
    worker_kills: int
    lost: list[str] = field(default_factory=list)
    """Accepted, and there is no item, or none that came to rest in time."""
    undelivered: list[str] = field(default_factory=list)
    """Never accepted, although its client asked again and again."""
    doubled: list[str] = field(default_factory=list)
    """Two items for one key, two ends of one item, two cases, or two answers to one key that differ."""
    wrong: list[str] = field(default_factory=list)
    """At rest where the product does not belong."""
    overpaid: list[str] = field(default_factory=list)
    """Asked the model more often than once more for each worker that the item lost."""
    unaccounted: list[str] = field(default_factory=list)
    """The service reports fewer model calls than were made."""
    faults: list[str] = field(default_factory=list)
    """Answers that no client should see."""
    worker_lost: list[str] = field(default_factory=list)
    """In the human queue because three workers in a row were lost: right, if it is rare."""
    extra_calls: int = 0
    statuses: Counter[str] = field(default_factory=Counter)

    @property
    def is_good(self) -> bool:
        """Whether the run passes."""
        return (
            not (self.lost or self.undelivered or self.doubled or self.wrong)
            and not (self.overpaid or self.unaccounted or self.faults)
            and len(self.worker_lost) <= MOST_WORKER_LOST * self.submissions
            and self.extra_calls <= self.worker_kills
        )

    def lines(self) -> Iterator[str]:
        """For a person; the last one is the verdict."""
        for name in ("lost", "undelivered", "doubled", "wrong", "overpaid", "unaccounted", "faults", "worker_lost"):
            for entry in getattr(self, name):
                yield f"{name}: {entry}"
        yield "ended as: " + ", ".join(f"{count:,} {status}" for status, count in self.statuses.most_common())
        per_kill = self.extra_calls / self.worker_kills if self.worker_kills else 0.0
        yield (
            f"{'PASS' if self.is_good else 'FAIL'}: {self.submissions:,} submissions, {len(self.lost)} lost, "
            f"{len(self.undelivered)} undelivered, {len(self.doubled)} duplicated effects, {len(self.wrong)} wrong ends, "
            f"{self.extra_calls} extra model calls in {self.worker_kills} worker kills ({per_kill:.2f} each), "
            f"{len(self.overpaid) + len(self.unaccounted)} wrongly paid, {len(self.faults)} faults, "
            f"{len(self.worker_lost)} worker_lost"
        )


def wait_until_at_rest(client: httpx.Client, *, within_s: float) -> None:
    """Until no item waits or is at work, or the time is over."""
    began = time.monotonic()
    while time.monotonic() - began < within_s:
        with contextlib.suppress(httpx.TransportError):  # being started again
            answer = client.get("/v1/items", params={"status": "queued,inspecting,running,cancelling", "limit": 1})
            if answer.status_code == 200 and not answer.json()["items"]:
                return
        time.sleep(0.2)


def judge(client: httpx.Client, products: Sequence[Product], answers: Book, folder: Path, worker_kills: int) -> Verdict:
    """The verdict over a service that nobody kills any more."""
    verdict = Verdict(len(products), worker_kills)
    told = _told(answers, verdict)
    items = _items_by_marker(client)
    requests = requests_by_marker(folder)
    known = {product.marker for product in products}
    verdict.doubled += [f"{marker}: an item that nobody sent" for marker in items.keys() - known]
    for product in products:
        ids = told.get(product.marker, set())
        found = items.get(product.marker, [])
        if not ids:
            verdict.undelivered.append(product.marker)
        if ids - {item["id"] for item in found}:
            verdict.lost.append(f"{product.marker}: told {sorted(ids)}, there is {[item['id'] for item in found]}")
        if len(ids) > 1 or len(found) > 1:
            verdict.doubled.append(f"{product.marker}: {len(ids)} ids told, {len(found)} items")
        for item in found:
            _judge_item(_seen(client, item, product.marker), product.kind, requests[product.marker], verdict)
    return verdict


def _told(answers: Book, verdict: Verdict) -> dict[str, set[str]]:
    """The item ids that clients were given, by marker."""
    told: dict[str, set[str]] = defaultdict(set)
    for entry in answers:
        status = entry.get("status")
        if status in ACCEPTED:
            told[entry["marker"]].add(entry["id"])
        elif status is not None and (status == 500 or (400 <= status < 500 and status not in {409, 429})):
            verdict.faults.append(f"{entry['marker']}: {status} {entry['code']}")
    return told


def _judge_item(item: Seen, kind: Kind, requests: int, verdict: Verdict) -> None:
    verdict.statuses[item.status if item.reason is None else f"{item.status} ({item.reason})"] += 1
    if item.status not in AT_REST:
        verdict.lost.append(f"{item.marker}: {item.id} is still {item.status}")
    elif item.reason == "worker_lost":
        verdict.worker_lost.append(f"{item.marker}: {item.id}")
    elif item.status != _WANTED[kind][0] or (_WANTED[kind][1] not in {None, item.reason}):
        verdict.wrong.append(f"{item.marker}: {item.id} is {item.status} ({item.reason})")
    ends = [step["to"] for step in item.history if step["to"] in AT_REST]
    told = [event for event in item.events if event.removeprefix("item.") in AT_REST]
    if len(ends) > 1 or len(told) > 1 or (ends and item.history[-1]["to"] not in AT_REST):
        verdict.doubled.append(f"{item.marker}: {item.id} ended as {ends}, with the events {told}")
    if item.cases > 1:
        verdict.doubled.append(f"{item.marker}: {item.id} has {item.cases} cases")
    extra = max(requests - REQUESTS_WITHOUT_KILLS[kind], 0)
    verdict.extra_calls += extra
    if extra > item.ended_leases:
        verdict.overpaid.append(f"{item.marker}: {item.id}, {requests} requests, {item.ended_leases} workers lost")
    if item.status in AT_REST and requests > item.model_calls:
        verdict.unaccounted.append(f"{item.marker}: {item.id}, {requests} requests, {item.model_calls} counted")
    if item.status == "succeeded" and requests < REQUESTS_WITHOUT_KILLS[kind]:
        verdict.wrong.append(f"{item.marker}: {item.id} succeeded with {requests} requests")


def _items_by_marker(client: httpx.Client) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    page: dict[str, Any] = {}
    cursor: dict[str, str] = {}
    while not page or page.get("next_cursor"):
        page = _get(client, "/v1/items", {"limit": 100, **cursor})
        for item in page["items"]:
            found[item["external_id"]].append(item)
        cursor = {"cursor": page["next_cursor"]} if page.get("next_cursor") else {}
    return found


def _seen(client: httpx.Client, item: Mapping[str, Any], marker: str) -> Seen:
    item_id = item["id"]
    cases = _get(client, "/v1/escalations", {"item": item_id})["escalations"] if item["escalation"] else []
    return Seen(
        id=item_id,
        marker=marker,
        status=item["status"],
        reason=item["reason"] if item["status"] == "awaiting_human" else None,
        model_calls=item["usage"]["model_calls"],
        history=_get(client, f"/v1/items/{item_id}/explanation")["history"],
        events=[event["type"] for event in _get(client, f"/v1/items/{item_id}/events")["events"]],
        cases=len(cases),
    )


def _get(client: httpx.Client, path: str, parameters: Mapping[str, Any] | None = None) -> dict[str, Any]:
    answer = client.get(path, params=dict(parameters or {}))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found
