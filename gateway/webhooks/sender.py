"""One attempt: resolve, check, connect to what was checked, post the signed bytes, look at the answer's first kilobyte."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import time
from collections.abc import Iterable, Mapping, Sequence
from email.utils import parsedate_to_datetime

import httpcore

from gateway import __version__
from gateway.webhooks.model import ErrorClass, Outcome
from gateway.webhooks.redaction import shown_response
from gateway.webhooks.resolving import Resolver, SystemResolver
from gateway.webhooks.targets import Target, TargetPolicy, UrlRefused, check_addresses, parse_target

TIMEOUT_S = 15.0
"""For everything: the name, the connection, TLS, the request and the status line."""
RESPONSE_BYTES = 1024
_CONNECT_EACH_S = 5.0
"""For one of several addresses, so that one that does not answer leaves time for the next."""


class _Pinned(httpcore.AsyncNetworkBackend):
    """Connects to addresses that were checked, whatever the host would resolve to now."""

    def __init__(self, addresses: Sequence[str]) -> None:
        self._addresses = addresses
        self._inner = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """The first address that answers."""
        each_s = timeout if len(self._addresses) == 1 else _CONNECT_EACH_S
        failure: Exception = httpcore.ConnectError("no address")
        for address in self._addresses:
            try:
                return await self._inner.connect_tcp(address, port, each_s, local_address, socket_options)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise failure


class Sender:
    """Sends attempts. Follows no redirect, uses no proxy, keeps no connection."""

    def __init__(
        self,
        policy: TargetPolicy,
        *,
        resolve: Resolver | None = None,
        tls: ssl.SSLContext | None = None,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self.policy = policy
        self._resolve: Resolver = resolve or SystemResolver()
        self._tls = tls or ssl.create_default_context()
        self._timeout_s = timeout_s

    def close(self) -> None:
        """Give the threads back."""
        if isinstance(self._resolve, SystemResolver):
            self._resolve.close()

    async def send(self, url: str, *, headers: Mapping[str, str], body: bytes, allow_insecure: bool) -> Outcome:
        """Post `body`. Never raises: whatever goes wrong is an outcome."""
        began = time.monotonic()
        deadline = asyncio.get_running_loop().time() + self._timeout_s

        def failed(error: ErrorClass, detail: str = "") -> Outcome:
            return Outcome(None, error, _ms_since(began), response=shown_response(detail.encode()))

        try:
            async with contextlib.AsyncExitStack() as stack:
                async with asyncio.timeout_at(deadline):
                    target = parse_target(url, self.policy, allow_insecure=allow_insecure)
                    connection = self._connection(target, await self._addresses(target))
                    stack.push_async_callback(connection.aclose)
                    response = await connection.handle_async_request(self._request(target, headers, body))
                return await _read(response, began, deadline)
        except TimeoutError:
            return failed(ErrorClass.TIMEOUT)
        except UrlRefused as error:
            return failed(ErrorClass.REFUSED_URL, error.public)
        except socket.gaierror:
            return failed(ErrorClass.DNS)
        except httpcore.TimeoutException:
            return failed(ErrorClass.TIMEOUT)
        except (httpcore.NetworkError, OSError) as error:
            return failed(ErrorClass.TLS if _is_tls(error) else ErrorClass.CONNECT)
        except (httpcore.ProtocolError, UnicodeError):
            return failed(ErrorClass.PROTOCOL)

    async def _addresses(self, target: Target) -> tuple[str, ...]:
        try:
            found = await self._resolve(target.host, target.port)
        except UnicodeError:
            raise UrlRefused("host", "The URL's host is no name of the internet.") from None
        return check_addresses(found, self.policy)

    def _connection(self, target: Target, addresses: Sequence[str]) -> httpcore.AsyncHTTPConnection:
        origin = httpcore.Origin(target.scheme.encode(), target.host.encode(), target.port)
        return httpcore.AsyncHTTPConnection(origin, ssl_context=self._tls, network_backend=_Pinned(addresses))

    def _request(self, target: Target, headers: Mapping[str, str], body: bytes) -> httpcore.Request:
        url = httpcore.URL(
            scheme=target.scheme.encode(), host=target.host.encode(), port=target.port, target=target.path.encode()
        )
        sent = {
            "Host": target.authority,
            "User-Agent": f"Sluicegate-Webhooks/{__version__}",
            "Accept": "*/*",
            "Connection": "close",
            "Content-Type": "application/json",
            "Content-Length": str(len(body)),
            **headers,
        }
        return httpcore.Request("POST", url, headers=list(sent.items()), content=body)


async def _read(response: httpcore.Response, began: float, deadline: float) -> Outcome:
    """The status decides; what of the body does not come in time is not waited for."""
    latency_ms = _ms_since(began)
    kept = bytearray()
    with contextlib.suppress(TimeoutError, httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException):
        async with asyncio.timeout_at(deadline):
            async for chunk in response.aiter_stream():
                kept += chunk
                if len(kept) >= RESPONSE_BYTES:
                    break
    return Outcome(
        response.status,
        error_of(response.status),
        latency_ms,
        response=shown_response(bytes(kept[:RESPONSE_BYTES])),
        retry_after_s=_retry_after(response) if response.status in {429, 503} else None,
    )


def error_of(status: int) -> ErrorClass | None:
    """What a status means; None for any 2xx."""
    match status // 100:
        case 2:
            return None
        case 3:
            return ErrorClass.REDIRECT
        case 4 if status == 410:
            return ErrorClass.GONE
        case 4 if status == 429:
            return ErrorClass.RATE_LIMITED
        case 4:
            return ErrorClass.CLIENT_ERROR
        case 5:
            return ErrorClass.SERVER_ERROR
        case _:
            return ErrorClass.PROTOCOL


def _retry_after(response: httpcore.Response) -> float | None:
    """Seconds, from a number or a date."""
    text = (
        next((value for name, value in response.headers if name.lower() == b"retry-after"), b"")
        .decode("latin-1")
        .strip()
    )
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        return max(0.0, parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _ms_since(began: float) -> int:
    return int((time.monotonic() - began) * 1000)
