"""Whether the broker can be reached, for readiness: nothing is said to it, and nothing about it is required."""

from __future__ import annotations

import socket
from urllib.parse import urlsplit

from gateway.settings import DispatchMode, Settings

_CONNECT_S = 1.0
_PORTS = {"redis": 6379, "rediss": 6379, "amqp": 5672, "amqps": 5671}


def broker_problem(settings: Settings) -> str | None:
    """Why hints do not reach workers just now, if there is a broker and it does not answer. Blocks for a second at most."""
    if settings.dispatch is not DispatchMode.CELERY or settings.broker_url is None:
        return None
    first = urlsplit(settings.broker_url.get_secret_value().partition(";")[0])
    try:
        address = (first.hostname or "localhost", first.port or _PORTS[first.scheme])
        socket.create_connection(address, timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        return f"the broker cannot be reached ({type(error).__name__}): items are accepted, and wait until it is back"
    return None
