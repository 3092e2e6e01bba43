"""Sluicegate in a minute: a small catalogue goes through the service over REST; then an agent that would loop is stopped.

    python examples/demo.py [--exit]

Nothing outside this machine is used: SQLite, a temporary folder, the offline writer, free ports of 127.0.0.1. For the
second scene a service of its own works with `examples/stubborn_model.py`. Both stay up until Ctrl-C, so that you can look
around; `--exit` ends them at once. The exit status is 0 only if all came out as it should.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import Empty, Queue
from types import FrameType

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from examples import catalogue, incident, pipeline
from examples.recordings import SpeechToolMissing
from examples.stubborn_model import StubbornModel, serving

ROOT = Path(__file__).resolve().parents[1]
READY_WITHIN_S = 90.0
STOPPED_WITHIN_S = 20.0
SHOWN_SKU = "TEA-1001"


class ServiceDidNotStart(Exception):
    """The service ended, or said nothing in time; the message holds the end of its log."""


@contextmanager
def running_service(
    folder: Path, *, with_model: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[str]:
    """The address of a service of our own, with its data in `folder`; ended by SIGTERM when the context is left."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "service.log"
    with log.open("wb") as log_file:
        process = subprocess.Popen(
            [sys.executable, "-m", "gateway", "up"],
            cwd=ROOT,
            env={**_environment(folder / "data", with_model=with_model), **(settings or {})},
            stdout=subprocess.PIPE,
            stderr=log_file,
            text=True,
            start_new_session=True,  # a Ctrl-C is for us; the service gets its SIGTERM when the table is closed
        )
        try:
            yield _address(process, log)
        finally:
            _stop(process)


def _environment(data: Path, *, with_model: bool) -> dict[str, str]:
    """Embedded defaults, whatever this shell has set for another service."""
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith("SLUICEGATE_") or (with_model and name.startswith("SLUICEGATE_MODEL"))}  # fmt: skip
    ours = {"SLUICEGATE_HOST": "127.0.0.1", "SLUICEGATE_PORT": str(_free_port()), "SLUICEGATE_DATA_DIR": str(data)}
    return {**kept, **ours, "PYTHONUNBUFFERED": "1"}


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _address(process: subprocess.Popen[str], log: Path) -> str:
    """What stands in the service's one ready line."""
    lines: Queue[str | None] = Queue()
    threading.Thread(target=_forward, args=(process, lines), daemon=True).start()
    deadline = time.monotonic() + READY_WITHIN_S
    while True:
        try:
            line = lines.get(timeout=max(0.0, deadline - time.monotonic()))
        except Empty:
            raise ServiceDidNotStart(
                f"The service was not ready within {READY_WITHIN_S:.0f} s.\n{_tail(log)}"
            ) from None
        if line is None:
            raise ServiceDidNotStart(
                f"The service ended with status {process.wait()} before it was ready.\n{_tail(log)}"
            )
        address = next((word for word in line.split() if word.startswith("http://")), None)
        if address:
            return address.rstrip(".,")


def _forward(process: subprocess.Popen[str], lines: Queue[str | None]) -> None:
    """Read on for as long as the service writes, so that it never waits for a full pipe."""
    assert process.stdout is not None
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _tail(log: Path) -> str:
    return "\n".join(log.read_text("utf-8", "replace").splitlines()[-20:])


