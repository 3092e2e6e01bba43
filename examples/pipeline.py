"""Send a CSV of products to a Sluicegate service; per row comes copy, a refusal to forward, or a case for a person.

    python examples/pipeline.py --url http://127.0.0.1:8080 catalogue.csv --out results.jsonl

The columns `sku`, `title`, `text`, `language` and `files` (separated by `;`, relative to the CSV) are known; every
other column becomes an attribute. Interrupt it and run it again as you like: each submit carries an Idempotency-Key
made from the row's content, so nothing is done or paid twice. Needs httpx; with rich, a terminal gets a table.
"""

from __future__ import annotations

import argparse
import csv
import hashlib
import io
import json
import mimetypes
import os
import random
import re
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

KNOWN_COLUMNS = ("sku", "title", "text", "language", "files")
SETTLED = frozenset({"rejected", "ready", "succeeded", "failed", "cancelled", "expired", "halted", "awaiting_human",
                     "awaiting_submitter"})  # fmt: skip
"""States in which no worker is busy with an item any more."""
WAITING_FOR_A_PERSON = frozenset({"halted", "awaiting_human", "awaiting_submitter"})
RETRIED_STATUS = frozenset({429, 502, 503, 504})


# --- the CSV ---------------------------------------------------------------------------------------------------------


class CatalogueUnreadable(Exception):
    """The CSV as a whole cannot be used; the message says what to change."""


@dataclass(frozen=True, slots=True)
class Row:
    """One product of the CSV."""

    number: int
    """The line on which the row begins, counted from 1 with the header."""
    sku: str
    item: Mapping[str, Any]
    """Title, text, language and attributes, as the item part will carry them."""
    files: tuple[Path, ...]
    error: str | None = None
    """Why the row cannot be sent."""
    notes: tuple[str, ...] = ()


def read_rows(csv_path: Path, *, encoding: str = "utf-8-sig") -> list[Row]:
    """The rows of a CSV, with or without a byte-order mark. Raises `CatalogueUnreadable`."""
    try:
        text = csv_path.read_bytes().decode(encoding)
    except OSError as error:
        raise CatalogueUnreadable(f"{csv_path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CatalogueUnreadable(
            f"{csv_path} is not {encoding} (byte {error.start}). Save it as UTF-8, or say --encoding gb18030 or cp1252."
        ) from error
    reader = csv.DictReader(io.StringIO(text, newline=""), restkey="")
    header = [(name or "").strip() for name in reader.fieldnames or ()]
    if "sku" not in [name.lower() for name in header]:
        raise CatalogueUnreadable(f"{csv_path} has no column `sku`; it has: {', '.join(header) or 'nothing'}")
    reader.fieldnames = [name.lower() if name.lower() in KNOWN_COLUMNS else name for name in header]
    return _with_duplicates_noted(list(_rows(reader, csv_path)))


def _rows(reader: csv.DictReader[str], csv_path: Path) -> Iterator[Row]:
    first_line = reader.line_num + 1
    try:
        for cells in reader:
            yield _row(first_line, cells, csv_path.parent)
            first_line = reader.line_num + 1
    except csv.Error as error:
        raise CatalogueUnreadable(f"{csv_path}, line {reader.line_num}: {error}") from error


def _row(number: int, cells: dict[str, Any], folder: Path) -> Row:
    surplus = cells.pop("", None)
    filled = {name: value.strip() for name, value in cells.items() if value and value.strip()}
    sku = filled.get("sku", "")
    files = tuple(_path(name, folder) for name in filled.get("files", "").split(";") if name.strip())
    item: dict[str, Any] = {name: filled[name] for name in ("title", "text", "language") if name in filled}
    item["attributes"] = {name: value for name, value in filled.items() if name not in KNOWN_COLUMNS}
    return Row(number, sku, item, files, _row_error(sku, files, surplus))


def _path(name: str, folder: Path) -> Path:
    """The file that a cell names; a Windows separator is one here too."""
    return folder / name.strip().replace("\\", "/")


