"""`sluicegate trace explain`, run as people run it: no server, no settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from guard import Effect, Guard, Outcome, ToolCall, ToolTraits

CASES = Path(__file__).parent.parent / "cases" / "loops.jsonl"


def _explain(*args: str | Path, columns: int = 100) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "COLUMNS": str(columns), "NO_COLOR": "1"}
    command = [sys.executable, "-m", "gateway", "trace", "explain", *map(str, args)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)


def _trace(path: Path) -> Path:
    guard = Guard(tools={"look": ToolTraits(Effect.READ_ONLY)})
    for _ in range(4):
        call = ToolCall("look", {"file": "p1", "api_key": "abc-secret"})
        if guard.before(call).execute:
            guard.after(call, Outcome.ok("text of p1"))
    path.write_text(guard.trace.to_jsonl(), encoding="utf-8")
    return path


def test_a_trace_is_told_step_by_step(tmp_path: Path) -> None:
    shown = _explain(_trace(tmp_path / "run.jsonl"))
    assert shown.returncode == 0, shown.stderr
    lines = [line.strip() for line in shown.stdout.splitlines()]
    assert [line.split()[:2] for line in lines if line[:1].isdigit()] == [
        ["1", "allow"],
        ["2", "warn"],
        ["3", "block"],
        ["4", "halt"],
    ]
    assert "→ ok: text of p1" in lines
    assert "before: repeat counts 4 → halt, steps 1, 3" in lines
    assert any(line.startswith("said: look was already") for line in lines)
    assert "abc-secret" not in shown.stdout


def test_a_case_file_is_replayed_and_told_as_json() -> None:
    shown = _explain(CASES, "--case", "dev-ocr-contrast-jitter", "--json")
    assert shown.returncode == 0, shown.stderr
    steps = [json.loads(line) for line in shown.stdout.splitlines()]
    assert [step["action"] for step in steps] == ["allow", "warn", "warn", "block", "halt"]
    assert steps[-1]["escalates"]
    assert {seen["detector"] for seen in steps[-1]["saw"]} >= {"repeat", "jitter", "tuning"}


def test_a_case_file_is_replayed_under_another_policy(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("budget: {steps: 2}\n", encoding="utf-8")
    shown = _explain(CASES, "--case", "dev-ok-int-sweep-empty", "--policy", policy, "--json")
    assert [json.loads(line)["action"] for line in shown.stdout.splitlines()] == ["allow", "allow", "halt"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "the file is empty"),
        (b"not JSON\n", "line 1"),
        (b"[]\n", "line 1: not a JSON object"),
        (b'{"type": "trace", "version": 9}\n', "version 9"),
        (b'{"calls": []}\n', "line 1"),
        (b'{"id": "a", "calls": [{"tool": "t"}]}\n', "line 1: not a case: 'effect' is missing"),
        (b'{"id": "a", "calls": [{"tool": "t", "effect": "raed"}]}\n', "did you mean 'read'"),
        (b'{"id": "a", "calls": [{"tool": 5, "effect": "read", "outcome": "ok"}]}\n', "`tool` is no text"),
        (b'{"id": "a", "calls": 3}\n', "an entry is of the wrong type"),
        (b"\xff\xfe", "UTF-8"),
        (b'{"type": "call"}\n', "line 1: not a record of a trace: 'view', "),
        (b'{"type": "cal"}\n', "unknown type 'cal'; there are call, outcome, control"),
        (b'{"type": "trace", "version": 1}\n{"typ": 1}\n', "line 2"),
    ],
)
def test_a_file_that_cannot_be_read_is_one_clear_line(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(content)
    shown = _explain(path)
    assert shown.returncode == 2
    assert shown.stdout == ""
    assert says in shown.stderr
    assert len(shown.stderr.splitlines()) == 1
    assert not any(inner in shown.stderr for inner in ("__init__", "Error(", "object has no attribute"))


def test_line_separators_within_a_text_end_no_line(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    call = {"tool": "look", "effect": "mutate", "args": {"at": "a\u2028b"}, "outcome": "ok", "result": "c\u0085d"}
    path.write_text(json.dumps({"id": 7, "calls": [call]}, ensure_ascii=False) + "\r\n", encoding="utf-8", newline="")
    told = json.loads(_explain(path, "--json").stdout)
    assert (told["run"], told["outcome"]["excerpt"]) == ("7", "c d")


def test_a_trace_says_that_there_is_nothing_to_choose_or_to_replay(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(Guard().trace.to_jsonl(), encoding="utf-8")
    assert "no call was recorded" in _explain(path).stdout
    shown = _explain(path, "--case", "x")
    assert shown.returncode == 2
    assert "judged already" in shown.stderr


def test_a_missing_file_and_an_unknown_run_are_named(tmp_path: Path) -> None:
    assert "No such file" in _explain(tmp_path / "none.jsonl").stderr
    assert "there is no run 'x'" in _explain(CASES, "--case", "x").stderr


def test_a_typo_in_the_policy_is_named_with_its_line(tmp_path: Path) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text("mode: shadow\ncountin: strict\n", encoding="utf-8")
    shown = _explain(CASES, "--policy", policy)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "policy.yaml:2" in shown.stderr
    assert "did you mean 'counting'" in shown.stderr


def test_a_recorded_text_cannot_drive_the_terminal(tmp_path: Path) -> None:
    guard = Guard()
    call = ToolCall("look\x1b[2J", {"file": "\x1b]0;title\x07"})
    for _ in range(2):
        if guard.before(call).execute:
            guard.after(call, Outcome.ok("\x1b[31mred"))
    path = tmp_path / "run.jsonl"
    path.write_text(guard.trace.to_jsonl(), encoding="utf-8")
    shown = _explain(path)
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
