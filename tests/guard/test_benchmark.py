"""The page of figures can be made again by anyone, and says what it said."""

from __future__ import annotations

import json
import runpy
import subprocess
import sys
from pathlib import Path
from typing import Any

from guard import Effect, Guard, Outcome, ToolCall, ToolTraits

ROOT = Path(__file__).parent.parent.parent


def _run(*paths: Path) -> dict[str, Any]:
    command = [sys.executable, "benchmarks/guard.py", "--json", *map(str, paths)]
    told = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60).stdout
    answer: dict[str, Any] = json.loads(told)
    return answer


def test_the_default_contains_every_loop_on_time_and_disturbs_no_honest_run() -> None:
    told = _run()
    rows = {row["guard"]: row for row in told["rows"]}
    assert told["runs"] == {"loop": 50, "legit": 28, "stretch": 1}
    ours = rows["ours (default)"]
    assert (ours["contained_on_time"], ours["disturbed"]) == (50, 0)
    documented = (ROOT / "docs" / "guard.md").read_text("utf-8")
    for name, row in rows.items():
        line = f"| {name} | {row['contained_on_time']} of {row['loops']} | {row['contained_ever']} "
        assert (
            f"{line}| {row['disturbed']} of {row['honest']} | {row['refused']} ({row['refused_new']}) |" in documented
        )


def test_a_folder_of_traces_is_replayed_too(tmp_path: Path) -> None:
    guard = Guard(tools={"look": ToolTraits(Effect.READ_ONLY)})
    for _ in range(4):
        call = ToolCall("look", {"file": "p1"})
        if guard.before(call).execute:
            guard.after(call, Outcome.ok("text"))
    (tmp_path / "deeper").mkdir()
    (tmp_path / "deeper" / "run.jsonl").write_text(guard.trace.to_jsonl(), "utf-8")
    told = _run(tmp_path)
    assert told["runs"] == {"unknown": 1}
    assert {row["loops"] for row in told["rows"]} == {0}


def test_the_cost_of_a_call_stays_near_the_yardstick_and_flat() -> None:
    """Far looser than what is wanted (10 times, and 1.2), so that a busy machine does not matter."""
    measure = runpy.run_path(str(ROOT / "benchmarks" / "guard_cost.py"))["measure"]
    short, long = measure(10), measure(10_000)
    assert short["ratio"] < 20
    assert long["guard_us"] < 2 * short["guard_us"]
