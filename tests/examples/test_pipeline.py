"""The copywriting pipeline against a real HTTP server that speaks the contract."""

from __future__ import annotations

import io
import json
import socket
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console

from examples import pipeline
from examples.pipeline import Outcome, Pace
from tests.examples.contract_server import Files, Misbehaviour, Service, copy_for, refusal, serving

EAGER = Pace(wait_s=1, patience_s=20, backoff_s=0.01, backoff_max_s=0.02)


def copy_for_all(item_part: Mapping[str, Any], files: Files) -> Mapping[str, Any]:
    return copy_for(item_part)


def csv_of(folder: Path, text: str, *, encoding: str = "utf-8") -> Path:
    path = folder / "catalogue.csv"
    path.write_bytes(text.encode(encoding))
    return path


def run(csv_path: Path, service: Service, pace: Pace = EAGER, **options: Any) -> list[pipeline.RowResult]:
    with serving(service) as url, pipeline.make_client(url) as client:
        return pipeline.run(csv_path, client, pace=pace, **options)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "img").mkdir()
    (tmp_path / "img" / "a.jpg").write_bytes(b"\xff\xd8 first")
    (tmp_path / "b.pdf").write_bytes(b"%PDF second")
    return tmp_path


def test_a_row_is_sent_as_item_part_first_then_its_files(folder: Path) -> None:
    service = Service(copy_for_all)
    path = csv_of(folder, "sku,title,language,material,colour,files\nT-1,Oak board,en,oak,,img/a.jpg;b.pdf\n")
    (result,) = run(path, service)
    headers, order, item, files = service.posts[0]
    assert order == ["item", "p1", "p2"]
    assert item["external_id"] == "T-1"
    assert item["title"] == "Oak board"
    assert item["language"] == "en"
    assert item["attributes"] == {"material": "oak"}
    assert files == {"p1": ("a.jpg", b"\xff\xd8 first"), "p2": ("b.pdf", b"%PDF second")}
    assert headers["Prefer"] == "wait=1, respond-async"
    assert result.outcome is Outcome.COPY
    assert result.copy["title"] == "Copy for Oak board"


@pytest.mark.parametrize("mark", ["", "\ufeff"], ids=["plain utf-8", "with byte-order mark"])
def test_utf8_is_read_with_and_without_a_byte_order_mark(folder: Path, mark: str) -> None:
    path = csv_of(folder, f"{mark}sku,title\n茶-1,茉莉花茶\n")
    (row,) = pipeline.read_rows(path)
    assert (row.sku, row.item["title"]) == ("茶-1", "茉莉花茶")


def test_windows_separators_and_blanks_around_names_are_taken(folder: Path) -> None:
    (row,) = pipeline.read_rows(csv_of(folder, "SKU,Files\r\nT-1,img\\a.jpg ; b.pdf;\r\n"))
    assert row.error is None
    assert [path.name for path in row.files] == ["a.jpg", "b.pdf"]


def test_a_gb18030_file_is_named_as_such_and_read_when_told_so(folder: Path) -> None:
    path = csv_of(folder, "sku,title\n1,茉莉花茶\n", encoding="gb18030")
    with pytest.raises(pipeline.CatalogueUnreadable, match="gb18030"):
        pipeline.read_rows(path)
    assert pipeline.read_rows(path, encoding="gb18030")[0].item["title"] == "茉莉花茶"


def test_a_missing_file_is_an_error_of_its_row_and_the_others_go_on(folder: Path) -> None:
    service = Service(copy_for_all)
    path = csv_of(
        folder, "sku,title,files\nA,one,img/a.jpg\nB,two,img/none.jpg\nC,three,b.pdf\n,four,\nE,five,,,extra\n"
    )
    results = run(path, service)
    assert [result.outcome for result in results] == [
        Outcome.COPY, Outcome.ROW_ERROR, Outcome.COPY, Outcome.ROW_ERROR, Outcome.ROW_ERROR,
    ]  # fmt: skip
    assert "none.jpg" in results[1].message()
    assert "no sku" in results[3].message()
    assert "more cells" in results[4].message()
    assert len(service.posts) == 2


