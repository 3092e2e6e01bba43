"""Barcodes on a picture: EAN or UPC is the best fact that a product photo can give."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import zxingcpp

from prefilters.probes.look import Barcode

__all__ = ["Barcode", "read_barcodes"]

# Symbologies whose checksum is part of the standard: the others (ITF, Code 39, Codabar) are found in any stripes.
_CHECKED = (
    zxingcpp.BarcodeFormat.EANUPC,
    zxingcpp.BarcodeFormat.DataBar,
    zxingcpp.BarcodeFormat.Code128,
    zxingcpp.BarcodeFormat.Code93,
    zxingcpp.BarcodeFormat.ITF14,
    zxingcpp.BarcodeFormat.QRCode,
    zxingcpp.BarcodeFormat.DataMatrix,
    zxingcpp.BarcodeFormat.Aztec,
    zxingcpp.BarcodeFormat.PDF417,
)


def read_barcodes(rgb: npt.NDArray[np.uint8]) -> tuple[Barcode, ...]:
    """The distinct codes on an upright RGB picture, in the order of their text; turned and inverted ones too."""
    found = zxingcpp.read_barcodes(rgb, formats=_CHECKED)
    codes = {Barcode(str(code.format), code.text) for code in found if code.valid}
    return tuple(sorted(codes, key=lambda code: (code.text, code.format)))
