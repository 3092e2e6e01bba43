"""What has to happen at the queue although nobody asks for it: by the clock, from the worker's sweeper."""

from __future__ import annotations

from collections import Counter
from functools import partial

from gateway.profiles.loader import EscalationPolicy
from gateway.review.deciding import apply_pending
from gateway.review.expiry import expire_due
from gateway.review.priority import priority_of
from gateway.store import escalation_clock as clock
from gateway.store import escalation_leases as leases
from gateway.store import items as item_store
from gateway.store import review_requests as requests
from gateway.store.escalation_clock import Waiting
from gateway.wiring import Services

APPLY_S = 1.0
"""How often decisions are looked for whose time to be taken back is over."""
WARN_AT = (50, 90)
"""Percent of the time to the due time."""


def tend(services: Services) -> None:
    """One round: decisions take effect, dead leases end, cases are withdrawn, expire, are warned of and grow urgent."""
    apply_pending(services)
    expire_due(services)
    _clear_up(services)
    _follow_the_clock(services)


def _clear_up(services: Services) -> None:
    with services.database.read() as connection:
        left_behind = clock.left_behind(connection)
        lapsed = leases.lapsed(connection)
        has_old = requests.has_old(connection)
    if has_old:
        services.database.transact(requests.drop_old)
    for case_id in left_behind:
        services.database.transact(partial(clock.withdraw_left_behind, case_id=case_id))
    for case_id in lapsed:
        services.database.transact(partial(leases.free_lapsed, case_id=case_id))


def _follow_the_clock(services: Services) -> None:
    with services.database.read() as connection:
        cases = clock.waiting(connection)
        at_ms = item_store.now_ms(connection)
    sizes = Counter(case.group_id for case in cases)
    urgent: dict[str, int] = {}
    for case in cases:
        due_after_ms = due_after_ms_of(services, case)
        age_ms = at_ms - (case.due_ms - due_after_ms)
        passed = [percent for percent in WARN_AT if age_ms * 100 >= due_after_ms * percent]
        if passed and case.warned_percent < passed[-1]:
            services.database.transact(partial(clock.warn, case=case, percent=passed[-1]))
        priority = priority_of(
            profile=case.profile_priority,
            burnt_percent=case.burnt_percent,
            group_size=sizes[case.group_id],
            age_ms=age_ms,
            due_after_ms=due_after_ms,
        )
        if priority != case.priority:
            urgent[case.id] = priority
    if urgent:
        services.database.transact(partial(clock.set_priorities, priorities=urgent))


def due_after_ms_of(services: Services, case: Waiting) -> int:
    """The whole time to the due time that the profile gives, without what a case waited for its submitter."""
    profile = None if case.is_of_run else services.profiles.get(case.profile)
    return int((EscalationPolicy() if profile is None else profile.escalation).due_s * 1000)
