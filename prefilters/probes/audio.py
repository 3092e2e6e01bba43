"""Facts about a recording: what its header says, and what was really decoded."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import av.error
import numpy as np
from numpy.typing import NDArray

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import FactValue
from prefilters.limits import DecodeLimits
from prefilters.media import sniff_file
from prefilters.probes.audio_declared import declared_s, is_cut_short

SILENCE_DBFS = -120.0
"""What digital silence is reported as, since its logarithm is not a number."""

_DEMUXERS: Mapping[str, str] = {
    "wav": "wav",
    "aiff": "aiff",
    "mp3": "mp3",
    "aac": "aac",
    "m4a": "mov",
    "ogg": "ogg",
    "flac": "flac",
    "webm": "matroska",
}
"""The one FFmpeg demuxer per format: playlists and `concat` scripts, which name other files, are never tried."""

_DECODER_LIST = (
    "aac,ac3,adpcm_ima_qt,adpcm_ima_wav,adpcm_ms,alac,eac3,flac,gsm_ms,libopus,mp1,mp1float,mp2,mp2float,mp3,mp3float,"
    "opus,pcm_alaw,pcm_f32be,pcm_f32le,pcm_f64be,pcm_f64le,pcm_mulaw,pcm_s16be,pcm_s16le,pcm_s24be,pcm_s24le,pcm_s32be,"
    "pcm_s32le,pcm_s8,pcm_u8,vorbis"
)
"""FFmpeg's decoders that a file may call on, of the several hundred that are built in."""
_OPTIONS: Mapping[str, str] = {"protocol_whitelist": "file", "codec_whitelist": _DECODER_LIST}

_FULL_SCALE: Mapping[str, float] = {"pcm_u8": 0.99, "pcm_s8": 0.99, "pcm_alaw": 0.984, "pcm_mulaw": 0.98}
"""Where a codec's largest code lies short of the 0.9999 that the finer ones reach."""
_INTEGER_SCALE: Mapping[str, float] = {"i1": 2.0**7, "i2": 2.0**15, "i4": 2.0**31, "i8": 2.0**63}
_BATCH_SAMPLES = 1 << 17
_MOST_BAD_PACKETS = 2_000
_CPU_SHARE = 0.5
"""Share of the child's wall-clock limit that decoding may spend; the rest is left to measure and to answer."""


def header(path: Path | str, limits: DecodeLimits) -> dict[str, FactValue]:
    """Codec, rate, channels and the length that the header declares. Nothing is decoded beyond what FFmpeg probes.

    Raises `ProbeError`: `empty`, `corrupt` (not readable as what its first bytes say), `truncated` or `no_audio`.
    """
    with _opened(path) as (container, stream):
        facts: dict[str, FactValue] = {"audio.codec": str(stream.codec_context.codec.canonical_name)}
        if stream.rate:
            facts["audio.rate_hz"] = int(stream.rate)
        if stream.channels:
            facts["audio.channels"] = int(stream.channels)
        declared = declared_s(path, container, stream)
        if declared is not None:
            facts["audio.declared_s"] = round(declared, 3)
        return facts


def samples(path: Path | str, limits: DecodeLimits) -> dict[str, FactValue]:
    """Length, peak, loudness and clipping of what was really decoded, and whether the recording was cut off.

    Decoding ends just past `max_audio_s`. A recording too long for the time at hand is measured to its end by packet
    times; `audio.cut` is then unknown. Raises `ProbeError`: as `header`, and `corrupt` where no sample can be decoded.
    """
    with _opened(path) as (container, stream):
        declared = declared_s(path, container, stream)
        codec = str(stream.codec_context.codec.canonical_name)
        level = _Level(full_scale=_FULL_SCALE.get(codec, 0.9999))
        decoding = _Decoding(container, stream, limits)
        for batch in _batches(decoding):
            level.add(batch)
        if not decoding.decoded_s:
            raise ProbeError(_nothing_decoded(decoding, declared), f"{decoding.packets} packets gave no sample")
        facts: dict[str, FactValue] = {"decode.status": DecodeStatus.OK.value, "audio.codec": codec}
        facts["audio.duration_s"] = round(decoding.decoded_s + decoding.undecoded_s(), 3)
        facts["audio.peak_dbfs"] = _dbfs(level.peak)
        facts["audio.rms_dbfs"] = _dbfs(math.sqrt(level.squares / level.count))
        facts["audio.clipping_share"] = round(level.clipped / level.count, 6)
        if declared is not None:
            facts["audio.declared_s"] = round(declared, 3)
            if decoding.ended:
                facts["audio.cut"] = falls_short(declared, decoding.decoded_s)
        return facts


def falls_short(declared_s: float, decoded_s: float) -> bool:
    """Whether decoding fell short of the header by more than a tenth and more than a second."""
    return declared_s - decoded_s > max(1.0, declared_s / 10)


def mono(path: Path | str, limits: DecodeLimits, *, rate_hz: int = 16_000) -> Iterator[NDArray[np.float32]]:
    """The recording as mono samples in -1..1 at `rate_hz`, piece by piece, up to `max_audio_s` and the time at hand.

    Raises `ProbeError` as `header` does.
    """
    with _opened(path) as (container, stream):
        resampler = av.AudioResampler(format="flt", layout="mono", rate=rate_hz)
        for frame in _Decoding(container, stream, limits).frames():
            try:
                pieces = resampler.resample(frame)
            except (av.error.FFmpegError, ValueError):  # the layout or rate changed midway: begin anew from here
                resampler = av.AudioResampler(format="flt", layout="mono", rate=rate_hz)
                pieces = resampler.resample(frame)
            for piece in pieces:
                yield np.nan_to_num(piece.to_ndarray().reshape(-1))
        for piece in resampler.resample(None):
            yield np.nan_to_num(piece.to_ndarray().reshape(-1))


