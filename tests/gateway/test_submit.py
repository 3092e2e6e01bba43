"""What becomes of an upload: one request in, a verdict out, and copy for the good ones."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from tests import media
from tests.gateway.running import Service, settled

TEA = {"brand": "Hoja Verde", "net_content": "125 g", "origin": "Shizuoka, Japan"}


def item_part(**fields: Any) -> tuple[None, str, str]:
    return (None, json.dumps(fields), "application/json")


def submit(
    client: httpx.Client, item: dict[str, Any], files: dict[str, tuple[str, bytes, str]], **headers: str
) -> httpx.Response:
    return client.post("/v1/items", files={"item": item_part(**item), **files}, headers=headers)


def outcome(client: httpx.Client, answer: httpx.Response) -> dict[str, Any]:
    assert answer.status_code in {200, 201, 202}, answer.text
    return settled(client, answer.json()["id"])


def photo(*, long_side: int = 1000) -> tuple[str, bytes, str]:
    return ("photo.jpg", media.label_photo(long_side=long_side), "image/jpeg")


def test_sharp_label_photo_becomes_copy_that_names_its_sources(client: httpx.Client, name: str) -> None:
    answer = submit(
        client,
        {"title": f"Green tea {name}", "external_id": name, "attributes": TEA},
        {"p1": photo(long_side=1600)},
        Prefer="wait=20",
    )
    item = outcome(client, answer)
    assert answer.headers["location"] == f"/v1/items/{item['id']}"
    assert (item["status"], item["route"], item["claims"]) == ("succeeded", "agent", 1)
    assert (item["external_id"], item["title"]) == (name, f"Green tea {name}")
    (file,) = item["files"]
    assert (file["verdict"], file["media_type"], file["width"], file["height"]) == ("accept", "image/jpeg", 1200, 1600)
    assert file["bytes"] == len(media.label_photo())
    result = item["result"]
    assert result["produced_by"] == "offline-draft"
    assert 3 <= len(result["bullets"]) <= 5
    assert {claim["source"] for claim in result["grounded_in"]} >= {"title", "attribute:brand"}
    profile = client.get("/v1/profiles/product-copy").json()
    assert set(profile["output_schema"]["required"]) <= set(result)


REFUSED_IN_THE_ANSWER = [
    pytest.param(media.thumbnail, "photo.jpg", "low_resolution", {"image.short_side": 48}, id="thumbnail"),
    pytest.param(media.truncated, "photo.jpg", "corrupt", None, id="truncated-jpeg"),
    pytest.param(media.html_page, "photo.jpg", "unsupported_type", None, id="html-named-jpg"),
    pytest.param(media.png_bomb_header, "photo.png", "too_many_pixels", None, id="decompression-bomb"),
    pytest.param(media.zip_archive, "photo.jpg", "unsupported_type", None, id="zip-named-jpg"),
    pytest.param(bytes, "photo.jpg", "empty", {"file.bytes": 0}, id="empty-file"),
]


@pytest.mark.parametrize(("make", "file_name", "code", "measured"), REFUSED_IN_THE_ANSWER)
def test_bad_picture_is_refused_in_the_answer_to_the_upload(
    client: httpx.Client, name: str, make: Any, file_name: str, code: str, measured: dict[str, Any] | None
) -> None:
    answer = submit(client, {"title": name}, {"p1": (file_name, make(), "image/jpeg")}, Prefer="wait=10")
    item = answer.json()
    assert (answer.status_code, item["status"], item["route"], item["reason"]) == (201, "rejected", None, code)
    problem = item["decision"]["problem"]
    assert (problem["code"], problem["type"]) == (code, f"/problems/{code}")
    assert problem["user_message"]["en"].endswith(problem["fix"])
    chinese = client.get(item["links"]["self"], headers={"Accept-Language": "zh-CN"}).json()
    assert problem["user_message"]["zh"].endswith(chinese["decision"]["problem"]["fix"])
    assert problem["fix"]
    assert problem["next"] == "fix_input"
    if measured is not None:
        assert problem["measured"] == measured
        assert problem["limit"]
    assert item["files"][0]["verdict"] == "reject"
    assert item["files"][0]["problem"]["code"] == code
    assert item["result"] is None
    assert (item["usage"]["model_calls"], item["usage"]["cost"]) == (0, "0")
    assert item["decision"]["saved"]["tokens"] > 0


def test_picture_without_print_takes_the_text_only_route_and_its_payload_has_no_picture(
    client: httpx.Client, name: str
) -> None:
    files = {"p1": ("mug.jpg", media.packshot(), "image/jpeg")}
    item = outcome(
        client, submit(client, {"title": f"Stoneware mug {name}", "attributes": {"material": "stoneware"}}, files)
    )
    assert (item["status"], item["route"]) == ("succeeded", "text_only")
    assert item["decision"]["reason"]["code"] in {"sparse_text", "unread_text"}
    for form in ("openai.chat", "neutral"):
        payload = client.get(f"/v1/items/{item['id']}/llm-payload", params={"format": form}).json()
        assert payload["route"] == "text_only"
        assert len(payload["content"]) == 1
        assert "image" not in json.dumps(payload["content"])
        assert (payload["media"], payload["token_estimate"]["image"]) == ([], 0)
        assert "ocr_extract" in {banned["name"] for banned in payload["tools"]["banned"]}
        assert payload["tools"]["allowed"] == []


def test_profile_that_looks_once_sends_the_picture_without_tools(client: httpx.Client, name: str) -> None:
    files = {"p1": ("mug.jpg", media.packshot(), "image/jpeg")}
    answer = submit(client, {"title": f"Mug {name}", "profile": "one-look", "mode": "prepare"}, files)
    item = outcome(client, answer)
    assert (item["status"], item["route"]) == ("ready", "single_look")
    payload = client.get(f"/v1/items/{item['id']}/llm-payload").json()
    assert [part["type"] for part in payload["content"]] == ["text", "image_url"]
    assert payload["tools"]["allowed"] == []


def test_prepared_item_hands_out_a_payload_in_both_formats(client: httpx.Client, name: str) -> None:
    item = outcome(client, submit(client, {"title": f"Tea {name}", "mode": "prepare"}, {"p1": photo(long_side=1600)}))
    assert (item["status"], item["route"], item["result"]) == ("ready", "agent", None)
    chat = client.get(f"/v1/items/{item['id']}/llm-payload", params={"max_px": 512, "detail": "low"}).json()
    text, picture = chat["content"]
    assert (text["type"], picture["type"]) == ("text", "image_url")
    assert name in text["text"]
    assert picture["image_url"]["detail"] == "low"
    assert picture["image_url"]["url"].startswith("data:image/jpeg;base64,")
    assert (chat["media"][0]["width"], chat["media"][0]["height"]) == (384, 512)
    assert chat["token_estimate"]["text"] > 0
    neutral = client.get(f"/v1/items/{item['id']}/llm-payload", params={"format": "neutral"}).json()
    assert [part["kind"] for part in neutral["content"]] == ["text", "image"]
    assert neutral["media"][0]["height"] == 1024


def test_rejected_item_has_no_payload(client: httpx.Client, name: str) -> None:
    item = outcome(client, submit(client, {"title": name}, {"p1": ("p.jpg", media.thumbnail(), "image/jpeg")}))
    answer = client.get(f"/v1/items/{item['id']}/llm-payload")
    assert (answer.status_code, answer.json()["code"], answer.json()["item_status"]) == (
        409,
        "item_state_conflict",
        "rejected",
    )


@pytest.mark.parametrize(
    ("make", "file_name", "kind", "status", "code"),
    [
        pytest.param(media.pdf_text, "facts.pdf", "application/pdf", "succeeded", None, id="text-pdf"),
        pytest.param(
            media.pdf_user_password, "locked.pdf", "application/pdf", "rejected", "encrypted", id="locked-pdf"
        ),
        pytest.param(media.speech, "note.wav", "audio/wav", "succeeded", None, id="speech"),
        pytest.param(lambda: media.wav(media.silence()), "note.wav", "audio/wav", "rejected", "silent", id="silence"),
    ],
)
def test_documents_and_recordings_are_judged_like_pictures(
    client: httpx.Client, name: str, make: Any, file_name: str, kind: str, status: str, code: str | None
) -> None:
    item = outcome(client, submit(client, {"title": f"Throw {name}"}, {"p1": (file_name, make(), kind)}))
    assert (item["status"], item["reason"]) == (status, code)
    assert (item["route"] is None) == (status == "rejected")


def test_one_bad_file_does_not_reject_an_item_with_a_good_one(client: httpx.Client, name: str) -> None:
    files = {"p1": photo(), "p2": ("small.jpg", media.thumbnail(), "image/jpeg")}
    item = outcome(client, submit(client, {"title": f"Tea {name}"}, files))
    assert (item["status"], item["route"]) == ("succeeded", "agent")
    assert {file["part"]: file["verdict"] for file in item["files"]} == {"p1": "accept", "p2": "reject"}
    assert item["files"][1]["problem"]["code"] == "low_resolution"


def test_profile_that_wants_all_files_rejects_the_item_for_one_bad_file(client: httpx.Client, name: str) -> None:
    files = {"p1": photo(), "p2": ("small.jpg", media.thumbnail(), "image/jpeg")}
    answer = submit(client, {"title": f"Tea {name}", "profile": "all-or-none"}, files)
    assert (answer.status_code, answer.json()["status"], answer.json()["reason"]) == (201, "rejected", "low_resolution")


def test_files_keep_the_roles_that_the_item_part_gives_them(client: httpx.Client, name: str) -> None:
    item = {"title": name, "files": [{"part": "p2", "role": "manual"}]}
    files = {"p1": ("small.jpg", media.thumbnail(), "image/jpeg"), "p2": ("b.jpg", media.html_page(), "image/jpeg")}
    found = submit(client, item, files).json()
    assert {file["part"]: file["role"] for file in found["files"]} == {"p1": None, "p2": "manual"}
    assert {file["part"]: file["file_name"] for file in found["files"]} == {"p1": "small.jpg", "p2": "b.jpg"}


def test_form_fields_stand_in_for_the_item_part(client: httpx.Client, name: str) -> None:
    fields = {"title": f"Tea {name}", "attributes": json.dumps({"brand": "Hoja Verde"}), "external_id": name}
    item = outcome(client, client.post("/v1/items", data=fields, files={"photo": photo()}))
    assert (item["status"], item["title"], item["external_id"]) == ("succeeded", f"Tea {name}", name)
    assert item["attributes"] == {"brand": "Hoja Verde"}
    assert item["files"][0]["part"] == "photo"


def test_file_field_that_a_browser_left_empty_is_no_file(client: httpx.Client, name: str) -> None:
    boundary = "----WebKitFormBoundary7MA4YWxk"
    body = (
        f'--{boundary}\r\nContent-Disposition: form-data; name="title"\r\n\r\nMug {name}\r\n'
        f'--{boundary}\r\nContent-Disposition: form-data; name="photo"; filename=""\r\n'
        f"Content-Type: application/octet-stream\r\n\r\n\r\n--{boundary}--\r\n"
    )
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    item = outcome(client, client.post("/v1/items", content=body.encode(), headers=headers))
    assert (item["status"], item["route"], item["files"]) == ("succeeded", "text_only", [])


def test_json_without_files_is_written_from_its_text(client: httpx.Client, name: str) -> None:
    document = {
        "title": f"Jute rug {name}",
        "attributes": {"material": "jute", "sizes": [120, 160.5, True, "XL"], "care": None},
    }
    item = outcome(client, client.post("/v1/items", json=document))
    assert (item["status"], item["route"], item["files"]) == ("succeeded", "text_only", [])
    assert item["attributes"] == document["attributes"]


def test_raw_body_takes_its_fields_from_the_query(client: httpx.Client, name: str) -> None:
    parameters = {
        "title": f"Tea {name}",
        "external_id": name,
        "profile": "product-copy",
        "role": "photo",
        "file_name": "tea.jpg",
    }
    headers = {"Content-Type": "image/jpeg"}
    item = outcome(
        client, client.post("/v1/items", params=parameters, content=media.label_photo(long_side=1000), headers=headers)
    )
    assert (item["status"], item["external_id"]) == ("succeeded", name)
    (file,) = item["files"]
    assert (file["part"], file["role"], file["file_name"]) == ("p1", "photo", "tea.jpg")


def test_missing_title_is_allowed_and_noted(client: httpx.Client, name: str) -> None:
    item = outcome(client, client.post("/v1/items", json={"attributes": {"sku": name, "brand": "Kiln & Co"}}))
    assert (item["status"], item["title"], item["notes"]) == ("succeeded", None, ["missing_title"])
    assert item["result"]["title"] == "Untitled product"


def test_answer_comes_at_once_when_the_caller_wants_no_wait(client: httpx.Client, name: str) -> None:
    answer = submit(client, {"title": name}, {"p1": photo()}, Prefer="respond-async")
    assert answer.status_code == 202
    assert answer.json()["status"] in {"queued", "inspecting"}
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.headers["retry-after"] == "1"
    assert answer.headers["location"] == f"/v1/items/{answer.json()['id']}"
    assert answer.headers["etag"] == f'"{answer.json()["version"]}"'
    assert outcome(client, answer)["status"] == "succeeded"


def test_header_rules_refuse_even_when_the_caller_wants_no_wait(client: httpx.Client, name: str) -> None:
    answer = submit(client, {"title": name}, {"p1": ("p.jpg", media.thumbnail(), "image/jpeg")}, Prefer="respond-async")
    assert (answer.status_code, answer.json()["status"], answer.json()["reason"]) == (201, "rejected", "low_resolution")


@pytest.mark.parametrize(
    ("prefer", "applied"),
    [
        ("wait=20", "wait=20"),
        ("wait=600", "wait=30"),
        ("respond-async, wait=20", "respond-async, wait=20"),
        ("handling=strict", "handling=strict"),
        ("wait=later, return=minimal", None),
    ],
)
def test_preferences_that_were_applied_are_named(
    client: httpx.Client, name: str, prefer: str, applied: str | None
) -> None:
    answer = client.post("/v1/items", json={"title": name}, headers={"Prefer": prefer})
    assert answer.headers.get("preference-applied") == applied


def test_caller_who_wants_one_error_path_gets_422_with_the_same_problem(client: httpx.Client, name: str) -> None:
    files = {"p1": ("p.jpg", media.thumbnail(), "image/jpeg")}
    headers = {"Prefer": "handling=strict", "Idempotency-Key": name}
    answer = submit(client, {"title": name}, files, **headers)
    problem = answer.json()
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")
    assert (problem["status"], problem["code"], problem["type"]) == (422, "low_resolution", "/problems/low_resolution")
    stored = client.get(f"/v1/items/{problem['item_id']}").json()["decision"]["problem"]
    assert {key: problem[key] for key in ("user_message", "measured", "limit", "fix", "file", "next")} == {
        key: stored[key] for key in ("user_message", "measured", "limit", "fix", "file", "next")
    }
    assert problem["request_id"] == answer.headers["request-id"]
    again = submit(client, {"title": name}, files, **headers)
    assert (again.status_code, again.json()["item_id"]) == (422, problem["item_id"])
    assert again.headers["idempotent-replayed"] == "true"


def test_messages_follow_the_language_that_the_caller_prefers(client: httpx.Client, name: str) -> None:
    files = {"p1": ("p.jpg", media.thumbnail(), "image/jpeg")}
    answer = submit(
        client, {"title": name}, files, **{"Accept-Language": "fr, zh-CN;q=0.8, en;q=0.5", "Prefer": "handling=strict"}
    )
    problem = answer.json()
    assert problem["detail"] == problem["user_message"]["zh"]
    assert any("\u4e00" <= char <= "\u9fff" for char in problem["fix"])
    english = client.get(f"/v1/items/{problem['item_id']}", headers={"Accept-Language": "en"}).json()
    assert english["decision"]["problem"]["fix"].isascii()


def test_copy_is_written_in_chinese_on_request(client: httpx.Client, name: str) -> None:
    document = {"title": f"茉莉花茶 {name}", "language": "zh-CN", "attributes": {"品牌": "云岭茶庄"}}
    item = outcome(client, client.post("/v1/items", json=document))
    assert item["result"]["language"] == "zh-CN"
    assert "品牌:云岭茶庄" in item["result"]["bullets"]


def test_same_bytes_are_kept_once(service: Service, client: httpx.Client, name: str) -> None:
    content = media.label_photo(long_side=900)
    for number in range(2):
        outcome(client, submit(client, {"title": f"{name} {number}"}, {"p1": ("p.jpg", content, "image/jpeg")}))
    kept = [
        path
        for path in (service.data_dir / "blobs" / "by-tenant").rglob("*")
        if path.is_file() and path.read_bytes() == content
    ]
    assert len(kept) == 1
    assert service.incoming == []
