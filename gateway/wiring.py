"""Put the parts together once, at the start of a process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import assert_never

import prefilters
from gateway.admission import Admission, AdmissionLimits
from gateway.agent.prices import Prices
from gateway.blobs import Blobs, FolderBlobs
from gateway.budgets import Budgets
from gateway.profiles import Profile, Profiles, load_profiles
from gateway.settings import DispatchMode, Settings
from gateway.store import migrate
from gateway.store.engine import Database
from gateway.switches import SwitchBoard
from gateway.work.dispatch import Dispatch, EmbeddedDispatch
from gateway.work.signals import Signals, signal_folder
from prefilters.facts import FactValue
from prefilters.limits import DecodeLimits
from prefilters.pool import Bulkhead, DecoderPool, PoolClosed
from prefilters.rules.model import RuleSet
from prefilters.rules.source import RuleSource
from prefilters.transcript import FolderTranscriber, Transcriber, TranscriberInvalid

SHIPPED_RULES = Path(prefilters.__file__).with_name("rules") / "edge.yaml"


@dataclass(frozen=True, slots=True)
class Services:
    """What a process of the service works with."""

    settings: Settings
    database: Database
    blobs: Blobs
    profiles: Profiles
    rule_source: RuleSource
    pool: DecoderPool
    prices: Prices
    signals: Signals
    dispatch: Dispatch
    admission: Admission
    budgets: Budgets
    switches: SwitchBoard
    transcriber: Transcriber | None
    """Writes down what recordings say; None where nothing is configured for it."""
    _profile_rules: dict[tuple[str, str], RuleSet] = field(default_factory=dict)
    """Per (rule set, profile): making one costs milliseconds."""

    def rules_for(self, profile: Profile) -> RuleSet:
        """The edge rules in force, with the profile's limits and parameters."""
        current = self.rule_source.current()
        key = (current.version, profile.version)
        rules = self._profile_rules.get(key)
        if rules is None:
            deployment: Mapping[str, FactValue] = {"has_transcriber": self.transcriber is not None}
            rules = current.with_limits(profile.decode_limits).with_parameters({**deployment, **profile.edge})
            self._profile_rules[key] = rules
        return rules

    def warm_decoders(self, *, reads: bool) -> None:
        """Start the decoders, in a thread of its own; harmless when the process ends meanwhile.

        Models for reading are loaded where the process `reads`: they take seconds and some 280 MB. Nothing is done where
        the settings leave that to the first item.
        """
        if not self.settings.warm_start:
            return

        def warm() -> None:
            with contextlib.suppress(PoolClosed):
                self.pool.warm((Bulkhead.DECODE, Bulkhead.OCR) if reads else (Bulkhead.DECODE,))

        threading.Thread(target=warm, name="warm-decoders", daemon=True).start()

    def close(self) -> None:
        """Stop children and give connections back."""
        self.pool.close()
        self.dispatch.close()
        self.database.close()
        self.signals.close()


def open_services(settings: Settings, *, migrate_first: bool = True, decoder_niceness: int = 0) -> Services:
    """Everything a process needs. Raises `ProfileInvalid`, `RuleSetInvalid`, `SchemaMismatch` or `OSError`.

    With `migrate_first` the embedded database is brought to this release's schema; one that is named by
    `SLUICEGATE_DATABASE_URL` is only checked, since others may be using it.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    database = open_database(settings, migrate_first=migrate_first)
    signals = Signals(signal_folder(settings.sqlalchemy_url))
    pool = DecoderPool(
        workers=settings.decoder_workers,
        ocr_workers=settings.ocr_workers,
        limits=DecodeLimits(),
        niceness=decoder_niceness,
    )
    services = Services(
        settings=settings,
        database=database,
        blobs=open_blobs(settings),
        profiles=load_profiles(settings.profiles_dir),
        rule_source=RuleSource(settings.rules_file or SHIPPED_RULES),
        pool=pool,
        prices=Prices(settings),
        signals=signals,
        dispatch=open_dispatch(settings, signals),
        admission=Admission(database, settings.data_dir, admission_limits(settings)),
        budgets=Budgets(database, settings),
        switches=SwitchBoard(database),
        transcriber=open_transcriber(settings, pool),
    )
    for profile in services.profiles.values():
        services.rules_for(profile)
    return services


def admission_limits(settings: Settings) -> AdmissionLimits:
    """How much may wait, from the settings."""
    return AdmissionLimits(
        max_waiting=settings.max_waiting_items,
        max_waiting_bytes=settings.max_waiting_bytes,
        max_wait_s=settings.max_wait_s,
        tenant_max_waiting=settings.tenant_max_waiting_items,
        tenant_max_waiting_bytes=settings.tenant_max_waiting_bytes,
        min_free_bytes=settings.min_free_bytes,
    )


def open_transcriber(settings: Settings, pool: DecoderPool) -> Transcriber | None:
    """The configured transcriber. Raises `TranscriberInvalid` where it cannot work."""
    if settings.transcribe_url is not None and settings.transcribe_folder is not None:
        raise TranscriberInvalid("SLUICEGATE_TRANSCRIBE_URL and SLUICEGATE_TRANSCRIBE_FOLDER are both set; choose one")
    if settings.transcribe_folder is not None:
        return FolderTranscriber(pool, settings.transcribe_folder)
    if settings.transcribe_url is None:
        return None
    from gateway.transcription import EndpointTranscriber, TranscriptionEndpoint  # loads an HTTP client

    key = settings.transcribe_api_key
    return EndpointTranscriber(
        pool,
        TranscriptionEndpoint(
            url=settings.transcribe_url,
            model=settings.transcribe_model,
            api_key=None if key is None else key.get_secret_value(),
            timeout_s=settings.transcribe_timeout_s,
        ),
    )


def open_blobs(settings: Settings) -> Blobs:
    """The store of uploaded files."""
    folder = settings.data_dir / "blobs"
    if settings.blob_url is None:
        return FolderBlobs(folder)
    from gateway.object_blobs import ObjectBlobs, bucket_of  # only here is obstore needed

    return ObjectBlobs(bucket_of(settings), folder, cache_bytes=settings.blob_cache_bytes)


def open_dispatch(settings: Settings, signals: Signals) -> Dispatch:
    """The way by which this process tells workers of items."""
    match settings.dispatch:
        case DispatchMode.EMBEDDED:
            return EmbeddedDispatch(signals)
        case DispatchMode.CELERY:
            from gateway.work.celery_app import CeleryDispatch, celery_app  # only here is Celery needed

            return CeleryDispatch(celery_app(settings))
        case _:
            assert_never(settings.dispatch)


def open_database(settings: Settings, *, migrate_first: bool = True) -> Database:
    """The database alone, at this release's schema."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    database = Database(settings.sqlalchemy_url)
    if migrate_first and database.is_sqlite:
        migrate.upgrade(database)
    migrate.check(database)
    return database
