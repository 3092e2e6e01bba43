"""What can be made of an item's files: rebuilt pictures and read text, as downloads that can do no harm."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from PIL import Image

from tests import media
from tests.gateway.running import Service, bearer, settled


@pytest.fixture(scope="module")
def item(service: Service) -> Iterator[dict[str, Any]]:
    """A photo with camera data and a place, a document of two pages, and a refused thumbnail."""
    document = media.pdf_lines(["Linen bath towel", "stone washed flax"], ["Care", "wash at forty degrees"])
    files = {
        "item": (None, json.dumps({"title": "Artifacts", "mode": "prepare"}), "application/json"),
        "p1": ("photo.jpg", with_place(), "image/jpeg"),
        "p2": ("sheet.pdf", document, "application/pdf"),
        "p3": ("small.jpg", media.thumbnail(), "image/jpeg"),
    }
    with service.client() as client:
        yield settled(client, client.post("/v1/items", files=files).json()["id"])


def with_place() -> bytes:
    picture = Image.open(io.BytesIO(media.label_photo(long_side=1200)))
    exif = Image.Exif()
    exif[0x010F], exif[0x0110], exif[0x0112] = "Nikon\x00\x1b[31m", "D" * 500, 6
    exif[0x8825] = {1: "N", 2: (52.0, 31.0, 12.0), 3: "E", 4: (13.0, 24.0, 18.0)}
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=88, exif=exif, comment=b"a private comment")
    return out.getvalue()


def listed(client: httpx.Client, item: dict[str, Any]) -> list[dict[str, Any]]:
    found = client.get(item["links"]["artifacts"])
    assert found.status_code == 200
    return found.json()["artifacts"]


def fetched(client: httpx.Client, item: dict[str, Any], kind: str, page: int | None = None) -> httpx.Response:
    (link,) = [a["links"]["self"] for a in listed(client, item) if (a["kind"], a["page"]) == (kind, page)]
    return client.get(link)


def test_list_names_all_that_can_be_made_and_nothing_of_a_refused_file(
    client: httpx.Client, item: dict[str, Any]
) -> None:
    found = [(artifact["part"], artifact["kind"], artifact["page"]) for artifact in listed(client, item)]
    assert found == [
        ("p1", "normalized_image", None),
        ("p1", "thumbnail", None),
        ("p1", "ocr_text", None),
        ("p1", "ocr_words", None),
        ("p1", "exif_summary", None),
        ("p2", "pdf_text", None),
        ("p2", "page_image", 1),
        ("p2", "page_image", 2),
    ]


@pytest.mark.parametrize(("kind", "page"), [("normalized_image", None), ("thumbnail", None), ("page_image", 2)])
def test_pictures_are_rebuilt_from_pixels(
    kind: str, page: int | None, client: httpx.Client, item: dict[str, Any]
) -> None:
    answer = fetched(client, item, kind, page)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/jpeg")
    picture = Image.open(io.BytesIO(answer.content))
    assert not picture.getexif()
    for secret in (b"Nikon", b"private", b"GPS", b"Exif"):
        assert secret not in answer.content
    if kind == "normalized_image":
        assert picture.size[0] > picture.size[1]  # turned by its tag
        assert max(picture.size) == 1200
    if kind == "thumbnail":
        assert max(picture.size) == 320


@pytest.mark.parametrize(
    ("kind", "media_type"),
    [
        ("thumbnail", "image/jpeg"),
        ("ocr_text", "text/plain; charset=utf-8"),
        ("ocr_words", "application/json"),
        ("exif_summary", "application/json"),
        ("pdf_text", "text/plain; charset=utf-8"),
    ],
)
def test_each_comes_as_a_download_that_cannot_run_and_never_changes(
    kind: str, media_type: str, client: httpx.Client, item: dict[str, Any]
) -> None:
    answer = fetched(client, item, kind)
    assert answer.headers["content-type"] == media_type
    assert answer.headers["etag"] == f'"{hashlib.sha256(answer.content).hexdigest()}"'
    assert answer.headers["cache-control"] == "private, max-age=31536000, immutable"
    assert answer.headers["content-disposition"].startswith('attachment; filename="fil_')
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "sandbox; default-src 'none'"
    again = client.get(str(answer.url), headers={"If-None-Match": answer.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    assert client.get(str(answer.url)).content == answer.content


def test_words_come_with_boxes_and_the_text_is_what_they_say(client: httpx.Client, item: dict[str, Any]) -> None:
    words = fetched(client, item, "ocr_words").json()
    assert 0 <= words["rotation"] < 360
    sure = [word["text"] for word in words["words"] if word["confidence"] > 0.9 and len(word["text"]) > 4]
    assert len(sure) > 3
    text = fetched(client, item, "ocr_text").text
    assert [word for word in sure if word not in text] == []
    assert all(0 <= edge <= 1 for word in words["words"] for edge in word["box"])


def test_documents_text_is_what_a_person_sees(client: httpx.Client, item: dict[str, Any]) -> None:
    assert "wash at forty degrees" in fetched(client, item, "pdf_text").text


def test_metadata_is_told_without_the_place_and_without_control_characters(
    client: httpx.Client, item: dict[str, Any]
) -> None:
    told = fetched(client, item, "exif_summary").json()
    assert told == {
        "make": "Nikon[31m",
        "model": "D" * 80,
        "orientation": 6,
        "has_place": True,
        "has_colour_profile": False,
        "has_comment": True,
    }


def test_transcript_is_there_only_where_something_was_written_down(client: httpx.Client, name: str) -> None:
    recording = {"p1": ("note.wav", media.wav(media.tone()), "audio/wav")}
    made = settled(client, client.post("/v1/items", data={"title": name}, files=recording).json()["id"])
    assert listed(client, made) == []


@pytest.mark.parametrize("path", ["art_0_thumbnail", "thumbnail", "art_%00", "art_" + "x" * 3000])
def test_unknown_artifact_is_not_found(path: str, client: httpx.Client, item: dict[str, Any]) -> None:
    assert client.get(f"/v1/items/{item['id']}/artifacts/{path}").status_code == 404


def test_other_tenants_do_not_see_them(api: Service, api_client: httpx.Client, alpha: str, beta: str) -> None:
    files = {"p1": ("photo.jpg", media.label_photo(long_side=400), "image/jpeg")}
    made = api_client.post("/v1/items", data={"title": "a"}, files=files, headers=bearer(alpha)).json()
    mine = api_client.get(f"/v1/items/{made['id']}/artifacts", headers=bearer(alpha))
    link = mine.json()["artifacts"][1]["links"]["self"]
    assert api_client.get(link, headers=bearer(alpha)).status_code == 200
    for path in (f"/v1/items/{made['id']}/artifacts", link):
        assert api_client.get(path, headers=bearer(beta)).status_code == 404
        assert api_client.get(path).status_code == 404


def test_file_that_was_lost_on_disk_is_gone_and_no_fault(service: Service, client: httpx.Client, name: str) -> None:
    item = (None, json.dumps({"title": name, "mode": "prepare"}), "application/json")
    photo = ("photo.jpg", media.label_photo(long_side=700), "image/jpeg")
    lost = settled(client, client.post("/v1/items", files={"item": item, "p1": photo}).json()["id"])
    for stored in (service.data_dir / "blobs" / "by-tenant").rglob(lost["files"][0]["sha256"]):
        stored.unlink()
    for answer in (fetched(client, lost, "thumbnail"), client.get(lost["links"]["llm_payload"])):
        assert (answer.status_code, answer.json()["code"]) == (410, "gone")
        assert "send the item again" in answer.json()["detail"]
