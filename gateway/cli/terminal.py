"""What commands print: data on standard output, progress on standard error, nothing that could drive the terminal."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

_WIDE = 200
"""Columns where no terminal is there that would be narrower."""


def plain(text: object) -> str:
    """One line of text without the signs that could move the cursor, or reorder or hide what stands around it."""
    line = " ".join(str(text).split())
    return "".join(sign if sign.isprintable() else "�" for sign in line)


def short(text: object, most: int) -> str:
    """The beginning of `plain` text, at most so many characters."""
    line = plain(text)
    return line if len(line) <= most else line[: most - 1].rstrip() + "…"


def json_line(value: Any) -> str:
    """One line of JSON in which every sign that is not printable is an escape."""
    text = json.dumps(value, ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else json.dumps(sign)[1:-1] for sign in text)


@dataclass(frozen=True, slots=True)
class Output:
    """Where a command speaks to."""

    data: Console
    progress: Console
    as_json: bool
    is_quiet: bool

    def row(self, value: Mapping[str, Any]) -> None:
        """One JSON object on a line of standard output."""
        print(json_line(value), flush=True)

    def say(self, text: str) -> None:
        """Progress, for people; not with `--quiet`."""
        if not self.is_quiet:
            self.progress.print(Text(plain(text)), soft_wrap=True)

    def complain(self, text: str) -> None:
        """Why something did not work."""
        print(f"sluicegate: {plain(text)}", file=sys.stderr, flush=True)

    def table(self, titles: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
        """Rows for people."""
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, title in enumerate(titles):
            table.add_column(title, no_wrap=number == 0, overflow="fold")
        for row in rows:
            table.add_row(*(Text(plain(cell)) for cell in row))
        self.data.print(table)


def open_output(*, as_json: bool, is_quiet: bool, no_color: bool) -> Output:
    """JSON lines where asked for or where nobody reads along; else tables."""
    is_terminal = sys.stdout.isatty()
    plainly: dict[str, Any] = {"highlight": False, "markup": False, "emoji": False, "no_color": no_color or None}
    return Output(
        Console(**plainly, width=None if is_terminal else _WIDE),
        Console(**plainly, stderr=True),
        as_json=as_json or not is_terminal,
        is_quiet=is_quiet,
    )