def test_duplicate_skus_are_reported_and_not_merged(folder: Path) -> None:
    service = Service(copy_for_all)
    results = run(csv_of(folder, 'sku,title\nA,one\nB,"two\nlines"\nA,another\n'), service)
    assert len(service.posts) == 3
    assert results[0].row.notes == ("duplicate sku A, also on line 5; not merged",)
    assert results[1].row.notes == ()
    assert results[2].row.notes == ("duplicate sku A, also on line 2; not merged",)


def test_a_second_run_sends_the_same_keys_and_makes_no_new_item(folder: Path) -> None:
    service = Service(copy_for_all)
    path = csv_of(folder, "sku,title,files\nA,one,img/a.jpg\nB,two,b.pdf\n")
    run(path, service)
    again = run(path, service)
    assert len(service.items) == 2
    assert all(result.replayed for result in again)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda folder: csv_of(folder, "sku,title,files\nA,other,img/a.jpg\n"), id="title"),
        pytest.param(lambda folder: (folder / "img" / "a.jpg").write_bytes(b"\xff\xd8 new"), id="file content"),
    ],
)
def test_a_changed_row_is_a_new_submit(folder: Path, change: Callable[[Path], object]) -> None:
    service = Service(copy_for_all)
    path = csv_of(folder, "sku,title,files\nA,one,img/a.jpg\n")
    run(path, service)
    change(folder)
    (result,) = run(path, service)
    assert len(service.items) == 2
    assert not result.replayed


def test_another_label_asks_anew(folder: Path) -> None:
    service = Service(copy_for_all)
    path = csv_of(folder, "sku,title\nA,one\n")
    run(path, service)
    run(path, service, label="second try")
    assert len(service.items) == 2


@pytest.mark.parametrize("sku", ["T-1", "茶 1/2", "a" * 400, 'quote"and\\'])
def test_keys_are_short_printable_ascii(sku: str) -> None:
    key = pipeline.idempotency_key(sku, {"attributes": {}})
    assert 33 <= len(key) <= 255
    assert key.isascii()
    assert key.isprintable()
    assert '"' not in key


def test_a_refusal_carries_what_was_measured_and_what_to_do(folder: Path) -> None:
    service = Service(lambda item_part, files: refusal())
    (result,) = run(csv_of(folder, "sku,files\nA,img/a.jpg\n"), service)
    assert result.outcome is Outcome.REFUSED
    assert (result.verdict, result.route, result.code) == ("reject", "", "low_resolution")
    assert result.measured_against_limit == "short_side 48, limit 64"
    assert result.message() == "The picture is too small."
    assert result.message("zh-CN") == "图片太小。"
    assert result.fix() == "Upload the original photo."
    assert (result.saved_tokens, result.saved_cost) == (3400, 0.0031)


def test_a_case_for_a_person_carries_the_link_to_it(folder: Path) -> None:
    waiting = {
        "status": "awaiting_human",
        "route": "agent",
        "escalation": {"id": "esc_7"},
        "decision": {"verdict": "accept"},
    }
    service = Service(lambda item_part, files: waiting)
    (result,) = run(csv_of(folder, "sku\nA\n"), service)
    assert result.outcome is Outcome.PERSON
    assert result.escalation_link.endswith("/v1/escalations/esc_7")
    assert result.escalation_link.startswith("http://127.0.0.1:")


def test_an_unfinished_item_is_followed_by_long_polls_until_it_is_done(folder: Path) -> None:
    service = Service(copy_for_all, polls_until_done=3)
    (result,) = run(csv_of(folder, "sku\nA\n"), service)
    assert result.outcome is Outcome.COPY
    assert len(service.gets) == 3
    assert all(headers["Prefer"] == "wait=1" for headers in service.gets)


def test_an_item_that_never_ends_is_given_up_after_the_row_s_patience(folder: Path) -> None:
    service = Service(copy_for_all, polls_until_done=10_000)
    (result,) = run(csv_of(folder, "sku\nA\n"), service, pace=Pace(wait_s=1, patience_s=0.5))
    assert result.outcome is Outcome.FAILED
    assert result.item["id"] == "itm_1"


