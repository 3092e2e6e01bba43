"""A run folded for reading: calls that say the same in a row become one block, so that 2,400 of them fit on a page.

Pure: rows in, blocks out. Whoever reads it asks where the run began to repeat itself, so that place is named as well.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any

from gateway.store.steps import StepKind, StepRow

MOST_BLOCKS = 200
"""Blocks of one page."""
MOST_ROWS = 50
"""Calls of one block that are shown at once."""
_MOST_TOLD_APART = 1_000
"""Different values of one argument, or different results, that a block counts; more are 'at least' so many."""


class Mark(StrEnum):
    """What the guard did about a call."""

    ALLOW = "allow"
    WARN = "warn"
    BLOCK = "block"
    HALT = "halt"


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call with what became of it."""

    seq: int
    """Its place among everything that is stored of the run; unique there."""
    attempt: int
    step: int
    """1 for the first call of the attempt."""
    tool: str
    arguments: str
    """Up to 2 KB, secrets redacted."""
    signature: str
    look_alike: tuple[str, ...]
    """Keys that it shares with calls which differ in spelling or in numbers alone."""
    executed: bool
    mark: Mark
    reason: str | None
    said: str | None
    """What the guard said about it."""
    code: str | None
    """The error's code; None for a success, and for a call that never ran."""
    digest: str | None
    """Of its result; None where there is none."""
    excerpt: str
    at_ms: int
    ended_ms: int | None
    cost: Decimal
    """Of the tool, and of the model request that asked for it."""


@dataclass(frozen=True, slots=True)
class Remark:
    """What happened between the calls: a fallback, a person's decision, a new attempt."""

    seq: int
    attempt: int
    kind: str
    text: str
    by: str | None
    at_ms: int
    cost: Decimal = Decimal(0)


Entry = Call | Remark


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a block's calls."""

    name: str
    first: str
    last: str
    values: int
    """How many different ones there were; 1 where it never changed."""

    @property
    def changes(self) -> bool:
        """Whether the calls of the block differ in it."""
        return self.values > 1


@dataclass(frozen=True, slots=True)
class Stretch:
    """Calls in a row about which the guard did the same: a piece of the rail beside the blocks."""

    mark: Mark
    count: int
    first_step: int
    reason: str | None
    said: str | None


@dataclass(frozen=True, slots=True)
class Block:
    """Calls in a row that are the same, or differ in what jitters."""

    number: int
    """1 for the first block of the run."""
    first_seq: int
    last_seq: int
    attempt: int
    tool: str
    arguments: tuple[Argument, ...]
    raw_arguments: str | None
    """The first call's arguments as text, where they are no object."""
    count: int
    executed: int
    first_step: int
    last_step: int
    first_ms: int
    last_ms: int
    distinct_results: int
    codes: Mapping[str, int]
    """Error codes with how often each came."""
    first_excerpt: str
    last_excerpt: str
    cost: Decimal
    rail: tuple[Stretch, ...]
    is_seen_before: bool
    """Whether the run had made the first of these calls before."""

    @property
    def repeats(self) -> bool:
        """Whether something is said twice here."""
        is_judged = self.count > 1 and self.worst is not Mark.ALLOW
        return self.is_seen_before or is_judged or self.count > max(1, self.distinct_results)

    @property
    def worst(self) -> Mark:
        """The hardest thing that the guard did here."""
        order = list(Mark)
        return max((stretch.mark for stretch in self.rail), key=order.index)


@dataclass(frozen=True, slots=True)
class Note:
    """A remark with its place among the blocks."""

    number: int
    remark: Remark


@dataclass(frozen=True, slots=True)
class Timeline:
    """The whole run, folded."""

    blocks: tuple[Block | Note, ...]
    calls: int
    executed: int
    first_repetition: int | None
    """The number of the first block that repeats; None where none does."""
    cost: Decimal
    marks: Mapping[Mark, int] = field(default_factory=dict)


