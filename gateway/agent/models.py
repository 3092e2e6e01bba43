"""The model behind `fallback.text_only.Model`: any OpenAI-compatible endpoint, with one retry layer of our own."""

from __future__ import annotations

import asyncio
import random
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import lru_cache
from typing import Any

import httpx2
import structlog
from openai import APITimeoutError, AsyncOpenAI
from pydantic_ai import (
    BinaryContent,
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolDefinition,
    UserPromptPart,
)
from pydantic_ai.direct import model_request
from pydantic_ai.exceptions import ModelAPIError, ModelHTTPError
from pydantic_ai.models import ModelRequestParameters
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from fallback.text_only import Answer, Request
from gateway import tracing
from gateway.settings import Settings

log = structlog.get_logger()

_BASE_DELAY_S = 0.5
_MAX_DELAY_S = 20.0
_MAX_ANSWER_BYTES = 16 * 1024 * 1024
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_SAID_BY_A_PROXY = frozenset({502, 504})
"""Whoever says so has passed the request on, and nobody knows what became of it there."""


class ModelFailed(Exception):
    """The model could not be asked, or answered nothing usable; `public` is safe to show.

    `unknown_requests` is how many of the requests that were made may have been paid for all the same: the answer did not come,
    or could not be read.
    """

    def __init__(self, code: str, public: str, *, retryable: bool, unknown_requests: int = 0) -> None:
        super().__init__(code)
        self.code = code
        self.public = public
        self.retryable = retryable
        self.unknown_requests = unknown_requests


@dataclass(frozen=True, slots=True)
class Reply:
    """The model's next message."""

    response: ModelResponse
    unknown_requests: int = 0
    """Requests before the one that was answered that nobody knows the outcome of."""


class _TooSlow(Exception):
    """One request took longer than a request may."""


@dataclass(frozen=True, slots=True)
class ModelEndpoint:
    """Where the model is, and how long it is waited for."""

    url: str
    model: str
    api_key: str
    timeout_s: float
    attempts: int


def endpoint_of(settings: Settings) -> ModelEndpoint | None:
    """The configured endpoint; None means the offline writer."""
    if settings.model_url is None:
        return None
    return ModelEndpoint(
        url=settings.model_url,
        model=settings.model,
        api_key="none" if settings.model_api_key is None else settings.model_api_key.get_secret_value(),
        timeout_s=settings.model_timeout_s,
        attempts=settings.model_attempts,
    )


class OpenAiCompatibleModel:
    """Answers one request, or one turn of a conversation with tools.

    Retries only what a repeat can mend, with full jitter and `Retry-After`, within a deadline.
    """

    def __init__(self, endpoint: ModelEndpoint, *, deadline_s: float) -> None:
        self._endpoint = endpoint
        self._deadline_s = deadline_s
        self.name = endpoint.model

    def answer(self, request: Request) -> Answer:
        """The model's answer to a single request. Raises `ModelFailed`."""
        reply = self.respond([_message(request)], [])
        response = reply.response
        return Answer(
            text="".join(part.content for part in response.parts if isinstance(part, TextPart)),
            model=response.model_name or self.name,
            input_tokens=response.usage.input_tokens,
            output_tokens=response.usage.output_tokens,
            unknown_requests=reply.unknown_requests,
        )

    def respond(self, messages: Sequence[ModelMessage], tools: Sequence[ToolDefinition]) -> Reply:
        """The model's next message. Raises `ModelFailed`."""
        with tracing.span("model.request", model=self.name) as current:
            reply = asyncio.run(self._respond(list(messages), list(tools)))
            current.set_attribute("gen_ai.usage.input_tokens", reply.response.usage.input_tokens)
            current.set_attribute("gen_ai.usage.output_tokens", reply.response.usage.output_tokens)
            return reply

    async def _respond(self, messages: list[ModelMessage], tools: list[ToolDefinition]) -> Reply:
        async with (
            httpx2.AsyncClient(timeout=self._endpoint.timeout_s, transport=_BoundedTransport(verify=_tls())) as http,
            AsyncOpenAI(
                base_url=self._endpoint.url,
                api_key=self._endpoint.api_key,
                max_retries=0,
                http_client=http,
            ) as client,
        ):
            model = OpenAIChatModel(self._endpoint.model, provider=OpenAIProvider(openai_client=client))
            parameters = ModelRequestParameters(function_tools=tools)

            async def once() -> ModelResponse:
                request = model_request(model, messages, model_request_parameters=parameters)
                try:
                    return await asyncio.wait_for(request, self._endpoint.timeout_s)
                except TimeoutError as error:
                    raise _TooSlow from error

            return await with_retries(
                once, attempts=self._endpoint.attempts, deadline=time.monotonic() + self._deadline_s
            )