@pytest.mark.parametrize(
    "misbehaviour",
    [
        Misbehaviour(429, {"Retry-After": "0"}),
        Misbehaviour(503, {"Retry-After": format_datetime(datetime.now(UTC) - timedelta(seconds=5), usegmt=True)}),
        Misbehaviour(503),
        Misbehaviour(409, {"Retry-After": "0"}, {"code": "idempotency_in_progress", "retryable": True}),
        Misbehaviour(0),
    ],
    ids=["429", "503 with a date", "503 bare", "409 still arriving", "connection cut"],
)
def test_a_busy_service_is_asked_again_with_the_same_key_and_whole_files(
    folder: Path, misbehaviour: Misbehaviour
) -> None:
    service = Service(copy_for_all, polls_until_done=1, misbehaviours=[misbehaviour] * 3)
    (result,) = run(csv_of(folder, "sku,files\nA,img/a.jpg\n"), service)
    assert result.outcome is Outcome.COPY
    assert service.posts[-1][3] == {"p1": ("a.jpg", b"\xff\xd8 first")}
    assert len(service.items) == 1


def test_an_announced_wait_is_kept(folder: Path) -> None:
    drawn: list[tuple[float, float]] = []

    def draw(low: float, high: float) -> float:
        drawn.append((low, high))
        return 0.0

    service = Service(copy_for_all, misbehaviours=[Misbehaviour(429, {"Retry-After": "1"})])
    pace = Pace(wait_s=1, backoff_s=0.01, draw=draw)
    (result,) = run(csv_of(folder, "sku\nA\n"), service, pace=pace)
    assert result.outcome is Outcome.COPY
    assert result.milliseconds >= 1000
    assert drawn == [(0, 0.01)]


def test_a_refused_request_is_a_row_error_with_the_service_s_own_words(folder: Path) -> None:
    errors = [{"pointer": "/title", "detail": "Has 400 characters; the profile takes at most 300."}]
    body = {"code": "invalid_request", "detail": "The item part is not valid.", "retryable": False, "errors": errors}
    service = Service(copy_for_all, misbehaviours=[Misbehaviour(400, {}, body)])
    (result,) = run(csv_of(folder, "sku\nA\n"), service)
    assert result.outcome is Outcome.ROW_ERROR
    assert result.message() == "The item part is not valid. /title: Has 400 characters; the profile takes at most 300."


def test_each_row_is_told_as_soon_as_it_is_known_and_results_keep_the_order_of_the_csv(folder: Path) -> None:
    service = Service(copy_for_all)
    path = csv_of(folder, "sku\n" + "".join(f"S{number}\n" for number in range(20)))
    heard: list[str] = []
    with serving(service) as url, pipeline.make_client(url) as client:
        results = pipeline.run(path, client, lambda result: heard.append(result.row.sku), pace=EAGER)
    assert [result.row.sku for result in results] == [f"S{number}" for number in range(20)]
    assert sorted(heard) == sorted(result.row.sku for result in results)


