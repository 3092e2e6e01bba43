"""The catalogue that the demo uploads: drawn the same each time, and each file good or bad in the way it should be."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import av
import cv2
import numpy as np
import pikepdf
import pypdfium2
import pytest
import zxingcpp
from PIL import Image

from examples import catalogue, photos, recordings


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("catalogue")
    catalogue.write_catalogue(place)
    return place


def pixels(path: Path) -> np.ndarray:
    return cv2.imdecode(np.frombuffer(path.read_bytes(), np.uint8), cv2.IMREAD_COLOR)


def test_the_same_bytes_are_drawn_again(folder: Path) -> None:
    drawn_again = {name: draw() for name, draw in catalogue.FILES.items()}
    differing = [name for name, data in drawn_again.items() if (folder / name).read_bytes() != data]
    assert differing == []


def test_the_csv_lists_each_product_and_only_files_that_exist(folder: Path) -> None:
    with (folder / catalogue.CSV_NAME).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["sku"] for row in rows] == [product.sku for product in catalogue.PRODUCTS]
    listed = [name for row in rows for name in row["files"].split(";")]
    assert all((folder / name).stat().st_size > 0 for name in listed)
    assert rows[1]["title"] == "云岭茶庄 茉莉花茶 100 克"
    assert rows[2]["material"] == "stoneware"


@pytest.mark.parametrize(
    ("name", "number"), [("label_tea.jpg", "2000000010014"), ("label_jasmine.jpg", "2000000010021")]
)
def test_the_barcode_on_the_label_reads(folder: Path, name: str, number: str) -> None:
    assert [code.text for code in zxingcpp.read_barcodes(pixels(folder / name))] == [number]


def test_the_packshot_stands_on_pure_white(folder: Path) -> None:
    picture = pixels(folder / "packshot_mug.jpg")
    assert (picture[:40] == 255).all()
    assert picture[600, 540].mean() < 160


def test_the_thumbnail_is_48_pixels(folder: Path) -> None:
    assert Image.open(folder / "candle_thumbnail.jpg").size == (48, 48)


def test_the_cut_photo_has_a_good_header_and_no_end(folder: Path) -> None:
    with Image.open(folder / "label_honey_cut.jpg") as picture:
        assert picture.size == (1200, 1200)
        with pytest.raises(OSError, match="truncated"):
            picture.load()


def test_the_scarf_photo_is_a_web_page(folder: Path) -> None:
    assert (folder / "scarf.jpg").read_bytes().startswith(b"<!DOCTYPE html>")


def test_the_towel_pdf_has_two_pages_with_text(folder: Path) -> None:
    document = pypdfium2.PdfDocument(folder / "towel_facts.pdf")
    assert len(document) == 2
    assert "320 g per square metre" in document[0].get_textpage().get_text_bounded()


def test_the_knife_pdf_wants_a_password_and_opens_with_it(folder: Path) -> None:
    with pytest.raises(pikepdf.PasswordError):
        pikepdf.open(folder / "knife_prices.pdf")
    with pikepdf.open(folder / "knife_prices.pdf", password="retail-2026") as pdf:
        assert len(pdf.pages) == 1


def test_the_spoken_note_lasts_some_seconds_and_is_loud(folder: Path) -> None:
    sound = decoded(folder / "throw_note.wav")
    assert 7 < sound.size / 16_000 < 13
    assert np.abs(sound).max() > 0.2


def test_the_muted_note_peaks_below_minus_60_dbfs(folder: Path) -> None:
    peak = np.abs(decoded(folder / "rug_note.wav")).max()
    assert 0 < peak < 0.001


def decoded(path: Path) -> np.ndarray:
    resampler = av.AudioResampler("flt", "mono", 16_000)
    with av.open(io.BytesIO(path.read_bytes())) as container:
        pieces = [piece.to_ndarray()[0] for frame in container.decode(audio=0) for piece in resampler.resample(frame)]
    return np.concatenate(pieces)


def test_the_smeared_region_holds_the_small_print_and_nothing_else() -> None:
    clean = photos.soap_carton("2000000012001", smeared=False).astype(int)
    smeared = photos.soap_carton("2000000012001", smeared=True).astype(int)
    changed = np.argwhere(np.abs(clean - smeared).max(axis=2) > 40)
    height, width = clean.shape[:2]
    x0, y0, x1, y1 = catalogue.HALF_LEGIBLE_REGION
    assert changed[:, 0].min() > y0 * height
    assert changed[:, 0].max() < y1 * height
    assert changed[:, 1].min() > x0 * width
    assert changed[:, 1].max() < x1 * width


def test_without_espeak_the_command_says_what_to_install(tmp_path: Path) -> None:
    place = tmp_path / "out"
    done = subprocess.run(
        [sys.executable, Path(catalogue.__file__), place], env={"PATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "apt-get install espeak-ng" in done.stderr
    assert not place.exists()


def test_a_wav_written_to_a_pipe_is_read_to_its_end() -> None:
    samples, rate = recordings.speak("wool")
    assert rate == 22_050
    assert 0.2 < samples.size / rate < 2
