"""`POST /v1/items`: body to submission, submission to item, item to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import AsyncExitStack
from functools import partial
from types import TracebackType
from typing import Any

import anyio
import anyio.to_thread
import structlog
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gateway import intake, metrics, pipeline
from gateway import submission as submissions
from gateway.api import idempotency, versions
from gateway.api.auth import Principal
from gateway.api.body import OnSubmission, ReceivedBody, field_problem, read_body
from gateway.api.budgets import budget_problem, quota_problem
from gateway.api.gate import principal_of
from gateway.api.idempotency import SCOPE_CREATE_ITEM, Arrivals
from gateway.api.prefer import Preference, parse_prefer
from gateway.api.problems import MEDIA_TYPE, ApiProblem, FieldError, invalid
from gateway.api.render import item_json, language_of, strict_problem
from gateway.api.waiting import Waiting
from gateway.blobs import BlobStoreUnreachable
from gateway.item import SETTLED, Item, Lease, StaleLease, Status
from gateway.profiles import Profile
from gateway.settings import origin_list
from gateway.store import idempotency as idempotency_store
from gateway.store import items as item_store
from gateway.store.budgets import BudgetExhausted, QuotaExceeded
from gateway.store.idempotency import StoredKey
from gateway.store.webhooks import Callback
from gateway.submission import FieldProblem, Submission
from gateway.verbs.allowed import StateConflict
from gateway.verbs.superseding import NoSuchItem
from gateway.webhooks.callbacks import SecretMissing, checked_callback
from gateway.webhooks.parts import target_policy
from gateway.webhooks.targets import UrlRefused
from gateway.wiring import Services
from gateway.work.dispatch import Bulkhead

log = structlog.get_logger()

_FIRST_OUTCOME_S = 10.0
_STORING = 32
"""Uploads that are stored at the same time, in threads of their own, so that whoever reads need not wait behind them."""
_MEASURING_EACH, _TO_MEASURE_EACH = 4, 16
"""Uploads that are measured inside their requests for each decoder: so many at the same time, and so many with those that
wait for it. Of more than that the answer would come late, so workers measure them."""


class Submissions:
    """Takes submissions for one process."""

    def __init__(self, services: Services, waiting: Waiting) -> None:
        self._services = services
        self._waiting = waiting
        self._arrivals = Arrivals()
        decoders = services.settings.decoder_workers
        self._storing = anyio.CapacityLimiter(_STORING)
        self._measuring = anyio.CapacityLimiter(_MEASURING_EACH * decoders)
        self._places = _Places(_TO_MEASURE_EACH * decoders)
        self._targets = target_policy(services.settings)
        self._callback_origins = origin_list(services.settings.callback_origins)

    async def create(self, request: Request) -> Response:
        """Answer one `POST /v1/items`."""
        principal = principal_of(request.scope["state"])
        preference = parse_prefer(request.headers.getlist("prefer"))
        key = idempotency.parse_key(request.headers.get("idempotency-key"))
        with self._places.one() as place:
            accepted, replayed = await self._receive(request, principal, key, preference, place)
            request.scope["state"]["item_id"] = accepted.item_id
            # From here on a look sees the item, however long its outcome is waited for.
            self._services.admission.settle(request.scope["state"]["admitted"])
            is_measured = accepted.lease is not None and await self._inspect_edge(accepted.lease)
        if not replayed and accepted.duplicate_of is None:
            self._services.dispatch.wake(accepted.item_id, Bulkhead.OCR if is_measured else Bulkhead.EDGE)
        item = await self._outcome(accepted, preference)
        _count(item, accepted, replayed=replayed)
        return _answer(request, item, preference, accepted, replayed=replayed)

    async def _receive(
        self, request: Request, principal: Principal, key: str | None, preference: Preference, place: _Place
    ) -> tuple[intake.Accepted, bool]:
        """The item that stands for this request, and whether an earlier request with the same key made it."""
        stored = None if key is None else await self._stored(principal.tenant, key)
        arrival = _KeyArrival(self._arrivals, principal.tenant, key, stored)
        profile_box: list[Profile] = []

        def on_submission(document: dict[str, Any], submission: Submission) -> None:
            profile_box.append(self._checked_profile(submission))
            arrival.announce(submissions.meta_fingerprint(document))

        try:
            async with AsyncExitStack() as stack:
                body = await self._read(request, stack, on_submission)
                roles = _check_files(body)
                fingerprint = submissions.fingerprint(
                    body.document,
                    [(roles.get(file.part), file.writer.sha256, file.writer.bytes) for file in body.files],
                )
                if arrival.first is not None:
                    await _wait_for_first(arrival.first)
                    stored = await self._stored(principal.tenant, key or "")
                if stored is not None:
                    return _replay(stored, fingerprint, key or ""), True
                callback = await self._callback(principal.tenant, body.submission)
                arrival.body_complete()
                incoming = intake.Incoming(
                    tenant=principal.tenant,
                    actor=principal.actor,
                    document=body.document,
                    submission=body.submission,
                    profile=profile_box[0],
                    files=[
                        intake.IncomingFile(f.part, roles.get(f.part), f.file_name, f.declared_type, f.writer)
                        for f in body.files
                    ],
                    idempotency_key=key,
                    fingerprint=fingerprint,
                    meta_fingerprint=submissions.meta_fingerprint(body.document),
                    callback=callback,
                )
                return await self._accept(incoming, preference, place)
        finally:
            arrival.leave()

    async def _read(self, request: Request, stack: AsyncExitStack, on_submission: OnSubmission) -> ReceivedBody:
        try:
            return await read_body(request, self._services.blobs, stack, on_submission)
        except OSError as error:
            if intake.is_out_of_room(error):
                raise _storage_full() from error
            raise

    async def _accept(
        self, incoming: intake.Incoming, preference: Preference, place: _Place
    ) -> tuple[intake.Accepted, bool]:
        is_waited_for = not preference.respond_async or preference.wait_s is not None
        claim_as = "api:edge" if is_waited_for and place.take() else None
        store = partial(intake.accept, self._services, incoming, scope=SCOPE_CREATE_ITEM, claim_as=claim_as)
        try:
            accepted = await anyio.to_thread.run_sync(store, limiter=self._storing)
        except intake.KeyTaken:
            stored = await self._stored(incoming.tenant, incoming.idempotency_key or "")
            if stored is None:
                raise idempotency.in_progress() from None
            return _replay(stored, incoming.fingerprint, incoming.idempotency_key or ""), True
        except intake.DuplicateItem as error:
            raise ApiProblem(
                "duplicate_item",
                f"The item {error.item_id} has the same content. Send `on_duplicate: new` to have another one.",
                extra={"item_id": error.item_id},
            ) from None
        except intake.FilesBeingRemoved as error:
            raise ApiProblem(error.code, error.public, retry_after_s=2) from error
        except QuotaExceeded as error:
            raise quota_problem(error) from error
        except BudgetExhausted as error:
            raise budget_problem(error) from error
        except NoSuchItem:
            detail = "There is no item of this id."
            raise invalid(
                f"`supersedes` is not valid. {detail}", FieldError("/supersedes", "unknown_item", detail)
            ) from None
        except StateConflict as error:
            extra = {"item_status": error.status.value, "allowed": list(error.allowed)}
            raise ApiProblem(error.code, error.public, extra=extra) from error
        except intake.StorageFull as error:
            raise _storage_full() from error
        except BlobStoreUnreachable as error:
            log.warning("blobs.unreachable", error=str(error))
            raise ApiProblem(error.code, error.public, retry_after_s=5) from error
        return accepted, False

    async def _inspect_edge(self, lease: Lease) -> bool:
        """Whether all that is cheap to measure is measured."""
        try:
            with metrics.edge_seconds.time():
                measure = partial(pipeline.inspect_edge, self._services, lease)
                return await anyio.to_thread.run_sync(measure, limiter=self._measuring)
        except StaleLease:
            log.info("item.stale_lease", item_id=lease.item_id, fence=lease.fence)
        except Exception:  # the item is stored, so its caller gets it; the lease lapses and a worker goes on
            log.exception("item.edge_failed", item_id=lease.item_id, fence=lease.fence)
        return False

    def _checked_profile(self, submission: Submission) -> Profile:
        profile = self._services.profiles.get(submission.profile)
        if profile is None:
            names = ", ".join(sorted(self._services.profiles))
            raise invalid(
                f"There is no profile `{submission.profile[:64]}`; there are: {names}.",
                FieldError("/profile", "unknown_profile", f"Use one of {names}."),
            )
        try:
            submissions.check_against_profile(submission, profile)
        except FieldProblem as error:
            raise field_problem(error) from error
        return profile

    async def _callback(self, tenant: str, submission: Submission) -> Callback | None:
        """Where the outcome is to be sent, if anywhere. Raises a problem for an address that may not be called."""
        url = submission.callback_url
        if url is None:
            return None

        def look() -> Callback:
            with self._services.database.read() as connection:
                return checked_callback(
                    connection,
                    tenant=tenant,
                    url=url,
                    secret_id=submission.callback_secret_id,
                    policy=self._targets,
                    allowed_for_all=self._callback_origins,
                )

        try:
            return await run_in_threadpool(look)
        except UrlRefused as error:
            wrong = FieldError("/callback_url", error.reason, error.public)
            raise ApiProblem(
                "url_not_allowed", f"`callback_url` is not taken. {error.public}", errors=[wrong]
            ) from error
        except SecretMissing as error:
            wrong = FieldError("/callback_secret_id", "unknown_secret", error.public)
            raise invalid(f"`callback_secret_id` is not valid. {error.public}", wrong) from error

    async def _stored(self, tenant: str, key: str) -> StoredKey | None:
        def look() -> StoredKey | None:
            with self._services.database.read() as connection:
                not_before = item_store.now_ms(connection) - self._services.settings.idempotency_ttl_s * 1000
                return idempotency_store.find(
                    connection, tenant=tenant, scope=SCOPE_CREATE_ITEM, key=key, not_before_ms=not_before
                )

        return await run_in_threadpool(look)

    async def _outcome(self, accepted: intake.Accepted, preference: Preference) -> Item:
        """The item once it is settled, or as it stands when the caller's patience ends."""
        if preference.wait_s is not None:
            patience_s = preference.wait_s
        elif preference.respond_async:
            patience_s = 0.0
        else:
            patience_s = self._services.settings.default_wait_s
        if patience_s == 0 and accepted.item is not None:
            return accepted.item
        item = await self._waiting.until(
            accepted.item_id, lambda version, status: status in SETTLED, timeout_s=patience_s
        )
        assert item is not None
        return item


