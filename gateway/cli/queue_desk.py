"""What a reviewer does at a remote queue: take a case, keep it, decide it, give it back."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from gateway.cli.remote import Answer, ExitStatus, Refused, Remote, RemoteError, Unreachable

_PAGE = 200
_BASE = "/v1/escalations"


@dataclass(frozen=True, slots=True)
class Held:
    """A case under a lease of ours."""

    case: dict[str, Any]
    token: str
    etag: str
    lease: Mapping[str, Any]
    is_fresh: bool = True
    """Whether it was not ours before."""

    @property
    def id(self) -> str:
        """The case's id."""
        return str(self.case["id"])


def list_cases(remote: Remote, filters: Mapping[str, str], most: int) -> tuple[list[dict[str, Any]], Mapping[str, Any]]:
    """Cases, the soonest due first, and how the queue stands."""
    found: list[dict[str, Any]] = []
    query: dict[str, str | int] = {**filters}
    while True:
        page = remote.get(_BASE, **query, limit=min(_PAGE, most - len(found))).body
        found += page["escalations"]
        cursor = page["next_cursor"]
        if cursor is None or len(found) >= most:
            return found[:most], page["queue"]
        query["cursor"] = cursor


def read_case(remote: Remote, case_id: str) -> Answer:
    """The decision packet."""
    return remote.get(_path(case_id))


def read_item(remote: Remote, case: Mapping[str, Any]) -> dict[str, Any] | None:
    """What was submitted; None where there is no item, or the caller may not read it."""
    if not case.get("item"):
        return None
    try:
        return remote.get(f"/v1/items/{case['item']}").body
    except Refused as error:
        if error.http_status in {403, 404, 410}:
            return None
        raise


def claim_next(remote: Remote, filters: Mapping[str, str], lease_s: float | None) -> Held | dict[str, Any]:
    """The next case that nobody holds, or the answer that says why there is none."""
    body: dict[str, Any] = {"filter": dict(filters), **_lease(lease_s)}
    answer = remote.post(f"{_BASE}/claim-next", body)
    return answer.body if answer.body.get("empty") else _held(answer)


def claim(remote: Remote, case_id: str, lease_s: float | None = None) -> Held:
    """This case; one's own lease is renewed."""
    fence = read_case(remote, case_id).body["fence"]
    answer = remote.post(f"{_path(case_id)}/claim", _lease(lease_s))
    held = _held(answer)
    return Held(held.case, held.token, held.etag, held.lease, is_fresh=held.case["fence"] != fence)


def release(remote: Remote, held: Held, note: str | None = None) -> Answer:
    """Open for others again."""
    body = {"lease_token": held.token, **({} if note is None else {"note": note})}
    return remote.post(f"{_path(held.id)}/release", body)


def resolve(remote: Remote, held: Held, decision: Mapping[str, Any], *, key: str, undo_s: float = 0) -> Answer:
    """Decide, once, whatever becomes of the connection."""
    body = {**decision, "lease_token": held.token, **({"undo_s": undo_s} if undo_s else {})}
    return remote.post(f"{_path(held.id)}/resolve", body, If_Match=held.etag, Idempotency_Key=key)


def decide(
    remote: Remote, case_id: str, decision: Mapping[str, Any], *, key: str | None = None, undo_s: float = 0
) -> Answer:
    """Claim where needed, and decide. A case that was taken for this alone is given back where that fails.

    With a `key` of the caller's own, the same decision on a decided case gives its first answer again.
    """
    try:
        held = claim(remote, case_id)
    except Refused as error:
        if key is None or error.code not in {"already_resolved", "already_claimed"}:
            raise
        return _decided_before(remote, case_id, decision, key, undo_s, error)
    try:
        return resolve(remote, held, decision, key=key or new_key(), undo_s=undo_s)
    except Refused:
        if held.is_fresh:
            let_go(remote, held)
        raise


def _decided_before(
    remote: Remote, case_id: str, decision: Mapping[str, Any], key: str, undo_s: float, refusal: Refused
) -> Answer:
    found = read_case(remote, case_id)
    if found.body["status"] in {"open", "claimed"}:
        raise refusal
    return resolve(remote, Held(found.body, "decided before", found.etag, {}), decision, key=key, undo_s=undo_s)


def let_go(remote: Remote, held: Held) -> None:
    """Give a case back where that is still possible; its lease runs out anyway."""
    try:
        release(remote, held)
    except (Refused, Unreachable):
        return


def undo(remote: Remote, case_id: str | None) -> Held:
    """Take a decision back before it takes effect: this case's, or one's last. Raises `RemoteError`."""
    return _held(remote.post(f"{_path(case_id or _last_decided(remote))}/undo"))


def _last_decided(remote: Remote) -> str:
    page, _ = list_cases(remote, {"status": "resolved", "resolved_by": "me"}, _PAGE)
    pending = [case for case in page if case["apply_at"] is not None]
    if not pending:
        raise RemoteError("none of your decisions can be taken back any more", ExitStatus.CONFLICT)
    return str(max(pending, key=lambda case: str(case["resolution"]["at"]))["id"])


def new_key() -> str:
    """An Idempotency-Key for one decision."""
    return f"cli-{uuid.uuid4()}"


@contextmanager
def kept_alive(remote: Remote, held: Held, lease_s: float, on_loss: Callable[[str], None]) -> Iterator[None]:
    """The lease is renewed in the background until the block ends; `on_loss` hears once why it cannot be."""
    is_over = threading.Event()
    every_s = max(lease_s / 3, 0.3)

    def beat() -> None:
        while not is_over.wait(every_s):
            try:
                remote.post(f"{_path(held.id)}/heartbeat", {"lease_token": held.token, "lease_s": lease_s})
            except Unreachable:
                continue  # there is time until the lease ends
            except Refused as error:
                if not is_over.is_set():
                    on_loss(error.public)
                return

    thread = threading.Thread(target=beat, name="lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=every_s)


def _path(case_id: str) -> str:
    if not case_id.isascii() or not case_id.replace("_", "").isalnum():
        raise RemoteError(f"{case_id} is no id of a case", ExitStatus.USAGE)
    return f"{_BASE}/{case_id}"


def _held(answer: Answer) -> Held:
    case, lease = answer.body["escalation"], answer.body["lease"]
    return Held(case, str(lease["token"]), answer.etag, lease)


def _lease(lease_s: float | None) -> dict[str, float]:
    return {} if lease_s is None else {"lease_s": lease_s}
