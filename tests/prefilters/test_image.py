"""Headers without decoding, pixels as a person sees them, and what of a broken file is noticed."""

from __future__ import annotations

import contextlib
import io
import random
import struct
import subprocess
import sys
import time
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image, ImageCms

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import FactValue, check_facts
from prefilters.limits import DecodeLimits
from prefilters.media import Media, sniff
from prefilters.pool import DecoderPool
from prefilters.probes import tasks
from prefilters.probes.image import header, load_upright, model_image, pixels
from prefilters.probes.image_header import read_header
from prefilters.probes.sharpness import sharpness
from tests import media

LIMITS = DecodeLimits()
LANDSCAPE = (640, 480)


@pytest.fixture
def stored(tmp_path: Path) -> Callable[[bytes], tuple[Path, Media]]:
    def store(content: bytes) -> tuple[Path, Media]:
        path = tmp_path / "blob"
        path.write_bytes(content)
        return path, sniff(content[:4096])

    return store


Stored = Callable[[bytes], tuple[Path, Media]]


def saved(image: Image.Image, format_: str, **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, format_, **options)
    return out.getvalue()


def photo(size: tuple[int, int] = LANDSCAPE, mode: str = "RGB") -> Image.Image:
    return Image.open(io.BytesIO(media.plain_photo(*size))).convert(mode)


# --- header ---

HEADERS: dict[str, tuple[Callable[[], bytes], dict[str, FactValue]]] = {
    "jpeg": (lambda: saved(photo(), "JPEG"), {"image.width": 640, "image.height": 480, "image.mode": "RGB"}),
    "grey jpeg": (lambda: saved(photo(mode="L"), "JPEG"), {"image.mode": "L", "image.pixels": 307_200}),
    "cmyk jpeg": (lambda: saved(photo(mode="CMYK"), "JPEG"), {"image.mode": "CMYK"}),
    "progressive jpeg": (lambda: saved(photo(), "JPEG", progressive=True), {"image.width": 640}),
    "turned jpeg": (lambda: media.exif_rotated(6), {"image.orientation": 6, "image.width": 675, "image.height": 900}),
    "png": (lambda: saved(photo(), "PNG"), {"image.width": 640, "image.mode": "RGB", "image.animated": False}),
    "palette png": (media.palette_png, {"image.mode": "P"}),
    "16-bit png": (media.png16, {"image.mode": "I;16"}),
    "alpha png": (media.alpha_text, {"image.mode": "RGBA"}),
    "animated png": (lambda: media.animated_png(frames=3), {"image.frames": 3, "image.animated": True}),
    "gif": (lambda: media.gif_frames(1), {"image.width": 128, "image.frames": 1, "image.animated": False}),
    "animated gif": (lambda: media.animated_gif(frames=4), {"image.frames": 4, "image.animated": True}),
    "webp": (lambda: saved(photo(), "WEBP"), {"image.width": 640, "image.height": 480}),
    "lossless webp": (lambda: saved(photo(), "WEBP", lossless=True), {"image.width": 640, "image.height": 480}),
    "alpha webp": (lambda: saved(photo(mode="RGBA"), "WEBP"), {"image.width": 640, "image.height": 480}),
    "animated webp": (lambda: media.animated_webp(frames=3), {"image.frames": 3, "image.animated": True}),
    "bmp": (lambda: saved(photo(), "BMP"), {"image.width": 640, "image.height": 480, "image.mode": "RGB"}),
    "tiff": (lambda: saved(photo(), "TIFF"), {"image.width": 640, "image.height": 480, "image.mode": "RGB"}),
    "pages in a tiff": (lambda: media.tiff(pages=3), {"image.frames": 3, "image.animated": True}),
    "cmyk tiff": (lambda: saved(photo(mode="CMYK"), "TIFF"), {"image.mode": "CMYK"}),
    "big tiff": (lambda: saved(photo(), "TIFF", big_tiff=True), {"image.width": 640, "image.height": 480}),
    "avif": (lambda: saved(photo(), "AVIF", speed=10), {"image.width": 640, "image.height": 480}),
    "heic": (media.heic, {"image.width": 480, "image.height": 640}),
}