class _Places:
    """How many requests measure their own uploads, or wait for their turn to; used in the event loop alone."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.taken = 0

    def one(self) -> _Place:
        """A place that is not taken yet; it is given back with the end of its block."""
        return _Place(self)


class _Place:
    """One request's place."""

    def __init__(self, places: _Places) -> None:
        self._places = places
        self._is_taken = False

    def take(self) -> bool:
        """Take it if one is free."""
        if not self._is_taken and self._places.taken < self._places.most:
            self._is_taken = True
            self._places.taken += 1
        return self._is_taken

    def __enter__(self) -> _Place:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._is_taken:
            self._places.taken -= 1


def _storage_full() -> ApiProblem:
    return ApiProblem(
        "storage_full",
        "There is no room to store the upload; nothing was kept. Repeat it later with the same Idempotency-Key.",
        retry_after_s=30,
    )


class _KeyArrival:
    """One request's place among those that arrive under the same key at the same time."""

    def __init__(self, arrivals: Arrivals, tenant: str, key: str | None, stored: StoredKey | None) -> None:
        self._arrivals = arrivals
        self._tenant = tenant
        self._key = key
        self._stored = stored
        self._is_first = False
        self.first: idempotency.Arrival | None = None

    def announce(self, meta_fingerprint: str) -> None:
        """The item part is known. Raises a 422 where an earlier request under the key had another one."""
        if self._key is None:
            return
        if self._stored is not None:
            if self._stored.meta_fingerprint != meta_fingerprint:
                raise idempotency.reused(self._key)
            return
        self.first = self._arrivals.enter(self._tenant, self._key, meta_fingerprint)
        self._is_first = self.first is None

    def body_complete(self) -> None:
        """All bytes are here."""
        if self._is_first and self._key is not None:
            self._arrivals.complete_body(self._tenant, self._key)

    def leave(self) -> None:
        """This request is over."""
        if self._is_first and self._key is not None:
            self._arrivals.leave(self._tenant, self._key)


