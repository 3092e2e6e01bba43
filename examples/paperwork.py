"""The catalogue's documents: PDFs written by hand, and a page that went through a scanner."""

from __future__ import annotations

import io
from collections.abc import Sequence

import cv2
import numpy as np
import pikepdf

from examples.drawing import INK, Print, jpeg, rng, sheet, soft_noise, write

Line = tuple[str, str]
"""`(style, text)`, the style being `title`, `head`, `text` or `row` (two cells split by a bar)."""

A4_PT = (595, 842)

LINEN_TOWEL: tuple[tuple[Line, ...], ...] = (
    (
        ("title", 'Linen bath towel "Fjord"'),
        ("text", "Supplier: Vestland Weavers, Bergen. Article TOW-7201. Sheet of 3 November 2026."),
        ("head", "Product facts"),
        ("row", "Material|100 % European flax linen, stone washed"),
        ("row", "Weave|waffle, 4 mm cells"),
        ("row", "Weight|320 g per square metre"),
        ("row", "Size|70 x 140 cm, shrinks less than 3 %"),
        ("row", "Colours|sand, slate, sage"),
        ("row", "Hanging loop|woven cotton tape on the long side"),
        ("head", "What customers like"),
        ("text", "Dries faster than terry cotton and takes less room on the line."),
        ("text", "Grows softer with each wash. Woven and sewn in one mill in Norway."),
    ),
    (
        ("title", "Care and packing"),
        ("head", "Care"),
        ("row", "Wash|40 degrees, similar colours, no bleach"),
        ("row", "Dry|line dry or tumble low"),
        ("row", "Iron|not needed; medium if wanted"),
        ("head", "Packing"),
        ("row", "Unit|one towel, paper band, no plastic"),
        ("row", "Carton|20 towels, 9.4 kg"),
        ("row", "Standard|OEKO-TEX Standard 100, class I"),
        ("text", "Minimum order 5 cartons. Lead time three weeks from confirmation."),
    ),
)

KNIFE: tuple[tuple[Line, ...], ...] = (
    (
        ("title", "Chef's knife 20 cm, confidential price list"),
        ("text", "Article KNF-8044. For registered retailers only."),
        ("row", "Steel|X50CrMoV15, 56 HRC"),
        ("row", "Handle|smoked oak, three rivets"),
        ("row", "Retail price|EUR 89.00"),
    ),
)

DESK_LAMP: tuple[Line, ...] = (
    ("title", "TECHNICAL DATA SHEET"),
    ("text", "LUMA Works GmbH, Desk lamp ARC 2"),
    ("head", "Specification"),
    ("row", "Article number|LMP-7302"),
    ("row", "Light source|LED module 8 W, replaceable"),
    ("row", "Luminous flux|720 lm at 3000 K"),
    ("row", "Colour rendering|CRI 95"),
    ("row", "Dimming|touch, continuous, 5 to 100 %"),
    ("row", "Material|powder coated steel, cast iron base"),
    ("row", "Height|maximum 540 mm"),
    ("row", "Reach|maximum 620 mm"),
    ("row", "Weight|2.3 kg"),
    ("row", "Cable|1.8 m textile cable, Euro plug"),
    ("row", "Protection class|II, IP20, indoor use only"),
    ("head", "Remarks"),
    ("text", "Supplied with a 24 V power unit. Five year guarantee."),
    ("text", "Finishes: traffic white, graphite grey, signal red."),
)


def text_pdf(pages: Sequence[Sequence[Line]]) -> bytes:
    """A PDF with a real text layer, one page of A4 per entry, standard fonts, the same bytes each time."""
    contents = [_page_operators(page) for page in pages]
    first = 5
    kids = " ".join(f"{first + 2 * index} 0 R" for index in range(len(contents)))
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>".encode(),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >>",
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica-Bold /Encoding /WinAnsiEncoding >>",
    ]
    for index, operators in enumerate(contents):
        resources = "/Resources << /Font << /F1 3 0 R /F2 4 0 R >> >>"
        box = f"/MediaBox [0 0 {A4_PT[0]} {A4_PT[1]}]"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R {box} {resources} /Contents {first + 2 * index + 1} 0 R >>".encode()
        )
        objects.append(stream(operators))
    return pdf_file(objects)


def stream(body: bytes, entries: str = "") -> bytes:
    """A PDF stream object; `entries` are further dictionary entries."""
    return f"<< {entries} /Length {len(body)} >>\nstream\n".encode() + body + b"\nendstream"


def pdf_file(objects: Sequence[bytes], *, trailer: str = "") -> bytes:
    """A PDF of these objects, numbered from 1 (the catalogue), with its cross-reference table."""
    out = io.BytesIO()
    out.write(b"%PDF-1.7\n%\xe2\xe3\xcf\xd3\n")
    offsets = []
    for number, body in enumerate(objects, start=1):
        offsets.append(out.tell())
        out.write(f"{number} 0 obj\n".encode() + body + b"\nendobj\n")
    start = out.tell()
    out.write(f"xref\n0 {len(objects) + 1}\n0000000000 65535 f \n".encode())
    out.writelines(f"{offset:010d} 00000 n \n".encode() for offset in offsets)
    out.write(f"trailer\n<< /Size {len(objects) + 1} /Root 1 0 R {trailer} >>\nstartxref\n{start}\n%%EOF\n".encode())
    return out.getvalue()


