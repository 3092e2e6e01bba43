"""The offline writer makes an honest draft from what is stated, and nothing else."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.catalogue import PRODUCTS
from fallback.text_only import Brief, SourceText
from gateway.agent.offline import offline_draft
from gateway.profiles import load_profiles

PROFILE = load_profiles()["product-copy"]
OUR_WORDS = set(
    re.findall(
        r"\w+",
        "untitled product the label reads from document recording barcode picture supplied px s not stated by seller "
        "brand material size colour",
    )
)
OUR_CHINESE = set("未命名商品标签文字文件内容录音条形码已提供图片像素秒卖家说明品牌材质尺寸颜色")


def words(text: str) -> set[str]:
    """Words in lower case; of Chinese, single characters."""
    return set(re.findall(r"[\u4e00-\u9fff]|[^\W\u4e00-\u9fff]+", text.lower()))


def said(brief: Brief) -> set[str]:
    """Every word that the brief has."""
    pairs = [*brief.attributes, *brief.attributes.values()]
    texts = [brief.title or "", brief.text or "", *pairs, *(source.text for source in brief.sources)]
    return set().union(*(words(text.replace("_", " ")) for text in texts))


def brief_of(**fields: Any) -> Brief:
    return Brief(**{"language": "en", "title": None, "text": None, "attributes": {}, **fields})


def assert_honest(brief: Brief, draft: dict[str, Any], *measured: str) -> None:
    allowed = said(brief) | OUR_WORDS | OUR_CHINESE | {word for text in measured for word in words(text)}
    for text in (draft["title"], *draft["bullets"], draft["description"], *draft["keywords"]):
        invented = {word for word in words(text) if not _is_stated(word, allowed)}
        assert not invented
    sources = {"title", "text", "attributes", *(f"attribute:{name}"[:200] for name in brief.attributes)}
    sources |= {source.part for source in brief.sources} | {"p1"}
    assert {claim["source"] for claim in draft["grounded_in"]} <= sources
    assert {claim["claim"] for claim in draft["grounded_in"]} >= set(draft["bullets"])


def _is_stated(word: str, allowed: set[str]) -> bool:
    return word in allowed or any(word in known for known in allowed)


def assert_complete(draft: dict[str, Any]) -> None:
    assert PROFILE.output_errors({**draft, "produced_by": "offline-draft"}) == []
    assert 3 <= len(draft["bullets"]) <= 5
    assert len(set(draft["bullets"])) == len(draft["bullets"])


@pytest.mark.parametrize("product", PRODUCTS, ids=lambda product: product.sku)
@pytest.mark.parametrize("with_sources", [False, True], ids=["words-alone", "with-files"])
def test_draft_of_each_product_of_the_catalogue_is_complete_and_invents_nothing(
    product: Any, with_sources: bool
) -> None:
    sources = (
        SourceText("p1", "ocr", "HOJA VERDE\nGREEN TEA\nNet 125 g"),
        SourceText("p1", "barcode", "EAN-13 2001001000015"),
    )
    brief = brief_of(
        language=product.language,
        title=product.title,
        attributes=product.attributes,
        sources=sources if with_sources else (),
    )
    draft = offline_draft(brief, [("p1", {"image.width": 1200, "image.height": 1600})])
    assert_complete(draft)
    assert_honest(brief, draft, "1200 1600")
    assert draft["title"] == product.title
    assert draft["language"] == product.language


SPARSE = [
    brief_of(),
    brief_of(title="   "),
    brief_of(title="Mug"),
    brief_of(text="A mug."),
    brief_of(attributes={"brand": "Kiln & Co"}),
    brief_of(attributes={"brand": "", "material": " "}),
    brief_of(attributes={"brand": "a", "material": "b", "size": "c", "color": "d"}),
    brief_of(attributes={"品牌": "云岭茶庄", "材质": "茶", "尺寸": "大"}, language="zh-CN"),
    brief_of(sources=(SourceText("p1", "transcript", "hello there"),)),
    brief_of(sources=(SourceText("p1", "barcode", "EAN-13 2001001000015"),)),
    brief_of(title="x" * 300, text="y" * 20_000, attributes={f"n{n}" * 20: "v " * 1000 for n in range(100)}),
    brief_of(title="字" * 300, text="字。" * 9_000, language="zh"),
]


@pytest.mark.parametrize("brief", SPARSE, ids=range(len(SPARSE)))
def test_draft_has_three_to_five_points_however_little_or_much_is_known(brief: Brief) -> None:
    draft = offline_draft(brief, [])
    assert_complete(draft)
    assert_honest(brief, draft)


@pytest.mark.parametrize("language", ["zh-CN", "zh", "ZH-tw"])
def test_labels_are_chinese_for_chinese_copy(language: str) -> None:
    brief = brief_of(language=language, title="茉莉花茶", sources=(SourceText("p1", "ocr", "净含量：100 克"),))
    draft = offline_draft(brief, [("p1", {"image.width": 900, "image.height": 1200})])
    assert "标签文字:“净含量：100 克”" in draft["bullets"]
    assert not re.search(r"[a-z]{3}", " ".join(draft["bullets"]).replace("p1", ""))


def test_labels_are_english_for_all_others() -> None:
    draft = offline_draft(brief_of(language="de", title="Becher", attributes={"brand": "Kiln & Co"}), [])
    assert draft["bullets"][0] == "Brand: Kiln & Co"
    assert draft["language"] == "de"


def test_what_nobody_said_is_named_as_missing() -> None:
    draft = offline_draft(brief_of(title="Mug", attributes={"brand": "Kiln & Co", "Color": "green"}), [])
    assert draft["bullets"] == [
        "Brand: Kiln & Co",
        "Color: green",
        "Not stated by the seller: material",
    ]


def test_long_words_end_with_a_mark_and_never_in_the_middle_of_a_number() -> None:
    brief = brief_of(sources=(SourceText("p1", "text_layer", "weight 12345 g " * 30),))
    (bullet,) = [text for text in offline_draft(brief, [])["bullets"] if text.startswith("From the document")]
    assert bullet.endswith("…”")
    assert set(re.findall(r"\d+", bullet)) == {"12345"}


TEXTS = st.text(max_size=120)


@settings(max_examples=150, deadline=None)
@given(
    title=st.none() | TEXTS,
    text=st.none() | TEXTS,
    attributes=st.dictionaries(st.text(min_size=1, max_size=40), TEXTS, max_size=6),
    language=st.sampled_from(["en", "zh-CN", "de"]),
    read=st.lists(TEXTS, max_size=3),
)
def test_draft_of_any_words_is_complete(
    title: str | None, text: str | None, attributes: dict[str, str], language: str, read: list[str]
) -> None:
    sources = tuple(
        SourceText(f"p{n}", kind, part)
        for n, (kind, part) in enumerate(zip(["ocr", "barcode", "x"], read, strict=False))
    )
    brief = brief_of(title=title, text=text, attributes=attributes, language=language, sources=sources)
    draft = offline_draft(brief, [])
    assert PROFILE.output_errors({**draft, "produced_by": "offline-draft"}) == []
    assert 3 <= len(draft["bullets"]) <= 5