def _row_error(sku: str, files: tuple[Path, ...], surplus: object) -> str | None:
    if surplus:
        return "The row has more cells than there are columns; put texts that contain commas in double quotes."
    if not sku:
        return "The row has no sku."
    missing = [str(path) for path in files if not path.is_file()]
    return f"File not found: {', '.join(missing)}" if missing else None


def _with_duplicates_noted(rows: list[Row]) -> list[Row]:
    lines: dict[str, list[int]] = defaultdict(list)
    for row in rows:
        if row.sku:
            lines[row.sku].append(row.number)
    return [_noted(row, lines[row.sku]) if len(lines.get(row.sku, ())) > 1 else row for row in rows]


def _noted(row: Row, lines: Sequence[int]) -> Row:
    others = ", ".join(str(line) for line in lines if line != row.number)
    note = f"duplicate sku {row.sku}, also on line {others}; not merged"
    return Row(row.number, row.sku, row.item, row.files, row.error, (*row.notes, note))


# --- what came of a row ----------------------------------------------------------------------------------------------


class Outcome(StrEnum):
    """What a row ended with."""

    COPY = "copy"
    REFUSED = "refused"
    PERSON = "waiting_for_a_person"
    FAILED = "failed"
    """The service took the item and could not finish it, or not in time."""
    ROW_ERROR = "row_error"
    """The row could not be sent, or the service did not take it."""


@dataclass(frozen=True, slots=True)
class RowResult:
    """One row with the service's answer."""

    row: Row
    outcome: Outcome
    item: Mapping[str, Any] = field(default_factory=dict)
    """The item as the service states it; empty for a row error."""
    error: str | None = None
    milliseconds: float = 0.0
    """From the first byte sent to the outcome known."""
    replayed: bool = False
    """The service knew this submit already."""
    base_url: str = ""

    @property
    def decision(self) -> Mapping[str, Any]:
        """The decision of the edge rules."""
        return self.item.get("decision") or {}

    @property
    def verdict(self) -> str:
        """`accept`, `text_only`, `single_look`, `reject` …; empty while there is none."""
        return str(self.decision.get("verdict") or "")

    @property
    def route(self) -> str:
        """`agent`, `single_look`, `text_only`, `human`; empty for a refusal."""
        return str(self.item.get("route") or "")

    @property
    def problem(self) -> Mapping[str, Any]:
        """Why an item was refused, or why it took a detour."""
        return self.decision.get("problem") or self.decision.get("reason") or {}

    @property
    def code(self) -> str:
        """The code of that, such as `low_resolution`."""
        return str(self.problem.get("code") or "")

    @property
    def measured_against_limit(self) -> str:
        """Such as `short_side 48, limit 64` or `status encrypted, needs ok`."""
        limits = self.problem.get("limit") or {}
        parts = []
        for fact, value in (self.problem.get("measured") or {}).items():
            word = "needs" if isinstance(value, bool | str) else "limit"
            limit = f", {word} {_short(limits[fact])}" if fact in limits else ""
            parts.append(f"{fact.partition('.')[2] or fact} {_short(value)}{limit}")
        return "; ".join(parts)

    def message(self, language: str = "en") -> str:
        """What the person who sent the product is told."""
        if self.error:
            return str(self.error)
        told = _in_language(self.problem.get("user_message"), language)
        if not told and self.outcome is Outcome.FAILED:
            return str((self.item.get("failure") or {}).get("detail") or f"ended as {self.item.get('status')}")
        return told

    def fix(self, language: str = "en") -> str:
        """What that person can do."""
        return _in_language(self.problem.get("fix"), language)

    @property
    def copy(self) -> Mapping[str, Any]:
        """The finished product copy."""
        return self.item.get("result") or {}

    @property
    def saved_tokens(self) -> int:
        """Tokens that were not spent, by the service's own reckoning."""
        return int((self.decision.get("saved") or {}).get("tokens") or 0)

    @property
    def saved_cost(self) -> float:
        """Money that was not spent, in the service's currency."""
        return float((self.decision.get("saved") or {}).get("cost") or 0)

    @property
    def escalation_link(self) -> str:
        """Where a person decides; empty unless one must."""
        escalation = self.item.get("escalation")
        if not escalation:
            return ""
        number = escalation.get("id") if isinstance(escalation, Mapping) else escalation
        link = (self.item.get("links") or {}).get("escalation") or f"/v1/escalations/{number}"
        return urljoin(self.base_url, str(link))

    def to_json(self) -> dict[str, Any]:
        """One line of the results file."""
        return {
            "row": self.row.number, "sku": self.row.sku, "outcome": self.outcome.value, "item": self.item.get("id"),
            "status": self.item.get("status"), "route": self.route or None, "code": self.code or None,
            "measured": self.problem.get("measured"), "limit": self.problem.get("limit"),
            "message": self.message() or None, "fix": self.fix() or None,
            "escalation": self.escalation_link or None, "copy": self.copy or None,
            "usage": self.item.get("usage"), "saved": self.decision.get("saved"), "notes": list(self.row.notes),
            "milliseconds": round(self.milliseconds), "replayed": self.replayed,
        }  # fmt: skip


