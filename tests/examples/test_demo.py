"""The demo: it ends well when all is well, says what is wrong when not, and leaves no process behind."""

from __future__ import annotations

import re
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from examples import catalogue, demo, incident, pipeline
from examples.stubborn_model import Counters

TEA = catalogue.PRODUCTS[0]
THUMBNAIL = next(product for product in catalogue.PRODUCTS if product.expects.code == "low_resolution")


def result_of(product: catalogue.Product, item: Mapping[str, Any]) -> pipeline.RowResult:
    return pipeline.RowResult(pipeline.Row(2, product.sku, {}, ()), pipeline.Outcome.COPY, item)


WRITTEN = {"status": "succeeded", "route": "agent", "result": {"title": "Tea"}}
REFUSED = {"status": "rejected", "decision": {"verdict": "reject", "problem": {"code": "low_resolution"}}}


@pytest.mark.parametrize(
    ("product", "item", "expected"),
    [
        pytest.param(TEA, WRITTEN, [], id="copy as expected"),
        pytest.param(TEA, {**WRITTEN, "route": "text_only"}, ["TEA-1001: expected succeeded agent, came succeeded text_only"],
                     id="another route"),
        pytest.param(TEA, {**WRITTEN, "result": None}, ["TEA-1001: expected succeeded agent, came succeeded agent"],
                     id="no copy in it"),
        pytest.param(THUMBNAIL, REFUSED, [], id="refused as expected"),
        pytest.param(THUMBNAIL, WRITTEN, ["CND-4002: expected rejected low_resolution, came succeeded agent"],
                     id="a thumbnail that passes"),
    ],
)  # fmt: skip
def test_what_came_is_held_against_what_should(
    product: catalogue.Product, item: Mapping[str, Any], expected: list[str]
) -> None:
    assert demo.unexpected([product], [result_of(product, item)]) == expected


def test_a_product_without_an_answer_is_named() -> None:
    assert demo.unexpected([TEA], []) == ["TEA-1001: no answer"]


def gateway_that(folder: Path, monkeypatch: pytest.MonkeyPatch, source: str) -> Path:
    """A folder for the demo, beside a module `gateway` that does this instead of serving."""
    (folder / "gateway").mkdir()
    (folder / "gateway" / "__init__.py").write_text("")
    (folder / "gateway" / "__main__.py").write_text(source)
    monkeypatch.setattr(demo, "ROOT", folder)
    return folder


def test_a_service_that_ends_at_once_is_told_with_the_end_of_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = gateway_that(tmp_path, monkeypatch, "import sys; print('no room on disk', file=sys.stderr); sys.exit(3)")
    with pytest.raises(demo.ServiceDidNotStart, match=r"(?s)status 3.*no room on disk"), demo.running_service(folder):
        pass


def test_the_service_gets_loopback_a_free_port_and_its_own_folder_and_is_ended_by_sigterm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICEGATE_DATABASE_URL", "postgresql://elsewhere/")
    source = """
import os, pathlib, signal, sys, time
def stopped(number, frame):
    pathlib.Path("stopped").write_text(str(number))
    sys.exit(0)
signal.signal(signal.SIGTERM, stopped)
names = sorted(name for name in os.environ if name.startswith("SLUICEGATE_"))
pathlib.Path("environment").write_text(" ".join(names))
print("starting")
print(f"ready at http://{os.environ['SLUICEGATE_HOST']}:{os.environ['SLUICEGATE_PORT']}", flush=True)
while True:
    print("x" * 10_000, flush=True)
    time.sleep(0.001)
"""
    folder = gateway_that(tmp_path, monkeypatch, source)
    with demo.running_service(folder) as url:
        assert url.startswith("http://127.0.0.1:")
    assert (folder / "stopped").read_text() == str(int(signal.SIGTERM))
    assert (folder / "environment").read_text() == "SLUICEGATE_DATA_DIR SLUICEGATE_HOST SLUICEGATE_PORT"


def demo_process(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, Path(demo.__file__), *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_the_whole_demo_comes_out_as_it_should_stays_up_and_ends_on_ctrl_c() -> None:
    process = demo_process()
    assert process.stdout is not None
    shown = []
    for line in process.stdout:
        shown.append(line)
        if "stays up at" in line:
            break
    process.send_signal(signal.SIGINT)
    shown.append(process.stdout.read())
    text = "".join(shown)
    assert process.wait() == 0, text
    assert "Every product came out as it should, and the loop was stopped." in text
    for words in ("low_resolution", "encrypted", "silent", "/llm-payload", "Keywords:", "Saved by"):
        assert words in text
    for words in (
        "the agent never saw it",
        "Human queue, 1 case",
        "blocked",
        "halted",
        "reroute to text_only",
        "2,400",
    ):
        assert words in text
    ports = [int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", shown_line(text))]
    assert len(ports) == 2
    for port in ports:
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port), timeout=1)


def shown_line(text: str) -> str:
    return next(line for line in text.splitlines() if "stays up at" in line)


SPENT = {"tool_calls": 3, "blocked_calls": 2, "model_calls": 5, "avoided_calls": 17, "steps": 5, "cost": "0.002"}
STOPPED = {"id": "itm_1", "status": "awaiting_human", "route": "agent", "usage": SPENT}
PAST_THE_AGENT = {"status": "succeeded", "route": "text_only", "usage": {"tool_calls": 0}}
FINISHED = {"id": "itm_1", "status": "succeeded", "route": "text_only", "usage": SPENT}


@pytest.mark.parametrize(
    ("scene", "calls", "said"),
    [
        pytest.param({}, 5, None, id="as it should"),
        pytest.param({"stopped": {**STOPPED, "status": "succeeded"}}, 5, "expected awaiting_human", id="not stopped"),
        pytest.param({"stopped": {**STOPPED, "usage": {**SPENT, "tool_calls": 5}}}, 5, "5 calls ran", id="too many ran"),
        pytest.param({"stopped": {**STOPPED, "usage": {**SPENT, "model_calls": 6}}}, 5, "6 requests", id="too many requests"),
        pytest.param({}, 6, "asked for 6 calls", id="too many asked for"),
        pytest.param({"cases": [{}, {}]}, 5, "2 cases", id="two cases"),
        pytest.param({"blurred": {**PAST_THE_AGENT, "route": "agent"}}, 5, "from text alone", id="the blurred one got an agent"),
        pytest.param({"finished": {**FINISHED, "status": "failed"}}, 5, "after the decision", id="not finished"),
    ],
)  # fmt: skip
def test_the_incident_is_held_against_the_promise(scene: dict[str, Any], calls: int, said: str | None) -> None:
    parts: dict[str, Any] = {
        "stopped": STOPPED,
        "blurred": PAST_THE_AGENT,
        "cases": [{}],
        "finished": FINISHED,
        **scene,
    }
    found = incident.deviations(incident.Scene(**parts), Counters(calls=calls))
    assert len(found) == (0 if said is None else 1)
    assert said is None or said in found[0]