@pytest.mark.parametrize("name", HEADERS)
def test_header_says_what_the_decoder_finds(stored: Stored, name: str) -> None:
    build, expected = HEADERS[name]
    path, found = stored(build())
    facts = header(path, found, LIMITS)
    check_facts(facts)
    assert expected.items() <= facts.items()
    upright = load_upright(path, LIMITS)
    assert (facts["image.height"], facts["image.width"]) == upright.shape[:2]


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format_", ["JPEG", "PNG", "WEBP", "TIFF", "AVIF"])
def test_orientation_is_applied_in_header_and_pixels(stored: Stored, format_: str, orientation: int) -> None:
    picture = np.full((480, 640, 3), 255, np.uint8)
    picture[:160, :200] = (255, 0, 0)
    exif = Image.Exif()
    exif[0x0112] = orientation
    options = {"speed": 10} if format_ == "AVIF" else {"quality": 95} if format_ != "PNG" else {}
    path, found = stored(saved(Image.fromarray(picture), format_, exif=exif.tobytes(), **options))
    facts = header(path, found, LIMITS)
    upright = load_upright(path, LIMITS)
    assert facts["image.orientation"] == orientation
    assert (facts["image.height"], facts["image.width"]) == upright.shape[:2]
    corner = {1: (0, 0), 2: (0, -1), 3: (-1, -1), 4: (-1, 0), 5: (0, 0), 6: (0, -1), 7: (-1, -1), 8: (-1, 0)}
    row, column = corner[orientation]
    red = upright[row, column].astype(int)
    assert red[0] > 180, red
    assert red[1] < 90, red


