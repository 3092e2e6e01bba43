"""PDFs: what opens, what is refused, and what of their text a person would see."""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable
from pathlib import Path

import pikepdf
import pytest
from PIL import Image, ImageDraw, ImageFont
from reportlab.lib.utils import ImageReader
from reportlab.pdfgen.canvas import Canvas

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import check_facts
from prefilters.limits import DecodeLimits
from prefilters.pool import DecoderPool
from prefilters.probes import pdf
from prefilters.probes.pdf_layer import reads_as_word
from prefilters.probes.text import Depth, Source
from tests import media as made

SAMPLES = Path(os.environ.get("SLUICEGATE_SAMPLES", Path(__file__).parents[2].parent / "shared" / "samples"))
LIMITS = DecodeLimits()
PLAIN = "Organic oat milk, one litre carton"


@pytest.fixture
def saved(tmp_path):
    def save(data: bytes) -> Path:
        path = tmp_path / "upload.pdf"
        path.write_bytes(data)
        return path

    return save


def _drawn(*pages: Callable[[Canvas], None], size: tuple[int, int] = (595, 842)) -> bytes:
    out = io.BytesIO()
    canvas = Canvas(out, pagesize=size, invariant=1)
    for draw in pages:
        canvas.setFont("Helvetica", 12)
        draw(canvas)
        canvas.showPage()
    canvas.save()
    return out.getvalue()


def _plain(canvas: Canvas) -> None:
    canvas.drawString(72, 700, PLAIN)


def _edited(data: bytes, edit: Callable[[pikepdf.Pdf], None]) -> bytes:
    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(data)) as document:
        edit(document)
        document.save(out)
    return out.getvalue()


def _picture_of(text: str) -> ImageReader:
    picture = Image.new("RGB", (1200, 400), "white")
    ImageDraw.Draw(picture).text((40, 100), text, fill="black", font=ImageFont.load_default(80))
    return ImageReader(picture)


def _invisible(canvas: Canvas, text: str, y: int, *, size: int = 12) -> None:
    lines = canvas.beginText(72, y)
    lines.setFont("Helvetica", size)
    lines.setTextRenderMode(3)
    lines.textLine(text)
    canvas.drawText(lines)


def _text_of(path: Path) -> str:
    return pdf.read_text(path, LIMITS, min_tokens=None, max_pages=5).reading.confident_text


# --- what opens, and how ---------------------------------------------------------------------------------------------


def test_a_plain_document_gives_its_facts(saved):
    facts = pdf.document(saved(made.pdf_text()), LIMITS)
    check_facts(facts)
    assert facts["decode.status"] == "ok"
    assert facts["pdf.pages"] == 2
    assert facts["pdf.page_side_pt"] == pytest.approx(842, abs=1)
    assert facts["pdf.text_chars"] > 400
    flags = ("encrypted", "owner_password", "repaired", "active_content", "scanned")
    assert {flag: facts[f"pdf.{flag}"] for flag in flags} == dict.fromkeys(flags, False)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", DecodeStatus.EMPTY),
        (b"%PDF-1.7\n" + bytes(500), DecodeStatus.TRUNCATED),
        (b"%PDF-1.7\nno objects here\n%%EOF", DecodeStatus.CORRUPT),
        (made.pdf_zero_pages(), DecodeStatus.CORRUPT),
        (made.pdf_truncated(), DecodeStatus.TRUNCATED),
        (made.pdf_user_password(), DecodeStatus.ENCRYPTED),
        (made.pdf_user_password(revision=6), DecodeStatus.ENCRYPTED),
    ],
    ids=[
        "empty file",
        "header and zeros",
        "header and end",
        "zero pages",
        "cut off",
        "RC4 password",
        "AES-256 password",
    ],
)
def test_what_no_reader_opens_says_why(data, status, saved):
    path = saved(data)
    for probe in (pdf.document, lambda path, limits: pdf.text(path, limits, min_tokens=4, max_pages=3)):
        with pytest.raises(ProbeError) as caught:
            probe(path, LIMITS)
        assert caught.value.status is status


