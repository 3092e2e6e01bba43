"""How early guards stop loops, and what honest work it costs: ours, and what others publish, over the same recorded runs.

    python benchmarks/guard.py [--json] [FILE_OR_FOLDER ...]

Without paths: the case files of the tests. A path may be a case file, a trace (JSON lines), or a folder of them. Runs
of traces are of unknown kind: they count as neither loops nor honest work, but their refused calls are looked at.

Each run is replayed call by call. A refused call is not run: the recorded result is withheld. A loop is contained *on
time* when the guard halts by the call that the case allows, and *ever* when it halts before the run is over. An honest
run is disturbed when it is answered harder than the case allows. A refused call *would have brought something new*
when the recorded outcome is ok and its tool had not brought that result before.

The rules of others are restated from their published sources, each in a few lines; where theirs asks a person, it
counts as a halt, for the run stands still.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from guard import Counting, Effect, Guard, GuardAction, GuardPolicy, Trace, TraceError
from guard.call import canonical_args
from guard.casefile import Case, RecordedCall, case_of, read_runs

ROOT = Path(__file__).resolve().parent.parent
ALLOW, WARN, BLOCK, HALT = GuardAction.ALLOW, GuardAction.WARN, GuardAction.BLOCK, GuardAction.HALT
Seen = tuple[str, str, bool]
"""One executed call as others look at it: what was asked, what came of it, whether that is an error."""


class Contestant(Protocol):
    """A guard in the benchmark; one object, one run."""

    def before(self, recorded: RecordedCall) -> GuardAction: ...

    def after(self, recorded: RecordedCall) -> GuardAction: ...


class Ours:
    """This project's guard."""

    def __init__(self, case: Case, policy: GuardPolicy) -> None:
        self.case, self.policy = case, policy
        self.guard = Guard(policy, tools=case.tools)

    def before(self, recorded: RecordedCall) -> GuardAction:
        if recorded.resume_before:
            trace = Trace.from_jsonl(self.guard.trace.to_jsonl())
            self.guard = Guard.from_trace(trace, self.policy, tools=self.case.tools)
        return self.guard.before(recorded.call).action

    def after(self, recorded: RecordedCall) -> GuardAction:
        return self.guard.after(recorded.call, recorded.outcome).action


@dataclass
class Theirs:
    """A rule over what was asked and what came of it."""

    rule: Callable[[list[Seen], str], GuardAction]
    """Judges the call that is asked for, by the calls so far."""
    seen: list[Seen] = field(default_factory=list)

    def before(self, recorded: RecordedCall) -> GuardAction:
        return self.rule(self.seen, asked_of(recorded))

    def after(self, recorded: RecordedCall) -> GuardAction:
        self.seen.append((asked_of(recorded), brought_by(recorded), recorded.outcome.error is not None))
        return ALLOW


def asked_of(recorded: RecordedCall) -> str:
    call = recorded.call
    try:
        return f"{call.tool} {call.args_raw if call.args_raw is not None else canonical_args(call.args)}"
    except ValueError:
        return f"{call.tool} ?"


def brought_by(recorded: RecordedCall) -> str:
    outcome = recorded.outcome
    code = "" if outcome.error is None else outcome.error.code
    return f"{code} {outcome.result_digest or json.dumps(outcome.result, sort_keys=True, default=str)}"


def no_guard(seen: list[Seen], asked: str) -> GuardAction:
    return ALLOW


def openhands(seen: list[Seen], asked: str) -> GuardAction:
    """OpenHands/OpenHands, openhands/controller/stuck.py: looked at before each step, and the run ends when stuck:
    four equal actions with equal observations in a row; three equal actions that all end in errors; or two (action,
    observation) pairs in turn for six steps.
    """
    if len(seen) >= 4 and len({(a, b) for a, b, _ in seen[-4:]}) == 1:
        return HALT
    if len(seen) >= 3 and len({a for a, _, _ in seen[-3:]}) == 1 and all(failed for _, _, failed in seen[-3:]):
        return HALT
    last = [(a, b) for a, b, _ in seen[-6:]]
    if len(last) == 6 and len(set(last[::2])) == 1 and len(set(last[1::2])) == 1:
        return HALT
    return ALLOW


