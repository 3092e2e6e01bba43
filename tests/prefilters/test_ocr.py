"""Reading pictures: verdicts over the samples, turned labels, no false text, and who reads what."""

from __future__ import annotations

import csv
import io
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image, ImageOps

from prefilters.limits import DecodeLimits
from prefilters.probes import ocr, ocr_rapid, ocr_tesseract
from prefilters.probes.ocr import EngineChoice, gate, gate_array, read, read_array
from prefilters.probes.page import looks_like_page, skew
from prefilters.probes.text import Depth, text_facts
from tests import media

Rgb = npt.NDArray[np.uint8]

ROOT = Path(__file__).parents[2]
SAMPLES = Path(os.environ.get("SLUICEGATE_SAMPLES", ROOT.parent / "shared" / "samples"))
LIMITS = DecodeLimits()
MIN_TOKENS = 4


def pixels(encoded: bytes) -> Rgb:
    picture = ImageOps.exif_transpose(Image.open(io.BytesIO(encoded)))
    if picture.mode in ("RGBA", "LA", "P"):
        ground = Image.new("RGBA", picture.size, "white")
        ground.alpha_composite(picture.convert("RGBA"))
        picture = ground
    return np.array(picture.convert("RGB"))


def saved(folder: Path, rgb: Rgb) -> Path:
    path = folder / "picture.png"
    Image.fromarray(rgb).save(path)
    return path


def turned(rgb: Rgb, degrees: int) -> Rgb:
    """Turned clockwise by Pillow, with the corners filled as the wall behind."""
    picture = Image.fromarray(rgb).rotate(-degrees, Image.Resampling.BICUBIC, expand=True, fillcolor=(190, 185, 180))
    return np.array(picture)


@cache
def label() -> Rgb:
    return media.label_array(long_side=1200)


@cache
def chinese_label() -> Rgb:
    return pixels(media.chinese_label_photo(long_side=1200))


@cache
def scan() -> Rgb:
    return pixels(media.scan())


def sample_rows() -> list[tuple[str, str]]:
    if not (SAMPLES / "SOURCES.tsv").is_file():
        return []
    with (SAMPLES / "SOURCES.tsv").open(encoding="utf-8", newline="") as table:
        rows = list(csv.DictReader(table, delimiter="\t"))
    return [
        (row["file"], row["expected"])
        for row in rows
        if row["file"].startswith("img_") and row["expected"] in ("accept", "text_only")
    ]


@pytest.mark.parametrize(("name", "expected"), sample_rows())
def test_the_gate_agrees_with_the_verdict_of_each_sample(name: str, expected: str) -> None:
    tokens = gate_array(pixels((SAMPLES / name).read_bytes()), min_tokens=MIN_TOKENS).tokens
    assert (tokens >= MIN_TOKENS) is (expected == "accept")


@pytest.mark.parametrize("degrees", [0, 7, -7, 15, -15, 90, 180, 270])
def test_a_turned_label_passes_the_gate_as_the_upright_one_does(degrees: int) -> None:
    assert gate_array(turned(label(), degrees), min_tokens=MIN_TOKENS).tokens >= MIN_TOKENS


@pytest.mark.parametrize("degrees", [-15, 90, 180])
def test_a_turned_label_is_read_as_the_upright_one_is(degrees: int) -> None:
    reading = read_array(turned(label(), degrees))
    assert {"HOJA", "VERDE", "TEA", "SINCE", "Ingredients:"} <= {word.text.rstrip("·•") for word in reading.words}


def test_a_read_tells_how_the_text_stands() -> None:
    upright = read_array(label()).rotation
    assert (read_array(turned(label(), 90)).rotation - upright) % 360 == pytest.approx(90, abs=3)


@pytest.mark.parametrize("degrees", [0, 12, 90, 180])
def test_chinese_print_passes_the_gate_by_its_characters(degrees: int) -> None:
    reading = gate_array(turned(chinese_label(), degrees), min_tokens=MIN_TOKENS)
    assert reading.tokens >= MIN_TOKENS
    assert text_facts(reading)["text.script"] == "han"


def test_chinese_print_is_read_in_order() -> None:
    text = read_array(chinese_label()).confident_text
    assert "茉莉花茶" in text
    assert text.index("茉莉花茶") < text.index("福建福州")


