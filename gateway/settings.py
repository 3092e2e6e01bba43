"""The only reader of the environment: each setting once, validated at start, handed down as frozen values."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, ValidationInfo, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from gateway.webhooks.schedule import RETRIES_S
from gateway.webhooks.targets import ANY_TARGET, IPNetwork, UrlRefused, parse_origin, parse_private_networks


class DispatchMode(StrEnum):
    """How workers learn of items."""

    EMBEDDED = "embedded"
    """By looking at the database, and by signals on the same machine."""
    CELERY = "celery"
    """By ids that a broker carries."""


class Settings(BaseSettings):
    """All settings, read from `SLUICEGATE_*`."""

    model_config = SettingsConfigDict(env_prefix="SLUICEGATE_", frozen=True, extra="ignore")

    host: str = "127.0.0.1"
    """Address to bind. Anything but loopback needs an API key before the service starts."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8080
    data_dir: Path = Path("data")
    """Folder of the embedded defaults: SQLite database and blobs."""
    database_url: str | None = None
    """SQLAlchemy URL; unset means SQLite in `data_dir`."""
    blob_url: str | None = None
    """`s3://bucket/prefix`; unset means the folder `blobs` in `data_dir`, which then only holds local copies."""
    blob_endpoint_url: str | None = None
    """Where an S3-compatible store is; unset means Amazon's."""
    blob_region: str = "us-east-1"
    blob_access_key_id: str | None = None
    blob_secret_access_key: SecretStr | None = None
    blob_cache_bytes: Annotated[int, Field(gt=0)] = 2 * 1024**3
    """Bytes of local copies of what is in the bucket."""
    blob_copy_s: Annotated[float, Field(gt=0)] = 24 * 3600.0
    """Seconds after which such a copy that nobody has used is removed."""
    profiles_dir: Path | None = None
    """Folder with profiles of your own beside the shipped ones."""
    rules_file: Path | None = None
    """Edge rules instead of the shipped `edge.yaml`."""

    model_url: str | None = None
    """Base URL of an OpenAI-compatible endpoint, up to and including `/v1`. Unset: the offline writer."""
    model: str = "gpt-5-mini"
    """Model name that is sent to `model_url`."""
    model_api_key: SecretStr | None = None
    model_timeout_s: Annotated[float, Field(gt=0)] = 60.0
    """Seconds that one model request may take."""
    model_attempts: Annotated[int, Field(ge=1, le=10)] = 3
    """Attempts for one model request; only failures that a repeat can mend are tried again."""

    model_input_price: Annotated[Decimal, Field(ge=0)] | None = None
    """US dollars per million input tokens, where `gateway/agent/prices.yaml` does not list the model."""
    model_output_price: Annotated[Decimal, Field(ge=0)] | None = None

    transcribe_url: str | None = None
    """Base URL of an OpenAI-compatible endpoint with `/audio/transcriptions`, up to and including `/v1`."""
    transcribe_model: str = "whisper-1"
    """Model name that is sent to `transcribe_url`."""
    transcribe_api_key: SecretStr | None = None
    transcribe_timeout_s: Annotated[float, Field(gt=0)] = 120.0
    """Seconds that one transcription may take there."""
    transcribe_folder: Path | None = None
    """Folder with a Whisper model in CTranslate2's form, instead of an endpoint; needs the extra `speech`."""

    max_request_bytes: Annotated[int, Field(gt=0)] = 128 * 1024 * 1024
    """Bytes of one request body, declared or counted."""
    default_wait_s: Annotated[float, Field(ge=0, le=30)] = 2.0
    """How long `POST /v1/items` holds the answer when the caller states no preference."""
    edge_wall_s: Annotated[float, Field(gt=0)] = 2.0
    """Wall-clock seconds that the cheap edge rules may take inside the request; past that the worker does it."""
    idempotency_ttl_s: Annotated[int, Field(ge=60)] = 24 * 3600

    decoder_workers: Annotated[int, Field(ge=1, le=64, default_factory=lambda: min(64, max(2, _cores())))]
    """Processes that decode; as many as there are cores, and at least two."""
    ocr_workers: Annotated[int, Field(ge=1, le=64, default_factory=lambda: min(64, max(1, _cores() // 2)))]
    """Processes that read text in pictures; half as many as there are cores."""
    warm_start: bool = True
    """Load decoders, their models and the writer when a process starts, not with its first item."""
    worker_concurrency: Annotated[int, Field(ge=1, le=256)] = 4
    """Items that one worker process works on at the same time."""
    lease_s: Annotated[float, Field(gt=0)] = 15.0
    heartbeat_s: Annotated[float, Field(gt=0)] = 5.0
    sweep_s: Annotated[float, Field(gt=0, le=5)] = 2.0
    cancel_grace_s: Annotated[float, Field(ge=0)] = 30.0

    dispatch: DispatchMode = DispatchMode.EMBEDDED
    broker_url: Annotated[SecretStr | None, Field(validate_default=True)] = None
    """Where Celery's broker is: `redis://…`, `rediss://…` or `amqp://…`."""
    hint_again_s: Annotated[float, Field(gt=0)] = 10.0
    """Seconds after which workers are told again, by the broker, of an item, or a webhook, that still waits."""

    max_waiting_items: Annotated[int, Field(ge=1)] = 20_000
    """Items that may wait for a worker, all tenants together; past that uploads get 503."""
    max_waiting_bytes: Annotated[int, Field(ge=1)] = 50 * 1024**3
    max_wait_s: Annotated[float, Field(gt=0)] = 3600.0
    """How long the oldest waiting item may have waited before uploads get 503."""
    tenant_max_waiting_items: Annotated[int, Field(ge=1)] = 10_000
    """Items of one tenant that may wait; past that its uploads get 429."""
    tenant_max_waiting_bytes: Annotated[int, Field(ge=1)] = 25 * 1024**3
    min_free_bytes: Annotated[int, Field(ge=0)] = 512 * 1024**2
    """Free space that uploads must leave on the data folder's disk; below that they get 507."""
    body_idle_s: Annotated[float, Field(gt=0)] = 15.0
    """How long a request's body may stand still, and how long its head may take."""
    body_least_rate: Annotated[int, Field(ge=0)] = 4096
    """Bytes per second that a body must reach on average once it has taken `body_grace_s`."""
    body_grace_s: Annotated[float, Field(ge=0)] = 20.0

    daily_budget: Annotated[Decimal, Field(ge=0)] | None = None
    """US dollars that all tenants together may spend on the model on a UTC day; unset is no limit."""
    tenant_daily_budget: Annotated[Decimal, Field(ge=0)] | None = None
    """The same for each tenant that has no limit of its own."""
    tenant_daily_items: Annotated[int, Field(ge=0)] | None = None
    """Items that a tenant may submit on a UTC day; past that its uploads get 429."""
    model_output_reserve: Annotated[int, Field(ge=1)] = 2000
    """Output tokens for which money is set aside before each request to the model."""

    retention_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Days after which an item's content is purged, where neither its submission nor its profile says otherwise."""
    halted_ttl_s: Annotated[float, Field(gt=0)] = 72 * 3600.0
    """Seconds that a halted item waits for its caller before it expires."""
    events_retention_days: Annotated[float, Field(gt=0)] = 30.0
    """Days for which the event log is kept."""
    guard_run_retention_days: Annotated[float, Field(gt=0)] = 30.0
    """Days for which guard runs are kept after their end, or after the last call of one that was left open."""
    orphan_age_s: Annotated[float, Field(ge=60)] = 3600.0
    """Seconds after which a stored file that no item names is removed; longer than any upload takes."""

    require_login: bool = False
    """Ask for a key or a login on loopback too: behind a reverse proxy on the same machine every caller comes from there."""
    session_idle_s: Annotated[float, Field(gt=0)] = 4 * 3600.0
    """How long a person stays logged in without doing anything."""
    session_s: Annotated[float, Field(gt=0)] = 12 * 3600.0
    """How long a person stays logged in at most."""
    stream_ping_s: Annotated[float, Field(gt=0, le=15)] = 15.0
    """Seconds without an event after which an event stream gets a comment, so that no proxy takes it for dead."""
    stream_cap_s: Annotated[float, Field(gt=0)] = 900.0
    """Seconds after which an event stream ends and its client opens a new one."""

    webhook_delivery: bool = True
    """Whether workers deliver webhooks; without it `sluicegate deliver` does, and a worker that is told to take that queue."""
    webhook_timeout_s: Annotated[float, Field(gt=0, le=60)] = 15.0
    """Seconds that one attempt may take in all."""
    webhook_retries_s: str = ",".join(f"{wait:g}" for wait in RETRIES_S)
    """Seconds between the attempts of a delivery, each shifted by up to a fifth; past the last one it is dead."""
    webhook_breaker_s: Annotated[float, Field(gt=0, le=900)] = 30.0
    """How long an address is left alone after five failures in a row; twice as long after each further one."""
    webhook_ports: str = "443,8443"
    """Ports that webhooks may go to, or `any`."""
    webhook_private_networks: str | None = None
    """Private ranges that webhooks may go to, such as `10.20.0.0/16,127.0.0.0/8`; unset: the public internet only."""
    webhook_secret_key: SecretStr | None = None
    """Key of 32 characters or more by which signing secrets are encrypted; further ones, after commas, only open."""
    webhook_keep_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Days for which the log keeps deliveries that have ended."""
    callback_origins: str | None = None
    """Origins that items of any tenant may name as `callback_url`, such as `https://hooks.example.com`, after commas."""

    metrics_port: Annotated[int, Field(ge=0, le=65535)] = 0
    """Where a worker shows its own metrics; 0 shows none. The API shows its own at `/metrics`."""
    metrics_host: str = "127.0.0.1"
    """Address for that port. Nobody is asked for a key there, so it is for this machine or a network of one's own."""

    otlp_url: str | None = None
    """Base URL of an OpenTelemetry collector that takes OTLP over HTTP, without `/v1/traces`; unset sends no spans."""

    log_level: str = "INFO"

    @field_validator(
        "database_url",
        "model_url",
        "profiles_dir",
        "rules_file",
        "model_api_key",
        "transcribe_url",
        "transcribe_api_key",
        "transcribe_folder",
        "model_input_price",
        "model_output_price",
        "daily_budget",
        "tenant_daily_budget",
        "tenant_daily_items",
        "broker_url",
        "webhook_private_networks",
        "webhook_secret_key",
        "callback_origins",
        "otlp_url",
        "blob_url",
        "blob_endpoint_url",
        "blob_access_key_id",
        "blob_secret_access_key",
        mode="before",
    )
    @classmethod
    def _empty_is_unset(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("blob_url")
    @classmethod
    def _blobs_are_in_a_bucket(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith("s3://") and value.removeprefix("s3://").strip("/")):
            raise ValueError("must be s3://bucket or s3://bucket/prefix")
        return value

    @field_validator("broker_url")
    @classmethod
    def _celery_has_a_broker(cls, value: SecretStr | None, info: ValidationInfo) -> SecretStr | None:
        if info.data.get("dispatch") is DispatchMode.CELERY and value is None:
            raise ValueError("is needed with SLUICEGATE_DISPATCH=celery, such as redis://127.0.0.1:6379/0")
        if value is not None and not value.get_secret_value().startswith(
            ("redis://", "rediss://", "amqp://", "amqps://")
        ):
            raise ValueError("must begin with redis://, rediss://, amqp:// or amqps://")
        return value

    @field_validator("webhook_retries_s", "webhook_ports", "webhook_private_networks", "callback_origins")
    @classmethod
    def _lists_can_be_read(cls, value: str | None, info: ValidationInfo) -> str | None:
        if value is not None:
            _WEBHOOK_LISTS[str(info.field_name)](value)
        return value

    @field_validator("webhook_secret_key")
    @classmethod
    def _keys_are_long(cls, value: SecretStr | None) -> SecretStr | None:
        if value is not None and any(len(key) < 32 for key in comma_separated(value.get_secret_value())):
            raise ValueError("each key must have 32 characters or more, such as those of `openssl rand -base64 32`")
        return value

    @property
    def is_redis_broker(self) -> bool:
        """Whether the broker is Redis, which needs settings of its own."""
        return self.broker_url is not None and self.broker_url.get_secret_value().startswith("redis")

    @property
    def sqlalchemy_url(self) -> str:
        """The database's URL, with the embedded default resolved."""
        return self.database_url or f"sqlite:///{(self.data_dir / 'sluicegate.db').resolve()}"

    @property
    def is_keyless(self) -> bool:
        """Whether callers on this machine need neither a key nor a login."""
        return self.is_loopback and not self.require_login

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the service."""
        return is_loopback_host(self.host)


def comma_separated(text: str | None) -> tuple[str, ...]:
    """The parts of a list in one variable, without blanks and empty ones."""
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def webhook_waits(text: str) -> tuple[float, ...]:
    """Seconds between attempts. Raises `ValueError`."""
    problem = "must be seconds between 0 and a week, such as 5,300,1800"
    try:
        waits = tuple(float(part) for part in comma_separated(text))
    except ValueError:
        raise ValueError(problem) from None
    if not all(0 <= wait <= 7 * 24 * 3600 for wait in waits):
        raise ValueError(problem)
    return waits


def webhook_port_list(text: str) -> tuple[int, ...]:
    """Ports; none for `any`. Raises `ValueError`."""
    if text.strip().lower() == "any":
        return ()
    parts = comma_separated(text)
    if not parts or not all(part.isascii() and part.isdigit() and 0 < int(part) <= 65535 for part in parts):
        raise ValueError("must be ports such as 443,8443, or `any`")
    return tuple(int(part) for part in parts)


def private_networks(text: str | None) -> tuple[IPNetwork, ...]:
    """Ranges that an operator has opened. Raises `ValueError`."""
    return parse_private_networks(comma_separated(text))


def origin_list(text: str | None) -> frozenset[str]:
    """Origins in their one spelling. Raises `ValueError`."""
    try:
        return frozenset(parse_origin(part, ANY_TARGET) for part in comma_separated(text))
    except UrlRefused as error:
        raise ValueError(error.public) from None


_WEBHOOK_LISTS: Mapping[str, Callable[[str], object]] = {
    "webhook_retries_s": webhook_waits,
    "webhook_ports": webhook_port_list,
    "webhook_private_networks": private_networks,
    "callback_origins": origin_list,
}


def _cores() -> int:
    """Processors that this process may use, which on a shared machine are fewer than there are."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def is_loopback_host(host: str) -> bool:
    """Whether `host` names this machine alone: `localhost`, 127.0.0.0/8 or ::1."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def money(value: Decimal) -> str:
    """A decimal string without exponent or trailing zeros."""
    text = format(value.quantize(Decimal("0.000001")), "f").rstrip("0").rstrip(".")
    return text or "0"
