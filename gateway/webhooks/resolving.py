"""Names to addresses by the machine's own resolver, in threads of their own: a slow name server keeps nothing else waiting."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from gateway.webhooks.targets import TargetPolicy, check_addresses, parse_target

Resolver = Callable[[str, int], Awaitable[Sequence[str]]]
"""All addresses of a host, as text. Raises `OSError` where there are none."""

_THREADS = 16
_PATIENCE_S = 3.0


class SystemResolver:
    """Every address of a name, IPv6 and IPv4."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="resolve")

    async def __call__(self, host: str, port: int) -> Sequence[str]:
        """Raises `OSError` or `UnicodeError`."""
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(
            self._threads, lambda: socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, proto=socket.IPPROTO_TCP)
        )
        return [str(entry[4][0]) for entry in found]

    def close(self) -> None:
        """Wait for nothing."""
        self._threads.shutdown(wait=False, cancel_futures=True)


async def check_url(url: str, policy: TargetPolicy, resolve: Resolver, *, allow_insecure: bool) -> None:
    """Raise `UrlRefused` for a URL that would be refused now. A name that does not resolve just now may do so later."""
    target = parse_target(url, policy, allow_insecure=allow_insecure)
    try:
        found = await asyncio.wait_for(resolve(target.host, target.port), _PATIENCE_S)
    except (OSError, UnicodeError, TimeoutError):
        return
    check_addresses(found, policy)
