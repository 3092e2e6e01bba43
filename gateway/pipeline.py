"""One item from claim to settlement, in the order in which it happens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import structlog
from sqlalchemy.engine import Connection

from fallback.route import CAPABILITIES, Route
from gateway import outcome, rule_metrics
from gateway.agent.outcome import Escalated, Failed, Halted, Written
from gateway.blobs import BlobStoreUnreachable, BlobUnusable
from gateway.decision import Decision, ScreenedFile, decide, is_settled_by_edge
from gateway.item import FileRecord, Item, Lease, Mode, StaleLease, Usage
from gateway.notes import with_notes
from gateway.profiles import Profile
from gateway.store import items as item_store
from gateway.switches import ModelCallsPaused
from gateway.wiring import Services
from gateway.work.dispatch import Bulkhead
from prefilters.errors import DecodeStatus
from prefilters.facts import Stage
from prefilters.media import MediaKind
from prefilters.screen import screen
from prefilters.screening import Screening

log = structlog.get_logger()

_BLOBS_AGAIN_MS = 15_000
"""How long an item waits whose files cannot be fetched just now."""
_HEARD_AGAIN_MS = 2_000
"""How long an item with a recording waits while requests to models are paused."""


def process(services: Services, lease: Lease, *, only: Bulkhead | None = None) -> None:
    """Work on a claimed item until it is settled or the lease is lost; never raises for what is in the item.

    With `only` no more is done than belongs to that kind of work; the item then goes back to the queue, for a worker
    of the next kind.
    """
    try:
        _process(services, lease, only=only)
    except StaleLease:
        log.info("item.stale_lease", item_id=lease.item_id, fence=lease.fence)
        _settle_cancelled(services, lease)
    except BlobUnusable as error:
        log.warning("item.file_unreadable", item_id=lease.item_id, error=str(error))
        _give_up(services, lease, error)
    except BlobStoreUnreachable as error:
        log.warning("blobs.unreachable", item_id=lease.item_id, error=str(error))
        again = partial(outcome.put_off, lease=lease, reason=error.code, delay_ms=_BLOBS_AGAIN_MS)
        services.database.transact(again)
    except ModelCallsPaused:
        log.info("item.waits_for_model", item_id=lease.item_id)
        waits = partial(outcome.handed_back, lease=lease, reason=item_store.WAITS_FOR_MODEL)
        services.database.transact(waits)
    finally:
        services.signals.send("api", lease.item_id)


def _process(services: Services, lease: Lease, *, only: Bulkhead | None) -> None:
    item = _load(services, lease)
    profile = services.profiles[item.profile]
    if item.route is None:
        if _hears_by_model(services, item) and services.switches.look().model_calls.is_paused:
            waits = partial(outcome.put_off, lease=lease, reason=item_store.WAITS_FOR_MODEL, delay_ms=_HEARD_AGAIN_MS)
            _write(services, waits)
            return
        decision = inspect(services, lease, item, profile, only=only)
        if decision is None:
            services.dispatch.wake(item.id, Bulkhead.OCR)
            return
        if decision.is_rejected:
            return
        if item.mode is Mode.PREPARE:
            _write(services, lambda connection: outcome.ready(connection, lease, decision))
            return
        # While requests to models are paused nobody takes it, and judging goes on.
        is_paused = services.switches.look().model_calls.is_paused and decision.route.route is not Route.HUMAN
        if is_paused or only in {Bulkhead.EDGE, Bulkhead.OCR}:
            _write(services, lambda connection: outcome.handed_on(connection, lease, decision))
            services.dispatch.wake(item.id, Bulkhead.AGENT)
            return
        _write(services, lambda connection: outcome.running(connection, lease, decision))
    elif item.mode is Mode.PREPARE:  # a person has opened again what a rule refused
        _write(services, lambda connection: outcome.ready_again(connection, lease))
        return
    else:  # decided before: by a worker that died since, or by a person
        _write(services, lambda connection: outcome.running_again(connection, lease))
    _run(services, lease, _load(services, lease), profile)


def _hears_by_model(services: Services, item: Item) -> bool:
    """Whether judging the item's files may ask a paid model: an endpoint that writes down recordings."""
    return services.settings.transcribe_url is not None and any(
        record.media_type.startswith("audio/") for record in item.files
    )


def _give_up(services: Services, lease: Lease, error: BlobUnusable) -> None:
    """A file cannot be had as it was uploaded, so the item fails; what it has cost so far stays."""
    with services.database.read() as connection:
        item = item_store.get(connection, lease.item_id)
    usage = Usage() if item is None else item.usage
    failed = Failed(error.code, error.public, error.retryable, usage)
    services.database.transact(lambda connection: outcome.failed(connection, lease, failed))


def inspect(
    services: Services, lease: Lease, item: Item, profile: Profile, *, only: Bulkhead | None = None
) -> Decision | None:
    """Screen all files, cheapest stage first over all of them, and decide. A rejected item is settled here.

    None where `only` the edge was to be looked at and a file has to be read: then the item is handed on.
    """
    files = screened_files(services, item, profile)
    for stage in (Stage.HEADER, Stage.PIXELS, Stage.TEXT):
        if is_settled_by_edge(files, profile):
            break
        if stage is Stage.TEXT and only is Bulkhead.EDGE and not all(file.is_decided for file in files):
            _write(services, partial(_hand_on_to_be_read, lease=lease, files=files))
            return None
        files = [_measure(services, item, profile, file, stage) for file in files]
    files = with_notes(services, item, profile, files)
    decision = decide(files, profile, services.prices, ruleset=services.rules_for(profile).version)

    def settle(connection: Connection) -> bool:
        is_kept = outcome.keep_screenings(connection, lease, files)
        return is_kept and (not decision.is_rejected or outcome.rejected(connection, lease, decision))

    _write(services, settle)
    rule_metrics.count(files)
    return decision