async def _wait_for_first(first: idempotency.Arrival) -> None:
    """Until the first request under this key is stored or refused; a 409 while its body is still arriving."""
    if not first.body_complete and not first.finished.is_set():
        raise idempotency.in_progress()
    try:
        await asyncio.wait_for(first.finished.wait(), _FIRST_OUTCOME_S)
    except TimeoutError:
        raise idempotency.in_progress() from None


def _replay(stored: StoredKey, fingerprint: str, key: str) -> intake.Accepted:
    if stored.fingerprint != fingerprint:
        raise idempotency.reused(key)
    return intake.Accepted(stored.item_id)


def named_files(body: ReceivedBody) -> Mapping[str, str | None]:
    """Hold the files that came against those that the item part names; gives the role per part."""
    entries = {entry.part: entry for entry in body.submission.files}
    received = {file.part: file for file in body.files}
    if len(entries) != len(body.submission.files):
        raise invalid("`files` names a part twice.", FieldError("/files", "duplicate_part", "Name each part once."))
    missing = [part for part in entries if part not in received]
    if missing:
        raise ApiProblem(
            "missing_part",
            f"The item part names the file part `{missing[0]}`, but the body has none of that name.",
            errors=[
                FieldError("/files", "missing_part", f"Send the part `{part}` or take it out.") for part in missing
            ],
        )
    for part, entry in entries.items():
        if entry.sha256 is not None and entry.sha256.lower() != received[part].writer.sha256:
            raise ApiProblem(
                "digest_mismatch",
                f"The part `{part}` arrived with other bytes than its `sha256` announces. Send it again.",
                errors=[FieldError(part, "digest_mismatch", f"Arrived as {received[part].writer.sha256}.")],
            )
    return {part: entry.role for part, entry in entries.items()}


