"""Without a model, the offline writer sits in the agent's seat: real tool calls, judged by the guard, written down."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from gateway.store.steps import StepKind
from tests import media
from tests.acceptance.reviewing import Desk
from tests.gateway.running import Service, running


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A service without a model."""
    with running("up", tmp_path_factory.mktemp("offline")) as started:
        yield started


@pytest.fixture
def desk(service: Service) -> Iterator[Desk]:
    with service.client() as client:
        yield Desk(client, service.data_dir)


LABEL = [("ocr_extract", "p1"), ("read_barcode", "p1")]


@pytest.mark.parametrize(
    ("files", "expected", "sources"),
    [
        pytest.param((media.label_photo,), LABEL, {"p1"}, id="a label photo"),
        pytest.param((media.pdf_text,), [("read_pdf", "p1")], {"p1"}, id="a document"),
        pytest.param((media.label_photo, media.pdf_text), [*LABEL, ("read_pdf", "p2")], {"p1", "p2"}, id="both"),
    ],
)
def test_offline_agent_reads_by_guarded_calls_and_grounds_its_copy_in_them(
    desk: Desk, name: str, files: tuple[Any, ...], expected: list[tuple[str, str]], sources: set[str]
) -> None:
    item = desk.written(f"Tea {name}", *(make() for make in files))
    assert (item["status"], item["route"], item["result"]["produced_by"]) == ("succeeded", "agent", "offline-draft")
    rows = desk.steps(item["id"])
    tools = [row for row in rows if row.kind is StepKind.TOOL]
    assert [row.intent["tool"] for row in tools] == [tool for tool, _ in expected] + ["save_copy"]
    assert {row.intent["action"] for row in tools} == {"allow"}
    assert all(row.outcome is not None and row.executions == 1 for row in rows)
    assert [row.seq for row in rows] == list(range(1, len(rows) + 1))
    assert [row.kind for row in rows] == [StepKind.PROMPT, *[StepKind.MODEL, StepKind.TOOL] * len(tools)]
    records = [record for row in tools for record in [*row.intent["records"], *(row.outcome or {})["records"]]]
    assert [record["type"] for record in records] == ["call", "outcome"] * len(tools)
    assert all(f'"{part}"' in record["args"] for (_, part), record in zip(expected, records[::2], strict=False))
    grounded = {ground["source"] for ground in item["result"]["grounded_in"]}
    assert grounded & {"p1", "p2"} == sources
    usage = item["usage"]
    assert (usage["steps"], usage["tool_calls"], usage["blocked_calls"]) == (len(tools), len(tools), 0)
    assert (usage["model_calls"], usage["input_tokens"], usage["cost"]) == (len(tools), 0, "0")