def _short(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _in_language(text: object, language: str) -> str:
    if isinstance(text, Mapping):
        return str(text.get(language) or text.get(language.split("-")[0]) or text.get("en") or "")
    return str(text or "")


# --- talking to the service ------------------------------------------------------------------------------------------


class ServerUnreachable(Exception):
    """Nobody answers at the address, or not in time. `results` are the rows that were done before."""

    def __init__(self, message: str, results: Sequence[RowResult] = ()) -> None:
        super().__init__(message)
        self.results = list(results)


class NotAllowed(Exception):
    """The service wants another API key."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long to wait for what. Seconds."""

    wait_s: int = 10
    """One long poll."""
    patience_s: float = 300.0
    """One row in all."""
    attempts: int = 6
    """Tries of one request."""
    backoff_s: float = 0.5
    """Most that the first pause lasts; doubles each time."""
    backoff_max_s: float = 20.0
    draw: Callable[[float, float], float] = random.uniform
    """Full jitter: pauses are drawn evenly from 0 to their most, so that many clients do not come back at once."""


def run(
    csv_path: Path,
    client: httpx.Client,
    on_row: Callable[[RowResult], None] = lambda _: None,
    *,
    pace: Pace = Pace(),
    concurrency: int = 4,
    label: str = "",
    encoding: str = "utf-8-sig",
) -> list[RowResult]:
    """Send every row of the CSV and wait for what becomes of it; `on_row` hears of each as it is known.

    Results come back in the CSV's order. `label` goes into the idempotency keys: another label asks anew.
    Raises `CatalogueUnreadable`, `ServerUnreachable` and `NotAllowed`; on Ctrl-C nothing further is sent, and rows
    under way are given the rest of one long poll.
    """
    rows = read_rows(csv_path, encoding=encoding)
    stop = threading.Event()
    sender = _Sender(client, pace, label, stop)
    results: dict[int, RowResult] = {}
    with ThreadPoolExecutor(max_workers=concurrency) as threads:
        futures = {threads.submit(sender.send, row): index for index, row in enumerate(rows)}
        try:
            _collect(futures, results, on_row)
        except BaseException as error:
            stop.set()
            threads.shutdown(wait=True, cancel_futures=True)
            if isinstance(error, ServerUnreachable):
                error.results = [results[index] for index in sorted(results)]
            raise
    return [results[index] for index in sorted(results)]


def _collect(
    futures: Mapping[Future[RowResult], int], results: dict[int, RowResult], on_row: Callable[[RowResult], None]
) -> None:
    for future in as_completed(futures):
        result = future.result()
        results[futures[future]] = result
        on_row(result)


class _Sender:
    """Submits rows and follows them, from several threads at once."""

    def __init__(self, client: httpx.Client, pace: Pace, label: str, stop: threading.Event) -> None:
        self._client = client
        self._pace = pace
        self._label = label
        self._stop = stop

    def send(self, row: Row) -> RowResult:
        if row.error:
            return RowResult(row, Outcome.ROW_ERROR, error=row.error)
        started = time.monotonic()
        deadline = started + self._pace.patience_s
        try:
            response = self._submit(row, deadline)
        except OSError as error:
            return RowResult(row, Outcome.ROW_ERROR, error=f"File cannot be read: {error}")
        if response.is_error:
            return RowResult(row, Outcome.ROW_ERROR, error=_problem_text(response), base_url=str(self._client.base_url))
        item = self._settled(response.json(), deadline)
        return RowResult(
            row,
            _outcome(item),
            item,
            milliseconds=(time.monotonic() - started) * 1000,
            replayed=response.headers.get("Idempotent-Replayed") == "true",
            base_url=str(self._client.base_url),
        )

    def _submit(self, row: Row, deadline: float) -> httpx.Response:
        item = _item_part(row)
        headers = {
            "Idempotency-Key": idempotency_key(row.sku, item, self._label),
            "Prefer": f"wait={self._pace.wait_s}, respond-async",
        }

        def post() -> httpx.Response:
            with ExitStack() as open_files:
                parts: list[tuple[str, Any]] = [("item", (None, json.dumps(item).encode(), "application/json"))]
                for entry, path in zip(item["files"], row.files, strict=True):
                    file = open_files.enter_context(path.open("rb"))
                    parts.append((entry["part"], (path.name, file, _media_type(path))))
                return self._client.post("/v1/items", files=parts, headers=headers)

        return self._persist(post, deadline)

    def _settled(self, item: Mapping[str, Any], deadline: float) -> Mapping[str, Any]:
        """The item once no worker is busy with it, or as it stands at the deadline or on Ctrl-C."""
        prefer = {"Prefer": f"wait={self._pace.wait_s}"}
        while item.get("status") not in SETTLED and time.monotonic() < deadline and not self._stop.is_set():
            asked = time.monotonic()
            path = (item.get("links") or {}).get("self") or f"/v1/items/{item['id']}"
            answer = self._persist(partial(self._client.get, path, headers=prefer), deadline)
            if answer.is_error:
                return {**item, "failure": {"detail": _problem_text(answer)}}
            if answer.json().get("version") == item.get("version") and time.monotonic() - asked < 0.2:
                self._stop.wait(0.2)  # a service that does not hold long polls must not be hammered
            item = answer.json()
        return item

    def _persist(self, request: Callable[[], httpx.Response], deadline: float) -> httpx.Response:
        """The answer, after as many tries as pace and deadline allow: a busy or a restarting service gets its time."""
        for attempt in range(1, self._pace.attempts + 1):
            response, announced_s, failure = None, None, ""
            try:
                response = request()
            except httpx.TransportError as error:
                failure = str(error) or type(error).__name__
            else:
                if response.status_code in (401, 403):
                    raise NotAllowed(_problem_text(response))
                if not _is_worth_a_retry(response):
                    return response
                announced_s = _retry_after_s(response)
            pause_s = self._pause_s(attempt, announced_s)
            if attempt == self._pace.attempts or time.monotonic() + pause_s > deadline or self._stop.wait(pause_s):
                break
        if response is not None:
            return response
        raise ServerUnreachable(f"{self._client.base_url} does not answer: {failure}")

    def _pause_s(self, attempt: int, announced_s: float | None) -> float:
        """An announced wait is kept in full, with a little jitter on top."""
        most = min(self._pace.backoff_max_s, self._pace.backoff_s * 2 ** (attempt - 1))
        if announced_s is None:
            return self._pace.draw(0, most)
        return announced_s + self._pace.draw(0, min(most, 1.0))


def idempotency_key(sku: str, item: Mapping[str, Any], label: str = "") -> str:
    """The same for the same row: the SKU in plain ASCII for whoever reads logs, and a hash of all that is sent."""
    canonical = json.dumps([label, sku, item], ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    readable = re.sub(r"[^A-Za-z0-9._-]+", "-", sku)[:80]
    return f"{readable}/{hashlib.sha256(canonical.encode()).hexdigest()[:32]}"


def _item_part(row: Row) -> dict[str, Any]:
    """The JSON of the first part; files are announced with their SHA-256, so that a torn upload is noticed."""
    files = []
    for number, path in enumerate(row.files, start=1):
        with path.open("rb") as file:
            files.append({"part": f"p{number}", "sha256": hashlib.file_digest(file, "sha256").hexdigest()})
    return {"external_id": row.sku, **row.item, "files": files}


def _media_type(path: Path) -> str:
    return mimetypes.guess_type(path.name)[0] or "application/octet-stream"


def _outcome(item: Mapping[str, Any]) -> Outcome:
    status = item.get("status")
    if status in ("succeeded", "ready"):
        return Outcome.COPY
    if status == "rejected":
        return Outcome.REFUSED
    return Outcome.PERSON if status in WAITING_FOR_A_PERSON else Outcome.FAILED


def _problem(response: httpx.Response) -> Mapping[str, Any]:
    try:
        document = response.json()
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _problem_text(response: httpx.Response) -> str:
    problem = _problem(response)
    said = problem.get("detail") or problem.get("title") or f"HTTP {response.status_code}"
    fields = [f"{error.get('pointer')}: {error.get('detail')}" for error in problem.get("errors") or ()]
    return " ".join([str(said), *fields])


def _is_worth_a_retry(response: httpx.Response) -> bool:
    return response.status_code in RETRIED_STATUS or (response.is_error and _problem(response).get("retryable") is True)


def _retry_after_s(response: httpx.Response) -> float | None:
    """Seconds by `Retry-After`, given as seconds or as a date; None where it says nothing usable."""
    value = response.headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value[:9])
    try:
        return max(0.0, (parsedate_to_datetime(value) - datetime.now(UTC)).total_seconds())
    except (TypeError, ValueError):
        return None


# --- the command -----------------------------------------------------------------------------------------------------


def make_client(url: str, key: str | None = None) -> httpx.Client:
    """A client for one service. A proxy from the environment is not used to reach this very machine."""
    is_here = (urlsplit(url).hostname or "") in ("localhost", "127.0.0.1", "::1")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = httpx.Timeout(connect=5, read=60, write=60, pool=None)
    return httpx.Client(base_url=url, headers=headers, timeout=timeout, trust_env=not is_here)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line.

    0 all rows got copy, 2 wrong usage, 3 some rows need attention, 4 key refused, 5 no service there, 130 interrupted.
    """
    options = _parser().parse_args(arguments)
    try:
        with ExitStack() as stack:
            client = stack.enter_context(make_client(options.url, os.environ.get("SLUICEGATE_API_KEY")))
            out = stack.enter_context(options.out.open("w", encoding="utf-8")) if options.out else None
            print_lines = options.json or not _shows_tables()

            def on_row(result: RowResult) -> None:
                line = json.dumps(result.to_json(), ensure_ascii=False)
                for target in [*([out] if out else []), *([sys.stdout] if print_lines else [])]:
                    print(line, file=target, flush=True)
                if not print_lines:
                    print(f"line {result.row.number}  {result.row.sku}  {result.outcome.value}", file=sys.stderr)

            results = run(
                options.csv, client, on_row, pace=Pace(patience_s=options.timeout),
                concurrency=options.concurrency, label=options.label, encoding=options.encoding,
            )  # fmt: skip
    except (CatalogueUnreadable, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
        print(error, file=sys.stderr)
        return 2
    except OSError as error:
        print(f"{options.out} cannot be written: {error.strerror}", file=sys.stderr)
        return 2
    except NotAllowed as error:
        print(f"{error} Set SLUICEGATE_API_KEY.", file=sys.stderr)
        return 4
    except ServerUnreachable as error:
        print(f"{error}. {len(error.results)} rows were done; run the same command again to go on.", file=sys.stderr)
        return 5
    except KeyboardInterrupt:
        print("Interrupted. Run the same command again to go on; nothing is done twice.", file=sys.stderr)
        return 130
    return _report(results, as_table=not print_lines)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description="Send a CSV of products to a Sluicegate service.")
    parser.add_argument(
        "csv", type=Path, help="columns sku, title, text, language, files (a;b); the rest are attributes"
    )
    parser.add_argument("--url", default=os.environ.get("SLUICEGATE_URL", "http://127.0.0.1:8080"))
    parser.add_argument("--out", type=Path, metavar="FILE", help="write one JSON line per row as it is known")
    parser.add_argument("--json", action="store_true", help="print JSON lines even on a terminal")
    parser.add_argument(
        "--concurrency", type=int, choices=range(1, 33), default=4, metavar="N", help="rows under way at once"
    )
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="seconds for one row in all")
    parser.add_argument("--label", default="", help="another label asks the service anew about the same rows")
    parser.add_argument("--encoding", default="utf-8-sig", help="of the CSV (utf-8-sig: UTF-8 with or without mark)")
    return parser


def _shows_tables() -> bool:
    try:
        import rich.table  # noqa: F401 - asked for, not used here
    except ImportError:
        return False
    return sys.stdout.isatty()


def _report(results: Sequence[RowResult], *, as_table: bool) -> int:
    if as_table:
        from rich.console import Console

        Console().print(result_table(results))
    counts = {outcome: sum(result.outcome is outcome for result in results) for outcome in Outcome}
    summary = ", ".join(f"{count} {outcome.value.replace('_', ' ')}" for outcome, count in counts.items() if count)
    print(f"{len(results)} rows: {summary or 'none'}", file=sys.stderr)
    for result in results:
        for note in result.row.notes:
            print(f"line {result.row.number}: {note}", file=sys.stderr)
    return 0 if counts[Outcome.COPY] == len(results) else 3


_COLOURS = {Outcome.COPY: "green", Outcome.REFUSED: "red", Outcome.PERSON: "yellow"}


def result_table(results: Sequence[RowResult], *, title: str | None = None) -> Any:
    """A rich table of what came of the rows."""
    table = empty_table(title)
    for result in results:
        add_result(table, result)
    return table


def empty_table(title: str | None = None) -> Any:
    """The table without a row; its texts fold on a narrow terminal."""
    from rich.table import Table

    table = Table(title=title, title_justify="left", expand=True, show_lines=True)
    for name, ratio in (("product", 4), ("verdict and route", 4)):
        table.add_column(name, ratio=ratio, overflow="fold")
    table.add_column("ms", justify="right", no_wrap=True)
    table.add_column("what the person is told", ratio=9, overflow="fold")
    table.add_column("saved", justify="right", no_wrap=True)
    return table


def add_result(table: Any, result: RowResult) -> None:
    """One more row. Nothing that a service or a file says is taken for markup."""
    from rich.text import Text

    style = _COLOURS.get(result.outcome, "magenta")
    way = " → ".join(dict.fromkeys(part for part in (result.verdict or result.outcome.value, result.route) if part))
    verdict = Text("\n").join(
        Text(part, style=part_style)
        for part, part_style in ((way, style), (result.code, style), (result.measured_against_limit, "dim"))
        if part
    )
    saved = f"{result.saved_tokens:,} tokens\n{result.saved_cost:.4f}" if result.saved_tokens else ""
    table.add_row(
        Text.assemble(result.row.sku, "\n", (str(result.row.item.get("title", "")), "dim")),
        verdict,
        Text(f"{result.milliseconds:,.0f}"),
        Text(told(result)),
        Text(saved),
    )


def told(result: RowResult) -> str:
    """What the person who sent the row is told, in one sentence or two."""
    if result.escalation_link or result.outcome is Outcome.PERSON:
        return f"Waiting for a person. {result.escalation_link}".strip()
    words = result.message()
    if result.fix() not in words:
        words = f"{words} {result.fix()}".strip()
    if result.outcome is not Outcome.COPY:
        return words
    written = str(result.copy.get("title") or "payload ready")
    return f"{written} ({words})" if words else written


if __name__ == "__main__":
    sys.exit(main())
