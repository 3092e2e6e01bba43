"""Problem documents (RFC 9457): one table from code to status, and the only place that makes error bodies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

MEDIA_TYPE = "application/problem+json"


@dataclass(frozen=True, slots=True)
class ProblemKind:
    """One row of the table; `help` is the text of its page at `/problems/<code>`."""

    code: str
    status: int
    title: str
    retryable: bool
    help: str


def _k(code: str, status: int, title: str, help_text: str, *, retryable: bool = False) -> ProblemKind:
    return ProblemKind(code, status, title, retryable, help_text)


KINDS: Mapping[str, ProblemKind] = {
    kind.code: kind
    for kind in (
        _k("invalid_request", 400, "The request is not valid",
           "`errors` names each field that is wrong (`pointer`) and what it should be. Correct them and send it again."),
        _k("malformed_multipart", 400, "The form data cannot be read",
           "The multipart body breaks RFC 7578, or its parts come in an order that is not taken: the part `item` first, "
           "then each file under a name of its own."),
        _k("missing_part", 400, "A part is missing", "The `item` part names a file part that the body does not have."),
        _k("too_many_parts", 400, "Too many parts", "One item takes at most 20 files. Split it, or leave some out."),
        _k("part_too_large", 400, "A text part is too large",
           "Parts that are not files (the `item` part, form fields) may have 1 MiB at most."),
        _k("digest_mismatch", 400, "The bytes arrived differently",
           "The SHA-256 that was announced is not that of the bytes that arrived. Send the file again.", retryable=True),
        _k("idempotency_key_invalid", 400, "The Idempotency-Key is not valid",
           "Send 1 to 255 printable ASCII characters, bare or in double quotes."),
        _k("unauthenticated", 401, "A valid API key is needed",
           "Send `Authorization: Bearer <key>`. The operator makes keys with `sluicegate keys create`."),
        _k("forbidden", 403, "This is not allowed", "The service does not take this request from where it came."),
        _k("scope_missing", 403, "The key may not do this", "Ask the operator for a key with the scope that is named."),
        _k("permission_revoked", 403, "Your rights were changed",
           "`reason` says what was changed while you were logged in. Log in again to go on with what you may do now."),
        _k("not_found", 404, "There is nothing here", "Check the path and the id; ids of other tenants look like this too."),
        _k("method_not_allowed", 405, "This method is not taken here", "`allowed` lists the methods of this path."),
        _k("already_claimed", 409, "Somebody else holds this", "`holder` has it until `expires_at`; try again then.",
           retryable=True),
        _k("lease_lost", 409, "Your lease is over", "It ran out or was taken over; `holder` has it now. Claim it again."),
        _k("already_resolved", 409, "This was decided already", "`resolution` is the decision that won."),
        _k("group_changed", 409, "The group has changed", "`count` is how many cases it has to decide now. Look again.",
           retryable=True),
        _k("group_split", 409, "These groups stay apart", "A person split them from each other, which is for good."),
        _k("webhook_disabled", 409, "The webhook endpoint is disabled", "Enable it first; then send again what it has missed."),
        _k("escalation_withdrawn", 409, "This needs no decision any more", "Its item was cancelled or finished elsewhere."),
        _k("idempotency_in_progress", 409, "The first request is still arriving",
           "A request with this Idempotency-Key is being received. Repeat this one shortly.", retryable=True),
        _k("duplicate_item", 409, "This item exists already",
           "`item_id` is the item with the same content. Send `on_duplicate: new` to have another."),
        _k("budget_exhausted", 409, "The day's budget is spent",
           "`limits` and `resets_at` say what is spent and when the next day begins. Items in mode `prepare` are still taken."),
        _k("item_state_conflict", 409, "The item's state does not allow this", "`item_status` is where it stands."),
        _k("request_timeout", 408, "The request came too slowly",
           "The upload, or the request's head, stood still or trickled. Send it again over a better connection.", retryable=True),
        _k("gone", 410, "This is gone", "The content was purged; a tombstone remains."),
        _k("length_required", 411, "The length must be declared", "Send `Content-Length`."),
        _k("conflict_version", 412, "It has changed since you read it", "Read it again and repeat with the new ETag.",
           retryable=True),
        _k("payload_too_large", 413, "The upload is too large", "`limit_bytes` is the most that one request may carry."),
        _k("unsupported_media_type", 415, "This content type is not taken", "`accepted` lists what this path takes."),
        _k("idempotency_key_reused", 422, "The Idempotency-Key belongs to another request",
           "The same key was sent with different content. Use a fresh key for a new request."),
        _k("url_not_allowed", 422, "This URL may not be called", "The operator has not allowed this address for callbacks."),
        _k("action_not_allowed", 422, "This action is not possible here", "`allowed_actions` lists those that are."),
        _k("edited_call_denied", 422, "This call may not run",
           "The guard, the tool's schema or its policy refuses the call; `errors` says where and why. Change it, or deny it."),
        _k("rejected", 422, "The item was rejected", "Sent with `Prefer: handling=strict`; the file's own code is in `code`."),
        _k("precondition_required", 428, "A precondition is missing", "Send `If-Match` with the ETag you read."),
        _k("head_too_large", 431, "The request's head is too large",
           "Its first line and headers may have 64 KiB. Look for a cookie or header that has grown."),
        _k("quota_exceeded", 429, "The quota is used up", "Wait until it is reset.", retryable=True),
        _k("rate_limited", 429, "Too many requests", "Wait for `Retry-After` seconds.", retryable=True),
        _k("internal", 500, "Something went wrong on our side",
           "Repeat the request with the same Idempotency-Key. If it stays, tell the operator the `request_id`.",
           retryable=True),
        _k("queue_full", 503, "Too much is waiting", "Wait for `Retry-After` seconds.", retryable=True),
        _k("paused", 503, "The operator has paused new work",
           "`reason` says why. Nothing was stored; send it again after `Retry-After` seconds.", retryable=True),
        _k("dependency_unavailable", 503, "A part of the service cannot be reached", "Repeat the request in a while.",
           retryable=True),
        _k("storage_full", 507, "There is no room left", "Nothing was stored. The operator must make room.", retryable=True),
    )
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class FieldError:
    """One wrong field: a JSON pointer into the request (or a part or parameter name), a code, a sentence."""

    pointer: str
    code: str
    detail: str


@dataclass(slots=True)
class ApiProblem(Exception):
    """Ends a request with a problem document. `detail` says what is wrong and what to change, in the caller's terms."""

    code: str
    detail: str
    errors: Sequence[FieldError] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    retry_after_s: int | None = None

    def __post_init__(self) -> None:
        Exception.__init__(self, self.code, self.detail)


def problem_body(
    code: str,
    detail: str,
    *,
    instance: str | None = None,
    request_id: str | None = None,
    errors: Sequence[FieldError] = (),
    retry_after_s: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """The document for one of the kinds in `KINDS`."""
    kind = KINDS[code]
    body: dict[str, Any] = {
        "type": f"/problems/{code}",
        "title": kind.title,
        "status": kind.status,
        "detail": detail,
        "code": code,
        "retryable": kind.retryable,
        "docs": f"/problems/{code}",
    }
    if instance is not None:
        body["instance"] = instance
    if request_id is not None:
        body["request_id"] = request_id
    if retry_after_s is not None:
        body["retry_after_s"] = retry_after_s
    if errors:
        body["errors"] = [{"pointer": e.pointer, "code": e.code, "detail": e.detail} for e in errors]
    return {**(extra or {}), **body}  # what the RFC defines keeps its meaning


def invalid(detail: str, *errors: FieldError) -> ApiProblem:
    """A 400 that names the fields."""
    return ApiProblem("invalid_request", detail, errors=errors)


def not_found(what: str) -> ApiProblem:
    """A 404 that says what was looked for."""
    return ApiProblem("not_found", f"There is no {what}. Check the id; it may also belong to another tenant.")
