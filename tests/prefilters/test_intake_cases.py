"""Cases from public bug reports: each went wrong somewhere, none may here."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pikepdf
import pytest
from PIL import Image, ImageDraw, ImageFont

from prefilters import DecodeLimits, Screening, VerdictKind
from prefilters.probes.image import load_upright
from tests import media

Screened = Callable[..., Screening]

WORDS = "Organic green tea from the high mountains, hand picked in spring and gently dried"


def saved(image: Image.Image, format_: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format_, **options)
    return out.getvalue()


def photo(width: int, height: int) -> Image.Image:
    return Image.open(io.BytesIO(media.plain_photo(width, height)))


def page_of_words(lines: int = 4) -> Image.Image:
    page = Image.new("RGB", (900, 120 * lines), "white")
    draw = ImageDraw.Draw(page)
    words = WORDS.split()
    for line in range(lines):
        draw.text((40, 30 + 110 * line), " ".join(words[4 * line : 4 * line + 4]), "black", ImageFont.load_default(56))
    return page


def encrypted_pdf(*, user: str) -> bytes:
    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(media.pdf_text())) as pdf:
        pdf.save(out, encryption=pikepdf.Encryption(user=user, owner="owner", R=6))
    return out.getvalue()


def glyph_codes_over_a_picture_of_words() -> bytes:
    """A page whose text layer says only "/G21/G22/G23", over an image that says something."""
    pdf = pikepdf.new()
    page = pdf.add_blank_page(page_size=(600, 400))
    image = page_of_words()
    font = pikepdf.Dictionary(Type=pikepdf.Name.Font, Subtype=pikepdf.Name.Type1, BaseFont=pikepdf.Name.Helvetica)
    page.Resources = pikepdf.Dictionary(
        Font=pikepdf.Dictionary(F1=font),
        XObject=pikepdf.Dictionary(
            Im1=pikepdf.Stream(
                pdf, saved(image, "JPEG", quality=90), Type=pikepdf.Name.XObject, Subtype=pikepdf.Name.Image,
                Width=image.width, Height=image.height, ColorSpace=pikepdf.Name.DeviceRGB, BitsPerComponent=8,
                Filter=pikepdf.Name.DCTDecode,
            )
        ),
    )  # fmt: skip
    codes = b"BT /F1 6 Tf 20 20 Td (" + b"/G21/G22/G23" * 20 + b") Tj ET"
    page.Contents = pdf.make_stream(b"q 600 0 0 320 0 60 cm /Im1 Do Q " + codes)
    out = io.BytesIO()
    pdf.save(out)
    return out.getvalue()


def outcome(found: Screening) -> str:
    return f"reject:{found.verdict.code}" if found.verdict.kind is VerdictKind.REJECT else found.verdict.kind.value


@pytest.mark.parametrize("format_", ["JPEG", "PNG"])
def test_s01_cut_file_is_incomplete(screened: Screened, format_: str) -> None:
    whole = saved(photo(800, 600), format_, **({"quality": 85} if format_ == "JPEG" else {}))
    found = screened(whole[: int(len(whole) * 0.6)])
    assert outcome(found) == "reject:corrupt"
    assert "looks incomplete" in found.verdict.user_message["en"]
    assert "不完整" in found.verdict.user_message["zh"]


def test_s02_detected_type_wins_over_name_and_declared_type(screened: Screened) -> None:
    found = screened(saved(page_of_words(), "PNG"), "photo.jpg", declared_type="image/jpeg")
    assert outcome(found) == "accept"
    assert found.media.mime == "image/png"
    assert found.verdict.notes == ("type_mismatch",)


def test_s03_heic_called_png_is_decoded_as_what_it_is(screened: Screened) -> None:
    found = screened(media.heic(long_side=1200), "shot.png", declared_type="image/png")
    assert outcome(found) == "accept"
    assert found.media.format == "heic"
    assert "type_mismatch" in found.verdict.notes


@pytest.mark.parametrize(("orientation", "turn"), [(6, Image.Transpose.ROTATE_90), (3, Image.Transpose.ROTATE_180)])
def test_s04_text_is_read_upright(screened: Screened, orientation: int, turn: Image.Transpose) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    found = screened(saved(page_of_words().transpose(turn), "JPEG", quality=92, exif=exif))
    assert outcome(found) == "accept"
    assert (found.facts["image.width"], found.facts["image.height"]) == (900, 480)
    assert found.reading is not None
    assert {word.text for word in found.reading.confident_words} & set(WORDS.split())


@pytest.mark.parametrize("light", [False, True], ids=["black", "light"])
def test_s05_text_on_transparency_is_read(screened: Screened, light: bool) -> None:
    assert outcome(screened(media.alpha_text(light=light), "label.png")) == "accept"


def test_s06_sixteen_bit_grey_is_read(screened: Screened) -> None:
    found = screened(media.png16(ink=9_000, paper=52_000), "scan.png")
    assert outcome(found) == "accept"
    assert 0.5 < float(found.facts["image.brightness"]) < 0.9


def test_s07_white_paper_in_cmyk_stays_white(screened: Screened, tmp_path: Path) -> None:
    content = saved(page_of_words().convert("CMYK"), "JPEG", quality=92)
    assert outcome(screened(content)) == "accept"
    (tmp_path / "cmyk.jpg").write_bytes(content)
    assert float(np.mean(load_upright(tmp_path / "cmyk.jpg", DecodeLimits()))) > 200


def test_s08_bomb_is_refused_before_a_pixel_is_decoded(screened: Screened) -> None:
    started = time.perf_counter()
    found = screened(media.png_bomb_header(), "huge.png")
    assert time.perf_counter() - started < 0.1
    assert outcome(found) == "reject:too_many_pixels"
    assert "pixels" not in found.timings_ms
    assert "900 million pixels" in found.verdict.user_message["en"]


@pytest.mark.parametrize("content", [media.html_page(), b"error code: 502"], ids=["page", "sentence"])
def test_s09_web_page_under_a_pictures_name(screened: Screened, content: bytes) -> None:
    found = screened(content, "item.jpg")
    assert outcome(found) == "reject:unsupported_type"
    assert "web page" in found.verdict.user_message["en"]
    assert "网页" in found.verdict.user_message["zh"]


@pytest.mark.parametrize("name", ["photo.jpg", "leaflet.pdf", "note.mp3"])
def test_s10_empty_file_is_named(screened: Screened, name: str) -> None:
    found = screened(b"", name)
    assert outcome(found) == "reject:empty"
    assert name in found.verdict.user_message["en"]


@pytest.mark.parametrize(
    ("size", "format_"), [((257, 27), "PNG"), ((16, 16), "PNG"), ((1, 1), "GIF")], ids=["257x27", "16x16", "1x1"]
)
def test_s11_tiny_picture_is_told_both_sizes(screened: Screened, size: tuple[int, int], format_: str) -> None:
    found = screened(saved(Image.new("RGB", size, "red"), format_), "tiny")
    assert outcome(found) == "reject:low_resolution"
    assert found.verdict.measured == {"image.short_side": min(size)}
    assert found.verdict.limit == {"image.short_side": 64}
    assert f"{min(size)} px" in found.verdict.user_message["en"]
    assert "64 px" in found.verdict.user_message["en"]


def test_s12_permission_bits_alone_lock_nothing(screened: Screened) -> None:
    found = screened(encrypted_pdf(user=""), "manual.pdf")
    assert outcome(found) == "accept"
    assert "owner_password" in found.verdict.notes


def test_s13_password_is_told_with_a_way_out(screened: Screened) -> None:
    found = screened(encrypted_pdf(user="secret"), "manual.pdf")
    assert outcome(found) == "reject:encrypted"
    assert "without one" in found.verdict.fix["en"]
    assert "不带密码" in found.verdict.fix["zh"]


def test_s14_glyph_codes_do_not_count_as_text(screened: Screened) -> None:
    found = screened(glyph_codes_over_a_picture_of_words(), "leaflet.pdf")
    assert outcome(found) == "accept"
    assert found.facts["text.source"] == "ocr"
    assert found.reading is not None
    assert "G21" not in found.reading.confident_text


def test_s15_recording_without_a_declared_length_is_measured(screened: Screened) -> None:
    samples, rate = media.speech_samples()
    seconds = len(samples) / rate
    at_16_khz = np.interp(np.arange(0, seconds, 1 / 16_000), np.arange(len(samples)) / rate, samples)
    found = screened(media.webm(at_16_khz), "note.webm")
    assert outcome(found) == "accept"
    assert "audio.declared_s" not in found.facts
    assert float(found.facts["audio.duration_s"]) == pytest.approx(seconds, abs=0.2)


@pytest.mark.parametrize(
    "samples", [media.silence(3.0), media.noise(3.0, peak_dbfs=-75.0)], ids=["zeros", "noise at -75 dBFS"]
)
def test_s16_silence_is_refused_before_anything_listens(screened: Screened, samples: np.ndarray) -> None:
    found = screened(media.wav(samples, coding="s24"), "note.wav")
    assert outcome(found) == "reject:silent"
    assert "text" not in found.timings_ms
