"""The bounds within which a stranger's file is opened at all."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True, slots=True)
class DecodeLimits:
    """What one file may cost before it is refused. A profile may override each value.

    The defaults are judgement, not standards, except `min_short_side` (vision models crash below 28 px and degrade
    below 200) and `silence_peak_dbfs` (the quietest real speech that we measured peaked at -28 dBFS).
    """

    max_file_bytes: int = 25 * 1024 * 1024
    """Bytes of one file."""
    max_pixels: int = 50_000_000
    """Width x height, read from the header before anything is decoded."""
    min_short_side: int = 64
    """Pixels."""
    min_pixels: int = 16_384
    """Width x height."""
    max_aspect: float = 100.0
    """Long side / short side."""
    max_frames: int = 200
    """Frames of an animation or pages of a TIFF."""
    max_pages: int = 200
    """Pages of a PDF."""
    max_page_side_pt: float = 14_400.0
    """Points (1/72 inch); the PDF specification's own limit of 200 inches."""
    min_audio_s: float = 0.15
    """Seconds that were really decoded."""
    max_audio_s: float = 7_200.0
    """Seconds."""
    silence_peak_dbfs: float = -60.0
    """Peak of the decoded samples, dB relative to full scale."""
    decode_wall_s: float = 20.0
    """Wall-clock seconds that one decode may take in its child process."""
    decode_memory_bytes: int = 1024 * 1024 * 1024
    """Address space that the child may add for one decode."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "silence_peak_dbfs" and value <= 0:
                raise ValueError(f"{field.name} must be above 0, not {value}")