@contextmanager
def _opened(path: Path | str) -> Iterator[tuple[Any, Any]]:
    if Path(path).stat().st_size == 0:
        raise ProbeError(DecodeStatus.EMPTY)
    media = sniff_file(path)
    demuxer = _DEMUXERS.get(media.format)
    if demuxer is None:
        raise ProbeError(DecodeStatus.CORRUPT, f"{media.format} is no recording")
    options = {**_OPTIONS, "format_whitelist": demuxer}
    try:
        container = av.open(str(path), format=demuxer, container_options=options, metadata_errors="replace")
    except (av.error.FFmpegError, ValueError) as exc:
        is_cut = isinstance(exc, av.error.EOFError) or (demuxer == "mov" and is_cut_short(path))
        status = DecodeStatus.TRUNCATED if is_cut else DecodeStatus.CORRUPT
        raise ProbeError(status, f"the {demuxer} demuxer refused it: {exc}") from exc
    with container:
        if not container.streams.audio:
            raise ProbeError(DecodeStatus.NO_AUDIO, f"{len(container.streams)} streams, none of audio")
        stream = container.streams.audio[0]
        decoder = stream.codec_context.codec.name if stream.codec_context else "none"
        if decoder not in _DECODER_LIST.split(
            ","
        ):  # FFmpeg holds only its own probing to the list, not what PyAV opens
            raise ProbeError(DecodeStatus.CORRUPT, f"decoder {decoder} is not on the list")
        yield container, stream


class _Decoding:
    """One pass over a stream: steps over damaged packets, and knows how far it came."""

    def __init__(self, container: Any, stream: Any, limits: DecodeLimits) -> None:
        self._container = container
        self._stream = stream
        self._most_s = limits.max_audio_s + 1.0
        self._deadline = time.monotonic() + limits.decode_wall_s * _CPU_SHARE
        self._rest: Iterator[Any] = iter(())
        self.decoded_s = 0.0
        self.packets = 0
        self.ended = False
        """Whether the end of the recording was reached."""

    def frames(self) -> Iterator[Any]:
        """The decoded frames, until the end, the longest length or the deadline."""
        bad_packets = 0
        self._rest = self._packets()
        for packet in self._rest:
            self.packets += 1
            try:
                frames = packet.decode()
            except (av.error.FFmpegError, ValueError):
                bad_packets += 1
                if bad_packets > _MOST_BAD_PACKETS:
                    break
                continue
            for frame in frames:
                if frame.samples and frame.sample_rate:
                    self.decoded_s += frame.samples / frame.sample_rate
                    yield frame
            if self.decoded_s > self._most_s or (self.decoded_s and time.monotonic() > self._deadline):
                return
        self.ended = True

    def undecoded_s(self) -> float:
        """Seconds by packet times of what was left over, as far as it counts against the longest length."""
        seconds = 0.0
        if self.ended or self.decoded_s > self._most_s:
            return seconds
        for packet in self._rest:
            if packet.duration and packet.time_base:
                seconds += float(packet.duration * packet.time_base)
            if self.decoded_s + seconds > self._most_s:
                break
        return seconds

    def _packets(self) -> Iterator[Any]:
        packets = self._container.demux(self._stream)
        while True:
            try:
                packet = next(packets)
            except (StopIteration, av.error.FFmpegError):  # a demuxer that cannot go on ends the recording here
                return
            yield packet


def _nothing_decoded(decoding: _Decoding, declared: float | None) -> DecodeStatus:
    # The last packet of every stream is an empty one that flushes the decoder.
    return DecodeStatus.EMPTY if decoding.packets <= 1 and declared is None else DecodeStatus.CORRUPT


@dataclass(slots=True)
class _Level:
    """Running peak, power and clipping."""

    full_scale: float
    peak: float = 0.0
    squares: float = 0.0
    clipped: int = 0
    count: int = 0

    def add(self, batch: NDArray[np.float32]) -> None:
        magnitude = np.abs(batch)
        self.peak = max(self.peak, float(magnitude.max(initial=0.0)))
        self.squares += float(np.dot(batch, batch))
        self.clipped += int(np.count_nonzero(magnitude >= self.full_scale))
        self.count += batch.size


def _batches(decoding: _Decoding) -> Iterator[NDArray[np.float32]]:
    """Samples in -1..1, all channels together, in pieces large enough for numpy to pay off."""
    waiting: list[NDArray[np.float32]] = []
    size = 0
    for frame in decoding.frames():
        piece = _in_unit_range(frame.to_ndarray()).reshape(-1)
        waiting.append(piece)
        size += piece.size
        if size >= _BATCH_SAMPLES:
            yield np.concatenate(waiting)
            waiting, size = [], 0
    if waiting:
        yield np.concatenate(waiting)


def _in_unit_range(raw: NDArray[Any]) -> NDArray[np.float32]:
    if raw.dtype == np.uint8:
        return np.asarray((raw.astype(np.float32) - 128.0) / 128.0, dtype=np.float32)
    if raw.dtype.kind == "i":
        return np.asarray(raw / _INTEGER_SCALE[raw.dtype.str[1:]], dtype=np.float32)
    return np.asarray(np.nan_to_num(raw, nan=0.0, posinf=1.0, neginf=-1.0), dtype=np.float32)


def _dbfs(amplitude: float) -> float:
    return max(SILENCE_DBFS, round(20 * math.log10(amplitude), 2) + 0.0) if amplitude > 0 else SILENCE_DBFS
