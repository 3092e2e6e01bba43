"""What only the item as a whole can tell: the same photo twice, a marketplace's minimum, what a refusal saved."""

from __future__ import annotations

import io
import json
from typing import Any

import httpx
import pytest
from PIL import Image

from gateway.agent.prices import Look, Prices
from gateway.profiles import load_profiles
from gateway.settings import Settings
from tests import media
from tests.gateway.running import settled

Files = dict[str, tuple[str, bytes, str]]


def prepared(client: httpx.Client, name: str, files: Files) -> dict[str, Any]:
    item = {"title": f"Tea {name}", "mode": "prepare"}
    answer = client.post("/v1/items", files={"item": (None, json.dumps(item), "application/json"), **files})
    assert answer.status_code in (200, 201, 202), answer.text
    return settled(client, answer.json()["id"])


def resized(data: bytes, side: int, quality: int = 80) -> bytes:
    picture = Image.open(io.BytesIO(data)).convert("RGB")
    picture.thumbnail((side, side))
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality)
    return out.getvalue()


@pytest.mark.parametrize("copy", ["same bytes", "smaller"])
def test_same_photo_twice_is_noted_and_goes_to_the_model_once(client: httpx.Client, name: str, copy: str) -> None:
    label = media.label_photo(long_side=1200)
    second = label if copy == "same bytes" else resized(label, 640)
    item = prepared(client, name, {"p1": ("a.jpg", second, "image/jpeg"), "p2": ("b.jpg", label, "image/jpeg")})
    kept, noted = ("p1", "p2") if copy == "same bytes" else ("p2", "p1")
    by_part = {file["part"]: file for file in item["files"]}
    assert "duplicate_file" in by_part[noted]["notes"]
    assert "duplicate_file" not in by_part[kept]["notes"]
    assert by_part[noted]["verdict"] == "accept"
    assert [check["value"] for check in by_part[noted]["checks"] if check["code"] == "duplicate_file"] == [kept]
    assert {"file": by_part[noted]["id"], "code": "duplicate_file"} in item["decision"]["notes"]
    payload = client.get(f"/v1/items/{item['id']}/llm-payload?format=neutral").json()
    assert [media_["part"] for media_ in payload["media"]] == [kept]
    assert [part["part"] for part in payload["content"] if part["kind"] == "image"] == [kept]


def test_different_photos_both_go_to_the_model(client: httpx.Client, name: str) -> None:
    files = {
        "p1": ("a.jpg", media.label_photo(long_side=1200), "image/jpeg"),
        "p2": ("b.jpg", media.chinese_label_photo(long_side=1200), "image/jpeg"),
    }
    item = prepared(client, name, files)
    assert [file for file in item["files"] if "duplicate_file" in file["notes"]] == []
    assert len(client.get(f"/v1/items/{item['id']}/llm-payload").json()["media"]) == 2


def test_same_document_twice_is_read_once(client: httpx.Client, name: str) -> None:
    document = media.pdf_text()
    files = {"p1": ("a.pdf", document, "application/pdf"), "p2": ("b.pdf", document, "application/pdf")}
    item = prepared(client, name, files)
    assert [file["notes"] for file in item["files"]] == [[], ["duplicate_file"]]
    text = client.get(f"/v1/items/{item['id']}/llm-payload").json()["content"][0]["text"]
    assert (text.count("Linen bath towel"), "p1" in text, "p2" in text) == (1, True, False)


def test_picture_below_a_marketplaces_minimum_is_noted_with_name_and_day(client: httpx.Client, name: str) -> None:
    item = prepared(client, name, {"p1": ("a.jpg", media.label_photo(long_side=700), "image/jpeg")})
    (file,) = item["files"]
    assert (file["verdict"], "marketplace_minimum" in file["notes"]) == ("accept", True)
    named = [check for check in file["checks"] if check["code"] == "marketplace_minimum"]
    assert [(check["rule"], check["fact"], check["value"], check["limit"]) for check in named] == [
        ("profile.marketplace_minimum.amazon-zoom", "image.long_side", 700, 1000)
    ]
    steps = client.get(f"/v1/items/{item['id']}/explanation").json()["steps"]
    told = [step["would_pass_if"] for step in steps if step["code"] == "marketplace_minimum"]
    assert told == ["image.long_side >= 1000 (Amazon, with zoom, as of 2021-08-30)"]


def test_large_picture_passes_every_marketplaces_minimum(client: httpx.Client, name: str) -> None:
    item = prepared(client, name, {"p1": ("a.jpg", media.label_photo(long_side=1200), "image/jpeg")})
    assert item["files"][0]["notes"] == []


def test_refusal_states_what_it_saved_for_each_family_of_models(client: httpx.Client, name: str) -> None:
    files = {"p1": ("small.jpg", media.thumbnail(), "image/jpeg")}
    answer = client.post("/v1/items", data={"title": name}, files=files).json()
    saved = answer["decision"]["saved"]
    assert {look: found["model"] for look, found in saved["families"].items()} == {
        "openai_tiles": "gpt-4o",
        "openai_patches": "gpt-5-mini",
        "anthropic": "claude-sonnet-4-5",
        "gemini": "gemini-2.5-flash",
    }
    # 4 requests of 900 tokens for the prompt, 250 for the answer, and one look at 48 x 48 px each.
    looks = {"openai_tiles": 255, "openai_patches": 4, "anthropic": 4, "gemini": 258}
    for look, tokens in looks.items():
        assert saved["families"][look]["tokens"] == 4 * (900 + 250 + tokens)
    assert saved["families"]["openai_tiles"]["cost"] == "0.02155"
    assert (saved["tokens"], saved["cost"]) == tuple(
        saved["families"]["openai_patches"][key] for key in ("tokens", "cost")
    )


@pytest.mark.parametrize(
    ("model", "look", "image_tokens"),
    [
        ("gpt-4o", Look.OPENAI_TILES, 765),
        ("gpt-5-2026-01-01", Look.OPENAI_TILES, 629),
        ("gpt-5-mini", Look.OPENAI_PATCHES, 1228),
        ("claude-sonnet-4-5-20260101", Look.ANTHROPIC, 1369),
        ("gemini-2.5-pro", Look.GEMINI, 1032),
        ("anthropic/claude-next", Look.ANTHROPIC, 1369),
        ("my-own-model", Look.OPENAI_PATCHES, 1024),
    ],
)
def test_saving_is_counted_as_the_configured_models_family_counts(model: str, look: Look, image_tokens: int) -> None:
    prices = Prices(Settings(model=model, model_input_price="1", model_output_price="1"))
    facts = {"cost.openai_tiles": 765, "cost.openai_patches": 1024, "cost.anthropic": 1369, "cost.gemini": 1032}
    assert prices.reference.look is look
    saved = prices.saved(load_profiles()["product-copy"], [facts])
    assert saved["tokens"] == 4 * (900 + 250 + image_tokens)