def pdf_string(text: str) -> bytes:
    """`text` as a PDF literal string in WinAnsi."""
    raw = text.encode("cp1252")
    return b"(" + raw.replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)") + b")"


_STYLES = {"title": ("F2", 22, 40), "head": ("F2", 13, 30), "text": ("F1", 11, 19), "row": ("F1", 11, 21)}


def _page_operators(lines: Sequence[Line]) -> bytes:
    out = [b"0.55 0.42 0.24 rg 56 790 483 4 re f 0.13 0.12 0.12 rg"]
    y = 776
    for style, text in lines:
        font, size, advance = _STYLES[style]
        y -= advance
        cells = text.split("|") if style == "row" else [text]
        for x, cell in zip((56, 196), cells, strict=False):
            out.append(f"BT /{font} {size} Tf {x} {y} Td ".encode() + pdf_string(cell) + b" Tj ET")
        if style == "row":
            out.append(f"0.8 g 56 {y - 6} 483 0.5 re f 0.13 0.12 0.12 rg".encode())
    return b"\n".join(out)


def locked_pdf(pages: Sequence[Sequence[Line]], *, user: str, owner: str) -> bytes:
    """The same, encrypted (128-bit RC4, whose bytes are the same each time; AES draws new salts).

    An empty `user` password leaves permission bits only: anyone can open the file.
    """
    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(text_pdf(pages))) as pdf:
        lock = pikepdf.Encryption(owner=owner, user=user, R=3, aes=False, metadata=False,
                                  allow=pikepdf.Permissions(extract=False, modify_other=False))  # fmt: skip
        pdf.save(out, encryption=lock, static_id=True)
    return out.getvalue()


def scanned_page(lines: Sequence[Line] = DESK_LAMP, *, skew_deg: float = 1.1, seed: int = 81) -> Print:
    """A typed A4 page at 150 dpi from an office scanner: a little askew, grey paper, toner dust, a dark edge."""
    page = sheet(1240, 1754, (250, 250, 248))
    _type_page(page, lines)
    random = rng(seed)
    turn = cv2.getRotationMatrix2D((620, 877), skew_deg, 1.0)
    askew = cv2.warpAffine(page, turn, (1240, 1754), flags=cv2.INTER_CUBIC, borderValue=(196, 196, 194))
    grey = cv2.GaussianBlur(cv2.cvtColor(askew, cv2.COLOR_RGB2GRAY).astype(np.float32), (0, 0), 0.55)
    grey *= 0.965 + 0.012 * soft_noise(grey.shape, (300, 300), random)
    grey[:, :26] *= np.linspace(0.62, 1, 26, dtype=np.float32)
    grey += random.normal(0, 3.2, grey.shape).astype(np.float32)
    for x, y in zip(random.integers(0, 1240, 130), random.integers(0, 1754, 130), strict=True):
        cv2.circle(grey, (int(x), int(y)), int(random.integers(0, 2)), float(random.uniform(60, 170)), -1)
    grey = np.clip(grey + 0.5, 0, 255).astype(np.uint8)
    return np.repeat(grey[..., None], 3, axis=2)


def _type_page(page: Print, lines: Sequence[Line]) -> None:
    sizes = {"title": (52, 700, 96), "head": (34, 700, 84), "text": (27, 400, 48), "row": (27, 400, 58)}
    y = 130
    for style, text in lines:
        size, weight, advance = sizes[style]
        y += advance
        if style == "row":
            name, value = text.split("|")
            write(page, name, (120, y), size, weight=600, face="uni")
            write(page, value, (500, y), size, weight=weight, face="uni")
            cv2.line(page, (120, y + 18), (1120, y + 18), (170, 170, 170), 1)
        else:
            write(page, text, (120, y), size, weight=weight, colour=INK)
    cv2.ellipse(page, (960, 1560), (128, 56), -9, 0, 360, (120, 120, 140), 4, cv2.LINE_AA)
    write(page, "RELEASED", (960, 1550), 32, weight=800, colour=(110, 110, 132), align="centre")
    write(page, "14 OCT 2026", (960, 1590), 24, weight=600, colour=(110, 110, 132), align="centre")


def scan_pdf(page: Print, *, quality: int = 80) -> bytes:
    """A PDF of one A4 page that is nothing but a picture: no text layer."""
    height, width = page.shape[:2]
    picture = (
        f"/Type /XObject /Subtype /Image /Width {width} /Height {height} /ColorSpace /DeviceRGB /BitsPerComponent 8"
    )
    return pdf_file([
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Kids [3 0 R] /Count 1 >>",
        f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 {A4_PT[0]} {A4_PT[1]}] "
        "/Resources << /XObject << /P 4 0 R >> >> /Contents 5 0 R >>".encode(),
        stream(jpeg(page, quality), f"{picture} /Filter /DCTDecode"),
        stream(f"q {A4_PT[0]} 0 0 {A4_PT[1]} 0 0 cm /P Do Q".encode()),
    ])  # fmt: skip
