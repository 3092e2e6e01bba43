"""Speech on its way to text: rebuilt for sending, or written down by a model on this machine.

It decodes, so it runs in a child of the decoder pool.
"""

from __future__ import annotations

import io
from dataclasses import replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.limits import DecodeLimits
from prefilters.probes import audio

RATE_HZ = 16_000
_BITS_A_SECOND = 24_000
"""Opus keeps speech whole from about 16 kbit/s on."""
_DECODE_WALL_S = 120.0
"""Wall-clock seconds by which decoding is bounded here, where a whole recording is wanted; half of it may be spent."""


def rebuilt(path: Path, limits: DecodeLimits) -> bytes:
    """The recording as mono Ogg Opus, made from its samples alone. Raises `ProbeError` as `audio.header` does."""
    out = io.BytesIO()
    written = 0
    with av.open(out, "w", format="ogg") as container:
        stream = container.add_stream("libopus", rate=RATE_HZ, layout="mono")
        stream.bit_rate = _BITS_A_SECOND
        stream.options = {"application": "voip", "compression_level": "3"}
        for samples in audio.mono(path, _patient(limits), rate_hz=RATE_HZ):
            for packet in stream.encode(_frame(samples, written)):
                container.mux(packet)
            written += len(samples)
        for packet in stream.encode(None):
            container.mux(packet)
    if not written:
        raise ProbeError(DecodeStatus.CORRUPT, "no sample could be decoded")
    return out.getvalue()


def _patient(limits: DecodeLimits) -> DecodeLimits:
    return replace(limits, decode_wall_s=max(limits.decode_wall_s, _DECODE_WALL_S))


def _frame(samples: NDArray[np.float32], at: int) -> Any:
    frame = av.AudioFrame.from_ndarray(
        samples.clip(-1, 1).reshape(1, -1).astype(np.float32), format="flt", layout="mono"
    )
    frame.sample_rate = RATE_HZ
    frame.time_base = Fraction(1, RATE_HZ)
    frame.pts = at
    return frame


def written_down(path: Path, limits: DecodeLimits, folder: Path) -> str:
    """What the recording says, a segment a line, by the Whisper model in `folder`. Raises `ProbeError` as above.

    The samples are handed over, not the file, so that no other decoder opens it; segments that the model itself takes
    for no speech are left out.
    """
    pieces = list(audio.mono(path, _patient(limits), rate_hz=RATE_HZ))
    if not pieces:
        raise ProbeError(DecodeStatus.CORRUPT, "no sample could be decoded")
    segments, _ = _model(str(folder)).transcribe(np.concatenate(pieces), vad_filter=True)
    return "\n".join(segment.text.strip() for segment in segments if segment.no_speech_prob < 0.6)


@cache
def _model(folder: str) -> Any:
    from faster_whisper import WhisperModel

    return WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True)