def test_a_document_is_not_told_the_error_of_the_one_before(saved):
    for data, status in (
        (made.pdf_user_password(), DecodeStatus.ENCRYPTED),
        (made.pdf_zero_pages(), DecodeStatus.CORRUPT),
    ):
        with pytest.raises(ProbeError) as caught:
            pdf.document(saved(data), LIMITS)
        assert caught.value.status is status


def test_permission_bits_alone_lock_nobody_out(saved):
    path = saved(made.pdf_owner_password())
    facts = pdf.document(path, LIMITS)
    assert facts["pdf.owner_password"] is True
    assert facts["pdf.encrypted"] is False
    assert "Linen" in _text_of(path)


def test_a_lost_index_is_rebuilt_and_noted(saved):
    whole = made.pdf_text()
    at = whole.rindex(b"startxref")
    path = saved(whole[:at] + b"startxref\n99999\n%%EOF\n")
    assert pdf.document(path, LIMITS)["pdf.repaired"] is True
    assert "Linen" in _text_of(path)


def test_a_document_cut_before_its_trailer_is_not_taken_for_whole(saved):
    whole = made.pdf_text()
    with pytest.raises(ProbeError) as caught:
        pdf.document(saved(whole[: whole.rindex(b"xref\n0")]), LIMITS)
    assert caught.value.status is DecodeStatus.TRUNCATED


@pytest.mark.parametrize("objects", list(pikepdf.ObjectStreamMode), ids=lambda mode: mode.name)
def test_a_linearised_document_cut_off_is_not_taken_for_its_first_pages(objects, saved):
    out = io.BytesIO()
    with pikepdf.open(io.BytesIO(made.pdf_many_pages(60))) as document:
        document.save(out, linearize=True, object_stream_mode=objects)
    whole = out.getvalue()
    assert pdf.document(saved(whole), LIMITS)["pdf.repaired"] is False
    for keep in (0.3, 0.7, 0.95):
        with pytest.raises(ProbeError) as caught:
            pdf.document(saved(whole[: int(len(whole) * keep)]), LIMITS)
        assert caught.value.status is DecodeStatus.TRUNCATED


def test_junk_in_front_of_the_header_does_no_harm(saved):
    assert pdf.document(saved(b"--boundary\r\n\r\n" + made.pdf_text()), LIMITS)["pdf.pages"] == 2


def test_pages_are_counted_and_the_longest_side_is_found(saved):
    assert pdf.document(saved(made.pdf_many_pages(203)), LIMITS)["pdf.pages"] == 203
    assert pdf.document(saved(made.pdf_huge_page()), LIMITS)["pdf.page_side_pt"] > LIMITS.max_page_side_pt


def test_a_page_tree_that_names_itself_settles(saved):
    def edit(document: pikepdf.Pdf) -> None:
        document.Root.Pages.Kids.append(document.Root.Pages)

    try:
        assert pdf.document(saved(_edited(_drawn(_plain), edit)), LIMITS)["pdf.pages"] >= 1
    except ProbeError as error:
        assert error.status in (DecodeStatus.CORRUPT, DecodeStatus.TRUNCATED)  # noqa: PT017


@pytest.mark.parametrize("kid", [None, 7, pikepdf.Dictionary()], ids=["null", "number", "empty dictionary"])
def test_a_page_that_is_none_does_not_spoil_the_others(kid, saved):
    def edit(document: pikepdf.Pdf) -> None:
        document.Root.Pages.Kids[1] = kid

    path = saved(_edited(made.pdf_many_pages(4), edit))
    assert pdf.document(path, LIMITS)["decode.status"] == "ok"
    assert _text_of(path).startswith("Page 1 of the catalogue\nPage 3")


def _with_form(content: bytes) -> bytes:
    """A page that draws a form with this content, whose resources name the form itself, as shared ones do."""

    def edit(document: pikepdf.Pdf) -> None:
        form = document.make_stream(content, Type=pikepdf.Name.XObject, Subtype=pikepdf.Name.Form, BBox=[0, 0, 99, 99])
        page = document.pages[0]
        page.Resources.XObject = pikepdf.Dictionary(X=form)
        form.Resources = pikepdf.Dictionary(XObject=pikepdf.Dictionary(X=form))
        page.contents_add(b"q /X Do Q")

    return _edited(_drawn(_plain), edit)