def _check_files(body: ReceivedBody) -> Mapping[str, str | None]:
    """The role per part, as the item part names them; a submission says something."""
    roles = named_files(body)
    if not body.files and not _says_something(body.submission):
        raise invalid(
            "The request has neither files nor a title, a text or attributes, so there is nothing to write about.",
            FieldError("", "empty", "Send at least one file or one of these fields."),
        )
    return roles


def _says_something(submission: Submission) -> bool:
    texts = (submission.title, submission.text)
    return any(text and text.strip() for text in texts) or bool(submission.attributes)


def _count(item: Item, accepted: intake.Accepted, *, replayed: bool) -> None:
    if replayed:
        metrics.idempotent_replays.inc()
    outcome = "duplicate" if accepted.duplicate_of is not None else item.status.value
    metrics.submissions.labels("replayed" if replayed else outcome).inc()


def _answer(
    request: Request, item: Item, preference: Preference, accepted: intake.Accepted, *, replayed: bool
) -> Response:
    language = language_of(request.headers.get("accept-language"))
    is_known = item.status in SETTLED
    headers = {"Location": f"/v1/items/{item.id}", **versions.etag(item.version)}
    if preference.applied is not None:
        headers["Preference-Applied"] = preference.applied
    if replayed:
        headers["Idempotent-Replayed"] = "true"
    if accepted.duplicate_of is not None:
        headers["Duplicate-Of"] = accepted.duplicate_of
    if not is_known:
        headers["Retry-After"] = "1"
    if preference.strict and item.status is Status.REJECTED:
        request_id = request.scope["state"]["request_id"]
        document = strict_problem(item, language=language, request_id=request_id)
        return JSONResponse(document, status_code=422, headers=headers, media_type=MEDIA_TYPE)
    status = 200 if accepted.duplicate_of is not None and not replayed else 201 if is_known else 202
    return JSONResponse(item_json(item, language=language), status_code=status, headers=headers)
