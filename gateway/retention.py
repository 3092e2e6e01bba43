"""Let go of what need not be kept: a bounded piece of it in each round of the sweeper, and one item at once when asked."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import structlog

from gateway import metrics
from gateway.blobs import BlobStoreUnreachable, KeptBlob
from gateway.copies import Copy
from gateway.item import TERMINAL, Status
from gateway.store import budgets
from gateway.store import retention as store
from gateway.wiring import Services

log = structlog.get_logger()

ACTOR = "system:retention"
ITEMS_A_ROUND = 100
ROWS_A_ROUND = 500
BLOBS_A_ROUND = 300
COPIES_A_ROUND = 1000
"""Copies on this machine: no store is asked for them."""
_SLOW_S = 15.0
"""Between two looks at what is in no hurry: old rows, orphans, leftovers, copies."""
_END_S = 2.0
_HOURLY_S = 3600.0
"""Between two looks at the days of budgets, of which each look goes through all."""
_STUCK_MS = 30_000
"""A removal that takes longer belonged to a process that died, or to a store that did not answer."""
_DAY_MS = 24 * 3600 * 1000


def purge(services: Services, item_id: str, *, actor: str) -> bool:
    """Make a tombstone of an item that is over and remove the files that nothing else names; False where it is not over.

    A store of files that does not answer is asked again by the sweeper.
    """
    entombed = services.database.transact(partial(store.entomb, item_id=item_id, actor=actor))
    if entombed is None:
        return False
    metrics.purged_items.inc()
    log.info("item.purged", item_id=item_id, by=actor, files=len(entombed.marked))
    remove_files(services, entombed.tenant, entombed.marked)
    return True


def remove_files(services: Services, tenant: str, marked: tuple[str, ...] | list[str]) -> int:
    """Delete marked files; gives how many. Those of a store that does not answer stay marked."""
    gone = []
    for digest in marked:
        try:
            services.blobs.remove(tenant, digest)
        except (BlobStoreUnreachable, OSError) as error:
            log.warning("blobs.not_removed", tenant=tenant, sha256=digest, error=type(error).__name__)
            break
        gone.append(digest)
    if gone:
        metrics.removed_files.inc(len(gone))
        services.database.transact(partial(store.note_gone, tenant=tenant, digests=gone))
    return len(gone)


class CopiesUpkeep:
    """Lets go of copies on this machine, a piece a round: of files that no item names any more, and those long unused."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._left: Iterator[Copy] | None = None

    def round(self) -> int:
        """Look at the next copies; gives how many were removed."""
        copies = self._services.blobs.copies
        if copies is None:
            return 0
        if self._left is None:
            self._left = copies.all()
        looked_at = list(islice(self._left, COPIES_A_ROUND))
        if len(looked_at) < COPIES_A_ROUND:
            self._left = None  # through: begin anew next time
        dropped = [copy for copy in self._useless(looked_at) if copies.drop(copy)]
        if dropped:
            copies.discount(sum(copy.bytes for copy in dropped))
            log.info("blobs.copies_removed", files=len(dropped))
        return len(dropped)

    def _useless(self, looked_at: list[Copy]) -> Iterator[Copy]:
        settings, now = self._services.settings, time.time()
        by_tenant: dict[str, dict[str, Copy]] = defaultdict(dict)
        for copy in looked_at:
            if copy.used_at < now - settings.blob_copy_s:
                yield copy
            elif copy.written_at < now - settings.orphan_age_s:  # else its item may not be stored yet
                by_tenant[copy.tenant][copy.sha256] = copy
        for tenant, found in by_tenant.items():
            with self._services.database.read() as connection:
                unnamed = store.unnamed(connection, tenant, found)
            yield from (found[digest] for digest in unnamed)