@lru_cache
def _tls() -> ssl.SSLContext:
    """Made once: reading all certificates costs more than a request."""
    return httpx2.create_ssl_context()


class _BoundedTransport(httpx2.AsyncHTTPTransport):
    """An answer that never ends, or is larger than any model's, is cut off instead of filling the memory."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, inner: httpx2.AsyncByteStream) -> None:
        self._inner = inner

    async def __aiter__(self) -> AsyncIterator[bytes]:
        received = 0
        async for chunk in self._inner:
            received += len(chunk)
            if received > _MAX_ANSWER_BYTES:
                raise httpx2.ReadError("the answer is too large")
            yield chunk

    async def aclose(self) -> None:
        await self._inner.aclose()


def _message(request: Request) -> ModelRequest:
    content: list[Any] = [request.text]
    content.extend(BinaryContent(picture.content, media_type=picture.media_type) for picture in request.pictures)
    return ModelRequest(parts=[UserPromptPart(content)], instructions=request.instructions)


async def with_retries(once: Callable[[], Awaitable[ModelResponse]], *, attempts: int, deadline: float) -> Reply:
    """The first answer of up to `attempts` tries that end before `deadline` (monotonic seconds). Raises `ModelFailed`."""
    unknown = 0
    for attempt in range(1, attempts + 1):
        try:
            return Reply(await asyncio.wait_for(once(), deadline - time.monotonic()), unknown)
        except Exception as error:  # a client's parser may raise anything for an answer that is none
            failure = _failure(error)
            unknown += failure.unknown_requests
            delay_s = _delay_s(error, attempt)
            is_last = attempt == attempts or time.monotonic() + delay_s >= deadline
            log.warning("model.request_failed", code=failure.code, attempt=attempt, is_last=is_last)
            if not failure.retryable or is_last:
                failure.unknown_requests = unknown
                raise failure from error
            await asyncio.sleep(delay_s)
    raise AssertionError("the last attempt returns or raises")


def _timed_out() -> ModelFailed:
    return ModelFailed("model_timeout", "The model took too long. Try again later.", retryable=True, unknown_requests=1)


def _failure(error: Exception) -> ModelFailed:
    if isinstance(error, _TooSlow | TimeoutError) or isinstance(error.__cause__, APITimeoutError):
        return _timed_out()
    if isinstance(error, ModelHTTPError):
        if error.status_code in {401, 403}:
            return ModelFailed(
                "model_refused_key",
                "The model endpoint refused our key. The operator must check SLUICEGATE_MODEL_API_KEY.",
                retryable=False,
            )
        if error.status_code == 429:
            return ModelFailed("model_rate_limited", "The model is overloaded. Try again later.", retryable=True)
        return ModelFailed(
            "model_error",
            f"The model endpoint answered with HTTP {error.status_code}.",
            retryable=error.status_code in _RETRYABLE_STATUS,
            unknown_requests=int(error.status_code in _SAID_BY_A_PROXY),
        )
    if isinstance(error, ModelAPIError) and not isinstance(error.__cause__, ValueError):
        return ModelFailed(
            "model_unreachable",
            "The model endpoint cannot be reached. Try again later.",
            retryable=True,
            unknown_requests=int(not isinstance(_root_of(error), httpx2.ConnectError | httpx2.ConnectTimeout)),
        )
    return ModelFailed(
        "model_garbage", "The model endpoint's answer cannot be read.", retryable=True, unknown_requests=1
    )


def _root_of(error: BaseException) -> BaseException:
    """What an error was raised for in the end: the client wraps what the connection said."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _delay_s(error: Exception, attempt: int) -> float:
    """Full jitter: anything between nothing and an exponentially growing bound, on top of what the endpoint asks for."""
    bound = min(_MAX_DELAY_S, _BASE_DELAY_S * 2**attempt)
    return _retry_after_s(error) + random.uniform(0, bound)  # noqa: S311 - spreads retries, guards nothing


def _retry_after_s(error: Exception) -> float:
    """What the endpoint asks for, as a number or a date."""
    response = getattr(error.__cause__, "response", None)
    value = "" if response is None else response.headers.get("retry-after", "").strip()
    if value.isascii() and value.replace(".", "", 1).isdigit():
        return float(value)
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return 0.0
