"""Draw a small, lifelike product catalogue: photos good and bad, papers, spoken notes, and the CSV that lists them.

    python examples/catalogue.py DIR

Nothing is downloaded; the same machine draws the same bytes each time. The spoken note needs espeak-ng.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from examples import labels, paperwork, photos, recordings
from examples.drawing import jpeg
from examples.labels import in_house_ean

CSV_NAME = "catalogue.csv"

HALF_LEGIBLE_FILE = "label_halflegible.jpg"
"""A sharp photo of a soap carton whose small print has run: no OCR setting will ever read it."""

HALF_LEGIBLE_REGION: photos.Box = photos.soap_small_print()
"""Where that small print is: x0, y0, x1, y1 as fractions 0..1 of the picture."""

NOTE_TEXT = (
    "Highland throw. Material, pure merino wool. Size, one metre forty by two metres. "
    "Care, hand wash cold and dry flat."
)


@dataclass(frozen=True, slots=True)
class Expectation:
    """How the gateway should judge a product."""

    status: str
    routes: tuple[str, ...] = ()
    """Any of these; empty for a rejected one."""
    code: str | None = None
    """The code of the refusal."""


@dataclass(frozen=True, slots=True)
class Product:
    """One row of the catalogue."""

    sku: str
    title: str
    files: tuple[str, ...]
    expects: Expectation
    language: str = "en"
    attributes: Mapping[str, str] = field(default_factory=dict)


_FULL = Expectation("succeeded", ("agent",))
_FROM_TEXT = Expectation("succeeded", ("text_only",))


def _refused(code: str) -> Expectation:
    return Expectation("rejected", code=code)


PRODUCTS: tuple[Product, ...] = (
    Product(
        "TEA-1001", "Organic green tea Sencha, 125 g", ("label_tea.jpg",), _FULL,
        attributes={"brand": "Hoja Verde", "net_content": "125 g", "origin": "Shizuoka, Japan"},
    ),
    Product(
        "TEA-1002", "云岭茶庄 茉莉花茶 100 克", ("label_jasmine.jpg", "jasmine_small.jpg"), _FULL, language="zh-CN",
        attributes={"brand": "云岭茶庄", "net_content": "100 克", "origin": "福建福州"},
    ),
    Product(
        "MUG-2040", "Stoneware mug, 300 ml", ("packshot_mug.jpg",), _FROM_TEXT,
        attributes={"brand": "Kiln & Co", "material": "stoneware", "colour": "sea green", "size": "300 ml",
                    "care": "dishwasher safe"},
    ),
    Product(
        "JAM-3107", "Strawberry extra jam, 340 g", ("label_jam_blurred.jpg",), _FROM_TEXT,
        attributes={"brand": "Beerenhof", "net_content": "340 g", "material": "strawberries, sugar, pectin"},
    ),
    Product(
        "CND-4002", "Soy wax candle cedar and amber", ("candle_thumbnail.jpg",), _refused("low_resolution"),
        attributes={"brand": "Nordlys", "material": "soy wax", "net_content": "220 g"},
    ),
    Product(
        "HNY-5550", "Lime blossom honey, 500 g", ("label_honey_cut.jpg",), _refused("corrupt"),
        attributes={"brand": "Imkerei Lindner", "net_content": "500 g"},
    ),
    Product(
        "SCF-6113", "Lambswool scarf", ("scarf.jpg",), _refused("unsupported_type"),
        attributes={"brand": "Torridon", "material": "lambswool", "size": "30 x 180 cm"},
    ),
    Product(
        "TOW-7201", "Linen bath towel Fjord", ("towel_facts.pdf",), _FULL,
        attributes={"brand": "Vestland Weavers", "material": "linen"},
    ),
    Product(
        "LMP-7302", "Desk lamp ARC 2", ("lamp_scan.jpg",), _FULL,
        attributes={"brand": "LUMA Works", "material": "steel, cast iron"},
    ),
    Product(
        "KNF-8044", "Chef's knife, 20 cm", ("knife_prices.pdf",), _refused("encrypted"),
        attributes={"brand": "Solinghaus", "material": "steel X50CrMoV15"},
    ),
    Product(
        "BLK-9001", "Highland throw", ("throw_note.wav",), Expectation("succeeded", ("agent", "text_only")),
        attributes={"brand": "Torridon", "colour": "heather"},
    ),
    Product(
        "RUG-9002", "Jute rug, round", ("rug_note.wav",), _refused("silent"),
        attributes={"brand": "Kiln & Co", "material": "jute", "size": "120 cm"},
    ),
)  # fmt: skip

HALF_LEGIBLE = Product(
    "SOP-1200", "Olive oil soap with bay laurel", (HALF_LEGIBLE_FILE,), Expectation("awaiting_human"),
    attributes={"brand": "Casa Oliva", "net_content": "150 g"},
)  # fmt: skip
"""The product that an agent would try to read for ever. Its file is drawn, but no CSV lists it (see the README)."""


def _html_page() -> bytes:
    return (
        b'<!DOCTYPE html>\n<html lang="en"><head><title>Sign in</title></head>\n'
        b"<body><h1>Your session has ended</h1><p>Please sign in to download this picture.</p></body></html>\n"
    )


def _cut(whole: bytes, keep: float) -> bytes:
    return whole[: int(len(whole) * keep)]


FILES: Mapping[str, Callable[[], bytes]] = {
    "label_tea.jpg": lambda: jpeg(photos.tea_carton(in_house_ean(1001))),
    "label_jasmine.jpg": lambda: jpeg(photos.jasmine_carton(in_house_ean(1002))),
    "jasmine_small.jpg": lambda: jpeg(photos.thumbnail(labels.jasmine_tea(in_house_ean(1002)), 48)),
    "packshot_mug.jpg": lambda: jpeg(photos.mug_packshot(), 92),
    "label_jam_blurred.jpg": lambda: jpeg(photos.jam_jar(in_house_ean(3107))),
    "candle_thumbnail.jpg": lambda: jpeg(photos.thumbnail(photos.candle_carton(), 48)),
    "label_honey_cut.jpg": lambda: _cut(jpeg(photos.honey_jar(in_house_ean(5550))), 0.55),
    "scarf.jpg": _html_page,
    "towel_facts.pdf": lambda: paperwork.text_pdf(paperwork.LINEN_TOWEL),
    "lamp_scan.jpg": lambda: jpeg(paperwork.scanned_page(), 82),
    "knife_prices.pdf": lambda: paperwork.locked_pdf(paperwork.KNIFE, user="retail-2026", owner="owner-2026"),
    "throw_note.wav": lambda: recordings.spoken_note(NOTE_TEXT),
    "rug_note.wav": recordings.muted_note,
    HALF_LEGIBLE_FILE: lambda: jpeg(photos.soap_carton(in_house_ean(1200))),
}
"""File name and what draws it."""


def write_catalogue(folder: Path) -> tuple[Product, ...]:
    """Draw all files and the CSV into `folder`; returns the rows of the CSV. Takes about three seconds on two cores.

    Raises `recordings.SpeechToolMissing` before anything is drawn where espeak-ng is not installed.
    """
    recordings.require_speech_tool()
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(max_workers=2) as threads:
        for name, data in zip(FILES, threads.map(lambda draw: draw(), FILES.values()), strict=True):
            (folder / name).write_bytes(data)
    write_csv(folder / CSV_NAME, PRODUCTS)
    return PRODUCTS


def write_csv(path: Path, products: tuple[Product, ...]) -> None:
    """List `products` with one column per attribute that any of them has; files are separated by `;`."""
    attributes = sorted({name for product in products for name in product.attributes})
    with path.open("w", encoding="utf-8", newline="") as file:
        rows = csv.DictWriter(file, ["sku", "title", "language", *attributes, "files"], restval="")
        rows.writeheader()
        for product in products:
            fixed = {"sku": product.sku, "title": product.title, "language": product.language}
            rows.writerow({**fixed, **product.attributes, "files": ";".join(product.files)})


def main() -> int:
    """The command line: 0 when drawn, 1 when espeak-ng is missing."""
    parser = argparse.ArgumentParser(description="Draw a small, lifelike product catalogue.")
    parser.add_argument("folder", type=Path, metavar="DIR", help="where to; made if it is not there")
    folder = parser.parse_args().folder
    try:
        products = write_catalogue(folder)
    except recordings.SpeechToolMissing as missing:
        print(missing, file=sys.stderr)
        return 1
    for product in products:
        print(f"{product.sku}  {', '.join(product.files)}")
    print(f"{len(products)} products in {folder / CSV_NAME}; beside them {HALF_LEGIBLE_FILE}, for the run that loops")
    return 0


if __name__ == "__main__":
    sys.exit(main())