def test_forms_that_draw_each_other_without_end_are_refused_before_anything_is_drawn(saved):
    for data in (made.pdf_recursive_form(), _with_form(b"/X Do /X Do")):
        with pytest.raises(ProbeError) as caught:
            pdf.document(saved(data), LIMITS)
        assert caught.value.status is DecodeStatus.RESOURCE_LIMIT


@pytest.mark.parametrize(
    "content", [b"0 0 9 9 re f", b"q 0 0 9 9 re f Q /X Do"], ids=["names itself", "draws itself once"]
)
def test_forms_that_come_to_an_end_are_fine(content, saved):
    assert pdf.document(saved(_with_form(content)), LIMITS)["decode.status"] == "ok"


def _launch(document: pikepdf.Pdf) -> None:
    document.Root.OpenAction = pikepdf.Dictionary(S=pikepdf.Name.Launch, F="calc.exe")


def _page_script(document: pikepdf.Pdf) -> None:
    action = pikepdf.Dictionary(S=pikepdf.Name.JavaScript, JS="app.alert(1)")
    document.pages[0].AA = pikepdf.Dictionary(O=action)


def _chained(document: pikepdf.Pdf) -> None:
    launch = pikepdf.Dictionary(S=pikepdf.Name.Launch, F="calc.exe")
    document.Root.OpenAction = pikepdf.Dictionary(S=pikepdf.Name.Named, N=pikepdf.Name.NextPage, Next=launch)


def _chained_in_a_list(document: pikepdf.Pdf) -> None:
    launch = pikepdf.Dictionary(S=pikepdf.Name.Launch, F="calc.exe")
    document.Root.OpenAction = pikepdf.Dictionary(
        S=pikepdf.Name.Named, N=pikepdf.Name.NextPage, Next=pikepdf.Array([launch])
    )


def _button(document: pikepdf.Pdf) -> None:
    action = pikepdf.Dictionary(S=pikepdf.Name.Launch, F="calc.exe")
    link = pikepdf.Dictionary(Type=pikepdf.Name.Annot, Subtype=pikepdf.Name.Link, Rect=[0, 0, 9, 9], A=action)
    document.pages[0].Annots = pikepdf.Array([link])


def _web_link(document: pikepdf.Pdf) -> None:
    action = pikepdf.Dictionary(S=pikepdf.Name.URI, URI="https://example.com")
    link = pikepdf.Dictionary(Type=pikepdf.Name.Annot, Subtype=pikepdf.Name.Link, Rect=[0, 0, 9, 9], A=action)
    document.pages[0].Annots = pikepdf.Array([link])


@pytest.mark.parametrize(
    ("data", "active"),
    [
        (made.pdf_javascript(), True),
        (made.pdf_attachment(), True),
        (_edited(_drawn(_plain), _launch), True),
        (_edited(_drawn(_plain), _page_script), True),
        (_edited(_drawn(_plain), _chained), True),
        (_edited(_drawn(_plain), _chained_in_a_list), True),
        (_edited(_drawn(_plain), _button), True),
        (_edited(_drawn(_plain), _web_link), False),
        (_drawn(_plain), False),
    ],
    ids=["script", "attachment", "launch", "page", "chained", "chained list", "button", "web link", "plain"],
)
def test_what_acts_is_noted(data, active, saved):
    assert pdf.document(saved(data), LIMITS)["pdf.active_content"] is active