def test_an_interrupted_run_goes_on_where_it_stopped(folder: Path) -> None:
    service = Service(copy_for_all)
    path = csv_of(folder, "sku\n" + "".join(f"S{number}\n" for number in range(12)))

    def interrupt(result: pipeline.RowResult) -> None:
        raise KeyboardInterrupt

    with serving(service) as url, pipeline.make_client(url) as client:
        with pytest.raises(KeyboardInterrupt):
            pipeline.run(path, client, interrupt, pace=EAGER, concurrency=2)
        sent_before = len(service.items)
        results = pipeline.run(path, client, pace=EAGER)
    assert 0 < sent_before < 12
    assert len(service.items) == 12
    assert all(result.outcome is Outcome.COPY for result in results)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def test_the_command_ends_with_0_and_writes_one_line_per_row(
    folder: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = csv_of(folder, "sku,title\nA,one\nB,two\n")
    out = tmp_path / "results.jsonl"
    with serving(Service(copy_for_all)) as url:
        assert pipeline.main(["--url", url, str(path), "--out", str(out)]) == 0
    written = [json.loads(line) for line in out.read_text("utf-8").splitlines()]
    printed = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert written == printed
    assert sorted(line["sku"] for line in written) == ["A", "B"]
    assert written[0]["outcome"] == "copy"
    assert written[0]["copy"]["bullets"] == ["a", "b", "c"]


def test_the_command_ends_with_3_when_a_row_needs_attention(folder: Path) -> None:
    path = csv_of(folder, "sku\nA\n")
    with serving(Service(lambda item_part, files: refusal())) as url:
        assert pipeline.main(["--url", url, str(path), "--json"]) == 3


@pytest.mark.parametrize(
    "text", ["name,title\nA,one\n", "", 'sku\n"' + "A" * 140_000], ids=["no sku column", "empty file", "endless cell"]
)
def test_the_command_ends_with_2_where_the_csv_cannot_be_used(folder: Path, text: str) -> None:
    path = csv_of(folder, text)
    assert pipeline.main(["--url", "http://127.0.0.1:9", str(path)]) == 2


def test_the_command_ends_with_2_without_a_csv(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert pipeline.main(["--url", "http://127.0.0.1:9", str(folder / "none.csv")]) == 2
    assert "cannot be read" in capsys.readouterr().err


def test_the_command_ends_with_4_where_the_key_is_refused(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = csv_of(folder, "sku\nA\n")
    with serving(Service(copy_for_all, required_key="Bearer k")) as url:
        assert pipeline.main(["--url", url, str(path)]) == 4
    assert "SLUICEGATE_API_KEY" in capsys.readouterr().err


def test_the_command_sends_the_key_from_the_environment(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICEGATE_API_KEY", "k")
    path = csv_of(folder, "sku\nA\n")
    with serving(Service(copy_for_all, required_key="Bearer k")) as url:
        assert pipeline.main(["--url", url, str(path)]) == 0


def test_nobody_at_the_address_is_said_after_a_few_tries(folder: Path) -> None:
    path = csv_of(folder, "sku\nA\nB\n")
    with (
        pipeline.make_client(f"http://127.0.0.1:{free_port()}") as client,
        pytest.raises(pipeline.ServerUnreachable, match="does not answer"),
    ):
        pipeline.run(path, client, pace=EAGER)


def test_the_command_ends_with_5_when_nobody_answers(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = csv_of(folder, "sku\nA\n")
    assert pipeline.main(["--url", f"http://127.0.0.1:{free_port()}", "--timeout", "0.1", str(path)]) == 5
    assert "again to go on" in capsys.readouterr().err


def test_a_wait_announced_beyond_the_row_s_patience_ends_the_row_with_the_service_s_words(folder: Path) -> None:
    full = Misbehaviour(503, {"Retry-After": "900"}, {"code": "queue_full", "detail": "Too much is waiting."})
    (result,) = run(csv_of(folder, "sku\nA\n"), Service(copy_for_all, misbehaviours=[full]))
    assert result.outcome is Outcome.ROW_ERROR
    assert result.message() == "Too much is waiting."


def test_a_proxy_in_the_environment_is_not_asked_for_this_machine(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    service = Service(copy_for_all)
    (result,) = run(csv_of(folder, "sku\nA\n"), service)
    assert result.outcome is Outcome.COPY


def test_the_table_names_product_verdict_limit_and_what_is_told(folder: Path) -> None:
    service = Service(lambda item_part, files: refusal())
    results = run(csv_of(folder, "sku,files\nT-77,img/a.jpg\n"), service)
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(pipeline.result_table(results))
    text = console.export_text()
    for words in ("T-77", "reject", "low_resolution", "short_side 48, limit 64", "Upload the original photo.", "3,400"):
        assert words in text


def test_an_answer_that_is_no_json_is_an_error_not_a_crash(folder: Path) -> None:
    def page(request: httpx.Request) -> httpx.Response:
        return httpx.Response(404, text="<html>nothing here</html>")

    with httpx.Client(base_url="http://shop.example", transport=httpx.MockTransport(page)) as client:
        (result,) = pipeline.run(csv_of(folder, "sku\nA\n"), client, pace=EAGER)
    assert result.outcome is Outcome.ROW_ERROR
    assert result.message() == "HTTP 404"
