"""Barcodes on pictures."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import zxingcpp

from prefilters.probes.barcode import Barcode, read_barcodes
from tests import media

Rgb = npt.NDArray[np.uint8]


def drawn(symbology: str, text: str) -> Rgb:
    code = zxingcpp.create_barcode(text, getattr(zxingcpp.BarcodeFormat, symbology))
    grey = np.array(zxingcpp.write_barcode_to_image(code, scale=3), np.uint8)
    return np.repeat(np.pad(grey, 40, constant_values=255)[:, :, np.newaxis], 3, axis=2)


@pytest.mark.parametrize(
    ("symbology", "text", "expected"),
    [
        ("EAN13", "4006381333931", Barcode("EAN-13", "4006381333931")),
        ("EAN8", "96385074", Barcode("EAN-8", "96385074")),
        ("QRCode", "https://example.org/p/1", Barcode("QR Code", "https://example.org/p/1")),
        ("Code128", "LOT-42", Barcode("Code 128", "LOT-42")),
        ("DataMatrix", "x1", Barcode("Data Matrix", "x1")),
    ],
)
def test_retail_and_matrix_codes_are_read(symbology: str, text: str, expected: Barcode) -> None:
    assert read_barcodes(drawn(symbology, text)) == (expected,)


@pytest.mark.parametrize("quarters", [1, 2, 3])
def test_a_turned_code_is_read(quarters: int) -> None:
    turned = np.ascontiguousarray(np.rot90(drawn("EAN13", "4006381333931"), quarters))
    assert read_barcodes(turned) == (Barcode("EAN-13", "4006381333931"),)


def test_the_same_code_twice_is_one() -> None:
    code = drawn("EAN13", "4006381333931")
    assert read_barcodes(np.vstack([code, code])) == (Barcode("EAN-13", "4006381333931"),)


def test_the_code_of_a_carton_in_perspective_is_read() -> None:
    assert [code.format for code in read_barcodes(media.label_array())] == ["EAN-13"]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_noise_holds_no_code(seed: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 256, (400, 600, 3), dtype=np.uint8)
    assert read_barcodes(noise) == ()


def test_stripes_hold_no_code() -> None:
    stripes = np.zeros((300, 600, 3), np.uint8)
    stripes[:, ::8] = stripes[:, 1::8] = stripes[:, 2::8] = 255
    assert read_barcodes(stripes) == ()
