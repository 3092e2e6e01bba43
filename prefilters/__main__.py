"""`python -m prefilters FILE…`: the verdict on each file, with what was measured, what is needed and what it cost.

Exit status: 0 where every file is accepted or routed, 3 where one (or a rule file) is refused, 2 where the command
could not be carried out, 141 where nobody reads on.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from prefilters.errors import RuleSetInvalid
from prefilters.facts import FactValue, Stage
from prefilters.limits import DecodeLimits
from prefilters.rules import RuleSet, load_rules
from prefilters.screening import Screening
from prefilters.verdict import VerdictKind

OK, COULD_NOT, REFUSED, READER_LEFT = 0, 2, 3, 141
LANGUAGES = ("en", "zh")
_WIDEST_NAME = 36
_HEAD = ("verdict", "code", "measured", "needed", "ms")
_WIDTHS = (11, 16, 30, 26, 8)


def main(arguments: Sequence[str] | None = None, *, out: TextIO = sys.stdout, err: TextIO = sys.stderr) -> int:
    """Run the command; gives the exit status. Raises `SystemExit` with 2 on a wrong use."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:2] == ["rules", "check"]:
        return _check_rules(_rules_parser().parse_args(words[2:]).file, out, err)
    options = _parser().parse_args(words)
    if options.rules and (problem := _unreadable(options.rules)):
        print(f"{_printable(str(options.rules))}: {problem}", file=err)
        return COULD_NOT
    try:
        rules = load_rules(options.rules)
    except RuleSetInvalid as exc:
        _print_problems(exc, err)
        return COULD_NOT
    through = Stage[options.through.upper()]
    if options.json:
        return _screen_all(options.files, rules, through, _Json(out), err)
    return _screen_all(options.files, rules, through, _Table(out, options.lang, options.files), err)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m prefilters",
        description="Say of each file whether it is worth a model's time, and why.",
        epilog="python -m prefilters rules check FILE: say what is wrong with a rule file.",
    )
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE")
    parser.add_argument("--json", action="store_true", help="one JSON object a line instead of a table")
    parser.add_argument("--lang", choices=LANGUAGES, default="en", help="language of the messages in the table")
    parser.add_argument("--rules", type=Path, metavar="FILE", help="rule file instead of the one that ships")
    stages = [stage.name.lower() for stage in Stage]
    parser.add_argument("--through", choices=stages, default="text", help="dearest stage to measure (default: text)")
    return parser


def _rules_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m prefilters rules check", description="Check a rule file.")
    parser.add_argument("file", type=Path, metavar="FILE")
    return parser


def _check_rules(path: Path, out: TextIO, err: TextIO) -> int:
    if problem := _unreadable(path):
        print(f"{_printable(str(path))}: {problem}", file=err)
        return COULD_NOT
    try:
        rules = load_rules(path)
    except RuleSetInvalid as exc:
        _print_problems(exc, err)
        return REFUSED
    print(f"{path}: fine, {rules.version}, {len(rules.rules)} rules, {len(rules.parameters)} parameters", file=out)
    return OK


def _print_problems(invalid: RuleSetInvalid, err: TextIO) -> None:
    for problem in invalid.problems:
        print(problem, file=err)


def _screen_all(files: Sequence[Path], rules: RuleSet, through: Stage, report: _Json | _Table, err: TextIO) -> int:
    from prefilters.pool import DecoderPool  # only here: `--help` and `rules check` need no decoders
    from prefilters.screen import screen

    limits, status = DecodeLimits(), OK
    report.begin()
    with DecoderPool(workers=1, limits=limits) as pool:
        for path in files:
            if problem := _unreadable(path):
                print(f"{_printable(str(path))}: {problem}", file=err)
                status = COULD_NOT
                continue
            screening = screen(path, rules=rules, pool=pool, limits=limits, file_name=path.name, through=through)
            report.add(path, screening)
            if screening.verdict.kind is VerdictKind.REJECT and status == OK:
                status = REFUSED
    return status


def _unreadable(path: Path) -> str | None:
    try:
        path.open("rb").close()
    except OSError as exc:
        return exc.strerror or str(exc)
    return None


@dataclass(frozen=True, slots=True)
class _Json:
    out: TextIO

    def begin(self) -> None:
        """A list of lines has no head."""

    def add(self, path: Path, screening: Screening) -> None:
        print(json.dumps({"file": str(path), **screening.to_json()}, ensure_ascii=False), file=self.out, flush=True)


@dataclass(frozen=True, slots=True)
class _Table:
    out: TextIO
    language: str
    files: Sequence[Path]

    def begin(self) -> None:
        self._row("file", _HEAD)

    def add(self, path: Path, screening: Screening) -> None:
        verdict = screening.verdict
        total_ms = sum(screening.timings_ms.values())
        cells = (
            verdict.kind.value if verdict.decided else "undecided",
            verdict.code or "",
            _shown(verdict.measured),
            _needed(screening),
            f"{total_ms:.1f}",
        )
        self._row(_printable(path.name), cells)
        for line in _explanation(screening, self.language):
            print(f"    {line}", file=self.out, flush=True)

    def _row(self, name: str, cells: Sequence[str]) -> None:
        name_width = min(_WIDEST_NAME, max((_columns(_printable(path.name)) for path in self.files), default=4))
        padded = [_padded(name, max(4, name_width)), *map(_padded, cells, _WIDTHS)]
        print("  ".join(padded).rstrip(), file=self.out, flush=True)


def _explanation(screening: Screening, language: str) -> Iterator[str]:
    verdict = screening.verdict
    for text in (verdict.user_message, verdict.fix):
        if words := text.get(language):
            yield _printable(words)
    if verdict.notes:
        yield f"notes: {', '.join(verdict.notes)}"
    yield " · ".join(f"{probe} {ms:.1f} ms" for probe, ms in screening.timings_ms.items())


def _shown(values: Mapping[str, FactValue]) -> str:
    return ", ".join(f"{fact} {_short(value)}" for fact, value in values.items())


def _needed(screening: Screening) -> str:
    """What would have passed, without the fact's name where the cell to the left has it already."""
    verdict = screening.verdict
    for check in verdict.checks:
        if check.rule == verdict.rule:
            return check.passes_when.removeprefix(f"{check.fact} ")
    return ""


def _short(value: FactValue) -> str:
    return f"{value:.4g}" if isinstance(value, float) else _printable(str(value))


def _printable(text: str) -> str:
    """Text that cannot move the cursor or turn the line around."""
    return "".join(char if unicodedata.category(char)[0] != "C" else "?" for char in text)


def _columns(text: str) -> int:
    """How wide a terminal shows it: Chinese takes two columns a character."""
    return sum(2 if unicodedata.east_asian_width(char) in "WF" else 1 for char in text)


def _padded(text: str, width: int) -> str:
    while _columns(text) > width:
        text = text[:-2] + "…"
    return text + " " * (width - _columns(text))


def _run() -> int:
    """The command on this process's own streams; whoever reads it may stop reading, as `head` does."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return READER_LEFT
    return status


if __name__ == "__main__":
    sys.exit(_run())