def test_damage_of_any_kind_ends_in_facts_or_a_reason(tmp_path):
    chance = random.Random(4)
    whole = [made.pdf_text(), made.pdf_javascript(), made.pdf_owner_password(), made.pdf_hidden_text()]
    failed = []
    with DecoderPool(workers=1, limits=LIMITS) as pool:
        for number in range(140):
            data = bytearray(whole[number % len(whole)])
            if number % 3 == 1:
                del data[chance.randrange(1, len(data)) :]
            for _ in range(chance.choice((0, 1, 20, 200))):
                data[chance.randrange(len(data))] = chance.randrange(256)
            (tmp_path / "hostile").write_bytes(data)
            try:
                check_facts(pool.run(pdf.document, tmp_path / "hostile", LIMITS))
                pool.run(pdf.page_texts, tmp_path / "hostile", LIMITS, [0, 1])
            except ProbeError as error:
                failed.append(error)
    assert {error.status for error in failed} <= {
        DecodeStatus.CORRUPT,
        DecodeStatus.TRUNCATED,
        DecodeStatus.ENCRYPTED,
    }
    assert [
        error for error in failed if error.__cause__
    ] == []  # the probe's own words, not faults that the pool caught


# --- text as a person sees it ----------------------------------------------------------------------------------------


def test_text_layer_words_have_lines_and_places(saved):
    reading = pdf.text(
        saved(_drawn(_plain, lambda c: c.drawString(72, 400, "Second page"))), LIMITS, min_tokens=None, max_pages=9
    )
    assert reading.source is Source.TEXT_LAYER
    assert reading.depth is Depth.READ
    assert reading.pages == 2
    assert reading.confident_text.splitlines() == [PLAIN, "Second page"]
    x0, y0, x1, y1 = reading.words[0].box
    assert x0 == pytest.approx(72 / 595, abs=0.01)
    assert y0 < 1 - 700 / 842 < y1
    assert x0 < x1 < 0.3


def _white_on_white(canvas: Canvas) -> None:
    canvas.setFillGray(1)
    canvas.drawString(72, 600, "IGNORE white")


def _nearly_white(canvas: Canvas) -> None:
    canvas.setFillGray(0.96)
    canvas.drawString(72, 600, "IGNORE grey")


def _white_over_a_line(canvas: Canvas) -> None:
    canvas.setFillGray(1)
    canvas.drawString(72, 702, "IGNORE over it")


def _tiny(canvas: Canvas) -> None:
    canvas.setFont("Helvetica", 1)
    canvas.drawString(72, 600, "IGNORE tiny")


def _off_page(canvas: Canvas) -> None:
    canvas.drawString(-400, 600, "IGNORE left")
    canvas.drawString(72, 2000, "IGNORE above")


def _not_painted(canvas: Canvas) -> None:
    _invisible(canvas, "IGNORE unpainted", 600)


def _transparent(canvas: Canvas) -> None:
    canvas.setFillAlpha(0.02)
    canvas.drawString(72, 600, "IGNORE transparent")


def _covered_by_a_box(canvas: Canvas) -> None:
    canvas.drawString(72, 600, "IGNORE covered")
    canvas.setFillGray(1)
    canvas.rect(60, 590, 300, 30, fill=1, stroke=0)


@pytest.mark.parametrize(
    "hide",
    [
        _white_on_white,
        _nearly_white,
        _white_over_a_line,
        _tiny,
        _off_page,
        _not_painted,
        _transparent,
        _covered_by_a_box,
    ],
    ids=lambda hide: hide.__name__.strip("_").replace("_", " "),
)
def test_text_that_a_person_would_not_see_is_left_out_and_said(hide, saved):
    def draw(canvas: Canvas) -> None:
        _plain(canvas)
        hide(canvas)

    read = pdf.read_text(saved(_drawn(draw)), LIMITS, min_tokens=None, max_pages=5)
    assert read.facts["text.hidden"] is True
    assert read.reading.confident_text == PLAIN


def _white_on_black(canvas: Canvas) -> None:
    canvas.rect(60, 590, 400, 30, fill=1)
    canvas.setFillGray(1)
    canvas.drawString(72, 600, "Shown in a banner")


def _bold_white_on_tight_black(canvas: Canvas) -> None:
    canvas.rect(71, 598, 140, 15, fill=1)
    canvas.setFillGray(1)
    canvas.setFont("Helvetica-Bold", 16)
    canvas.drawString(72, 600, "WMWMWMWM")


def _light_grey(canvas: Canvas) -> None:
    canvas.setFont("Helvetica", 6)
    canvas.setFillGray(0.75)
    canvas.drawString(72, 600, "small print in grey")


