"""A queue as on a busy afternoon: agents that got stuck in several ways, items that went well, items that were refused.

Everything comes about over REST, by a real service that works with a model which plays a part per product.

    python -m tests.console.seeding DIR

starts such a service on a data folder of its own, fills it, and keeps it running until Ctrl-C.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml

from examples import photos
from examples.drawing import jpeg
from examples.labels import in_house_ean
from gateway.profiles import loader
from tests import media
from tests.acceptance.reviewing import Desk
from tests.acceptance.talking_model import (
    Message,
    Raw,
    Talk,
    TalkingModel,
    always,
    calls,
    fumbles,
    in_turn,
    reads,
    talking_model,
    wanders,
)
from tests.gateway.running import Service, running

FRUGAL = "product-copy-frugal"


@dataclass(frozen=True)
class Story:
    """One product, its files by name, and what the model does with it."""

    sku: str
    title: str
    files: Mapping[str, Callable[[], bytes]]
    behave: Callable[[Talk], Message | Raw] = field(default_factory=in_turn)
    attributes: Mapping[str, str] = field(default_factory=dict)
    language: str = "en"
    text: str | None = None
    profile: str = "product-copy"


def _label() -> bytes:
    return media.half_legible(long_side=1100)


def _tea() -> bytes:
    return jpeg(photos.tea_carton(in_house_ean(1001)))


def _jasmine() -> bytes:
    return jpeg(photos.jasmine_carton(in_house_ean(1002)))


def _mug() -> bytes:
    return jpeg(photos.mug_packshot(size=900))


_reads_page_nine = always(calls(("read_pdf", {"file": "p1", "pages": [9]})))
_reads_barcodes = always(calls(("read_barcode", {"file": "p2"})))


def _turns_pages(talk: Talk) -> Message:
    return calls(("read_pdf", {"file": "p1", "pages": [7 + len(talk.calls_before)]}))


def _asks_around(talk: Talk) -> Message:
    words = ("brand", "material", "size", "care", "origin", "colour")
    return calls(("lookup_attributes", {"query": words[len(talk.calls_before) % len(words)]}))


_SOAP = {"brand": "Casa Oliva", "net_content": "150 g", "material": "olive oil, laurel oil"}

STUCK: tuple[Story, ...] = (
    Story(
        "SOP-1200", "Olive oil soap with bay laurel",
        {"soap-front.jpg": _label, "soap-side.jpg": _tea, "datasheet.pdf": media.pdf_text}, wanders, _SOAP,
        text="Hand cut in Aleppo style, matured for nine months. The ingredients are printed on the side of the carton.",
    ),
    Story("SOP-1204", "橄榄油月桂皂 150 克", {"皂盒正面.jpg": _label}, always(reads(1.0)),
          {"brand": "Casa Oliva", "净含量": "150 克"}, language="zh-CN", text="手工切块, 熟成九个月。成分印在盒子侧面。"),
    Story("SOP-1207", "Laurel soap, travel size", {"IMG_2207.jpg": lambda: media.half_legible(long_side=1000)}, wanders,
          {"brand": "Casa Oliva", "net_content": "60 g"}),
    Story("SOP-1211", "Savon d'Alep, 200 g", {"savon.jpg": lambda: media.half_legible(long_side=1060)}, wanders,
          {"brand": "Casa Oliva"}, language="fr"),
    Story("TOW-7201", "Linen bath towel Fjord", {"towel_facts.pdf": media.pdf_text}, _reads_page_nine,
          {"brand": "Vestland Weavers", "material": "linen"}),
    Story("TOW-7204", "Linen guest towel Fjord", {"towel_facts.pdf": media.pdf_text}, _turns_pages,
          {"brand": "Vestland Weavers"}),
    Story("MUG-2040", "Stoneware mug, 300 ml", {"mug.jpg": _tea, "mug-back.jpg": _mug}, _reads_barcodes,
          {"brand": "Kiln & Co", "material": "stoneware", "colour": "sea green", "size": "300 ml"}),
    Story("TEA-1002", "云岭茶庄 茉莉花茶 100 克", {"茉莉花茶.jpg": _jasmine}, _asks_around,
          {"brand": "云岭茶庄", "net_content": "100 克", "origin": "福建福州"}, language="zh-CN", profile=FRUGAL),
    Story("TOW-7209", "Linen kitchen towel, set of two", {"kitchen.pdf": media.pdf_text}, fumbles, {"brand": "Vestland Weavers"}),
    Story("LMP-7302", "Desk lamp ARC 2", {"lamp.pdf": media.pdf_text}, lambda talk: Raw([b"{}"], status=400, length=2),
          {"brand": "LUMA Works", "material": "steel, cast iron"}),
)  # fmt: skip

SETTLED: tuple[Story, ...] = (
    Story("TEA-1001", "Organic green tea Sencha, 125 g", {"label_tea.jpg": _tea}, attributes={"brand": "Hoja Verde"}),
    Story("TOW-7210", "Linen bath sheet", {"sheet.pdf": media.pdf_text}, attributes={"brand": "Vestland Weavers"}),
    Story("JAM-3107", "Strawberry extra jam, 340 g", {"jam.jpg": media.blurred}, wanders, {"brand": "Beerenhof"}),
    Story("CND-4002", "Soy wax candle cedar and amber", {"candle_thumbnail.jpg": media.thumbnail}),
    Story("CND-4003", "Soy wax candle fig", {"fig_thumbnail.jpg": lambda: media.thumbnail(side=40)}),
    Story("HNY-5550", "Lime blossom honey, 500 g", {"label_honey_cut.jpg": media.truncated}),
    Story("SCF-6113", "Lambswool scarf", {"scarf.jpg": media.html_page}),
    Story("KNF-8044", "Chef's knife, 20 cm", {"knife_prices.pdf": media.pdf_user_password}),
)


def write_profiles(folder: Path) -> Path:
    """A folder with a profile of few steps beside the shipped one."""
    shipped = yaml.safe_load(Path(loader.__file__).with_name("product-copy.yaml").read_text("utf-8"))
    frugal = {**shipped, "name": FRUGAL, "budget": {**shipped["budget"], "max_steps": 4}, "on_loop": "human"}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{FRUGAL}.yaml").write_text(yaml.safe_dump(frugal, allow_unicode=True), "utf-8")
    return folder


@contextmanager
def seeded_service(folder: Path, stories: tuple[Story, ...], **settings: Any) -> Iterator[tuple[Service, TalkingModel]]:
    """A service whose queue holds what became of these stories."""
    with talking_model() as model:
        options = {"model_url": model.url, "model_attempts": 1, "profiles_dir": write_profiles(folder / "profiles")}
        with running("up", folder, **options, **settings) as service:
            with service.client() as client:
                tell(client, model, service.data_dir, stories)
            yield service, model


def tell(client: httpx.Client, model: TalkingModel, data_dir: Path, stories: tuple[Story, ...]) -> dict[str, str]:
    """Submit them all and wait until nobody works on them; gives item ids by SKU."""
    desk = Desk(client, data_dir)
    ids = {story.sku: submit(client, model, story) for story in stories}
    for item_id in ids.values():
        desk.settled(item_id, within_s=240)
    return ids


def submit(client: httpx.Client, model: TalkingModel, story: Story) -> str:
    """Send one product; gives the item's id."""
    model.plays(story.title, story.behave)
    item = {
        "external_id": story.sku, "title": story.title, "language": story.language, "profile": story.profile,
        "attributes": dict(story.attributes), **({"text": story.text} if story.text else {}),
    }  # fmt: skip
    parts: dict[str, Any] = {"item": (None, json.dumps(item), "application/json")}
    for number, (name, make) in enumerate(story.files.items(), 1):
        parts[f"p{number}"] = (name, make())
    answer = client.post("/v1/items", files=parts, headers={"Prefer": "respond-async"})
    assert answer.status_code in {201, 202}, answer.text
    return str(answer.json()["id"])


def main() -> None:
    """Fill a service and keep it running."""
    with seeded_service(Path(sys.argv[1]), STUCK + SETTLED, **dict(pair.split("=", 1) for pair in sys.argv[2:])) as (
        service,
        _,
    ):
        print(f"{service.url}/console/", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main()