def test_measuring_a_header_loads_no_decoder() -> None:
    code = (
        "import sys, prefilters, prefilters.probes.image_header\n"
        "print(sorted({'PIL', 'cv2', 'numpy', 'av', 'pypdfium2', 'onnxruntime'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


BOMBS: dict[str, Callable[[], bytes]] = {
    "png": media.png_bomb_header,
    "gif": media.gif_bomb,
    "webp": media.webp_bomb,
    "bmp": lambda: b"BM" + bytes(12) + struct.pack("<IiiHHIIiiII", 40, 60_000, -60_000, 1, 24, 0, 0, 0, 0, 0, 0),
    "tiff": lambda: struct.pack("<2sHIHHHIIHHIII", b"II", 42, 8, 2, 256, 4, 1, 99_999, 257, 4, 1, 99_999, 0),
    "jpeg": lambda: (
        b"\xff\xd8\xff\xc0\x00\x11\x08" + struct.pack(">HH", 65_000, 65_000) + b"\x03" + bytes(9) + b"\xff\xd9"
    ),
}


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_known_by_its_header_within_milliseconds(stored: Stored, name: str) -> None:
    path, found = stored(BOMBS[name]())
    assert found.format == name
    tracemalloc.start()
    started = time.process_time()
    facts = header(path, found, LIMITS)
    spent_s = time.process_time() - started
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert int(facts["image.pixels"]) > LIMITS.max_pixels
    assert spent_s < 0.05
    assert peak < 2_000_000


@pytest.mark.parametrize("name", BOMBS)
def test_bomb_is_not_decoded_even_when_asked_to(stored: Stored, name: str) -> None:
    path, found = stored(BOMBS[name]())
    with pytest.raises(ProbeError) as caught:
        pixels(path, found, LIMITS)
    assert caught.value.status is DecodeStatus.RESOURCE_LIMIT


def test_gif_frame_beyond_its_screen_counts_with_its_full_size(stored: Stored) -> None:
    gif = bytearray(media.gif_bomb())
    gif[6:10] = struct.pack("<HH", 100, 100)
    path, found = stored(bytes(gif))
    assert header(path, found, LIMITS)["image.width"] == 65_535


SIZELESS = {
    "png": lambda: media.png_header(0, 100),
    "jpeg": lambda: b"\xff\xd8\xff\xc0\x00\x11\x08\x00\x00\x00\x20\x03" + bytes(9) + b"\xff\xd9",
    "bmp": lambda: b"BM" + bytes(12) + struct.pack("<IiiHHIIiiII", 40, -5, 7, 1, 24, 0, 0, 0, 0, 0, 0),
    "tiff": lambda: b"II*\0\x08\0\0\0\0\0\0\0\0\0",
}


@pytest.mark.parametrize("name", SIZELESS)
def test_picture_without_a_size_is_corrupt(stored: Stored, name: str) -> None:
    path, found = stored(SIZELESS[name]())
    with pytest.raises(ProbeError) as caught:
        header(path, found, LIMITS)
    assert caught.value.status is DecodeStatus.CORRUPT


def endless_gif(sub_block: bytes) -> bytes:
    screen = b"GIF89a" + struct.pack("<HHBBB", 200, 200, 0, 0, 0)
    return screen + b"," + struct.pack("<HHHHB", 0, 0, 200, 200, 0) + b"\x02" + sub_block * 2_000_000 + b"\0;"


HOSTILE_HEADERS: dict[str, Callable[[], bytes]] = {
    "gif of one-byte sub-blocks": lambda: endless_gif(b"\x01\x00"),
    "jpeg of empty segments": lambda: b"\xff\xd8" + b"\xff\xe5\x00\x02" * 2_000_000,
    "jpeg of fill bytes": lambda: b"\xff\xd8" + b"\xff" * 8_000_000,
    "png of empty chunks": lambda: media.png_header(200, 200)[:33] + (b"\0\0\0\0teXt" + bytes(4)) * 500_000,
    "webp of empty chunks": lambda: (
        b"RIFF\xff\xff\xff\x7fWEBPVP8X\x0a\0\0\0\x02\0\0\0\xc7\0\0\xc7\0\0" + b"ANMX\0\0\0\0" * 500_000
    ),
    "tiff whose directories form a ring": lambda: (
        b"II*\0\x08\0\0\0\x01\0" + struct.pack("<HHII", 256, 4, 1, 99) + b"\x08\0\0\0"
    ),
    "heic of empty boxes": lambda: b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + b"\0\0\0\x08free" * 500_000,
    "heic of one box that ends the world": lambda: (
        b"\0\0\0\x18ftypheic\0\0\0\0heicmif1" + b"\0\0\0\x01mdat" + b"\xff" * 8
    ),
    "big tiff pointing nowhere": lambda: b"II+\0\x08\0\0\0" + b"\xff" * 8,
}


@pytest.mark.parametrize("name", HOSTILE_HEADERS)
def test_hostile_header_costs_milliseconds_and_ends_as_facts_or_probe_error(stored: Stored, name: str) -> None:
    path, found = stored(HOSTILE_HEADERS[name]())
    started = time.process_time()
    with contextlib.suppress(ProbeError):
        check_facts(header(path, found, LIMITS))
    assert time.process_time() - started < 0.1  # 5 to 10 ms on an idle machine


@pytest.mark.parametrize("name", HEADERS)
def test_flipped_and_cut_headers_end_as_facts_or_probe_error(name: str) -> None:
    whole = HEADERS[name][0]()
    image_format = sniff(whole[:4096]).format
    dice = random.Random(7)
    for _ in range(150):
        broken = bytearray(whole[: dice.randrange(12, len(whole))])
        for _ in range(dice.randrange(0, 4)):
            broken[dice.randrange(min(len(broken), 200))] = dice.randrange(256)
        try:
            read_header(io.BytesIO(broken), image_format, most_frames=201)
        except ProbeError:
            continue


def test_frames_are_counted_no_further_than_the_limit(stored: Stored) -> None:
    path, found = stored(media.gif_frames(30))
    assert header(path, found, DecodeLimits(max_frames=10))["image.frames"] == 11


# --- pixels ---


def test_jpeg_without_its_end_marker_is_near_complete(stored: Stored) -> None:
    for build in (media.missing_end_marker(), media.progressive_jpeg()[:-2]):
        facts = pixels(*stored(build), LIMITS)
        check_facts(facts)
        assert facts["image.near_complete"] is True
    assert pixels(*stored(media.label_photo(long_side=900)), LIMITS)["image.near_complete"] is False


def test_png_without_its_end_chunk_is_near_complete(stored: Stored) -> None:
    assert pixels(*stored(media.png(long_side=400)[:-12]), LIMITS)["image.near_complete"] is True


@pytest.mark.parametrize("lost", [3, 4, 20, 1_000])
@pytest.mark.parametrize("build", [media.label_photo, media.progressive_jpeg], ids=["baseline", "progressive"])
def test_jpeg_that_lacks_data_is_truncated(stored: Stored, build: Callable[..., bytes], lost: int) -> None:
    with pytest.raises(ProbeError) as caught:
        pixels(*stored(build(long_side=400)[:-lost]), LIMITS)
    assert caught.value.status is DecodeStatus.TRUNCATED


CUT: dict[str, Callable[[], bytes]] = {
    "jpeg": lambda: saved(photo(), "JPEG"),
    "png": lambda: saved(photo(), "PNG"),
    "webp": lambda: saved(photo(), "WEBP"),
    "gif": lambda: saved(photo(), "GIF"),
    "bmp": lambda: saved(photo(), "BMP"),
    "tiff": lambda: saved(photo(), "TIFF"),
    "avif": lambda: saved(photo(), "AVIF", speed=10),
    "heic": media.heic,
}


@pytest.mark.parametrize("keep", [0.9, 0.5])
@pytest.mark.parametrize("name", CUT)
def test_cut_picture_is_truncated(stored: Stored, name: str, keep: float) -> None:
    whole = CUT[name]()
    path, found = stored(whole[: int(len(whole) * keep)])
    with pytest.raises(ProbeError) as caught:
        pixels(path, found, LIMITS)
    assert caught.value.status in (DecodeStatus.TRUNCATED, DecodeStatus.CORRUPT)
    assert name == "tiff" or caught.value.status is DecodeStatus.TRUNCATED


def test_png_with_a_wrong_checksum_is_corrupt(stored: Stored) -> None:
    with pytest.raises(ProbeError) as caught:
        pixels(*stored(media.damaged_png()), LIMITS)
    assert caught.value.status is DecodeStatus.CORRUPT


def test_other_format_behind_the_first_bytes_is_not_tried(stored: Stored) -> None:
    gif = media.gif_frames(1)
    polyglot = b"\xff\xd8\xff\xe0" + gif
    with pytest.raises(ProbeError):
        pixels(*stored(polyglot), LIMITS)


def test_white_packshot_is_not_called_blurry(stored: Stored) -> None:
    facts = pixels(*stored(media.packshot()), LIMITS)
    assert float(facts["image.sharpness"]) >= 0.45
    assert facts["image.blank"] is False


def test_blur_lowers_sharpness_at_any_size(stored: Stored) -> None:
    for side in (300, 900, 2400):
        sharp = media.label_array(long_side=side)
        blurred = cv2.GaussianBlur(sharp, (0, 0), 6 * side / 900)
        measured = []
        for picture in (sharp, blurred):
            facts = pixels(*stored(saved(Image.fromarray(picture), "JPEG", quality=92)), LIMITS)
            measured.append(float(facts["image.sharpness"]))
        assert measured[0] > 0.45, side
        assert measured[1] < 0.36, side


def test_motion_along_one_axis_is_blur() -> None:
    grey = cv2.cvtColor(media.label_array(long_side=500), cv2.COLOR_RGB2GRAY)
    still, moved = sharpness(grey), sharpness(np.asarray(cv2.blur(grey, (13, 1))))
    assert still is not None
    assert moved is not None
    assert moved < 0.36 < still


def test_even_tone_is_blank_and_featureless_but_not_blurry(stored: Stored) -> None:
    facts = pixels(*stored(media.flat_colour()), LIMITS)
    assert facts["image.blank"] is True
    assert facts["image.featureless"] is True
    assert "image.sharpness" not in facts


def test_tone_facts_tell_dark_from_light(stored: Stored) -> None:
    dark = pixels(*stored(saved(photo().point(lambda level: level // 12), "PNG")), LIMITS)
    light = pixels(*stored(saved(photo().point(lambda level: 243 + level // 24), "PNG")), LIMITS)
    assert float(dark["image.brightness"]) < 0.15 < 0.9 < float(light["image.brightness"])
    assert float(dark["image.dark_share"]) > 0.9
    assert float(light["image.light_share"]) > 0.5


def test_perceptual_hash_survives_scaling_and_compression(stored: Stored) -> None:
    whole = Image.open(io.BytesIO(media.label_photo()))
    small = saved(whole.resize((whole.width // 3, whole.height // 3)), "JPEG", quality=60)
    hashes = [int(str(pixels(*stored(data), LIMITS)["image.phash"]), 16) for data in (media.label_photo(), small)]
    other = int(str(pixels(*stored(media.packshot()), LIMITS)["image.phash"]), 16)
    assert (hashes[0] ^ hashes[1]).bit_count() <= 6
    assert (hashes[0] ^ other).bit_count() > 12


def test_facts_of_all_shapes_are_in_the_table(stored: Stored) -> None:
    for build, _ in HEADERS.values():
        path, found = stored(build())
        check_facts(pixels(path, found, LIMITS))


# --- as a person sees it ---


def test_black_text_on_transparency_stays_readable(stored: Stored) -> None:
    rgb = load_upright(stored(media.alpha_text())[0], LIMITS)
    assert rgb.mean() > 180
    assert rgb.min() < 30


def test_light_text_on_transparency_is_put_on_dark(stored: Stored) -> None:
    rgb = load_upright(stored(media.alpha_text(light=True))[0], LIMITS)
    assert rgb.mean() < 80
    assert rgb.max() > 230


def test_sixteen_bit_grey_is_scaled_and_not_clipped(stored: Stored) -> None:
    rgb = load_upright(stored(media.png16())[0], LIMITS)
    assert int(rgb.max()) - int(rgb.min()) > 120
    assert rgb.min() < 60


def test_twelve_bits_in_a_sixteen_bit_file_fill_the_range(stored: Stored) -> None:
    ramp = np.tile(np.linspace(0, 4095, 300).astype(np.uint16), (200, 1))
    rgb = load_upright(stored(saved(Image.fromarray(ramp), "PNG"))[0], LIMITS)
    assert rgb.max() > 250


def test_white_paper_in_cmyk_stays_white(stored: Stored) -> None:
    page = Image.new("RGB", (600, 400), "white")
    page.paste("black", (100, 150, 500, 200))
    rgb = load_upright(stored(saved(page.convert("CMYK"), "JPEG"))[0], LIMITS)
    assert rgb.mean() > 200


def test_icc_profile_is_applied_and_a_broken_one_ignored(stored: Stored) -> None:
    linear = ImageCms.ImageCmsProfile(ImageCms.createProfile("XYZ")).tobytes()
    grey = Image.new("RGB", (300, 200), (100, 150, 200))
    for profile in (b"not a profile", linear[:100]):
        rgb = load_upright(stored(saved(grey, "PNG", icc_profile=profile))[0], LIMITS)
        assert tuple(rgb[0, 0]) == (100, 150, 200)
    srgb = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    rgb = load_upright(stored(saved(grey, "PNG", icc_profile=srgb))[0], LIMITS)
    assert np.abs(rgb[0, 0].astype(int) - (100, 150, 200)).max() <= 2


def test_long_side_is_bounded_by_averaging(stored: Stored) -> None:
    path, _ = stored(media.high_resolution(2000, 1500))
    assert load_upright(path, LIMITS, max_side=500).shape == (375, 500, 3)
    assert load_upright(path, LIMITS).shape == (1500, 2000, 3)


def test_text_file_is_no_picture(stored: Stored) -> None:
    with pytest.raises(ProbeError):
        load_upright(stored(b"hello")[0], LIMITS)


def test_models_picture_carries_no_exif_and_no_place(stored: Stored) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    exif[0x010F] = "Camera of a private person"
    exif.get_ifd(0x8825)[1] = "N"
    path, _ = stored(saved(photo(), "JPEG", exif=exif, comment=b"secret"))
    rebuilt = model_image(path, LIMITS, max_side=320)
    image = Image.open(io.BytesIO(rebuilt))
    assert image.size == (240, 320)
    assert not image.getexif()
    assert b"private" not in rebuilt
    assert b"secret" not in rebuilt


def test_phones_multi_picture_jpeg_is_reduced_while_it_is_decoded(stored: Stored) -> None:
    first = Image.open(io.BytesIO(media.high_resolution(2000, 1500)))
    multi = saved(first, "MPO", save_all=True, append_images=[first.resize((200, 150))])
    path, found = stored(multi)
    assert found.format == "jpeg"
    assert header(path, found, LIMITS)["image.frames"] == 1
    assert load_upright(path, LIMITS, max_side=500).shape == (375, 500, 3)


def test_junk_behind_a_pictures_end_is_ignored(stored: Stored) -> None:
    facts = pixels(*stored(media.label_photo(long_side=900) + b"SEFT" * 1_000), LIMITS)
    assert facts["image.near_complete"] is False


def test_transparency_by_colour_key_is_seen(stored: Stored) -> None:
    picture = Image.new("RGB", (400, 300), (1, 2, 3))
    picture.paste((0, 0, 0), (100, 100, 300, 200))
    path, found = stored(saved(picture, "PNG", transparency=(1, 2, 3)))
    assert float(pixels(path, found, LIMITS)["image.brightness"]) > 0.7
    assert load_upright(path, LIMITS)[0, 0].tolist() == [255, 255, 255]


def test_largest_picture_allowed_fits_into_the_childs_memory(tmp_path: Path) -> None:
    packer = zlib.compressobj(1)
    row = bytes(1 + 4 * 7_000)
    packed = b"".join(packer.compress(row) for _ in range(7_000)) + packer.flush()
    chunks = ((b"IHDR", struct.pack(">IIBBBBB", 7_000, 7_000, 8, 6, 0, 0, 0)), (b"IDAT", packed), (b"IEND", b""))
    path = tmp_path / "large.png"
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + b"".join(
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
            for kind, body in chunks
        )
    )
    with DecoderPool(workers=1, limits=LIMITS) as pool:
        assert pool.run(shape_of_upright, path) == (7_000, 7_000, 3)
        assert pool.run(tasks.decode, path, sniff(path.read_bytes()[:4096]), LIMITS).facts["image.blank"] is True


def shape_of_upright(path: Path) -> tuple[int, ...]:
    return load_upright(path, LIMITS).shape