def fold(entries: Iterable[Entry]) -> Timeline:
    """The run as blocks, oldest first."""
    folded: list[Block | Note] = []
    seen: set[str] = set()
    open_block: _Builder | None = None
    calls = executed = 0
    cost = Decimal(0)
    marks = dict.fromkeys(Mark, 0)
    for entry in entries:
        cost += entry.cost
        if isinstance(entry, Remark):
            if open_block is not None:
                folded.append(open_block.built())
                open_block = None
            folded.append(Note(len(folded) + 1, entry))
            continue
        calls += 1
        executed += entry.executed
        marks[entry.mark] += 1
        if open_block is None or not open_block.takes(entry):
            if open_block is not None:
                folded.append(open_block.built())
            open_block = _Builder(len(folded) + 1, entry, is_seen_before=entry.signature in seen)
        else:
            open_block.add(entry)
        seen.add(entry.signature)
    if open_block is not None:
        folded.append(open_block.built())
    first = next((block.number for block in folded if isinstance(block, Block) and block.repeats), None)
    return Timeline(tuple(folded), calls, executed, first, cost, marks)


def calls_of(entries: Iterable[Entry], number: int) -> list[Call] | None:
    """The calls of the block of this number, oldest first; None if there is none of that number, or it is a note."""
    listed = list(entries)
    block = next((each for each in fold(listed).blocks if each.number == number), None)
    if not isinstance(block, Block):
        return None
    return [entry for entry in listed if isinstance(entry, Call) and block.first_seq <= entry.seq <= block.last_seq]


class _Builder:
    """A block while its calls are still coming."""

    def __init__(self, number: int, call: Call, *, is_seen_before: bool) -> None:
        self._number = number
        self._first = self._last = call
        self._is_seen_before = is_seen_before
        self._keys = {call.signature, *call.look_alike}
        self._count = self._executed = 0
        self._cost = Decimal(0)
        self._results: set[str] = set()
        self._codes: dict[str, int] = {}
        self._rail: list[Stretch] = []
        self._excerpts: list[str] = []
        self._names = _parsed(call.arguments)
        self._values: dict[str, tuple[str, str, set[str]]] = {}
        self.add(call)

    def takes(self, call: Call) -> bool:
        first = self._first
        if call.tool != first.tool or call.attempt != first.attempt:
            return False
        return call.signature == self._last.signature or not self._keys.isdisjoint((call.signature, *call.look_alike))

    def add(self, call: Call) -> None:
        self._last = call
        self._count += 1
        self._executed += call.executed
        self._cost += call.cost
        if call.digest is not None and len(self._results) < _MOST_TOLD_APART:
            self._results.add(call.digest)
        if call.code is not None:
            self._codes[call.code] = self._codes.get(call.code, 0) + 1
        if call.excerpt:
            self._excerpts[1:] = [call.excerpt]
        self._note_values(call)
        self._note_mark(call)

    def _note_values(self, call: Call) -> None:
        if self._names is None:
            return
        for name, value in (_parsed(call.arguments) or {}).items():
            first, _, known = self._values.get(name, (value, value, set()))
            if len(known) < _MOST_TOLD_APART:
                known.add(value)
            self._values[name] = (first, value, known)

    def _note_mark(self, call: Call) -> None:
        latest = self._rail[-1] if self._rail else None
        if latest is not None and latest.mark is call.mark and latest.reason == call.reason:
            self._rail[-1] = Stretch(latest.mark, latest.count + 1, latest.first_step, latest.reason, latest.said)
        else:
            self._rail.append(Stretch(call.mark, 1, call.step, call.reason, call.said))

    def built(self) -> Block:
        first, last = self._first, self._last
        return Block(
            number=self._number,
            first_seq=first.seq,
            last_seq=last.seq,
            attempt=first.attempt,
            tool=first.tool,
            arguments=tuple(Argument(name, v[0], v[1], len(v[2])) for name, v in self._values.items()),
            raw_arguments=first.arguments if self._names is None else None,
            count=self._count,
            executed=self._executed,
            first_step=first.step,
            last_step=last.step,
            first_ms=first.at_ms,
            last_ms=last.ended_ms or last.at_ms,
            distinct_results=len(self._results),
            codes=self._codes,
            first_excerpt=self._excerpts[0] if self._excerpts else "",
            last_excerpt=self._excerpts[-1] if self._excerpts else "",
            cost=self._cost,
            rail=tuple(self._rail),
            is_seen_before=self._is_seen_before,
        )


def _parsed(arguments: str) -> dict[str, str] | None:
    """Each argument as short JSON text; None where the arguments are no object, or were cut."""
    try:
        found = json.loads(arguments)
    except ValueError:
        return None
    if not isinstance(found, dict):
        return None
    return {name: json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) for name, value in found.items()}