class CopiesThread:
    """The same for as long as the process runs, where no sweeper does it: beside an API."""

    def __init__(self, services: Services) -> None:
        self._upkeep = CopiesUpkeep(services)
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="copies", daemon=True)
        if services.blobs.copies is not None:
            self._thread.start()

    def end(self) -> None:
        """Look no more; returns when the piece in hand is done, or after a few seconds."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def _run(self) -> None:
        while not self._ended.wait(_SLOW_S):
            try:
                self._upkeep.round()
            except Exception:
                log.exception("retention.failed", part="copies")


class Upkeep:
    """One process's share; several at once share the work, since each change is conditional."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._slow_at = float("-inf")
        self._days_at = float("-inf")
        self._kept: Iterator[KeptBlob] | None = None
        self._copies = CopiesUpkeep(services)

    def round(self) -> list[str]:
        """Go on with everything that is due. Gives the ids of the items that changed."""
        changed: list[str] = []
        parts: list[tuple[str, Callable[[], list[str] | None]]] = [
            ("purge", self._purge_due),
            ("halted", self._expire_halted),
        ]
        if time.monotonic() - self._slow_at > _SLOW_S:
            self._slow_at = time.monotonic()
            parts += [
                ("rows", self._drop_rows),
                ("marked", self._finish_removals),
                ("orphans", self._remove_orphans),
                ("leftovers", self._remove_leftovers),
                ("copies", self._drop_copies),
            ]
        for name, part in parts:
            try:
                changed += part() or []
            except Exception:  # one part that fails holds up no other
                log.exception("retention.failed", part=name)
        return changed

    def _purge_due(self) -> list[str]:
        with self._services.database.read() as connection:
            found = store.due(connection, limit=ITEMS_A_ROUND)
        changed = []
        for row in found:
            if row.status in TERMINAL:
                is_changed = purge(self._services, row.id, actor=ACTOR)
            elif row.status is Status.CANCELLING:
                is_changed = False
            else:
                reason = "expired" if row.is_expired else "deleted"
                to = Status.EXPIRED if row.is_expired else Status.CANCELLED
                end = partial(store.end, item_id=row.id, to=to, actor=ACTOR, reason=reason)
                is_changed = self._services.database.transact(end)
            if is_changed:
                changed.append(row.id)
        return changed

    def _expire_halted(self) -> list[str]:
        ttl_ms = int(self._services.settings.halted_ttl_s * 1000)
        with self._services.database.read() as connection:
            found = store.halted_too_long(connection, ttl_ms=ttl_ms, limit=ITEMS_A_ROUND)
        expire = partial(store.expire_halted, ttl_ms=ttl_ms, actor=ACTOR)
        return [item_id for item_id in found if self._services.database.transact(partial(expire, item_id=item_id))]

    def _drop_rows(self) -> None:
        settings = self._services.settings
        for drop, ttl_ms, limit in (
            (store.drop_old_keys, settings.idempotency_ttl_s * 1000, ROWS_A_ROUND),
            (store.drop_old_events, int(settings.events_retention_days * _DAY_MS), ROWS_A_ROUND),
            (store.drop_old_runs, int(settings.guard_run_retention_days * _DAY_MS), ITEMS_A_ROUND),
        ):
            dropped = self._services.database.transact(partial(drop, ttl_ms=ttl_ms, limit=limit))
            if dropped >= limit:
                self._slow_at = float("-inf")  # there is more: go on in the next round
        self._services.database.transact(store.drop_old_marks)
        if time.monotonic() - self._days_at > _HOURLY_S:
            dropped = self._services.database.transact(partial(budgets.drop_old_days, limit=ROWS_A_ROUND))
            if dropped < ROWS_A_ROUND:
                self._days_at = time.monotonic()

    def _finish_removals(self) -> None:
        with self._services.database.read() as connection:
            left = store.left_marked(connection, older_ms=_STUCK_MS, limit=BLOBS_A_ROUND)
        for tenant, digest in left:
            remove_files(self._services, tenant, [digest])

    def _remove_orphans(self) -> None:
        """Look at the next stored files: what no item names for longer than any upload takes is removed."""
        before = time.time() - self._services.settings.orphan_age_s
        if self._kept is None:
            self._kept = self._services.blobs.kept()
        looked_at = list(islice(self._kept, BLOBS_A_ROUND))
        if len(looked_at) < BLOBS_A_ROUND:
            self._kept = None  # through: begin anew next time
        by_tenant: dict[str, list[str]] = defaultdict(list)
        for blob in looked_at:
            if blob.kept_at < before:
                by_tenant[blob.tenant].append(blob.sha256)
        for tenant, digests in by_tenant.items():
            with self._services.database.read() as connection:
                if not store.unnamed(connection, tenant, digests):
                    continue
            marked = self._services.database.transact(partial(store.mark_unnamed, tenant=tenant, digests=digests))
            removed = remove_files(self._services, tenant, marked)
            log.info("blobs.orphans_removed", tenant=tenant, files=removed)

    def _drop_copies(self) -> None:
        self._copies.round()

    def _remove_leftovers(self) -> None:
        removed = self._services.blobs.remove_leftovers()
        if removed:
            log.info("blobs.leftovers_removed", files=removed)
