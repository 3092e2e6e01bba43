"""Speech written down: what a transcriber is, and the one that runs here with a model of your own."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from prefilters.limits import DecodeLimits
from prefilters.pool import Bulkhead, DecoderPool
from prefilters.probes.text import Source, TextReading, plain_reading

MAX_TRANSCRIPT_CHARS = 40_000
"""Of one recording that are kept: about an hour of speech, and more than any product text is made of."""
_FOLDER_WALL_S = 600.0
"""Seconds that a model on this machine may take for one recording."""
_SENDING_WALL_S = 120.0
_MODEL_FILES = ("model.bin", "config.json", "tokenizer.json")


class TranscriptionFailed(Exception):
    """The speech could not be written down, which is not the file's fault. `public` is safe to show."""

    code = "transcription_failed"

    def __init__(self, public: str, *, retryable: bool) -> None:
        super().__init__(public)
        self.public = public
        self.retryable = retryable


class Transcriber(Protocol):
    """Somebody who writes down what a recording says."""

    @property
    def name(self) -> str:
        """What the fact `text.engine` says."""
        ...

    def transcribe(self, path: Path, limits: DecodeLimits) -> TextReading:
        """The words of the recording at `path`. Raises `TranscriptionFailed`, or `ProbeError` where it cannot be decoded."""
        ...


class TranscriberInvalid(ValueError):
    """A transcriber cannot be set up; the message says what is missing and what to do."""


class FolderTranscriber:
    """faster-whisper with a model that lies in a folder, in a process of the pool. Nothing is ever downloaded."""

    def __init__(self, pool: DecoderPool, folder: Path) -> None:
        """Raises `TranscriberInvalid` where the package or a file of the model is missing."""
        if find_spec("faster_whisper") is None:
            raise TranscriberInvalid("the package faster-whisper is not installed: pip install 'sluicegate[speech]'")
        missing = [name for name in _MODEL_FILES if not (folder / name).is_file()]
        if missing:
            raise TranscriberInvalid(
                f"{folder} holds no model for faster-whisper: {', '.join(missing)} missing. It takes a Whisper model in "
                "CTranslate2's form, with its tokenizer."
            )
        self._pool = pool
        self._folder = folder.resolve()

    @property
    def name(self) -> str:
        """`faster-whisper` and the folder's name."""
        return f"faster-whisper:{self._folder.name}"

    def transcribe(self, path: Path, limits: DecodeLimits) -> TextReading:
        """The words of the recording at `path`. Raises as `Transcriber` says."""
        text = self._pool.run(_by_whisper, path, limits, self._folder, bulkhead=Bulkhead.SPEECH, wall_s=_FOLDER_WALL_S)
        return transcript(text, engine=self.name)


def transcript(text: str, *, engine: str) -> TextReading:
    """What was said, as a reading; the end of a very long one is left out."""
    kept = text[:MAX_TRANSCRIPT_CHARS]
    if len(kept) < len(text):
        kept = kept.rpartition(" ")[0] or kept
    return plain_reading(kept, engine=engine, source=Source.TRANSCRIPT)


def speech_for_sending(pool: DecoderPool, path: Path, limits: DecodeLimits) -> bytes:
    """The recording rebuilt from its samples as Ogg Opus, mono, about 11 MB an hour: no tags, no place, no hidden stream."""
    return pool.run(_rebuilt, path, limits, bulkhead=Bulkhead.SPEECH, wall_s=_SENDING_WALL_S)


def _rebuilt(path: Path, limits: DecodeLimits) -> bytes:
    from prefilters.probes import spoken

    return spoken.rebuilt(path, limits)


def _by_whisper(path: Path, limits: DecodeLimits, folder: Path) -> str:
    from prefilters.probes import spoken

    return spoken.written_down(path, limits, folder)
