"""A case of the human queue in one screen of text. Pure: what it shows comes in, and nothing of it is trusted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from itertools import groupby
from typing import Any

from gateway.cli.queue_choices import Choice
from gateway.cli.terminal import plain, short

_MOST = 240
_MOST_FILES = 6
_MOST_RUNS = 12
_STOPPED = {"halt": "⛔", "block": "⛔"}


def screen(
    case: Mapping[str, Any],
    item: Mapping[str, Any] | None,
    choices: Sequence[Choice],
    hint: Choice | None,
    now: datetime,
) -> list[str]:
    """The lines that a reviewer needs to decide."""
    return [
        headline(case, item, now),
        f"  why    {short(case.get('why') or case.get('question') or 'not provided', _MOST)}",
        *_calls(case),
        *_asked(item),
        *_history(case),
        "",
        choice_line(choices, hint),
    ]


def headline(case: Mapping[str, Any], item: Mapping[str, Any] | None, now: datetime) -> str:
    """Which case, what stopped it, what it cost, when it is due."""
    sku = (item or {}).get("external_id") or case.get("item") or case.get("run") or ""
    stop = " ".join(plain(part) for part in ("HALT", case.get("reason"), case.get("tool")) if part)
    count = case.get("attempts")
    parts = [
        plain(case["id"]),
        short(sku, 40),
        f"{stop} ×{count}" if isinstance(count, int) and count > 1 else stop,
        *spent(case),
        due(case, now),
    ]
    return "  ".join(part for part in parts if part)


def spent(case: Mapping[str, Any]) -> Iterator[str]:
    """Money and steps, as far as they are known."""
    cost, steps = case.get("cost") or {}, case.get("steps") or {}
    if cost.get("spent") is not None:
        yield f"spent {plain(cost['spent'])} {plain(cost.get('currency') or '')}".rstrip()
    if steps.get("taken") is not None:
        yield f"{plain(steps['taken'])} of {plain(steps.get('of') or '?')} steps"


def due(case: Mapping[str, Any], now: datetime) -> str:
    """How long there is."""
    text = case.get("due_at")
    if not text:
        return ""
    seconds = (datetime.fromisoformat(text) - now).total_seconds()
    return f"due {span(seconds)}" if seconds >= 0 else f"overdue {span(-seconds)}"


def span(seconds: float) -> str:
    """A length of time in its largest unit."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= size:
            return f"{int(seconds // size)}{unit}"
    return f"{int(seconds)}s"


def clock(text: object) -> str:
    """A time of the service in the reader's own zone, hours and minutes."""
    return datetime.fromisoformat(str(text)).astimezone().strftime("%H:%M") if text else "–"


def choice_line(choices: Sequence[Choice], hint: Choice | None) -> str:
    """The numbered choices in one line."""
    shown = [f"{one.shown} (suggested)" if one == hint else one.shown for one in choices]
    return "  ".join([*shown, "[s]kip"])


def empty_sentence(answer: Mapping[str, Any]) -> str:
    """Why nothing was handed out: three different things."""
    held, hidden = answer.get("claimed_by_others", 0), answer.get("hidden_by_filter", 0)
    match answer.get("why"):
        case "hidden_by_filter":
            return f"Your filter hides {hidden} open {_cases(hidden)}."
        case "all_claimed":
            until = clock(answer.get("next_expiry"))
            return f"All {held} {_cases(held)} are in somebody's hands; the next lease ends at {until}."
        case _:
            return "Nothing is open."


def _cases(count: int) -> str:
    return "case" if count == 1 else "cases"


def _calls(case: Mapping[str, Any]) -> Iterator[str]:
    """The strip of calls, the same ones in a row folded."""
    runs = []
    for key, same in groupby(case.get("calls") or [], key=_call):
        count = len(list(same))
        runs.append(f"{key} ×{count}" if count > 1 else key)
    if runs:
        left_out = ["…"] if len(runs) > _MOST_RUNS else []
        yield f"  calls  {short(' → '.join(left_out + runs[-_MOST_RUNS:]), 2 * _MOST)}"
    if case.get("arguments") is not None:
        yield f"  with   {short(case['arguments'], _MOST)}"
    if case.get("first_answer"):
        yield f"  got    {short(case['first_answer'], _MOST)}"
    for call in case.get("open_calls") or []:
        yield f"  open   {short(call['call_id'], 60)} {short(call['tool'], 60)} ({plain(call['state'])})"


def _call(call: Mapping[str, Any]) -> str:
    mark = _STOPPED.get(str(call.get("action")), "✗" if call.get("error") else "✓")
    return f"{short(call.get('tool'), 40)} {mark}"


def _asked(item: Mapping[str, Any] | None) -> Iterator[str]:
    if item is None:
        return
    yield f"  asked  {short(item.get('title') or 'no title', _MOST)}"
    attributes = item.get("attributes") or {}
    if attributes:
        yield f"         {short('  '.join(f'{name}={value}' for name, value in attributes.items()), _MOST)}"
    for file in (item.get("files") or [])[:_MOST_FILES]:
        yield f"  file   {_file(file)}"


def _file(file: Mapping[str, Any]) -> str:
    size = f"{file['width']}×{file['height']}" if file.get("width") and file.get("height") else ""
    problem = (file.get("problem") or {}).get("code")
    parts = (file.get("part"), file.get("file_name"), file.get("media_type"), size, file.get("verdict"), problem)
    return "  ".join(short(part, 60) for part in parts if part)


def _history(case: Mapping[str, Any]) -> Iterator[str]:
    if case.get("came_back_after"):
        yield f"  again  came back after {plain(case['came_back_after'])}"
    for inquiry in case.get("inquiries") or []:
        answer = inquiry.get("answer") or "no answer"
        said = answer.get("text") or "files" if isinstance(answer, Mapping) else answer
        yield f"  info   {short(inquiry.get('question'), 100)} → {short(said, 100)}"
    last = [str(one.get("route") or one.get("action")) for one in case.get("group_last") or []]
    if last:
        yield f"  group  last decisions: {short(', '.join(last), _MOST)}"
    reason = ((case.get("suggestion") or {}).get("reason") or {}).get("en")
    if reason:
        yield f"  hint   {short(reason, _MOST)}"