def noise(seed: int, cell: int) -> Rgb:
    small = np.random.default_rng(seed).integers(0, 256, (480 // cell, 640 // cell, 3), dtype=np.uint8)
    return np.asarray(cv2.resize(small, (640, 480), interpolation=cv2.INTER_LINEAR), np.uint8)


def circles() -> Rgb:
    canvas = np.full((480, 640, 3), 230, np.uint8)
    random = np.random.default_rng(5)
    for _ in range(40):
        x, y, radius, tone = map(int, random.integers((0, 0, 5, 0), (640, 480, 60, 255)))
        cv2.circle(canvas, (x, y), radius, (tone, 255 - tone, 90), 2)
    return canvas


def stripes() -> Rgb:
    canvas = np.zeros((480, 640, 3), np.uint8)
    canvas[:, ::8] = canvas[:, 1::8] = canvas[:, 2::8] = 255
    return canvas


TEXTLESS: dict[str, Callable[[], Rgb]] = {
    "black": lambda: np.zeros((480, 640, 3), np.uint8),
    "white": lambda: np.full((480, 640, 3), 255, np.uint8),
    "fine noise": lambda: noise(1, 1),
    "coarse noise": lambda: noise(2, 10),
    "circles": circles,
    "stripes": stripes,
    "plain photo": lambda: pixels(media.plain_photo(640, 480)),
    "packshot": lambda: pixels(media.packshot()),
    "out of focus": lambda: pixels(media.blurred()),
    "tiny": lambda: np.full((64, 64, 3), 200, np.uint8),
    "thread": lambda: np.full((8, 800, 3), 200, np.uint8),
}


@pytest.mark.parametrize("name", TEXTLESS)
def test_no_text_is_found_where_there_is_none(name: str) -> None:
    assert gate_array(TEXTLESS[name](), min_tokens=MIN_TOKENS).tokens == 0


@pytest.mark.parametrize("name", ["fine noise", "circles", "packshot", "out of focus"])
def test_a_full_read_finds_no_text_there_either(name: str) -> None:
    assert read_array(TEXTLESS[name]()).tokens == 0


def product_page() -> Rgb:
    """A long picture as shops paste them together: 600 x 4200, print of 26 px between pictures."""
    page = np.full((4200, 600, 3), 240, np.uint8)
    for row in range(7):
        cv2.circle(page, (300, 350 + 600 * row), 180, (200 - 20 * row, 120, 60 + 20 * row), -1)
        cv2.putText(
            page, f"Feature {row} stainless steel", (60, 100 + 600 * row), cv2.FONT_HERSHEY_SIMPLEX, 1, (40,) * 3, 2
        )
    return page


@pytest.mark.parametrize("quarters", [0, 1], ids=["tall", "wide"])
def test_a_long_picture_is_looked_at_in_pieces(quarters: int, tmp_path: Path) -> None:
    path = saved(tmp_path, np.rot90(product_page(), quarters))
    assert gate(path, LIMITS, min_tokens=MIN_TOKENS).tokens >= MIN_TOKENS
    lines = read(path, LIMITS).confident_text.splitlines()
    assert [line for line in lines if "stainless" in line] == [f"Feature {row} stainless steel" for row in range(7)]


def test_a_gate_stops_before_it_has_read_everything() -> None:
    looked, whole = gate_array(label(), min_tokens=MIN_TOKENS), read_array(label())
    assert looked.depth is Depth.GATE
    assert whole.depth is Depth.READ
    assert MIN_TOKENS <= looked.tokens < whole.tokens


def test_the_same_picture_gives_the_same_reading() -> None:
    assert gate_array(label(), min_tokens=MIN_TOKENS) == gate_array(label(), min_tokens=MIN_TOKENS)


def test_text_seen_but_not_legible_is_told_apart_from_no_text() -> None:
    page = np.full((400, 800, 3), 240, np.uint8)
    for row in range(4):
        cv2.putText(page, "illegible small print", (40, 80 + 90 * row), cv2.FONT_HERSHEY_SIMPLEX, 1.6, (30, 30, 30), 3)
    smeared = np.asarray(cv2.GaussianBlur(page, (0, 0), sigmaX=14, sigmaY=4), np.uint8)
    reading = gate_array(smeared, min_tokens=MIN_TOKENS)
    assert reading.tokens == 0
    assert reading.unread > 0


def test_places_are_fractions_of_the_picture_and_lines_in_reading_order() -> None:
    words = read_array(label()).words
    assert all(0 <= x0 < x1 <= 1 and 0 <= y0 < y1 <= 1 for x0, y0, x1, y1 in (word.box for word in words))
    assert [word.line for word in words] == sorted(word.line for word in words)


def box_of(words: tuple[ocr_rapid.Word, ...], text: str) -> tuple[float, ...]:
    return next(word.box for word in words if word.text == text)


def test_a_region_gives_the_places_that_the_whole_picture_gives(tmp_path: Path) -> None:
    path = saved(tmp_path, label())
    whole = read(path, LIMITS)
    x0, y0, x1, y1 = box_of(whole.words, "HOJA")
    part = read(path, LIMITS, region=(max(0.0, x0 - 0.1), y0 - 0.03, 0.9, y1 + 0.05))
    assert box_of(part.words, "HOJA") == pytest.approx((x0, y0, x1, y1), abs=0.02)
    assert len(part.words) < len(whole.words)


@pytest.mark.parametrize("degrees", [90, 20])
def test_turning_before_reading_gives_the_same_places_and_turn(degrees: int, tmp_path: Path) -> None:
    path = saved(tmp_path, label())
    whole, other = read(path, LIMITS), read(path, LIMITS, rotate=degrees)
    assert box_of(other.words, "HOJA") == pytest.approx(box_of(whole.words, "HOJA"), abs=0.05)
    assert (other.rotation - whole.rotation + 180) % 360 - 180 == pytest.approx(0, abs=3)


def test_contrast_brings_out_faint_print(tmp_path: Path) -> None:
    page = np.full((300, 700, 3), 131, np.uint8)
    cv2.putText(page, "faint lettering", (40, 170), cv2.FONT_HERSHEY_SIMPLEX, 2.0, (128, 128, 128), 4)
    path = saved(tmp_path, page)
    assert "lettering" not in read(path, LIMITS, engine=EngineChoice.RAPIDOCR).confident_text
    assert "lettering" in read(path, LIMITS, contrast=10, engine=EngineChoice.RAPIDOCR).confident_text


def test_threshold_makes_black_and_white_before_reading(tmp_path: Path) -> None:
    path = saved(tmp_path, pixels(media.text_picture("Organic green tea")))
    assert "green" in read(path, LIMITS, threshold=128).confident_text
    assert read(path, LIMITS, threshold=0).words == ()


@pytest.mark.parametrize(
    "options",
    [
        {"region": (0.5, 0.0, 0.5, 1.0)},
        {"region": (0.0, 0.0, 1.2, 1.0)},
        {"contrast": 0.0},
        {"contrast": 11.0},
        {"contrast": float("nan")},
        {"threshold": 256},
        {"threshold": -1},
    ],
    ids=str,
)
def test_options_out_of_range_are_refused(options: dict[str, object], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must be"):
        read(saved(tmp_path, label()), LIMITS, **options)  # type: ignore[arg-type]


def test_a_gate_on_a_file_sees_the_upright_picture(tmp_path: Path) -> None:
    path = tmp_path / "label.jpg"
    path.write_bytes(media.exif_rotated(6))
    assert gate(path, LIMITS, min_tokens=MIN_TOKENS).rotation == pytest.approx(
        gate_array(label(), min_tokens=MIN_TOKENS).rotation, abs=5
    )


# --- pages ------------------------------------------------------------------------------------------------------------


def test_a_scan_looks_like_a_page_and_photos_do_not() -> None:
    assert looks_like_page(scan())
    photos = [label(), chinese_label(), pixels(media.packshot()), pixels(media.plain_photo(640, 480)), circles()]
    assert not any(map(looks_like_page, photos))


@pytest.mark.parametrize("degrees", [-14, -6, 0, 5, 13])
def test_the_skew_of_a_page_is_measured(degrees: int) -> None:
    straight = pixels(media.scan(skew_deg=0.0))
    picture = Image.fromarray(straight).rotate(-degrees, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    assert skew(np.array(picture)) == pytest.approx(degrees, abs=1)


def test_pages_are_read_by_tesseract_where_its_data_is_installed() -> None:
    expected = "tesserocr" if ocr_tesseract.data_folder() else "rapidocr"
    reading = read_array(scan())
    assert reading.engine == expected
    assert "TECHNICAL DATA SHEET" in reading.confident_text


def test_pages_are_read_by_rapidocr_where_no_language_data_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TESSDATA_PREFIX", raising=False)
    monkeypatch.setattr(ocr_tesseract, "DATA_FOLDERS", ())
    reading = read_array(scan())
    assert reading.engine == "rapidocr"
    assert "TECHNICAL DATA SHEET" in reading.confident_text


def test_damaged_language_data_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "eng.traineddata").write_bytes(b"no model at all" * 100)
    asked = "from prefilters.probes.ocr_tesseract import installed_engine; print(installed_engine())"
    environment = {**os.environ, "TESSDATA_PREFIX": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", asked], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout == "None\n"


@pytest.mark.parametrize("degrees", [12, 180])
def test_a_turned_page_is_read_as_the_straight_one_is(degrees: int) -> None:
    picture = Image.fromarray(scan()).rotate(-degrees, Image.Resampling.BICUBIC, expand=True, fillcolor="white")
    assert "TECHNICAL DATA SHEET" in read_array(np.array(picture)).confident_text


def test_a_gate_on_a_page_stops_early() -> None:
    assert MIN_TOKENS <= gate_array(scan(), min_tokens=MIN_TOKENS).tokens < 40


TABLE = "\n".join(
    [
        "level\tpage_num\tblock_num\tpar_num\tline_num\tword_num\tleft\ttop\twidth\theight\tconf\ttext",
        "4\t1\t1\t1\t1\t0\t10\t10\t300\t20\t-1\t",
        "5\t1\t1\t1\t1\t1\t10\t10\t80\t20\t96.1\tOrganic",
        "5\t1\t1\t1\t1\t2\t100\t10\t50\t20\t31.5\tt~a",
        "5\t1\t1\t1\t2\t1\t10\t50\t20\t20\t95.0\t净",
        "5\t1\t1\t1\t2\t2\t32\t50\t40\t20\t90.0\t含量",
    ]
)


def test_tesseracts_table_becomes_words_lines_and_places() -> None:
    reading = ocr_tesseract._reading(TABLE, (400, 100), "tesserocr")
    assert [word.text for word in reading.words] == ["Organic", "t~a", "净含量"]
    assert [word.line for word in reading.words] == [0, 0, 1]
    assert reading.words[0].box == (0.025, 0.1, 0.225, 0.3)
    assert reading.unread == 1


@pytest.mark.parametrize(
    "engine", [ocr_rapid.RapidOcr(), ocr_tesseract.TesserOcr(), ocr_tesseract.PyTesseract()], ids=lambda each: each.name
)
def test_each_installed_engine_keeps_the_protocol(
    engine: ocr.OcrEngine,
) -> None:
    if engine.name != "rapidocr" and ocr_tesseract.data_folder() is None:
        with pytest.raises(ocr_tesseract.NoLanguageData):
            engine.read(scan())
        return
    looked, whole = engine.gate(scan()[:800], min_tokens=MIN_TOKENS), engine.read(scan()[:800])
    assert looked.engine == whole.engine == engine.name
    assert looked.tokens >= MIN_TOKENS
    assert "Specification" in whole.confident_text


# --- processes --------------------------------------------------------------------------------------------------------

OFFLINE = """
import socket, sys
def refuse(*args): raise AssertionError("a connection was opened")
socket.socket.connect = refuse
import os
import numpy as np
from prefilters.probes import ocr
ocr.preload()
blank = np.full((200, 200, 3), 255, np.uint8)
if os.fork() == 0:
    print(len(os.listdir("/proc/self/task")), ocr.gate_array(blank, min_tokens=4).tokens, flush=True)
    os._exit(0)
os.wait()
print(len(os.listdir("/proc/self/task")), ocr.gate_array(blank, min_tokens=4).tokens)
"""


def test_a_process_reads_quietly_offline_on_one_thread_before_and_after_a_fork_and_writes_nothing(
    tmp_path: Path,
) -> None:
    packages = Path(ocr_rapid.cv2.__file__).parents[1] / "rapidocr"
    before = sorted(path for path in packages.rglob("*") if path.suffix != ".pyc")
    environment = {
        **os.environ,
        "HOME": str(tmp_path),
        "TMPDIR": str(tmp_path),
        "PYTHONDONTWRITEBYTECODE": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", OFFLINE], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("1 0\n1 0\n", "", 0)
    assert list(tmp_path.iterdir()) == []
    assert sorted(path for path in packages.rglob("*") if path.suffix != ".pyc") == before
