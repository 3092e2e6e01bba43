"""Every fact that a probe can measure: one table, which also makes docs/facts.md and the declarations of the rules.

A fact that was not measured is absent from the mapping: unknown, never 0 or "".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

FactValue = bool | int | float | str
Facts = Mapping[str, FactValue]


class Stage(IntEnum):
    """What a fact costs to measure, cheapest first; a screening goes through them in this order."""

    SNIFF = 0
    """Leading bytes and file size."""
    HEADER = 1
    """Container header only; nothing is decoded."""
    PIXELS = 2
    """A (reduced) decode: pixels, PDF pages, audio samples."""
    TEXT = 3
    """OCR, a full text layer, speech detection or a transcript."""


@dataclass(frozen=True, slots=True)
class FactSpec:
    """One row of the table: name, type, unit, what it means, when it is known."""

    name: str
    type: type[bool] | type[int] | type[float] | type[str]
    unit: str
    meaning: str
    stage: Stage


def _f(
    name: str, kind: type[bool] | type[int] | type[float] | type[str], unit: str, stage: Stage, meaning: str
) -> FactSpec:
    return FactSpec(name, kind, unit, meaning, stage)


# fmt: off
FACTS: tuple[FactSpec, ...] = (
    _f("file.bytes", int, "bytes", Stage.SNIFF, "Size of the file."),
    _f("media.kind", str, "", Stage.SNIFF, "`image`, `pdf`, `audio` or `other`, by the leading bytes, never by name or declared type."),
    _f("media.format", str, "", Stage.SNIFF, "The format: `jpeg`, `png`, `webp`, `gif`, `heic`, `avif`, `tiff`, `bmp`, `pdf`, `wav`, `mp3` … or what else the bytes are: `html`, `zip`, `svg` …"),
    _f("media.supported", bool, "", Stage.SNIFF, "Whether this is a format that we take."),
    _f("media.type_mismatch", bool, "", Stage.SNIFF, "The declared media type or the file name's ending says another format than the bytes."),
    _f("decode.status", str, "", Stage.HEADER, "How far a decoder came: `ok`, `empty`, `corrupt`, `truncated`, `encrypted`, `no_audio`, `timeout`, `resource_limit`."),
    _f("image.width", int, "px", Stage.HEADER, "Width of the upright picture (EXIF orientation applied)."),
    _f("image.height", int, "px", Stage.HEADER, "Height of the upright picture."),
    _f("image.short_side", int, "px", Stage.HEADER, "The smaller of width and height."),
    _f("image.long_side", int, "px", Stage.HEADER, "The larger of width and height."),
    _f("image.pixels", int, "px", Stage.HEADER, "Width x height."),
    _f("image.aspect", float, "ratio", Stage.HEADER, "Long side / short side."),
    _f("image.frames", int, "frames", Stage.HEADER, "Frames of an animation or pages of a TIFF; only the first is looked at."),
    _f("image.animated", bool, "", Stage.HEADER, "More than one frame."),
    _f("image.mode", str, "", Stage.HEADER, "Colour mode as stored, in Pillow's names: `RGB`, `CMYK`, `I;16`, `P`, `RGBA` …"),
    _f("image.orientation", int, "1..8", Stage.HEADER, "EXIF orientation as stored; 1 is upright."),
    _f("image.sharpness", float, "0..1", Stage.PIXELS, "Edge-masked re-blur ratio, higher is sharper. At least .45 is fine, .36 to .45 soft, below .36 blurry, below .30 very blurry. Unknown on a featureless picture."),
    _f("image.featureless", bool, "", Stage.PIXELS, "There is no edge to measure sharpness on."),
    _f("image.brightness", float, "0..1", Stage.PIXELS, "Mean luminance of the upright picture on white."),
    _f("image.contrast", float, "0..1", Stage.PIXELS, "Spread of luminance between its 1st and 99th percentile."),
    _f("image.dark_share", float, "0..1", Stage.PIXELS, "Share of pixels with luminance under 0.1."),
    _f("image.light_share", float, "0..1", Stage.PIXELS, "Share of pixels with luminance over 0.95."),
    _f("image.blank", bool, "", Stage.PIXELS, "One even tone: nothing is in the picture."),
    _f("image.near_complete", bool, "", Stage.PIXELS, "Only the end marker is missing; complete to the eye."),
    _f("image.phash", str, "64-bit hex", Stage.PIXELS, "Perceptual hash of the upright picture (DCT)."),
    _f("text.tokens", int, "tokens", Stage.TEXT, "Tokens (`o200k_base`) of confident words only; a CJK character counts one. At depth `gate` counting stops once the rule is satisfied."),
    _f("text.words", int, "words", Stage.TEXT, "Confident words; CJK counts by character."),
    _f("text.confidence", float, "0..1", Stage.TEXT, "Mean confidence of all that was read, weighted by length."),
    _f("text.unread", int, "boxes", Stage.TEXT, "Places where text was seen but not read with confidence."),
    _f("text.share", float, "0..1", Stage.TEXT, "Share of the picture covered by text boxes."),
    _f("text.script", str, "", Stage.TEXT, "Main script of the text: `latin`, `han`, `kana`, `hangul`, `cyrillic`, `arabic`, `other`, `none`."),
    _f("text.formula_marks", int, "marks", Stage.TEXT, "Mathematical signs in the text."),
    _f("text.quality", float, "0..1", Stage.TEXT, "Share of a text layer that reads as words, not glyph codes."),
    _f("text.hidden", bool, "", Stage.TEXT, "Text that a person would not see was found and left out."),
    _f("text.source", str, "", Stage.TEXT, "`ocr`, `text_layer` or `transcript`."),
    _f("text.engine", str, "", Stage.TEXT, "The engine that read it."),
    _f("text.depth", str, "", Stage.TEXT, "`gate` (stopped early) or `read` (all of it)."),
    _f("barcode.count", int, "codes", Stage.TEXT, "Barcodes that were read with a valid checksum."),
    _f("pdf.pages", int, "pages", Stage.PIXELS, "Pages."),
    _f("pdf.page_side_pt", float, "pt", Stage.PIXELS, "Longest page side of the first 50 pages."),
    _f("pdf.encrypted", bool, "", Stage.PIXELS, "Needs a password (the empty one was tried)."),
    _f("pdf.owner_password", bool, "", Stage.PIXELS, "Carries permission bits only: opens with the empty password."),
    _f("pdf.repaired", bool, "", Stage.PIXELS, "Damaged, but a reader could mend it."),
    _f("pdf.active_content", bool, "", Stage.PIXELS, "Carries JavaScript, launch actions or attachments; never run."),
    _f("pdf.text_chars", int, "chars", Stage.PIXELS, "Characters of the text layer in the first pages."),
    _f("pdf.scanned", bool, "", Stage.PIXELS, "No page has a text layer, but pages have pictures."),
    _f("audio.duration_s", float, "s", Stage.PIXELS, "Seconds of sound that are really there: decoded, and by packet times behind what there was time to decode."),
    _f("audio.declared_s", float, "s", Stage.HEADER, "Seconds by the header; unknown where it says none."),
    _f("audio.codec", str, "", Stage.HEADER, "Codec of the first audio stream, in FFmpeg's names."),
    _f("audio.rate_hz", int, "Hz", Stage.HEADER, "Sampling rate."),
    _f("audio.channels", int, "channels", Stage.HEADER, "Channels."),
    _f("audio.peak_dbfs", float, "dBFS", Stage.PIXELS, "Peak of the decoded samples; -120 for digital silence."),
    _f("audio.rms_dbfs", float, "dBFS", Stage.PIXELS, "Root mean square of the decoded samples; -120 for digital silence."),
    _f("audio.clipping_share", float, "0..1", Stage.PIXELS, "Share of samples at full scale."),
    _f("audio.cut", bool, "", Stage.PIXELS, "Decoded length falls short of the declared one by more than a tenth and a second."),
    _f("audio.speech_s", float, "s", Stage.TEXT, "Seconds of speech (Silero VAD)."),
    _f("audio.speech_share", float, "0..1", Stage.TEXT, "Speech seconds / seconds listened to."),
    _f("audio.transcribed", bool, "", Stage.TEXT, "Whether the speech was written down; unknown where there is none, or nobody to do it."),
    _f("audio.listened_s", float, "s", Stage.TEXT, "Seconds that speech was looked for in; stops early once there is enough speech for every rule."),
    _f("cost.openai_tiles", int, "tokens", Stage.HEADER, "What one look at this picture, reduced to 1,024 px, costs by OpenAI's tile formula at detail high, in gpt-4o's numbers."),
    _f("cost.openai_patches", int, "tokens", Stage.HEADER, "The same by OpenAI's patch formula, before the model's multiplier."),
    _f("cost.anthropic", int, "tokens", Stage.HEADER, "The same for Claude."),
    _f("cost.gemini", int, "tokens", Stage.HEADER, "The same for Gemini."),
)
# fmt: on

FACT_BY_NAME: Mapping[str, FactSpec] = {spec.name: spec for spec in FACTS}


def check_facts(facts: Facts) -> None:
    """Raise `ValueError` where a name is not in the table or a value has not its declared type."""
    for name, value in facts.items():
        spec = FACT_BY_NAME.get(name)
        if spec is None:
            raise ValueError(f"unknown fact {name!r}")
        if type(value) is not spec.type:
            raise ValueError(f"fact {name!r} must be {spec.type.__name__}, not {type(value).__name__}")
