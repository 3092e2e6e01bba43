"""The builders of test media make what they say."""

from __future__ import annotations

import io

import av
import cv2
import numpy as np
import pikepdf
import pillow_heif
import pytest
import zxingcpp
from PIL import Image, ImageOps

from tests import media

pillow_heif.register_heif_opener()


@pytest.mark.parametrize(
    ("data", "format_", "mode", "frames"),
    [
        pytest.param(media.label_photo(long_side=640), "JPEG", "RGB", 1, id="label_photo"),
        pytest.param(media.cmyk_jpeg(long_side=320), "JPEG", "CMYK", 1, id="cmyk_jpeg"),
        pytest.param(media.grey_jpeg(long_side=320), "JPEG", "L", 1, id="grey_jpeg"),
        pytest.param(media.png(long_side=320), "PNG", "RGB", 1, id="png"),
        pytest.param(media.png16(), "PNG", "I;16", 1, id="png16"),
        pytest.param(media.palette_png(long_side=320), "PNG", "P", 1, id="palette_png"),
        pytest.param(media.alpha_text(), "PNG", "RGBA", 1, id="alpha_text"),
        pytest.param(media.webp(long_side=320), "WEBP", "RGB", 1, id="webp"),
        pytest.param(media.avif(long_side=320), "AVIF", "RGB", 1, id="avif"),
        pytest.param(media.heic(long_side=320), "HEIF", "RGB", 1, id="heic"),
        pytest.param(media.bmp(long_side=320), "BMP", "RGB", 1, id="bmp"),
        pytest.param(media.tiff(pages=3, long_side=320), "TIFF", "RGB", 3, id="tiff"),
        pytest.param(media.animated_gif(), "GIF", "P", 4, id="animated_gif"),
        pytest.param(media.animated_webp(), "WEBP", "RGB", 4, id="animated_webp"),
        pytest.param(media.animated_png(), "PNG", "RGB", 4, id="animated_png"),
        pytest.param(media.gif_frames(201), "GIF", "L", 201, id="gif_frames"),
    ],
)
def test_a_picture_has_the_format_mode_and_frames_it_names(data: bytes, format_: str, mode: str, frames: int) -> None:
    with Image.open(io.BytesIO(data)) as picture:
        assert (picture.format, picture.mode, getattr(picture, "n_frames", 1)) == (format_, mode, frames)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_each_exif_orientation_undoes_to_the_same_upright_label(orientation: int) -> None:
    with Image.open(io.BytesIO(media.exif_rotated(orientation, long_side=400))) as stored:
        assert stored.getexif()[0x0112] == orientation
        assert (stored.width > stored.height) is (orientation >= 5)
        upright = np.asarray(ImageOps.exif_transpose(stored), np.int16)
    assert np.abs(upright - media.label_array(long_side=400)).mean() < 6


@pytest.mark.parametrize("long_side", [1600, 1200, 1000])
def test_the_barcode_of_the_label_reads_at_sizes_that_tests_use(long_side: int) -> None:
    picture = cv2.imdecode(np.frombuffer(media.label_photo(long_side=long_side), np.uint8), cv2.IMREAD_COLOR)
    assert [code.text for code in zxingcpp.read_barcodes(picture)] == [media.TEA_EAN]


@pytest.mark.parametrize(
    ("data", "megapixels"),
    [(media.png_bomb_header(), 900), (media.gif_bomb(), 4294), (media.webp_bomb(), 268)],
    ids=["png", "gif", "webp"],
)
def test_a_bomb_is_small_and_claims_much(data: bytes, megapixels: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", None)
    width, height = Image.open(io.BytesIO(data)).size
    assert len(data) < 120
    assert width * height // 1_000_000 == megapixels


@pytest.mark.parametrize(
    ("data", "codec", "seconds", "declares"),
    [
        *(pytest.param(media.wav(coding=coding), codec, 2.0, True, id=f"wav {coding}")
          for coding, codec in {"u8": "pcm_u8", "s16": "pcm_s16le", "s24": "pcm_s24le", "s32": "pcm_s32le",
                                "f32": "pcm_f32le", "f64": "pcm_f64le", "alaw": "pcm_alaw", "mulaw": "pcm_mulaw"}.items()),
        pytest.param(media.aiff(), "pcm_s16be", 2.0, True, id="aiff"),
        pytest.param(media.flac(), "flac", 2.0, True, id="flac"),
        pytest.param(media.mp3(), "mp3float", 2.0, True, id="mp3"),
        pytest.param(media.m4a(), "aac", 2.0, True, id="m4a"),
        pytest.param(media.ogg(), "vorbis", 2.0, True, id="ogg"),
        pytest.param(media.opus(), "opus", 2.0, True, id="opus"),
        pytest.param(media.webm(), "opus", 2.0, False, id="webm as a browser writes it"),
        pytest.param(media.webm(live=False), "opus", 2.0, True, id="webm"),
    ],
)  # fmt: skip
def test_a_recording_decodes_to_the_tone_it_was_made_of(
    data: bytes, codec: str, seconds: float, declares: bool
) -> None:
    with av.open(io.BytesIO(data)) as container:
        assert (container.duration is not None) is declares
        stream = container.streams.audio[0]
        assert stream.codec.name == codec
        resampler = av.AudioResampler("flt", "mono", 16_000)
        pieces = [piece.to_ndarray()[0] for frame in container.decode(stream) for piece in resampler.resample(frame)]
    sound = np.concatenate(pieces)
    assert sound.size / 16_000 == pytest.approx(seconds, abs=0.1)
    middle = sound[8_000:24_000]
    spectrum = np.abs(np.fft.rfft(middle))
    assert np.argmax(spectrum) == 440
    assert np.abs(middle).max() == pytest.approx(0.5, abs=0.06)


@pytest.mark.parametrize("revision", [3, 6])
def test_a_locked_pdf_wants_its_password(revision: int) -> None:
    data = media.pdf_user_password(revision=revision)
    with pytest.raises(pikepdf.PasswordError):
        pikepdf.open(io.BytesIO(data))
    with pikepdf.open(io.BytesIO(data), password="retail-2026") as pdf:
        assert revision == pdf.encryption.R


def test_permission_bits_alone_let_anyone_read() -> None:
    with pikepdf.open(io.BytesIO(media.pdf_owner_password())) as pdf:
        assert pdf.is_encrypted
        assert not pdf.allow.extract
        assert len(pdf.pages) == 2
