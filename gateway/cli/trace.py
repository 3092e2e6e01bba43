"""`sluicegate trace explain`: a recorded run step by step, with what every detector saw and what the guard said."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from guard import Finding, GuardAction, PolicyError, Step, Trace, TraceError
from guard.casefile import Case, read_runs, replay
from guard.policy import GuardPolicy
from guard.policy_file import load_policy
from guard.results import OWN_WORDS

app = typer.Typer(no_args_is_help=True, help="Recorded runs.")

_COLOURS = {
    GuardAction.ALLOW: "green",
    GuardAction.WARN: "yellow",
    GuardAction.BLOCK: "dark_orange",
    GuardAction.HALT: "bold red",
}
_MOST_BYTES = 64 * 1024 * 1024


@app.callback()
def root() -> None:
    """Recorded runs."""


@app.command()
def explain(
    file: Annotated[Path, typer.Argument(help="A trace in JSON lines, or a case file, which is replayed.")],
    case: Annotated[str | None, typer.Option(help="Of a case file only the run of this id.")] = None,
    policy: Annotated[Path | None, typer.Option(help="A policy (YAML) to replay a case file under.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a step.")] = False,
) -> None:
    """Show each step: the call, what every detector saw, what the guard said and why. Needs no server."""
    try:
        runs = list(_runs(_read(file), file, case, None if policy is None else load_policy(policy)))
    except (TraceError, PolicyError) as error:
        _fail(f"{file}: {error.public}" if isinstance(error, TraceError) else error.public)
    except OSError as error:
        _fail(f"{error.filename}: {error.strerror}")
    console = Console(highlight=False)
    for name, trace in runs:
        if as_json:
            for step in trace.steps():
                print(json.dumps({"run": name, **_as_json(step)}, ensure_ascii=False))
            continue
        console.rule(Text(name), align="left")
        steps = list(trace.steps())
        for step in steps:
            _show(console, step)
        if not steps:
            _print(console, Text("no call was recorded"))


def _fail(message: str) -> NoReturn:
    typer.echo(f"sluicegate: {message}", err=True)
    raise typer.Exit(2)


def _read(file: Path) -> str:
    with open(file, "rb") as source:
        raw = source.read(_MOST_BYTES + 1)
    if len(raw) > _MOST_BYTES:
        raise TraceError(f"larger than {_MOST_BYTES // 1024 // 1024} MB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as exc:
        raise TraceError("not UTF-8") from exc


def _runs(text: str, file: Path, wanted: str | None, policy: GuardPolicy | None) -> Iterator[tuple[str, Trace]]:
    found = read_runs(text)
    if isinstance(found, Trace):
        if wanted is not None or policy is not None:
            raise TraceError("this is the trace of one run, judged already; --case and --policy are for case files")
        yield file.name, found
        return
    cases: list[Case] = [case for case in found if wanted is None or case.id == wanted]
    if not cases:
        raise TraceError(f"there is no run {wanted!r}")
    for case in cases:
        yield case.id, replay(case, policy).trace


def _findings(step: Step) -> list[tuple[str, Finding]]:
    after = () if step.outcome is None else step.outcome.explanation
    return [*(("before", f) for f in step.call.explanation), *(("after", f) for f in after)]


def _action(step: Step) -> GuardAction:
    after = GuardAction.ALLOW if step.outcome is None else step.outcome.action
    return max(step.call.action, after, key=lambda action: action.severity)


def _said(step: Step) -> list[str]:
    texts = [step.call.text, None if step.outcome is None else step.outcome.text]
    return [_clean(text.removeprefix(OWN_WORDS).strip()) for text in texts if text]


def _show(console: Console, step: Step) -> None:
    view, outcome, action = step.call.view, step.outcome, _action(step)
    line = Text(f"{step.number:>4}  ")
    line.append(f"{action.value:<5}", style=_COLOURS[action])
    line.append(f"  {_short(view.tool, 80)}", style="bold")
    line.append(f" {_short(step.call.args, 160)}", style="dim")
    console.print(line)
    if outcome is not None:
        ended = "ok" if outcome.code is None else f"error {outcome.code}"
        _print(console, Text(f"→ {ended}: {_short(outcome.excerpt, 120)}"))
    elif step.call.same_as is not None:
        _print(console, Text(f"→ not run: shares the result of {step.call.same_as}"))
    elif not step.executed:
        _print(console, Text("→ not run"))
    else:
        _print(console, Text("→ no outcome was reported"))
    for phase, finding in _findings(step):
        _print(console, Text(f"{_sentence(phase, finding)}", style="cyan"))
    for text in _said(step):
        _print(console, Text(f"said: {text}", style=_COLOURS[action]))
    if step.call.escalates or (outcome is not None and outcome.escalates):
        _print(console, Text("a person is asked", style="bold red"))


def _print(console: Console, text: Text) -> None:
    console.print(Padding(text, (0, 0, 0, 13)))


def _sentence(phase: str, finding: Finding) -> str:
    about = f" ({finding.rule})" if finding.rule else ""
    evidence = f", steps {', '.join(map(str, finding.evidence))}" if finding.evidence else ""
    return f"{phase}: {finding.detector.value}{about} counts {finding.occurrence} → {finding.action.value}{evidence}"


def _clean(text: str) -> str:
    """Without the signs by which a recorded text could drive the terminal."""
    return "".join(sign if sign.isprintable() else "�" for sign in text)


def _short(text: str, most: int) -> str:
    line = _clean(" ".join(text.split()))
    return line if len(line) <= most else line[: most - 1] + "…"


def _as_json(step: Step) -> dict[str, Any]:
    view, outcome = step.call.view, step.outcome
    return {
        "step": step.number,
        "call_id": view.call_id,
        "tool": view.tool,
        "args": step.call.args,
        "signature": view.keys.signature,
        "action": _action(step).value,
        "executed": step.executed,
        "same_as": step.call.same_as,
        "outcome": None if outcome is None else {"code": outcome.code, "excerpt": outcome.excerpt},
        "saw": [
            {
                "phase": phase,
                "detector": finding.detector.value,
                "reason": finding.reason.value,
                "occurrence": finding.occurrence,
                "action": finding.action.value,
                "evidence": list(finding.evidence),
                "rule": finding.rule,
            }
            for phase, finding in _findings(step)
        ],
        "said": _said(step),
        "escalates": step.call.escalates or (outcome is not None and outcome.escalates),
    }