# --- from what is stored --------------------------------------------------------------------------------------------


def entries_of_steps(rows: Sequence[StepRow]) -> Iterator[Entry]:
    """What an item's own agent did. A model request's cost goes to the first call that it asked for."""
    owed = Decimal(0)
    attempt = 0
    for row in rows:
        if row.attempt != attempt:
            if attempt or row.attempt > 1:
                yield Remark(row.seq, row.attempt, "attempt", f"Attempt {row.attempt} begins.", None, row.intent_ms)
            attempt = row.attempt
        outcome = row.outcome or {}
        if row.kind is StepKind.MODEL:
            owed += Decimal(str(outcome.get("cost") or "0"))
        elif row.kind is StepKind.TOOL:
            yield _call_of_step(row, owed)
            owed = Decimal(0)
        elif row.kind is StepKind.CONTROL:
            intent = row.intent
            text = str(intent.get("text") or "")
            yield Remark(row.seq, row.attempt, str(intent.get("control")), text, intent.get("by"), row.intent_ms)
    if owed:
        last = rows[-1]
        at_ms = last.outcome_ms or last.intent_ms
        yield Remark(last.seq, last.attempt, "answer", "The model answered without a call.", None, at_ms, owed)


def _call_of_step(row: StepRow, owed: Decimal) -> Call:
    outcome = row.outcome or {}
    asked: Mapping[str, Any] = next(iter(row.intent.get("records") or ()), {})
    came = next((record for record in outcome.get("records") or () if record.get("type") == "outcome"), None)
    return _call(
        seq=row.seq,
        attempt=row.attempt,
        asked=asked,
        came=came,
        tool=str(row.intent["tool"]),
        step=int(row.intent["step"]),
        mark=Mark(outcome.get("action") or row.intent["action"]),
        at_ms=row.intent_ms,
        ended_ms=row.outcome_ms,
        owed=owed,
    )


def entries_of_records(records: Sequence[Mapping[str, Any]]) -> Iterator[Entry]:
    """What somebody else's agent did, by the guard's own trace of its run."""
    outcomes = {r["step"]: r for r in reversed(records) if r["type"] == "outcome" and not r.get("ignored")}
    owed = Decimal(0)
    for seq, record in enumerate(records, 1):
        if record["type"] == "call":
            view = record["view"]
            came = outcomes.get(view["step"])
            worst = max((record, came or record), key=lambda r: list(Mark).index(Mark(r["action"])))
            yield _call(
                seq=seq,
                attempt=1,
                asked=record,
                came=came,
                tool=view["tool"],
                step=view["step"],
                mark=Mark(worst["action"]),
                at_ms=_ms(record.get("now")),
                ended_ms=None if came is None else _ms(came.get("now")),
                owed=owed,
            )
            owed = Decimal(0)
        elif record["type"] == "control" and record["control"] != "charge":
            text = str(record.get("note") or "")
            yield Remark(seq, 1, record["control"], text, None, _ms(record.get("now")))
        elif record["type"] == "control":
            owed += Decimal(str(record.get("cost") or 0))


def _call(
    *,
    seq: int,
    attempt: int,
    asked: Mapping[str, Any],
    came: Mapping[str, Any] | None,
    tool: str,
    step: int,
    mark: Mark,
    at_ms: int,
    ended_ms: int | None,
    owed: Decimal,
) -> Call:
    keys = asked.get("view", {}).get("keys", {})
    judged = came if came is not None and came.get("text") else asked
    return Call(
        seq=seq,
        attempt=attempt,
        step=step,
        tool=tool,
        arguments=str(asked.get("args", "")),
        signature=str(keys.get("signature") or seq),
        look_alike=tuple(str(keys[name]) for name in ("folded", "shape") if keys.get(name)),
        executed=bool(asked.get("execute")),
        mark=mark,
        reason=judged.get("reason"),
        said=judged.get("text"),
        code=None if came is None else came.get("code"),
        digest=None if came is None else came.get("digest"),
        excerpt="" if came is None else str(came.get("excerpt") or ""),
        at_ms=at_ms,
        ended_ms=ended_ms,
        cost=owed + (Decimal(0) if came is None else Decimal(str(came.get("cost") or 0))),
    )


def _ms(seconds: float | None) -> int:
    return 0 if seconds is None else int(seconds * 1000)