def _outlined(canvas: Canvas) -> None:
    lines = canvas.beginText(72, 600)
    lines.setTextRenderMode(1)
    lines.setFillGray(1)
    lines.textLine("Outline letters")
    canvas.drawText(lines)


@pytest.mark.parametrize(
    "show",
    [_plain, _white_on_black, _bold_white_on_tight_black, _light_grey, _outlined],
    ids=lambda show: show.__name__.strip("_").replace("_", " "),
)
@pytest.mark.parametrize("turn", [0, 90, 180, 270])
def test_text_that_a_person_sees_stays_whichever_way_the_page_is_turned(show, turn, saved):
    def rotate(document: pikepdf.Pdf) -> None:
        document.pages[0].Rotate = turn

    read = pdf.read_text(saved(_edited(_drawn(show), rotate)), LIMITS, min_tokens=None, max_pages=5)
    assert read.facts["text.hidden"] is False
    assert len(read.reading.words) >= 1


def test_what_lies_outside_the_crop_box_is_hidden(saved):
    def crop(document: pikepdf.Pdf) -> None:
        document.pages[0].CropBox = pikepdf.Array([50, 650, 400, 750])

    def draw(canvas: Canvas) -> None:
        _plain(canvas)
        canvas.drawString(72, 300, "IGNORE cropped")

    read = pdf.read_text(saved(_edited(_drawn(draw), crop)), LIMITS, min_tokens=None, max_pages=5)
    assert read.facts["text.hidden"] is True
    assert read.reading.confident_text == PLAIN


def test_what_runs_over_the_edge_of_the_page_is_left_out(saved):
    path = saved(_drawn(lambda canvas: canvas.drawString(72, 600, "Oat milk " + " " * 200 + "IGNORE far right")))
    read = pdf.read_text(path, LIMITS, min_tokens=None, max_pages=5)
    assert read.facts["text.hidden"] is True
    assert read.reading.confident_text == "Oat milk"


def test_a_layer_that_contradicts_its_scan_loses_to_what_the_scan_shows(saved):
    def draw(canvas: Canvas) -> None:
        canvas.drawImage(_picture_of("Fresh tomato soup 400 g"), 60, 600, width=480, height=160)
        _invisible(canvas, "IGNORE EVERYTHING", 680, size=30)

    read = pdf.read_text(saved(_drawn(draw)), LIMITS, min_tokens=None, max_pages=5)
    assert read.reading.source is Source.OCR
    assert "tomato" in read.reading.confident_text
    assert "IGNORE" not in read.reading.confident_text


def test_an_honest_scan_with_its_invisible_layer_hides_nothing(saved):
    def draw(canvas: Canvas) -> None:
        canvas.drawImage(_picture_of("Fresh tomato soup 400 g"), 60, 600, width=480, height=160)
        _invisible(canvas, "Fresh tomato soup 400 g", 680, size=30)

    read = pdf.read_text(saved(_drawn(draw)), LIMITS, min_tokens=None, max_pages=5)
    assert read.facts["text.hidden"] is False
    assert "tomato" in read.reading.confident_text


# --- when the page is read by OCR ------------------------------------------------------------------------------------


def test_a_scan_is_scanned_and_read_by_ocr(saved):
    path = saved(made.pdf_scan())
    assert pdf.document(path, LIMITS)["pdf.scanned"] is True
    reading = pdf.text(path, LIMITS, min_tokens=4, max_pages=3)
    assert (reading.source, reading.depth) == (Source.OCR, Depth.GATE)
    assert reading.tokens >= 4


def test_a_layer_of_glyph_codes_is_not_text(saved):
    def draw(canvas: Canvas) -> None:
        canvas.setFont("Helvetica", 5)
        for line in range(20):
            canvas.drawString(40, 200 - 8 * line, "/G21/G22/G23/G24 (cid:31)(cid:12)")
        canvas.drawImage(_picture_of("Fresh tomato soup 400 g"), 60, 600, width=480, height=160)

    read = pdf.read_text(saved(_drawn(draw)), LIMITS, min_tokens=None, max_pages=3)
    assert read.facts["text.quality"] < pdf.GOOD_QUALITY
    assert read.reading.source is Source.OCR
    assert "tomato" in read.reading.confident_text
    assert "/G21" not in read.reading.confident_text


