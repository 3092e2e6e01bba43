"""The demo: it ends well when all is well, says what is wrong when not, and leaves no process behind."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from examples import catalogue, demo, pipeline

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
    assert "Every product came out as it should." in text
    for words in ("low_resolution", "encrypted", "silent", "/llm-payload", "Keywords:", "Saved by"):
        assert words in text
    port = int(text.partition("stays up at http://127.0.0.1:")[2].partition(".")[0])
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), timeout=1)