def _hand_on_to_be_read(connection: Connection, lease: Lease, files: Sequence[ScreenedFile]) -> bool:
    is_kept = outcome.keep_screenings(connection, lease, files)
    return is_kept and outcome.handed_back(connection, lease, reason=item_store.MEASURED)


def inspect_edge(services: Services, lease: Lease) -> bool:
    """The cheap edge rules of an item's pictures, inside the request that brought it: reject it, or hand it on.

    Whether all files are measured, so that what is left to do is to read them.
    """
    item = _load(services, lease)
    profile = services.profiles[item.profile]
    files = [measure_picture(services, item, profile, file) for file in screened_files(services, item, profile)]
    is_measured = all(file.is_decided or file.screening.measured >= Stage.PIXELS for file in files)

    def settle(connection: Connection) -> bool:
        if not outcome.keep_screenings(connection, lease, files):
            return False
        if is_settled_by_edge(files, profile):
            ruleset = services.rules_for(profile).version
            return outcome.rejected(connection, lease, decide(files, profile, services.prices, ruleset=ruleset))
        return outcome.handed_back(connection, lease, reason=item_store.EDGE_PASSED if is_measured else "edge_late")

    _write(services, settle)
    if is_settled_by_edge(files, profile):
        rule_metrics.count(files)
    return is_measured


def measure_picture(services: Services, item: Item, profile: Profile, file: ScreenedFile) -> ScreenedFile:
    """The pixel rules of a picture within the request's own time; one that takes longer is left to the worker."""
    if file.screening.media.kind is not MediaKind.IMAGE:
        return file
    quick = profile.with_decode_wall(services.settings.edge_wall_s)
    measured = _measure(services, item, quick, file, Stage.PIXELS)
    is_late = measured.screening.facts.get("decode.status") == DecodeStatus.TIMEOUT.value
    return file if is_late else measured


def screened_files(services: Services, item: Item, profile: Profile) -> list[ScreenedFile]:
    """The item's files with what is known of them so far."""
    return [
        ScreenedFile(
            record,
            Screening.from_json(record.screening)
            if record.screening is not None
            else _screen(services, item, profile, record, Stage.HEADER, known=None),
        )
        for record in item.files
    ]


def _measure(services: Services, item: Item, profile: Profile, file: ScreenedFile, through: Stage) -> ScreenedFile:
    if file.is_decided:
        return file
    return replace(file, screening=_screen(services, item, profile, file.record, through, known=file.screening))


def _screen(
    services: Services, item: Item, profile: Profile, record: FileRecord, through: Stage, *, known: Screening | None
) -> Screening:
    return screen(
        services.blobs.path(item.tenant, record.sha256),
        rules=services.rules_for(profile),
        pool=services.pool,
        limits=profile.decode_limits,
        declared_type=record.declared_type,
        file_name=record.file_name,
        through=through,
        known=known,
        transcriber=services.transcriber,
    )


def _run(services: Services, lease: Lease, item: Item, profile: Profile) -> None:
    """Write the copy on the chosen route and settle."""
    route = Route(item.route or "")
    if route is Route.HUMAN:
        _write(
            services, partial(outcome.escalated, lease=lease, item=item, profile=profile, raised=_asked_by_rule(item))
        )
        return
    from gateway.agent.copywriter import write_copy  # loads the model libraries, which the API process does without
    from gateway.agent.journal import Journal

    journal = Journal.open(services.database, lease, item, purse=services.budgets.purse(item.tenant))
    files = screened_files(services, item, profile)
    match write_copy(services, journal, item, profile, files, route, CAPABILITIES[route]):
        case Written() as written:
            _write(services, partial(outcome.succeeded, lease=lease, written=written))
        case Failed() as failed:
            log.warning("item.write_failed", item_id=item.id, code=failed.code)
            _write(services, partial(outcome.failed, lease=lease, failed=failed))
        case Escalated() as raised:
            _write(services, partial(outcome.escalated, lease=lease, item=item, profile=profile, raised=raised))
        case Halted() as halted:
            _write(services, partial(outcome.halted, lease=lease, halted=halted))


def _asked_by_rule(item: Item) -> Escalated:
    """A rule sent the item to a person before any agent ran."""
    reason = (item.decision or {}).get("reason") or {}
    message = (reason.get("user_message") or {}).get("en", "A rule asks for a person.")
    packet = {"question": f"{message} How should this item go on?", "why": message, "rule": reason.get("rule")}
    return Escalated("rule", None, packet, item.usage)


def _load(services: Services, lease: Lease) -> Item:
    with services.database.read() as connection:
        item = item_store.get(connection, lease.item_id)
    if item is None or item.fence != lease.fence:
        raise StaleLease
    return item


def _write(services: Services, change: Callable[[Connection], bool]) -> None:
    """One transaction of the lease's holder. Raises `StaleLease` when it wrote nothing."""

    def checked(connection: Connection) -> None:
        if not change(connection):
            raise StaleLease

    services.database.transact(checked)


def _settle_cancelled(services: Services, lease: Lease) -> None:
    """If the lease is void because the caller cancelled, say so at once instead of leaving it to the sweeper."""
    services.database.transact(lambda connection: outcome.cancelled(connection, lease))
