"""Structured logs: one JSON object a line on standard error, identifiers and codes, never contents or secrets.

Lines written while a request is served carry its `request_id`, those of a worker the `item_id` that it works on."""

from __future__ import annotations

import logging
import sys

import structlog

from gateway.redaction import redact_event


def configure_logging(level: str) -> None:
    """Send our own and the libraries' logs through one formatter. Raises `ValueError` for an unknown level."""
    number = logging.getLevelName(level.upper())
    if not isinstance(number, int):
        raise ValueError(  # noqa: TRY004 - a wrong setting, not a wrong type
            f"SLUICEGATE_LOG_LEVEL must be DEBUG, INFO, WARNING or ERROR, not {level!r}"
        )
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(number),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                redact_event,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(number)
    for name in ("httpx", "httpx2", "httpcore", "openai", "alembic", "uvicorn.access", "celery", "kombu", "amqp"):
        logging.getLogger(name).setLevel(max(number, logging.WARNING))
