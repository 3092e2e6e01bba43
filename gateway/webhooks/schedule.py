"""When to try again, when to leave an address alone for a while, and when to give it up: pure functions of what happened."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

RETRIES_S: tuple[float, ...] = (5, 300, 1800, 7200, 18000, 36000, 50400, 72000, 86400)
"""Waits between attempts: the example of the Standard Webhooks specification, about three days in all."""
JITTER = 0.2
RETRY_AFTER_MOST_S = 3600.0

CONCURRENCY = 4
"""Attempts that may be under way to one address."""
BREAKER_FAILURES = 5
"""After so many failures in a row an address is left alone, and then tried by one delivery at a time."""
BREAKER_MOST_S = 900.0

_HOUR_MS = 3600 * 1000
NOTICE_MS = 24 * _HOUR_MS
SPREAD_MS = 12 * _HOUR_MS
DISABLE_MS = 5 * 24 * _HOUR_MS


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """How attempts are spaced."""

    retries_s: tuple[float, ...] = RETRIES_S
    breaker_s: float = 30.0
    """How long an address is left alone at first; twice as long after each further failure."""


@dataclass(frozen=True, slots=True)
class Health:
    """How one address has answered of late."""

    failures: int = 0
    """Failed attempts in a row."""
    failing_since_ms: int | None = None
    """The first of them."""
    spread_ms: int | None = None
    """The first that came twelve hours or more after it: a burst alone never disables anything."""
    noticed_ms: int | None = None
    """When people were told that it keeps failing."""
    paused_until_ms: int | None = None
    last_failure_ms: int | None = None
    last_success_ms: int | None = None

    def concurrency(self) -> int:
        """How many attempts may be under way: one while it fails, so that a dead address holds no places."""
        return 1 if self.failures else CONCURRENCY

    @property
    def is_broken(self) -> bool:
        """Whether the circuit is open."""
        return self.failures >= BREAKER_FAILURES


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a failure leads to."""

    health: Health
    notice: bool
    """Tell people now: it has failed for a day."""
    disable: bool


def next_delay_s(tries: int, retries_s: Sequence[float], *, chance: float, retry_after_s: float | None) -> float | None:
    """Seconds until the next attempt after `tries` failed ones; None when none is left. `chance` is 0..1."""
    if tries > len(retries_s):
        return None
    planned = retries_s[tries - 1] * (1 + JITTER * (2 * chance - 1))
    return max(planned, min(retry_after_s or 0.0, RETRY_AFTER_MOST_S))


def after_success(health: Health, now_ms: int) -> Health:
    """One 2xx forgets all failures."""
    return Health(last_success_ms=now_ms, last_failure_ms=health.last_failure_ms)


def after_failure(health: Health, now_ms: int, policy: RetryPolicy, *, retry_after_s: float | None) -> Judgement:
    """What one more failure means for its address."""
    since = health.failing_since_ms if health.failing_since_ms is not None else now_ms
    spread = health.spread_ms
    is_long = now_ms - since >= DISABLE_MS and spread is not None
    if spread is None and now_ms - since >= SPREAD_MS:
        spread = now_ms
    notice = health.noticed_ms is None and now_ms - since >= NOTICE_MS
    failed = replace(
        health,
        failures=health.failures + 1,
        failing_since_ms=since,
        spread_ms=spread,
        noticed_ms=now_ms if notice else health.noticed_ms,
        last_failure_ms=now_ms,
    )
    return Judgement(
        replace(failed, paused_until_ms=_paused_until(failed, now_ms, policy, retry_after_s)), notice, is_long
    )


def _paused_until(health: Health, now_ms: int, policy: RetryPolicy, retry_after_s: float | None) -> int | None:
    wait_s = min(retry_after_s or 0.0, RETRY_AFTER_MOST_S)
    if health.is_broken:
        doublings = min(health.failures - BREAKER_FAILURES, 16)
        wait_s = max(wait_s, min(policy.breaker_s * 2**doublings, BREAKER_MOST_S))
    if not wait_s:
        return health.paused_until_ms
    return max(health.paused_until_ms or 0, now_ms + int(wait_s * 1000))
