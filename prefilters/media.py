"""What a file is, by its leading bytes: never by its name, never by the type that was declared for it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO

HEAD_BYTES = 4096
"""How much of a file `sniff` looks at."""


class MediaKind(StrEnum):
    """The families that are measured in different ways."""

    IMAGE = "image"
    PDF = "pdf"
    AUDIO = "audio"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Media:
    """What the bytes are. The descriptions are noun phrases that fit into a sentence: "an HTML page", "一个网页"."""

    kind: MediaKind
    format: str
    mime: str
    description_en: str
    description_zh: str
    supported: bool


def _taken(kind: MediaKind, name: str, mime: str, en: str, zh: str) -> tuple[str, Media]:
    return name, Media(kind, name, mime, en, zh, supported=True)


def _named(name: str, mime: str, en: str, zh: str) -> tuple[str, Media]:
    return name, Media(MediaKind.OTHER, name, mime, en, zh, supported=False)


_MEDIA: dict[str, Media] = dict(
    (
        _taken(MediaKind.IMAGE, "jpeg", "image/jpeg", "a JPEG picture", "一张 JPEG 图片"),
        _taken(MediaKind.IMAGE, "png", "image/png", "a PNG picture", "一张 PNG 图片"),
        _taken(MediaKind.IMAGE, "webp", "image/webp", "a WebP picture", "一张 WebP 图片"),
        _taken(MediaKind.IMAGE, "gif", "image/gif", "a GIF picture", "一张 GIF 图片"),
        _taken(MediaKind.IMAGE, "heic", "image/heic", "a HEIC picture", "一张 HEIC 图片"),
        _taken(MediaKind.IMAGE, "avif", "image/avif", "an AVIF picture", "一张 AVIF 图片"),
        _taken(MediaKind.IMAGE, "tiff", "image/tiff", "a TIFF picture", "一张 TIFF 图片"),
        _taken(MediaKind.IMAGE, "bmp", "image/bmp", "a BMP picture", "一张 BMP 图片"),
        _taken(MediaKind.PDF, "pdf", "application/pdf", "a PDF document", "一份 PDF 文档"),
        _taken(MediaKind.AUDIO, "wav", "audio/wav", "a WAV recording", "一段 WAV 录音"),
        _taken(MediaKind.AUDIO, "aiff", "audio/aiff", "an AIFF recording", "一段 AIFF 录音"),
        _taken(MediaKind.AUDIO, "mp3", "audio/mpeg", "an MP3 recording", "一段 MP3 录音"),
        _taken(MediaKind.AUDIO, "aac", "audio/aac", "an AAC recording", "一段 AAC 录音"),
        _taken(MediaKind.AUDIO, "m4a", "audio/mp4", "an M4A recording", "一段 M4A 录音"),
        _taken(MediaKind.AUDIO, "ogg", "audio/ogg", "an Ogg recording", "一段 Ogg 录音"),
        _taken(MediaKind.AUDIO, "flac", "audio/flac", "a FLAC recording", "一段 FLAC 录音"),
        _taken(MediaKind.AUDIO, "webm", "audio/webm", "a WebM recording", "一段 WebM 录音"),
        _named("empty", "application/x-empty", "an empty file", "一个空文件"),
        _named("unknown", "application/octet-stream", "a file of an unknown kind", "一个无法识别的文件"),
        _named("html", "text/html", "an HTML page", "一个网页（HTML）"),
        _named("svg", "image/svg+xml", "an SVG drawing", "一个 SVG 矢量图"),
        _named("xml", "application/xml", "an XML document", "一个 XML 文件"),
        _named("json", "application/json", "JSON text", "一段 JSON 文本"),
        _named("text", "text/plain", "plain text", "一段纯文本"),
        _named("base64", "text/plain", "a file written out as base64 text", "一段 base64 编码的文本"),
        _named("lfs_pointer", "text/plain", "a Git LFS pointer instead of the file itself", "一个 Git LFS 指针文件"),
        _named("rtf", "application/rtf", "an RTF document", "一份 RTF 文档"),
        _named("script", "text/x-script", "a script", "一个脚本文件"),
        _named("playlist", "application/vnd.apple.mpegurl", "a playlist", "一个播放列表"),
        _named("eps", "application/postscript", "an EPS drawing", "一个 EPS 矢量图"),
        _named("postscript", "application/postscript", "a PostScript document", "一份 PostScript 文档"),
        _named("zip", "application/zip", "a ZIP archive", "一个 ZIP 压缩包"),
        _named("office", "application/vnd.openxmlformats-officedocument", "an Office document", "一份 Office 文档"),
        _named("epub", "application/epub+zip", "an EPUB book", "一本 EPUB 电子书"),
        _named("opendocument", "application/vnd.oasis.opendocument", "an OpenDocument file", "一份 OpenDocument 文档"),
        _named("ole", "application/x-ole-storage", "an old Office document", "一份旧版 Office 文档"),
        _named("gzip", "application/gzip", "a gzip archive", "一个 gzip 压缩包"),
        _named("bzip2", "application/x-bzip2", "a bzip2 archive", "一个 bzip2 压缩包"),
        _named("xz", "application/x-xz", "an XZ archive", "一个 XZ 压缩包"),
        _named("zstd", "application/zstd", "a Zstandard archive", "一个 Zstandard 压缩包"),
        _named("7z", "application/x-7z-compressed", "a 7z archive", "一个 7z 压缩包"),
        _named("rar", "application/vnd.rar", "a RAR archive", "一个 RAR 压缩包"),
        _named("tar", "application/x-tar", "a TAR archive", "一个 TAR 归档"),
        _named("elf", "application/x-executable", "an executable", "一个可执行程序"),
        _named("exe", "application/vnd.microsoft.portable-executable", "an executable", "一个可执行程序"),
        _named("macho", "application/x-mach-binary", "an executable", "一个可执行程序"),
        _named("wasm", "application/wasm", "an executable", "一个可执行程序"),
        _named("sqlite", "application/vnd.sqlite3", "a SQLite database", "一个 SQLite 数据库"),
        _named("font", "font/sfnt", "a font", "一个字体文件"),
        _named("psd", "image/vnd.adobe.photoshop", "a Photoshop file", "一个 Photoshop 文件"),
        _named("icon", "image/x-icon", "an icon", "一个图标文件"),
        _named("jxl", "image/jxl", "a JPEG XL picture", "一张 JPEG XL 图片"),
        _named("jp2", "image/jp2", "a JPEG 2000 picture", "一张 JPEG 2000 图片"),
        _named("raw", "image/x-raw", "a camera raw file", "一个相机 RAW 文件"),
        _named("pnm", "image/x-portable-anymap", "a Netpbm picture", "一张 Netpbm 图片"),
        _named("qoi", "image/qoi", "a QOI picture", "一张 QOI 图片"),
        _named("exr", "image/x-exr", "an OpenEXR picture", "一张 OpenEXR 图片"),
        _named("dds", "image/vnd.ms-dds", "a DDS texture", "一个 DDS 纹理"),
        _named("mng", "video/x-mng", "an MNG animation", "一个 MNG 动画"),
        _named("dicom", "application/dicom", "a DICOM scan", "一个 DICOM 影像"),
        _named("mp4", "video/mp4", "an MP4 video", "一段 MP4 视频"),
        _named("mov", "video/quicktime", "a QuickTime video", "一段 QuickTime 视频"),
        _named("3gp", "video/3gpp", "a 3GP recording", "一段 3GP 录制文件"),
        _named("webm_video", "video/webm", "a WebM video", "一段 WebM 视频"),
        _named("matroska", "video/x-matroska", "a Matroska file", "一个 Matroska 文件"),
        _named("ogg_video", "video/ogg", "an Ogg video", "一段 Ogg 视频"),
        _named("avi", "video/x-msvideo", "an AVI video", "一段 AVI 视频"),
        _named("flv", "video/x-flv", "a Flash video", "一段 Flash 视频"),
        _named("mpeg", "video/mpeg", "an MPEG video", "一段 MPEG 视频"),
        _named("asf", "video/x-ms-asf", "a Windows Media file", "一个 Windows Media 文件"),
        _named("speex", "audio/x-speex", "a Speex recording", "一段 Speex 录音"),
        _named("amr", "audio/amr", "an AMR recording", "一段 AMR 录音"),
        _named("caf", "audio/x-caf", "a Core Audio recording", "一段 Core Audio 录音"),
        _named("au", "audio/basic", "an AU recording", "一段 AU 录音"),
        _named("midi", "audio/midi", "a MIDI score", "一个 MIDI 乐谱"),
        _named("wavpack", "audio/x-wavpack", "a WavPack recording", "一段 WavPack 录音"),
        _named("ape", "audio/x-ape", "a Monkey's Audio recording", "一段 APE 录音"),
        _named("w64", "audio/x-w64", "a Wave64 recording", "一段 Wave64 录音"),
    )
)

_MAGIC: tuple[tuple[bytes, str], ...] = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II+\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"MM\0+", "tiff"),
    (b"%PDF-", "pdf"),
    (b"fLaC", "flac"),
    (b"8BPS", "psd"),
    (b"\0\0\1\0", "icon"),
    (b"icns", "icon"),
    (b"\0\0\0\x0cJXL \r\n\x87\n", "jxl"),
    (b"\xff\x0a", "jxl"),
    (b"\0\0\0\x0cjP  ", "jp2"),
    (b"\xff\x4f\xff\x51", "jp2"),
    (b"IIRO", "raw"),
    (b"IIRS", "raw"),
    (b"IIU\0", "raw"),
    (b"FUJIFILMCCD-RAW", "raw"),
    (b"qoif", "qoi"),
    (b"v/1\x01", "exr"),
    (b"DDS ", "dds"),
    (b"\x8aMNG\r\n\x1a\n", "mng"),
    (b"\x8bJNG\r\n\x1a\n", "mng"),
    (b"\xc5\xd0\xd3\xc6", "eps"),
    (b"PK\3\4", "zip"),
    (b"PK\5\6", "zip"),
    (b"PK\7\x08", "zip"),
    (b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", "ole"),
    (b"\x1f\x8b", "gzip"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"7z\xbc\xaf\x27\x1c", "7z"),
    (b"Rar!\x1a\x07", "rar"),
    (b"\x7fELF", "elf"),
    (b"\xfe\xed\xfa\xce", "macho"),
    (b"\xfe\xed\xfa\xcf", "macho"),
    (b"\xce\xfa\xed\xfe", "macho"),
    (b"\xcf\xfa\xed\xfe", "macho"),
    (b"\xca\xfe\xba\xbe", "macho"),
    (b"\0asm", "wasm"),
    (b"SQLite format 3\0", "sqlite"),
    (b"OTTO", "font"),
    (b"wOFF", "font"),
    (b"wOF2", "font"),
    (b"\0\1\0\0\0", "font"),
    (b"FLV\1", "flv"),
    (b"\0\0\1\xba", "mpeg"),
    (b"\0\0\1\xb3", "mpeg"),
    (b"\x30\x26\xb2\x75\x8e\x66\xcf\x11", "asf"),
    (b"#!AMR", "amr"),
    (b"caff", "caf"),
    (b".snd", "au"),
    (b"MThd", "midi"),
    (b"wvpk", "wavpack"),
    (b"MAC ", "ape"),
    (b"riff\x2e\x91\xcf\x11", "w64"),
)

_HEIC_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs"})
_AVIF_BRANDS = frozenset({b"avif", b"avis"})
_M4A_BRANDS = frozenset({b"M4A ", b"M4B ", b"M4P "})
_MOVIE_BOXES = frozenset({b"moov", b"mdat", b"wide", b"pnot", b"skip", b"free"})
_BMP_HEADERS = frozenset({12, 16, 40, 52, 56, 64, 108, 124})
_BASE64_STARTS = (b"data:", b"/9j/4", b"iVBORw0KGgo", b"R0lGOD", b"UklGR", b"JVBERi0")
_PLAYLIST_STARTS = (
    b"#extm3u",
    b"#exthdr",
    b"[playlist]",
    b"ffconcat version",
    b"[reference]",
    b"<asx",
    b"<smil",
    b"<mpd",
)
_TEXT_CONTROLS = frozenset(b"\t\n\f\r\x1b")
_NO_TEXT = bytes(byte for byte in range(0x20) if byte not in _TEXT_CONTROLS) + b"\x7f"
_NO_ASCII = bytes(range(0x80, 0x100))


def supported_formats() -> tuple[str, ...]:
    """The formats that we take, by name."""
    return tuple(sorted(name for name, media in _MEDIA.items() if media.supported))


def sniff(head: bytes) -> Media:
    """What the leading bytes say. `head` is the first 4 KiB of the file, or all of it if it is shorter.

    Where a file is several formats at once, the first bytes decide. What follows an ID3 tag longer than `head`, and an
    MP4 index at the end of the file, cannot be seen from here: `sniff_file` looks there too.
    """
    if not head:
        return _MEDIA["empty"]
    return _by_magic(head) or _by_container(head) or _by_text(head) or _by_sync(head) or _MEDIA["unknown"]


def sniff_file(path: Path | str) -> Media:
    """What the file at `path` is. Reads 4 KiB, and at most 64 KiB more behind an ID3 tag or in an MP4's index.

    Raises `OSError` where the file cannot be read.
    """
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
        if head.startswith(b"ID3"):
            return _by_sync(behind_id3(file, head).lstrip(b"\0")) or _MEDIA["mp3"]
        media = sniff(head)
        if media.format == "m4a" and _major_brand(head) not in _M4A_BRANDS:
            return _by_movie_index(file) or media
        return media


def _by_magic(head: bytes) -> Media | None:
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return _by_zip_entry(head) if name == "zip" else _MEDIA[name]
    if head.startswith(b"II*\0"):
        return _MEDIA["raw" if head[8:10] == b"CR" else "tiff"]
    if head.startswith(b"BM") and int.from_bytes(head[14:18], "little") in _BMP_HEADERS:
        return _MEDIA["bmp"]
    if head.startswith(b"MZ") and any(byte >= 0x80 or byte == 0 for byte in head[2:64]):
        return _MEDIA["exe"]
    if re.match(rb"P[1-7]\s+(#|\d)", head):
        return _MEDIA["pnm"]
    if head[257:262] == b"ustar":
        return _MEDIA["tar"]
    if head[128:132] == b"DICM":
        return _MEDIA["dicom"]
    if len(head) > 376 and head[0] == head[188] == head[376] == 0x47:
        return _MEDIA["mpeg"]
    return None


def _by_zip_entry(head: bytes) -> Media:
    if b"[Content_Types].xml" in head or b"_rels/.rels" in head:
        return _MEDIA["office"]
    if b"mimetypeapplication/epub+zip" in head:
        return _MEDIA["epub"]
    if b"mimetypeapplication/vnd.oasis.opendocument" in head:
        return _MEDIA["opendocument"]
    return _MEDIA["zip"]


def _by_container(head: bytes) -> Media | None:
    form = head[8:12]
    if head[:4] in (b"RIFF", b"RIFX", b"RF64", b"BW64"):
        name = {b"WAVE": "wav", b"WEBP": "webp", b"AVI ": "avi"}.get(form, "unknown")
        return _MEDIA[name]
    if head[:4] == b"FORM" and form in (b"AIFF", b"AIFC"):
        return _MEDIA["aiff"]
    if head[4:8] == b"ftyp":
        return _by_brands(head)
    if head[4:8] in _MOVIE_BOXES and 8 <= int.from_bytes(head[:4], "big") < 1 << 31:
        return _MEDIA["mov"]
    if head.startswith(b"\x1a\x45\xdf\xa3"):
        return _by_doctype(head)
    if head.startswith(b"OggS"):
        return _by_ogg_packet(head)
    if head.startswith(b"ID3") and len(head) > 9:
        return _by_sync(head[10 + _syncsafe(head[6:10]) :].lstrip(b"\0")) or _MEDIA["mp3"]
    return None


def _major_brand(head: bytes) -> bytes:
    return head[8:12] if head[4:8] == b"ftyp" else b""


def _by_brands(head: bytes) -> Media:
    size = min(int.from_bytes(head[:4], "big"), len(head))
    major = head[8:12]
    brands = {major} | {head[at : at + 4] for at in range(16, size - 3, 4)}
    if major in _M4A_BRANDS:
        return _MEDIA["m4a"]
    if major in _AVIF_BRANDS or (major in (b"mif1", b"msf1", b"miaf") and brands & _AVIF_BRANDS):
        return _MEDIA["avif"]
    if major in _HEIC_BRANDS or major in (b"mif1", b"msf1", b"miaf"):
        return _MEDIA["heic"]
    if major == b"qt  ":
        return _MEDIA["mov"]
    if major[:3] in (b"3gp", b"3g2"):
        return _MEDIA["3gp"]
    if major == b"crx ":
        return _MEDIA["raw"]
    if major[:3] == b"M4V" or _has_video_track(head):
        return _MEDIA["mp4"]
    return _MEDIA["m4a"]


def _has_video_track(boxes: bytes) -> bool:
    return re.search(rb"hdlr.{8}vide", boxes, re.DOTALL) is not None


def _by_doctype(head: bytes) -> Media:
    doctype = re.search(rb"\x42\x82[\x80-\x9f]([a-z0-9-]+)", head[:256])
    if doctype is None or doctype[1] != b"webm":
        return _MEDIA["matroska"]
    video = re.search(rb"\x86[\x80-\xa0]V_[A-Z0-9]", head)
    return _MEDIA["webm_video" if video else "webm"]


def _by_ogg_packet(head: bytes) -> Media:
    first_packet = head[27 + (head[26] if len(head) > 26 else 0) :]
    if first_packet.startswith(b"Speex"):
        return _MEDIA["speex"]
    if first_packet.startswith((b"\x80theora", b"BBCD", b"fishead")) or b"\x80theora" in head:
        return _MEDIA["ogg_video"]
    return _MEDIA["ogg"]


def _by_text(head: bytes) -> Media | None:
    text = _as_text(head)
    if text is None:
        return _MEDIA["pdf"] if b"%PDF-" in head[:1024] else None
    start = text.lstrip("\ufeff \t\r\n\f").encode("utf-8", "replace")
    lower = start[:1024].lower()
    name = _text_format(start, lower)
    media = _MEDIA[name]
    if name in ("text", "json") and (quote := _excerpt(text)):
        return replace(
            media,
            description_en=f"{media.description_en} ({quote})",
            description_zh=f"{media.description_zh}（{quote}）",
        )
    return media


def _text_format(start: bytes, lower: bytes) -> str:
    if lower.startswith(_PLAYLIST_STARTS) or re.search(rb"<(playlist|asx|smil|mpd)[\s>]", lower):
        return "playlist"
    if lower.startswith(b"<"):
        if re.search(rb"<!doctype html|<(html|head|body|title|script|meta|div)[\s>/]", lower):
            return "html"
        return "svg" if re.search(rb"<svg[\s>]", lower) else "xml"
    if lower.startswith(b"%!ps"):
        return "eps" if b"epsf" in lower[:64] else "postscript"
    if lower.startswith(b"{\\rtf"):
        return "rtf"
    if b"%pdf-" in lower:
        return "pdf"
    if lower.startswith(b"#!"):
        return "script"
    if lower.startswith(b"version https://git-lfs"):
        return "lfs_pointer"
    if start.startswith(_BASE64_STARTS):
        return "base64"
    return "json" if re.match(rb'\{\s*["}]|\[\s*["{\[\]\d]', start) else "text"


def _as_text(head: bytes) -> str | None:
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        text = head[: len(head) & ~1].decode("utf-16", "replace")
        return text if text.count("\ufffd") <= 1 and not _has_controls(text) else None
    if len(head.translate(None, _NO_TEXT)) < len(head):
        return None
    for encoding in ("utf-8", "gb18030"):
        for cut in range(4):  # the head may end within a character
            try:
                return head[: len(head) - cut].decode(encoding)
            except UnicodeDecodeError:
                continue
    ascii_bytes = len(head.translate(None, _NO_ASCII))
    return head.decode("latin-1") if len(head) >= 64 and ascii_bytes > 0.7 * len(head) else None


def _has_controls(text: str) -> bool:
    return any(ord(char) < 0x20 and ord(char) not in _TEXT_CONTROLS for char in text)


def _excerpt(text: str, *, longest: int = 60) -> str:
    """The first words of a text, safe to show: one line, no control or direction characters."""
    shown = "".join(" " if char.isspace() else char for char in text[:400] if _is_shown(char))
    line = " ".join(shown.split())
    return line if len(line) <= longest else line[: longest - 1].rstrip() + "…"


def _is_shown(char: str) -> bool:
    return char.isspace() or not unicodedata.category(char).startswith("C")


_LAYER_3_KBPS = (
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),  # MPEG-2 and 2.5
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),  # MPEG-1
)
_MPEG_1_HZ = (44_100, 48_000, 32_000)
_SYNC = re.compile(rb"\xff[\xe2-\xe5\xf0-\xf5\xf8-\xfd]")
"""Second bytes of ADTS, and of MPEG audio layers II and III."""


def _by_sync(head: bytes) -> Media | None:
    """An MPEG or ADTS stream: a frame that begins at once, or two in a row after some junk."""
    if not head:
        return None
    if head.startswith(b"fLaC"):
        return _MEDIA["flac"]
    for at in (found.start() for found in _SYNC.finditer(head)):
        for name, frame_bytes in _FRAME_BYTES.items():
            length = frame_bytes(head[at : at + 7])
            if length and _frame_follows(head, at + length, frame_bytes, lonely_is_enough=at == 0):
                return _MEDIA[name]
    return None


def _frame_follows(head: bytes, at: int, frame_bytes: Callable[[bytes], int], *, lonely_is_enough: bool) -> bool:
    return lonely_is_enough if at + 7 > len(head) else frame_bytes(head[at : at + 7]) > 0


def _mp3_frame_bytes(header: bytes) -> int:
    """Length of the layer II or III frame that this header starts, 0 if it is none (ISO 11172-3, 2.4.1.3)."""
    if len(header) < 4 or header[0] != 0xFF or header[1] & 0xE0 != 0xE0:
        return 0
    version, layer = header[1] >> 3 & 3, header[1] >> 1 & 3
    bitrate, rate, padding = header[2] >> 4, header[2] >> 2 & 3, header[2] >> 1 & 1
    if version == 1 or layer not in (1, 2) or rate == 3 or bitrate in (0, 15):
        return 0
    hertz = _MPEG_1_HZ[rate] >> (0, 0, 1, 0)[version] if version else _MPEG_1_HZ[rate] >> 2
    kbps = _LAYER_3_KBPS[version == 3][bitrate]
    if layer == 2:
        kbps = _layer_2_kbps(bitrate, mpeg_1=version == 3)
    samples = 1152 if version == 3 or layer == 2 else 576
    return samples // 8 * kbps * 1000 // hertz + padding


def _layer_2_kbps(bitrate: int, *, mpeg_1: bool) -> int:
    if not mpeg_1:
        return _LAYER_3_KBPS[0][bitrate]
    return (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)[bitrate]


def _adts_frame_bytes(header: bytes) -> int:
    """Length of the ADTS frame that this header starts, 0 if it is none (ISO 13818-7, 6.2)."""
    if len(header) < 7 or header[0] != 0xFF or header[1] & 0xF6 != 0xF0 or header[2] >> 2 & 15 > 12:
        return 0
    length = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    return length if length > 7 else 0


_FRAME_BYTES: dict[str, Callable[[bytes], int]] = {"mp3": _mp3_frame_bytes, "aac": _adts_frame_bytes}


def _syncsafe(size: bytes) -> int:
    return (size[0] & 127) << 21 | (size[1] & 127) << 14 | (size[2] & 127) << 7 | size[3] & 127


def behind_id3(file: BinaryIO, head: bytes) -> bytes:
    """The 4 KiB behind the ID3 tags that `head`, the start of `file`, begins with; `head` itself without one."""
    at = 0
    for _ in range(3):  # up to three tags in a row are met in the wild
        if not head.startswith(b"ID3") or len(head) < 10:
            break
        at += 10 + _syncsafe(head[6:10]) + (10 if head[5] & 0x10 else 0)
        file.seek(at)
        head = file.read(HEAD_BYTES)
    return head


def _by_movie_index(file: BinaryIO, *, most_boxes: int = 64, most_bytes: int = 65_536) -> Media | None:
    """`mp4` if the index of this ISO file, wherever it is, names a video track; None if it does not."""
    end, at = file.seek(0, SEEK_END), 0
    for _ in range(most_boxes):
        file.seek(at)
        header = file.read(16)
        size = int.from_bytes(header[:4], "big")
        if size == 1:
            size = int.from_bytes(header[8:16], "big")
        if header[4:8] == b"moov":
            return _MEDIA["mp4"] if _has_video_track(header + file.read(min(size, most_bytes))) else None
        at += size
        if size < 8 or at >= end:
            break
    return None


_ALIASES: dict[str, tuple[str, str]] = {
    "jpeg": ("image/jpg image/pjpeg", "jpg jpeg jpe jfif"),
    "png": ("image/x-png image/apng", "png apng"),
    "webp": ("", "webp"),
    "gif": ("", "gif"),
    "heic": ("image/heif image/heic-sequence image/heif-sequence", "heic heif hif"),
    "avif": ("image/avif-sequence", "avif avifs"),
    "tiff": ("image/x-tiff", "tif tiff"),
    "bmp": ("image/x-bmp image/x-ms-bmp", "bmp dib"),
    "pdf": ("application/x-pdf", "pdf"),
    "wav": ("audio/x-wav audio/wave audio/vnd.wave", "wav wave rf64 bwf"),
    "aiff": ("audio/x-aiff", "aif aiff aifc"),
    "mp3": ("audio/mp3 audio/x-mp3 audio/mpeg3 audio/x-mpeg", "mp3 mp2 mpga"),
    "aac": ("audio/x-aac audio/aacp audio/x-hx-aac-adts", "aac adts"),
    "m4a": ("audio/m4a audio/x-m4a video/mp4 application/mp4", "m4a m4b mp4"),
    "ogg": ("application/ogg audio/opus audio/vorbis audio/x-ogg audio/x-vorbis+ogg", "ogg oga opus"),
    "flac": ("audio/x-flac", "flac"),
    "webm": ("video/webm", "webm weba"),
    "html": ("application/xhtml+xml", "html htm xhtml"),
    "svg": ("", "svg"),
    "xml": ("text/xml", "xml"),
    "json": ("text/json", "json"),
    "text": ("text/csv text/markdown", "txt csv md log"),
    "zip": ("application/x-zip-compressed", "zip"),
    "office": ("", "docx xlsx pptx"),
    "ole": ("application/msword application/vnd.ms-excel", "doc xls ppt"),
    "eps": ("application/eps image/eps image/x-eps", "eps"),
    "postscript": ("", "ps"),
    "playlist": ("audio/x-mpegurl application/x-mpegurl audio/mpegurl audio/x-scpls", "m3u m3u8 pls asx xspf"),
    "exe": ("application/x-msdownload application/x-dosexec", "exe dll"),
    "mp4": ("audio/mp4 application/mp4", "mp4 m4v"),
    "mov": ("video/mp4", "mov qt"),
    "webm_video": ("audio/webm", "webm"),
    "matroska": ("audio/x-matroska", "mkv mka"),
    "ogg_video": ("application/ogg", "ogv ogg"),
    "avi": ("video/avi video/msvideo", "avi"),
    "psd": ("", "psd"),
    "gzip": ("application/x-gzip", "gz tgz"),
}
_KNOWN_ENDINGS = frozenset(ending for _, endings in _ALIASES.values() for ending in endings.split())
_SAYS_NOTHING = frozenset(
    {"", "application/octet-stream", "binary/octet-stream", "application/x-www-form-urlencoded", "*/*"}
)


def type_mismatch(media: Media, declared_type: str | None, file_name: str | None) -> bool:
    """Whether the declared media type or the ending of the file name says another format than the bytes.

    No type, a generic one and an unknown ending claim nothing, so they contradict nothing.
    """
    if media.format == "empty":
        return False
    types, endings = _ALIASES.get(media.format, ("", ""))
    claimed = (declared_type or "").split(";")[0].strip().lower()
    says_nothing = claimed in _SAYS_NOTHING or claimed == f"{media.mime.split('/')[0]}/*"
    if not says_nothing and claimed != media.mime and claimed not in types.split():
        return True
    _, dot, ending = (file_name or "").rstrip(". ").lower().rpartition(".")
    return bool(dot) and ending in _KNOWN_ENDINGS and ending not in endings.split()