def _stop(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(STOPPED_WITHIN_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


# --- what is shown ---------------------------------------------------------------------------------------------------


def upload(
    console: Console, csv_path: Path, url: str, products: Sequence[catalogue.Product]
) -> list[pipeline.RowResult]:
    """Run the pipeline, with a table that fills as the answers come."""
    done: dict[str, pipeline.RowResult] = {}
    title = f"{len(products)} products on their way through {url}"
    with (
        pipeline.make_client(url) as client,
        Live(_table(title, products, done), console=console, transient=True) as live,
    ):

        def on_row(result: pipeline.RowResult) -> None:
            done[result.row.sku] = result
            live.update(_table(title, products, done), refresh=True)

        results = pipeline.run(csv_path, client, on_row, concurrency=4)
    console.print(_table(title, products, done))
    return results


def _table(title: str, products: Sequence[catalogue.Product], done: Mapping[str, pipeline.RowResult]) -> Table:
    table: Table = pipeline.empty_table(title)
    for product in products:
        if product.sku in done:
            pipeline.add_result(table, done[product.sku])
        else:
            table.add_row(Text.assemble(product.sku, "\n", (product.title, "dim")), "…")
    return table


def unexpected(products: Sequence[catalogue.Product], results: Sequence[pipeline.RowResult]) -> list[str]:
    """A sentence for each product that did not come out as it should."""
    by_sku = {result.row.sku: result for result in results}
    return [line for product in products if (line := _deviation(product, by_sku.get(product.sku)))]


def _deviation(product: catalogue.Product, result: pipeline.RowResult | None) -> str | None:
    if result is None:
        return f"{product.sku}: no answer"
    wanted = product.expects
    status = str(result.item.get("status"))
    is_right = (
        status == wanted.status
        and (not wanted.routes or result.route in wanted.routes)
        and (wanted.code is None or result.code == wanted.code)
        and (status != "succeeded" or bool(result.copy.get("title")))
    )
    if is_right:
        return None
    expected = " ".join(filter(None, (wanted.status, "/".join(wanted.routes), wanted.code)))
    came = " ".join(filter(None, (status, result.route, result.code, result.error)))
    return f"{product.sku}: expected {expected}, came {came}"


def show_copy(console: Console, result: pipeline.RowResult) -> None:
    """The finished copy of one product, with the source of each claim."""
    copy = result.copy
    console.print()
    console.rule(f"Finished copy of {result.row.sku}, written by {copy.get('produced_by', '?')}", align="left")
    console.print(Text(str(copy.get("title", "")), style="bold"))
    for bullet in copy.get("bullets", ()):
        console.print(Text(f"  • {bullet}"))
    console.print(Text(str(copy.get("description", ""))))
    console.print(Text("Keywords: " + ", ".join(copy.get("keywords", ())), style="dim"))
    for ground in copy.get("grounded_in", ())[:8]:
        console.print(Text(f"  “{ground.get('claim')}” ← {ground.get('source')}", style="dim"))


def show_totals(console: Console, results: Sequence[pipeline.RowResult], seconds: float) -> None:
    """What came back, and what was not spent."""
    counts = {outcome: sum(result.outcome is outcome for result in results) for outcome in pipeline.Outcome}
    said = ", ".join(f"{count} {outcome.value.replace('_', ' ')}" for outcome, count in counts.items() if count)
    currency = next((saved["currency"] for result in results if (saved := result.decision.get("saved"))), "")
    tokens, cost = sum(result.saved_tokens for result in results), sum(result.saved_cost for result in results)
    console.print()
    console.print(Text(f"{len(results)} products in {seconds:.1f} s: {said}.", style="bold"))
    console.print(
        Text(
            f"Saved by not running the agent on what cannot work: {tokens:,} tokens, {cost:.4f} {currency}",
            style="green",
        )
    )


def show_addresses(console: Console, url: str, results: Sequence[pipeline.RowResult]) -> list[str]:
    """Where to look next; returns a sentence for each address that does not answer as it should."""
    good = next((result for result in results if result.row.sku == SHOWN_SKU and result.item), None)
    refused = next((result for result in results if result.outcome is pipeline.Outcome.REFUSED), None)
    lines = [("what the API takes and gives", "/openapi.json")]
    if good is not None:
        base = f"/v1/items/{good.item['id']}"
        lines += [(f"{good.row.sku}: the item", base), ("  why it went where it went", f"{base}/explanation"),
                  ("  what a model is given", f"{base}/llm-payload?format=openai.chat")]  # fmt: skip
    if refused is not None:
        lines.append((f"{refused.row.sku}: why it was refused", f"/v1/items/{refused.item['id']}/explanation"))
    console.print()
    for name, path in lines:
        console.print(Text(f"{name:34}{url}{path}"), soft_wrap=True)
    with pipeline.make_client(url) as client:
        answers = {path: client.get(path).status_code for _, path in lines}
    return [f"{path} answered {status}" for path, status in answers.items() if status != 200]


# --- the command -----------------------------------------------------------------------------------------------------


def main() -> int:
    """The command line: 0 if all came out as it should, 1 otherwise."""
    options = _parser().parse_args()
    signal.signal(signal.SIGTERM, _as_interrupt)
    console = Console(width=None if sys.stdout.isatty() else 160)
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sluicegate-demo-")))
            return _demo(console, folder, stack, options)
    except (SpeechToolMissing, ServiceDidNotStart, pipeline.ServerUnreachable, incident.NotSettled) as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nInterrupted before the demo was through; its services are stopped.", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Sluicegate in a minute.")
    parser.add_argument("--exit", action="store_true", help="end at once instead of waiting for Ctrl-C")
    parser.add_argument(
        "--with-model", action="store_true", help="write with the model that SLUICEGATE_MODEL_URL names"
    )
    return parser


def _as_interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _demo(console: Console, folder: Path, stack: ExitStack, options: argparse.Namespace) -> int:
    console.print("Drawing the catalogue and starting the service …")
    products = catalogue.write_catalogue(folder / "catalogue")
    url = stack.enter_context(running_service(folder, with_model=options.with_model))
    started = time.monotonic()
    results = upload(console, folder / "catalogue" / catalogue.CSV_NAME, url, products)
    seconds = time.monotonic() - started
    shown = next((result for result in results if result.row.sku == SHOWN_SKU and result.copy), None)
    if shown is not None:
        show_copy(console, shown)
    deviations = unexpected(products, results) + show_addresses(console, url, results)
    show_totals(console, results, seconds)
    incident_url, went_wrong = _incident(console, folder, stack)
    deviations += went_wrong
    console.print()
    for line in deviations:
        console.print(Text(line, style="bold red"))
    if not deviations:
        console.print(Text("Every product came out as it should, and the loop was stopped.", style="bold green"))
    if not options.exit:
        _wait_for_interrupt(console, url, incident_url)
    return 1 if deviations else 0


def _incident(console: Console, folder: Path, stack: ExitStack) -> tuple[str, list[str]]:
    """The second scene, on a service of its own; gives its address, and what did not come out as it should."""
    endpoint = stack.enter_context(serving(StubbornModel(catalogue.HALF_LEGIBLE_REGION)))
    service = running_service(folder / "incident", settings=incident.settings(endpoint.url))
    url = stack.enter_context(service)
    return url, incident.play(console, url, endpoint.url, endpoint.counters, folder / "catalogue")


def _wait_for_interrupt(console: Console, url: str, incident_url: str) -> None:
    try:
        console.print(f"\nThe service stays up at {url}, the one with the stubborn model at {incident_url}.")
        console.print("Ctrl-C ends both.")
        threading.Event().wait()
    except KeyboardInterrupt:
        console.print("\nStopping both services …")


if __name__ == "__main__":
    sys.exit(main())
