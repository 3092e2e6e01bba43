"""What a picture shows at a glance, as data: the service takes it from a child of the pool without loading a decoder."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any

BUSY = "busy"
"""The background of a picture that has no plain one."""


class Shape(StrEnum):
    """The outline of the one thing on a plain background."""

    ROUND = "round"
    TALL = "tall"
    WIDE = "wide"
    SQUARE = "square"
    IRREGULAR = "irregular"
    UNKNOWN = "unknown"
    """The background is busy, or there is nothing, too little or more than one thing on it."""


@dataclass(frozen=True, slots=True)
class Barcode:
    """One code whose checksum holds."""

    format: str
    """The symbology by name: `EAN-13`, `UPC-A`, `QR Code` …"""
    text: str


@dataclass(frozen=True, slots=True)
class ColourShare:
    """One colour by its everyday name."""

    name: str
    """English, one of 24: `red`, `dark green`, `light grey` …"""
    share: float
    """0..1 of the pixels that were counted."""


@dataclass(frozen=True, slots=True)
class Appearance:
    """What a picture shows at a glance. A transparent one is seen on the ground that `load_upright` puts it on."""

    colours: tuple[ColourShare, ...]
    """The largest first; those below 5 % are left out. Of what stands on a plain background, otherwise of everything."""
    background: str
    """`plain white`, `plain light`, `plain dark`, `plain ` and a colour's name, or `busy`."""
    shape: Shape
    object_share: float | None
    """0..1 of the picture that all that stands on a plain background fills; None on a busy one."""

    def to_json(self) -> dict[str, Any]:
        """As plain data."""
        return {
            "colours": [{"name": colour.name, "share": colour.share} for colour in self.colours],
            "background": self.background,
            "shape": self.shape.value,
            "object_share": self.object_share,
        }
