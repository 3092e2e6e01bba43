"""What may be wrong with a request to a guard run, beside its form."""

from __future__ import annotations

from gateway.guarding.answers import OpenCall


class RunProblem(Exception):
    """The request does not fit the run. `code` is that of the contract, `public` says what to do."""

    def __init__(self, code: str, public: str, *, retry_after_s: int | None = None, **extra: object) -> None:
        super().__init__(public)
        self.code = code
        self.public = public
        self.retryable = retry_after_s is not None
        self.retry_after_s = retry_after_s
        self.extra = extra


def no_run() -> RunProblem:
    """None of this id in this tenant."""
    return RunProblem(
        "not_found", "There is no guard run of this id. Check the id; it may also belong to another tenant."
    )


def conflict(public: str, status: str, *, outcome: object = None, **extra: object) -> RunProblem:
    """The run, or the call, is where this cannot be done."""
    told = {} if outcome is None else {"outcome": outcome}
    return RunProblem("item_state_conflict", public, retry_after_s=None, status=status, **told, **extra)


def reused(call_id: str, what: str) -> RunProblem:
    """A call id is an idempotency key, and this one came with something else before."""
    return RunProblem(
        "idempotency_key_reused",
        f"The call id {call_id[:60]!r} was sent before with another {what}. Give each call of a run an id of its own.",
        retry_after_s=None,
        call_id=call_id,
    )


def still_running(twin: OpenCall, *, expires_ms: int) -> RunProblem:
    """Two identical calls never run side by side."""
    return RunProblem(
        "already_claimed",
        f"An identical call ({twin.call_id[:60]!r}) of another message is still running. Report its outcome, then ask again.",
        retry_after_s=1,
        holder=twin.call_id,
        expires_ms=expires_ms,
    )
