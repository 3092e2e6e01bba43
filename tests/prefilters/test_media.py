"""What the leading bytes of a file say."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefilters.media import HEAD_BYTES, MediaKind, sniff, sniff_file, type_mismatch
from tests import media as made

SAMPLES = Path(os.environ.get("SLUICEGATE_SAMPLES", Path(__file__).parents[2].parent / "shared" / "samples"))

MP3_FRAME = b"\xff\xfb\x90\x64" + bytes(413)  # MPEG-1 layer III, 128 kbit/s, 44.1 kHz: 417 bytes
ADTS_FRAME = bytes.fromhex("fff15080041ffc") + bytes(25)  # 32 bytes


def _ftyp(major: bytes, *compatible: bytes) -> bytes:
    body = major + bytes(4) + b"".join(compatible)
    return (8 + len(body)).to_bytes(4, "big") + b"ftyp" + body


@pytest.mark.parametrize(
    ("build", "kind", "name"),
    [
        (made.label_photo, "image", "jpeg"),
        (made.png, "image", "png"),
        (made.webp, "image", "webp"),
        (made.animated_gif, "image", "gif"),
        (made.heic, "image", "heic"),
        (made.avif, "image", "avif"),
        (made.tiff, "image", "tiff"),
        (made.bmp, "image", "bmp"),
        (made.pdf_text, "pdf", "pdf"),
        (made.wav, "audio", "wav"),
        (made.aiff, "audio", "aiff"),
        (made.mp3, "audio", "mp3"),
        (made.m4a, "audio", "m4a"),
        (made.ogg, "audio", "ogg"),
        (made.opus, "audio", "ogg"),
        (made.flac, "audio", "flac"),
        (made.webm, "audio", "webm"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_each_format_that_we_take_is_known_by_its_bytes(build, kind, name, tmp_path):
    (tmp_path / "upload").write_bytes(build())
    media = sniff_file(tmp_path / "upload")
    assert (media.kind, media.format, media.supported) == (kind, name, True)


@pytest.mark.parametrize(
    ("data", "name", "english", "chinese"),
    [
        (b"<!DOCTYPE html><title>502</title>", "html", "an HTML page", "网页"),
        (b"\xef\xbb\xbf \n <HTML><body>", "html", "an HTML page", "网页"),
        (b"<!-- saved --><html>", "html", "an HTML page", "网页"),
        (b"error code: 502", "text", "plain text (error code: 502)", "纯文本（error code: 502）"),
        (b'{"error": "not found"}', "json", 'JSON text ({"error": "not found"})', "JSON"),
        (b"<?xml version='1.0'?><Error/>", "xml", "an XML document", "XML"),
        (b"<?xml version='1.0'?>\n<svg xmlns='x'/>", "svg", "an SVG drawing", "SVG"),
        (b"<svg width='9'>", "svg", "an SVG drawing", "SVG"),
        (b"%!PS-Adobe-3.0 EPSF-3.0\n", "eps", "an EPS drawing", "EPS"),
        (b"\xc5\xd0\xd3\xc6" + bytes(28), "eps", "an EPS drawing", "EPS"),
        (b"%!PS-Adobe-3.0\n", "postscript", "a PostScript document", "PostScript"),
        (b"PK\x03\x04" + bytes(30), "zip", "a ZIP archive", "ZIP"),
        (b"PK\x03\x04" + bytes(26) + b"[Content_Types].xml", "office", "an Office document", "Office"),
        (b"\x1f\x8b\x08" + bytes(20), "gzip", "a gzip archive", "gzip"),
        (b"MZ\x90\x00\x03" + bytes(60), "exe", "an executable", "可执行程序"),
        (b"\x7fELF\x02\x01", "elf", "an executable", "可执行程序"),
        (b"#!/bin/sh\nrm -rf /", "script", "a script", "脚本"),
        (b"#EXTM3U\n#EXTINF:1,\nfile:///etc/passwd", "playlist", "a playlist", "播放列表"),
        (b"ffconcat version 1.0\nfile x", "playlist", "a playlist", "播放列表"),
        (b"[playlist]\nFile1=x", "playlist", "a playlist", "播放列表"),
        (b"<?xml version='1.0'?><MPD ><Period/>", "playlist", "a playlist", "播放列表"),
        (_ftyp(b"qt  "), "mov", "a QuickTime video", "QuickTime"),
        (b"\x00\x00\x00\x08wide" + bytes(40), "mov", "a QuickTime video", "QuickTime"),
        (_ftyp(b"M4V "), "mp4", "an MP4 video", "MP4"),
        (_ftyp(b"3gp5"), "3gp", "a 3GP recording", "3GP"),
        (b"RIFF\x00\x00\x00\x00AVI LIST", "avi", "an AVI video", "AVI"),
        (b"8BPS\x00\x01", "psd", "a Photoshop file", "Photoshop"),
        (b"data:image/png;base64,iVBORw0KGgo=", "base64", "a file written out as base64 text", "base64"),
        (b"version https://git-lfs.github.com/spec/v1\n", "lfs_pointer", "a Git LFS pointer", "LFS"),
        ("页面不存在".encode("gb18030"), "text", "plain text (页面不存在)", "页面不存在"),
        ("\ufeffnot found".encode("utf-16-le"), "text", "plain text (not found)", "not found"),
        ("Prix réduit à 9 € ".encode("cp1252") * 6, "text", "plain text (Prix r", "纯文本"),
        (bytes(range(256)), "unknown", "a file of an unknown kind", "无法识别"),
        (b"\xff" * 4096, "unknown", "a file of an unknown kind", "无法识别"),
        (b"", "empty", "an empty file", "空文件"),
    ],
    ids=lambda value: value[:24].decode("latin-1") if isinstance(value, bytes) else value[:12],
)
def test_what_we_refuse_is_named_in_both_languages(data, name, english, chinese):
    media = sniff(data)
    assert (media.kind, media.format, media.supported) == (MediaKind.OTHER, name, False)
    assert english in media.description_en
    assert chinese in media.description_zh


def test_quoted_text_is_short_and_holds_no_control_or_direction_marks():
    quoted = sniff(("a\u202eb\tc\r\n" + "long " * 100).encode()).description_en
    assert quoted.startswith("plain text (ab c long long")
    assert len(quoted) < 80
    assert "\n" not in quoted


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10) + MP3_FRAME * 2, "mp3"),
        (b"ID3\x04\x00\x00\x00\x00\x00\x0a" + bytes(10) + ADTS_FRAME * 9, "aac"),
        (MP3_FRAME, "mp3"),
        (b"\x00\x13junk\x91" * 30 + MP3_FRAME * 3, "mp3"),
        (ADTS_FRAME * 4, "aac"),
        (b"RF64\xff\xff\xff\xffWAVEds64", "wav"),
        (b"RIFX\x00\x00\x00\x00WAVEfmt ", "wav"),
        (b"FORM\x00\x00\x00\x00AIFC", "aiff"),
        (_ftyp(b"M4A ", b"mp42"), "m4a"),
        (_ftyp(b"mp42", b"isom"), "m4a"),
        (_ftyp(b"mif1", b"mif1", b"avif"), "avif"),
        (_ftyp(b"mif1", b"heic"), "heic"),
        (b"II+\x00\x08\x00", "tiff"),
        (b"MM\x00*\x00\x00", "tiff"),
        (b"junk that mail left\n%PDF-1.4\n", "pdf"),
        (b"\x00\x01\x02\x03%PDF-1.7", "pdf"),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:14]),
)
def test_odd_beginnings_of_formats_that_we_take(data, name):
    media = sniff(data)
    assert (media.format, media.supported) == (name, True)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"GIF89a<html><script>alert(1)</script>", "gif"),
        (b"\xff\xd8\xff\xe0" + bytes(40) + b"PK\x03\x04", "jpeg"),
        (b"PK\x03\x04" + b"\xff\xd8\xff\xe0", "zip"),
        (b"<html>%PDF-1.4", "html"),
        (b"BM is a short name", "text"),
        (b"MZ as in Mozart", "text"),
    ],
)
def test_of_a_file_that_is_several_things_the_first_bytes_decide(data, name):
    assert sniff(data).format == name


def test_what_stands_behind_a_large_id3_tag_is_found(tmp_path):
    tag = b"ID3\x03\x00\x00\x00\x01\x7f\x7f" + bytes(32_767)
    for name, frames in (("mp3", MP3_FRAME * 3), ("aac", ADTS_FRAME * 9), ("flac", b"fLaC" + bytes(40))):
        (tmp_path / name).write_bytes(tag + frames)
        assert sniff_file(tmp_path / name).format == name


def test_an_mp4_with_a_picture_track_is_a_video_even_where_the_index_comes_last(tmp_path):
    (tmp_path / "clip.m4a").write_bytes(made.mp4_video())
    assert sniff_file(tmp_path / "clip.m4a").format == "mp4"


@pytest.mark.parametrize("size", [b"\xff" * 8, bytes(8), b"\x7f" + b"\xff" * 7, b"\0\0\0\0\0\0\0\x09"])
def test_a_box_that_lies_about_its_size_ends_the_search_for_an_index(size, tmp_path):
    (tmp_path / "note").write_bytes(_ftyp(b"mp42") + b"\0\0\0\x01mdat" + size + bytes(40))
    assert sniff_file(tmp_path / "note").format == "m4a"


def test_webm_with_pictures_and_matroska_are_named_apart():
    ebml = b"\x1a\x45\xdf\xa3\x9f\x42\x82\x84webm"
    assert sniff(ebml + b"\x86\x85V_VP8").format == "webm_video"
    assert sniff(ebml + b"\x86\x86A_OPUS").format == "webm"
    assert sniff(b"\x1a\x45\xdf\xa3\xa3\x42\x82\x88matroska").format == "matroska"


@pytest.mark.parametrize(
    ("data", "declared", "name", "expected"),
    [
        (b"\x89PNG\r\n\x1a\n", "image/jpeg", "photo.jpg", True),
        (b"\x89PNG\r\n\x1a\n", "image/png", "photo.jpg", True),
        (b"\x89PNG\r\n\x1a\n", "image/png; charset=binary", "photo.PNG", False),
        (b"\x89PNG\r\n\x1a\n", None, None, False),
        (b"\x89PNG\r\n\x1a\n", "application/octet-stream", "upload.bin", False),
        (b"\x89PNG\r\n\x1a\n", "image/*", "photo", False),
        (b"\xff\xd8\xff\xe0", "image/jpg", "a.png.jpeg", False),
        (b"\xff\xd8\xff\xe0", "image/pjpeg", "scan.jfif", False),
        (_ftyp(b"heic"), "image/heif", "IMG_0001.HEIC", False),
        (_ftyp(b"heic"), "image/png", "shot.png", True),
        (b"<html>", "image/jpeg", "item.jpg", True),
        (b"<html>", "text/html", "index.html", False),
        (MP3_FRAME, "audio/mp3", "note.mp3", False),
        (_ftyp(b"M4A "), "audio/x-m4a", "note.m4a", False),
        (b"", "image/jpeg", "photo.jpg", False),
    ],
)
def test_type_mismatch_compares_what_was_claimed_with_the_bytes(data, declared, name, expected):
    assert type_mismatch(sniff(data), declared, name) is expected


@given(st.binary(max_size=HEAD_BYTES))
def test_any_bytes_get_a_name(data):
    media = sniff(data)
    assert media.description_en
    assert media.description_zh
    assert media.supported == (media.kind is not MediaKind.OTHER)


@pytest.mark.parametrize("build", [made.mp3, made.m4a, made.webm, made.pdf_text, made.animated_gif, made.opus])
def test_a_cut_anywhere_in_the_head_still_gets_a_name(build):
    head = build()[:400]
    assert all(sniff(head[:length]).format for length in range(len(head)))


def test_samples_are_what_their_names_say():
    if not SAMPLES.is_dir():
        pytest.fail(f"set SLUICEGATE_SAMPLES to the folder of sample files; {SAMPLES} is not there")
    kinds = {"img": "image", "aud": "audio", "pdf": "pdf"}
    for row in csv.DictReader((SAMPLES / "SOURCES.tsv").open(encoding="utf-8"), delimiter="\t"):
        media = sniff_file(SAMPLES / row["file"])
        expected = "other" if row["expected"] == "reject:empty" else kinds[row["file"][:3]]
        assert media.kind == expected, row["file"]
