"""The catalogue's recordings: a note spoken by espeak-ng, and one where the microphone was off."""

from __future__ import annotations

import io
import shutil
import subprocess
import wave

import numpy as np
import numpy.typing as npt

from examples.drawing import rng

Samples = npt.NDArray[np.float64]
"""-1..1, one channel."""


class SpeechToolMissing(Exception):
    """espeak-ng is not installed."""

    def __init__(self) -> None:
        super().__init__(
            "The spoken note needs espeak-ng. Install it with `apt-get install espeak-ng` (./dev does so by itself)."
        )


def require_speech_tool() -> str:
    """The path of espeak-ng. Raises `SpeechToolMissing`."""
    program = shutil.which("espeak-ng")
    if program is None:
        raise SpeechToolMissing
    return program


def wav_16(samples: Samples, rate: int) -> bytes:
    """A 16-bit mono WAV."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(np.round(np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return out.getvalue()


def speak(text: str, *, voice: str = "en-gb", words_per_minute: int = 165) -> tuple[Samples, int]:
    """`text` in espeak-ng's voice, and its sampling rate. Raises `SpeechToolMissing`."""
    command = [require_speech_tool(), "-v", voice, "-s", str(words_per_minute), "--stdout"]
    spoken = subprocess.run(command, input=text.encode(), capture_output=True, check=True).stdout
    return _wav_samples(spoken)


def _wav_samples(data: bytes) -> tuple[Samples, int]:
    """espeak-ng writes to a pipe, so its header's length is a placeholder: everything after `data` counts."""
    rate = int.from_bytes(data[24:28], "little")
    body = data[data.index(b"data") + 8 :]
    return np.frombuffer(body[: len(body) // 2 * 2], "<i2") / 32768, rate


def spoken_note(text: str) -> bytes:
    """A voice memo: half a second of room before and after, the hiss of a telephone microphone below."""
    voice, rate = speak(text)
    pause = np.zeros(rate // 2)
    sound = np.concatenate([pause, voice * 0.7, pause])
    return wav_16(sound + rng(91).normal(0, 0.0012, sound.size), rate)


def muted_note(seconds: float = 4.0, rate: int = 16_000) -> bytes:
    """A recording with the microphone switched off: nothing but the converter's last bits, about -84 dBFS."""
    return wav_16(rng(92).integers(-2, 3, round(seconds * rate)) / 32767, rate)
