"""How often each edge rule matched, for Prometheus: counted once an item is decided, after it is stored."""

from __future__ import annotations

from collections.abc import Iterable

from gateway import metrics
from gateway.decision import ScreenedFile
from prefilters.verdict import CheckOutcome

_IN_FORCE = "active"
"""The mode of a rule whose match counts; edge rules have no other."""
_MATCHES = frozenset({CheckOutcome.WARN, CheckOutcome.FAIL})


def count(files: Iterable[ScreenedFile]) -> None:
    """Count the rules that matched on the files of an item that was just decided."""
    for file in files:
        for check in file.screening.verdict.checks:
            if check.outcome in _MATCHES:
                metrics.rule_hits.labels(check.rule, _IN_FORCE).inc()
