"""The offline writer: an honest draft from what is stated, without any model. It invents nothing and says so."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fallback.text_only import Brief
from prefilters.facts import FactValue

PRODUCED_BY = "offline-draft"
_MAX_BULLETS = 5
_MIN_BULLETS = 3
_LINE_CHARS = 160

_LABELS: Mapping[str, Mapping[str, str]] = {
    "en": {
        "untitled": "Untitled product",
        "reads": "The label reads: “{text}”",
        "document": "From the document: “{text}”",
        "said": "From the recording: “{text}”",
        "barcode": "Barcode: {text}",
        "picture": "Picture supplied: {width} × {height} px",
        "recording": "Recording supplied: {seconds} s",
        "missing": "Not stated by the seller: {names}",
        "intro": "{title}.",
        "attribute": "{name}: {value}",
    },
    "zh": {
        "untitled": "未命名商品",
        "reads": "标签文字:“{text}”",
        "document": "文件内容:“{text}”",
        "said": "录音内容:“{text}”",
        "barcode": "条形码:{text}",
        "picture": "已提供图片:{width} × {height} 像素",
        "recording": "已提供录音:{seconds} 秒",
        "missing": "卖家未说明:{names}",
        "intro": "{title}。",
        "attribute": "{name}:{value}",
    },
}
_KIND_LABEL = {"ocr": "reads", "text_layer": "document", "transcript": "said", "barcode": "barcode"}
_EXPECTED = {"en": ("brand", "material", "size", "colour"), "zh": ("品牌", "材质", "尺寸", "颜色")}
_SAME = {"color": "colour", "品牌": "brand", "材质": "material", "尺寸": "size", "颜色": "colour"}


@dataclass(frozen=True, slots=True)
class Claim:
    """One sentence and where it comes from: a part name, `title`, `text` or `attribute:NAME`."""

    text: str
    source: str


def offline_draft(brief: Brief, seen: Iterable[tuple[str, Mapping[str, FactValue]]]) -> dict[str, Any]:
    """Copy by the `product-copy` schema from the brief alone; labels in Chinese for `zh` languages, else in English.

    `seen` are the measured facts of each usable file, which fill up a draft that would else have too few points.
    """
    language = "zh" if brief.language.lower().startswith("zh") else "en"
    labels = _LABELS[language]
    title = _title(brief, labels)
    claims = [*_attribute_claims(brief, labels), *_text_claims(brief), *_source_claims(brief, labels)]
    bullets = claims[:_MAX_BULLETS]
    fillers = [*_picture_claims(seen, labels), *_missing_claims(brief, language)]
    while len(bullets) < _MIN_BULLETS and fillers:
        bullets.append(fillers.pop(0))
    described = [Claim(labels["intro"].format(title=title.text), title.source), *(claims or bullets)]
    joiner = "" if language == "zh" else " "
    return {
        "title": _cut(title.text, 200),
        "bullets": [_cut(claim.text, 400) for claim in bullets],
        "description": _cut(joiner.join(_sentence(claim.text, language) for claim in described), 4000),
        "keywords": _keywords(brief, title.text),
        "language": brief.language,
        "grounded_in": [
            {"claim": _cut(claim.text, 400), "source": _cut(claim.source, 200)} for claim in [title, *bullets]
        ],
    }


def _title(brief: Brief, labels: Mapping[str, str]) -> Claim:
    if brief.title and brief.title.strip():
        return Claim(" ".join(brief.title.split()), "title")
    for source in brief.sources:
        if source.kind != "barcode":
            line = next((line.strip() for line in source.text.splitlines() if len(line.strip()) >= 3), None)
            if line:
                return Claim(_cut(line, _LINE_CHARS), source.part)
    return Claim(labels["untitled"], "title")


def _attribute_claims(brief: Brief, labels: Mapping[str, str]) -> list[Claim]:
    return [
        Claim(labels["attribute"].format(name=_readable(name), value=" ".join(value.split())), f"attribute:{name}")
        for name, value in brief.attributes.items()
        if value.strip()
    ]


def _text_claims(brief: Brief) -> list[Claim]:
    if not brief.text:
        return []
    sentences = re.split(r"(?<=[.!?。!?])\s*|\n+", brief.text)
    return [Claim(_cut(" ".join(s.split()), _LINE_CHARS), "text") for s in sentences if len(s.strip()) > 3][:3]


def _source_claims(brief: Brief, labels: Mapping[str, str]) -> list[Claim]:
    claims = []
    for source in brief.sources:
        text = " ".join(source.text.split())
        if text:
            label = labels[_KIND_LABEL.get(source.kind, "document")]
            claims.append(Claim(label.format(text=_cut(text, _LINE_CHARS)), source.part))
    return claims


def _picture_claims(seen: Iterable[tuple[str, Mapping[str, FactValue]]], labels: Mapping[str, str]) -> Sequence[Claim]:
    claims = []
    for part, facts in seen:
        if "image.width" in facts:
            text = labels["picture"].format(width=facts["image.width"], height=facts["image.height"])
            claims.append(Claim(text, part))
        elif "audio.duration_s" in facts:
            claims.append(Claim(labels["recording"].format(seconds=round(float(facts["audio.duration_s"]), 1)), part))
    return claims


def _missing_claims(brief: Brief, language: str) -> list[Claim]:
    """What a shopper would ask and nobody has said; one line each, so that a short draft still has its points."""
    given = {_SAME.get(name.lower(), name.lower()) for name, value in brief.attributes.items() if value.strip()}
    missing = [name for name in _EXPECTED[language] if _SAME.get(name, name) not in given]
    return [Claim(_LABELS[language]["missing"].format(names=name), "attributes") for name in missing]


def _keywords(brief: Brief, title: str) -> list[str]:
    words: dict[str, None] = {}
    values = [value for value in brief.attributes.values() if 0 < len(value) <= 40]
    for text in [title, *values]:
        for word in re.findall(r"[^\W\d_][\w-]{2,}", text):
            words.setdefault(word.lower()[:80])
    return list(words)[:10]


def _readable(name: str) -> str:
    text = name.replace("_", " ").strip()
    return text[:1].upper() + text[1:]


def _sentence(text: str, language: str) -> str:
    end = "。" if language == "zh" else "."
    return text if text.endswith((".", "。", "!", "?", "!", "?")) else text + end


def _cut(text: str, limit: int) -> str:
    """At most `limit` characters, ended at a word and marked, so that no half of a number stands as a fact."""
    if len(text) <= limit:
        return text
    head = text[: limit - 1]
    return (head.rsplit(" ", 1)[0] if " " in head[limit // 2 :] else head).rstrip() + "…"