def gemini_cli(seen: list[Seen], asked: str) -> GuardAction:
    """google-gemini/gemini-cli, packages/core/src/services/loopDetectionService.ts: five equal calls (name and
    arguments) in a row end the turn.
    """
    return HALT if [a for a, _, _ in seen[-4:]] == [asked] * 4 else ALLOW


def opencode(seen: list[Seen], asked: str) -> GuardAction:
    """sst/opencode, packages/opencode/src/session/processor.ts: the third equal call (tool and input) in a row asks a
    person (permission `doom_loop`).
    """
    return HALT if [a for a, _, _ in seen[-2:]] == [asked] * 2 else ALLOW


def openclaw(seen: list[Seen], asked: str) -> GuardAction:
    """openclaw/openclaw, src/agents/tool-loop-detection.ts, switched on, with its defaults: over the last 30 calls,
    an equal call whose result stayed the same is blocked from the 20th on (warned about from the 10th equal call on),
    and ends the session from the 30th; two calls in turn are warned about at 10 and blocked at 20 when their results
    stay the same.
    """
    window = seen[-30:]
    results = [b for a, b, _ in window if a == asked]
    unchanged = next((n for n, b in enumerate(reversed(results)) if b != results[-1]), len(results))
    if unchanged >= 30:
        return HALT
    turns = 0
    if window and window[-1][0] != asked:
        pair = (window[-1][0], asked)
        turns = next((n for n, s in enumerate(reversed(window)) if s[0] != pair[n % 2]), len(window)) + 1
    tail = window[-(turns - 1) :] if turns > 2 else []
    is_still = all(len({b for a, b, _ in tail if a == one}) == 1 for one in {a for a, _, _ in tail})
    if unchanged >= 20 or (turns >= 20 and is_still):
        return BLOCK
    return WARN if len(results) >= 10 or turns >= 10 else ALLOW


def langchain_limit(limit: int) -> Callable[[list[Seen], str], GuardAction]:
    """langchain, ToolCallLimitMiddleware(run_limit=limit, exit_behavior="end")."""
    return lambda seen, asked: HALT if len(seen) + 1 > limit else ALLOW


STRICT = GuardPolicy(counting=Counting.STRICT)
ALL_READ = GuardPolicy(undeclared_effect=Effect.READ_ONLY)
CONTESTANTS: dict[str, Callable[[Case], Contestant]] = {
    "ours (default)": lambda case: Ours(case, GuardPolicy()),
    "ours (`counting: strict`)": lambda case: Ours(case, STRICT),
    "ours, no trait declared": lambda case: Ours(replace(case, tools={}), GuardPolicy()),
    "ours, no trait declared (`undeclared_effect: read`)": lambda case: Ours(replace(case, tools={}), ALL_READ),
    "no guard": lambda case: Theirs(no_guard),
    "LangChain ToolCallLimit, 20 calls": lambda case: Theirs(langchain_limit(20)),
    "LangChain ToolCallLimit, 10 calls": lambda case: Theirs(langchain_limit(10)),
    "OpenHands stuck detector": lambda case: Theirs(openhands),
    "gemini-cli loop detection": lambda case: Theirs(gemini_cli),
    "opencode doom loop": lambda case: Theirs(opencode),
    "OpenClaw loop detection (switched on)": lambda case: Theirs(openclaw),
}


@dataclass
class Replay:
    """What became of one run under one guard."""

    levels: list[GuardAction] = field(default_factory=list)
    refused: int = 0
    refused_new: int = 0
    """Refused calls that would have brought something new."""
    halted_at: int | None = None
    costs_us: list[float] = field(default_factory=list)