def test_a_stamp_on_a_scan_does_not_pass_for_its_text(saved):
    def draw(canvas: Canvas) -> None:
        canvas.drawImage(_picture_of("Fresh tomato soup 400 g"), 20, 200, width=555, height=500)
        canvas.drawString(72, 100, "Page 1 of 1")

    reading = pdf.text(saved(_drawn(draw)), LIMITS, min_tokens=None, max_pages=3)
    assert reading.source is Source.OCR
    assert "tomato" in reading.confident_text


def test_layers_are_read_before_any_page_goes_to_ocr(saved, monkeypatch):
    monkeypatch.setattr("prefilters.probes.ocr.gate_array", lambda *_, **__: pytest.fail("OCR was not needed"))

    def scan(canvas: Canvas) -> None:
        canvas.drawImage(_picture_of("Fresh tomato soup 400 g"), 60, 600, width=480, height=160)

    reading = pdf.text(saved(_drawn(scan, _plain)), LIMITS, min_tokens=4, max_pages=5)
    assert reading.source is Source.TEXT_LAYER
    assert PLAIN in reading.confident_text


def test_a_blank_page_has_no_text_and_needs_no_ocr(saved, monkeypatch):
    monkeypatch.setattr("prefilters.probes.ocr.read_array", lambda *_, **__: pytest.fail("there is nothing to read"))
    reading = pdf.text(saved(_drawn(lambda canvas: None)), LIMITS, min_tokens=None, max_pages=5)
    assert (reading.words, reading.tokens) == ((), 0)


@pytest.mark.parametrize(
    ("word", "readable"),
    [
        ("milk,", True),
        ("400", True),
        ("12,50", True),
        ("(EAN)", True),
        ("牛奶", True),
        ("молоко", True),
        ("C++", True),
        ("/home", True),
        ("A4/A5", True),
        ("/G21/G22/G23", False),
        ("(cid:31)(cid:12)", False),
        ("/g123", False),
        ("\ue001\ue002\ue003", False),
        ("\ufffd\ufffdk", False),
        ('!"#$%&', False),
    ],
)
def test_glyph_codes_are_told_from_words(word, readable):
    assert reads_as_word(word) is readable


# --- pages -----------------------------------------------------------------------------------------------------------


def test_page_texts_keep_their_order_and_say_nothing_of_pages_that_are_not_there(saved):
    path = saved(made.pdf_many_pages(3))
    texts = pdf.page_texts(path, LIMITS, [2, 0, 7, -1])
    assert [text[:6] for text in texts] == ["Page 3", "Page 1", "", ""]


def test_a_rendered_page_has_the_side_asked_for(saved):
    path = saved(_drawn(_plain, size=(400, 800)))
    picture = pdf.render_page(path, LIMITS, 0, max_side=500)
    assert picture.shape == (500, 250, 3)
    assert picture.mean() > 240
    with pytest.raises(ProbeError):
        pdf.render_page(path, LIMITS, 1, max_side=500)


@pytest.mark.parametrize(
    ("name", "status", "words"),
    [
        ("pdf_encrypted.pdf", "encrypted", None),
        ("pdf_no_trailer.pdf", "corrupt", None),
        ("pdf_no_xref.pdf", "ok", 2),
        ("pdf_owner_password.pdf", "ok", 4),
        ("pdf_scan.pdf", "ok", 10),
        ("pdf_text.pdf", "ok", 150),
    ],
)
def test_sample_documents_open_and_read_as_expected(name, status, words):
    if words is None:
        with pytest.raises(ProbeError) as caught:
            pdf.document(SAMPLES / name, LIMITS)
        assert caught.value.status == status
    else:
        assert pdf.document(SAMPLES / name, LIMITS)["decode.status"] == status
        assert len(pdf.text(SAMPLES / name, LIMITS, min_tokens=None, max_pages=5).words) >= words
