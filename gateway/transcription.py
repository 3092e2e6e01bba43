"""Speech written down by an endpoint that speaks OpenAI's `/audio/transcriptions`."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import structlog

from prefilters.limits import DecodeLimits
from prefilters.pool import DecoderPool
from prefilters.probes.text import TextReading
from prefilters.transcript import TranscriptionFailed, speech_for_sending, transcript

log = structlog.get_logger()

_ATTEMPTS = 3
_BASE_DELAY_S = 0.5
_MOST_DELAY_S = 10.0
_MOST_ANSWER_BYTES = 4 * 1024 * 1024
_RETRYABLE_STATUS = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
_UNREACHABLE = "The transcriber cannot be reached. Try again later."


@dataclass(frozen=True, slots=True)
class TranscriptionEndpoint:
    """Where the transcriber is."""

    url: str
    """Up to and including `/v1`."""
    model: str
    api_key: str | None
    timeout_s: float


class EndpointTranscriber:
    """Sends what was rebuilt from a recording's samples, and nothing else of it."""

    def __init__(
        self, pool: DecoderPool, endpoint: TranscriptionEndpoint, *, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        self._pool = pool
        self._endpoint = endpoint
        self._sleep = sleep

    @property
    def name(self) -> str:
        """The model's name."""
        return self._endpoint.model

    def transcribe(self, path: Path, limits: DecodeLimits) -> TextReading:
        """The words of the recording at `path`. Raises `TranscriptionFailed`, or `ProbeError` where it cannot be decoded."""
        sound = speech_for_sending(self._pool, path, limits)
        for attempt in range(1, _ATTEMPTS + 1):
            try:
                return transcript(self._ask(sound), engine=self.name)
            except TranscriptionFailed as failure:
                is_last = attempt == _ATTEMPTS or not failure.retryable
                log.warning("transcriber.request_failed", model=self.name, attempt=attempt, is_last=is_last)
                if is_last:
                    raise
                bound = min(_MOST_DELAY_S, _BASE_DELAY_S * 2**attempt)
                self._sleep(random.uniform(0, bound))  # noqa: S311 - spreads retries, guards nothing
        raise AssertionError("the last attempt returns or raises")

    def _ask(self, sound: bytes) -> str:
        endpoint = self._endpoint
        headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
        with httpx.Client(timeout=endpoint.timeout_s, headers=headers) as client:
            try:
                request = client.build_request(
                    "POST",
                    f"{endpoint.url.rstrip('/')}/audio/transcriptions",
                    data={"model": endpoint.model, "response_format": "json"},
                    files={"file": ("recording.ogg", sound, "audio/ogg")},
                )
                answer = client.send(request, stream=True)
                body = _bounded(answer, deadline=time.monotonic() + endpoint.timeout_s)
            except (httpx.HTTPError, httpx.InvalidURL) as error:
                raise TranscriptionFailed(_UNREACHABLE, retryable=True) from error
        if answer.status_code != 200:
            raise _refusal(answer.status_code)
        return _text(body)


def _bounded(answer: httpx.Response, *, deadline: float) -> bytes:
    """The body, unless it is larger or slower than any transcript. Raises `httpx.HTTPError`."""
    body = b""
    try:
        for chunk in answer.iter_bytes():
            body += chunk
            if len(body) > _MOST_ANSWER_BYTES or time.monotonic() > deadline:
                raise httpx.ReadError("the answer is too large or too slow")
    finally:
        answer.close()
    return body


def _refusal(status: int) -> TranscriptionFailed:
    if status in {401, 403}:
        return TranscriptionFailed(
            "The transcriber refused our key. The operator must check SLUICEGATE_TRANSCRIBE_API_KEY.", retryable=False
        )
    return TranscriptionFailed(f"The transcriber answered with HTTP {status}.", retryable=status in _RETRYABLE_STATUS)


def _text(body: bytes) -> str:
    garbage = TranscriptionFailed("The transcriber's answer cannot be read.", retryable=True)
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise garbage from error
    text = document.get("text") if isinstance(document, dict) else None
    if not isinstance(text, str):
        raise garbage
    return "".join(char for char in text if char >= " " or char in "\n\t")