def replay(case: Case, contestant: Contestant) -> Replay:
    played, known = Replay(), set()
    for number, recorded in enumerate(case.calls, 1):
        start = time.perf_counter_ns()
        level = contestant.before(recorded)
        if not level.refuses:
            level = max(level, contestant.after(recorded), key=lambda action: action.severity)
            refused = False
        else:
            refused = True
        played.costs_us.append((time.perf_counter_ns() - start) / 1_000)
        result = (recorded.call.tool, brought_by(recorded))
        if refused:
            played.refused += 1
            played.refused_new += recorded.outcome.error is None and result not in known
        else:
            known.add(result)
        played.levels.append(level)
        if level is HALT:
            played.halted_at = number
            break
    return played


@dataclass
class Row:
    """One guard over all runs."""

    name: str
    loops: int = 0
    on_time: int = 0
    ever: int = 0
    honest: int = 0
    disturbed: int = 0
    refused: int = 0
    refused_new: int = 0
    halts: list[int] = field(default_factory=list)
    costs_us: list[float] = field(default_factory=list)

    def add(self, case: Case, played: Replay) -> None:
        self.costs_us += played.costs_us
        self.refused += played.refused
        self.refused_new += played.refused_new
        if case.kind == "loop" and not case.stretch:
            self.loops += 1
            self.ever += played.halted_at is not None
            self.on_time += played.halted_at is not None and played.halted_at <= case.expect.get(
                "halt_at_most", len(case.calls)
            )
            self.halts.append(played.halted_at or len(case.calls))
        elif case.kind == "legit":
            self.honest += 1
            allowed = GuardAction(case.expect.get("never_above", "allow"))
            self.disturbed += any(level.severity > allowed.severity for level in played.levels)

    def as_json(self) -> dict[str, Any]:
        return {
            "guard": self.name,
            "loops": self.loops,
            "contained_on_time": self.on_time,
            "contained_ever": self.ever,
            "honest": self.honest,
            "disturbed": self.disturbed,
            "refused": self.refused,
            "refused_new": self.refused_new,
            "median_calls_until_stop": statistics.median(self.halts) if self.halts else None,
            "us_per_call": round(statistics.median(self.costs_us), 1) if self.costs_us else None,
        }


def runs_of(paths: Iterable[Path]) -> Iterator[Case]:
    for path in paths:
        if path.is_dir():
            yield from runs_of(sorted(path.rglob("*.jsonl")))
            continue
        try:
            found = read_runs(path.read_text("utf-8"))
        except TraceError as error:
            raise SystemExit(f"{path}: {error.public}") from error
        except (OSError, UnicodeDecodeError) as error:
            raise SystemExit(f"{path}: {error}") from error
        yield from [case_of(found, path.name)] if isinstance(found, Trace) else found


def measure(cases: list[Case]) -> list[Row]:
    rows = []
    for name, contestant in CONTESTANTS.items():
        row = Row(name)
        for case in cases:
            row.add(case, replay(case, contestant(case)))
        rows.append(row)
    return rows


def as_table(rows: list[Row]) -> str:
    lines = [
        "| guard | loops stopped on time | ever | honest runs disturbed | refused calls (of them new) "
        "| calls until stop, median | µs per call |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        told = row.as_json()
        lines.append(
            f"| {row.name} | {row.on_time} of {row.loops} | {row.ever} | {row.disturbed} of {row.honest} "
            f"| {row.refused} ({row.refused_new}) | {told['median_calls_until_stop']} | {told['us_per_call']} |"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="case files, traces, or folders of them")
    parser.add_argument("--json", action="store_true", help="figures as JSON")
    chosen = parser.parse_args()
    cases = list(runs_of(chosen.paths or [ROOT / "tests/cases/loops.jsonl", ROOT / "tests/cases/recorded.jsonl"]))
    if not cases:
        parser.error("no runs stand there; folders are searched for files named *.jsonl")
    rows = measure(cases)
    kinds = Counter("stretch" if case.stretch else case.kind for case in cases)
    if chosen.json:
        print(json.dumps({"runs": kinds, "rows": [row.as_json() for row in rows]}))
        return
    print(f"{len(cases)} runs: " + ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items())) + "\n")
    print(as_table(rows))


if __name__ == "__main__":
    main()
