"""`sluicegate queue`: the human queue of a running service, at a terminal and in scripts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, NoReturn

import httpx
import typer
from rich.console import Console
from typer.core import TyperGroup

from gateway.cli import queue_desk as desk
from gateway.cli.queue_choices import NotUsable, choices_for, suggested, value_of
from gateway.cli.queue_desk import Held
from gateway.cli.queue_screen import clock, due, empty_sentence, screen, span, spent
from gateway.cli.queue_triage import Triage
from gateway.cli.remote import DEFAULT_URL, KEY_VARIABLE, ExitStatus, Remote, RemoteError, read_key
from gateway.cli.terminal import Output, open_output, plain
from gateway.escalation import Action

_FLAGS = frozenset({"--json", "--quiet", "-q", "--no-color"})
_OPTIONS = frozenset({"--url", "--key-file", "--timeout", "--on-behalf-of"})
_LEASE_S = 300.0


class _FlagsAnywhere(TyperGroup):
    """The flags that all commands share may stand before a command or after it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Move them to the front, up to a `--`."""
        ours: list[str] = []
        theirs: list[str] = []
        rest = iter(args)
        for word in rest:
            if word == "--":
                theirs += [word, *rest]
            elif word in _FLAGS or (word.partition("=")[0] in _OPTIONS and "=" in word):
                ours.append(word)
            elif word in _OPTIONS:
                ours += [word, *[value for value in [next(rest, None)] if value is not None]]
            else:
                theirs.append(word)
        return super().parse_args(ctx, [*ours, *theirs])


app = typer.Typer(
    cls=_FlagsAnywhere,
    no_args_is_help=True,
    help="Cases for a person, at a running service. The flags below may stand after a command too.",
)


@dataclass(frozen=True, slots=True)
class _Session:
    remote: Remote
    output: Output


_Case = Annotated[str, typer.Argument(metavar="ESC", help="Id of a case, esc_…")]
_Filters = Annotated[
    list[str] | None,
    typer.Option(
        "--filter", metavar="NAME=VALUE", help="Such as tool=ocr_extract or assignee=me; more than once: all hold."
    ),
]
_Lease = Annotated[
    float, typer.Option(min=1, max=900, help="Seconds for which the case is yours; kept alive while you think.")
]


@app.callback()
def root(
    ctx: typer.Context,
    url: Annotated[str, typer.Option(envvar="SLUICEGATE_URL", help="Where the service is.")] = DEFAULT_URL,
    key_file: Annotated[
        Path | None, typer.Option(help=f"A file with the API key, - for standard input; else {KEY_VARIABLE}.")
    ] = None,
    on_behalf_of: Annotated[
        str | None, typer.Option(help="The person who decides; needs the scope review:delegate.")
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="JSON lines, as where standard output is no terminal.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colours.")] = False,
    timeout: Annotated[float, typer.Option(min=0.1, max=600, help="Seconds to wait for an answer.")] = 30.0,
) -> None:
    """Cases for a person, at a running service."""
    output = open_output(as_json=as_json, is_quiet=quiet, no_color=no_color)
    with _ended_well(output):
        key = read_key(key_file)
        _check_url(url)
        remote = Remote(url, key=key, timeout_s=timeout, on_behalf_of=on_behalf_of)
    ctx.call_on_close(remote.close)
    ctx.obj = _Session(remote, output)


@app.command("list")
def list_cases(
    ctx: typer.Context,
    filters: _Filters = None,
    limit: Annotated[int, typer.Option(min=1, max=10_000, help="At most so many.")] = 50,
) -> None:
    """Cases, the soonest due first."""
    with _session(ctx) as (remote, output):
        found, state = desk.list_cases(remote, _wanted(filters), limit)
        if output.as_json:
            for case in found:
                output.row(case)
        elif found:
            now = datetime.now(UTC)
            titles = ("id", "reason", "tool", "status", "holder", "due", "spent", "group")
            output.table(titles, (_row(case, now) for case in found))
        if not found:
            output.say(empty_sentence(state) if state.get("why") else "No case like that.")


@app.command("next")
def next_case(
    ctx: typer.Context,
    case: Annotated[str | None, typer.Argument(metavar="[ESC]", help="This case instead of the next one.")] = None,
    filters: _Filters = None,
    lease: _Lease = _LEASE_S,
    keep_going: Annotated[bool, typer.Option("--all", help="Go on to the next case until there is none.")] = False,
) -> None:
    """Take the next case, show it in one screen, and decide by a number; `s` or Ctrl-C gives it back."""
    with _session(ctx) as (remote, output):
        triage = Triage(remote, output, _reader(), lease)
        triage.run(_wanted(filters), case_id=case, goes_on=keep_going)


@app.command()
def show(ctx: typer.Context, case: _Case) -> None:
    """One case in one screen, without taking it."""
    with _session(ctx) as (remote, output):
        found = desk.read_case(remote, case).body
        if output.as_json:
            output.row(found)
            return
        choices = choices_for(found)
        item = desk.read_item(remote, found)
        for line in screen(found, item, choices, suggested(found, choices), datetime.now(UTC)):
            output.data.print(line, soft_wrap=True)
        holder = found.get("holder")
        state = f"{found['status']} by {holder}" if holder else found["status"]
        output.data.print(plain(f"{state}, version {found['version']}"), soft_wrap=True)


@app.command()
def claim(
    ctx: typer.Context,
    case: Annotated[
        str | None, typer.Argument(metavar="[ESC]", help="This case; without it the next that is free.")
    ] = None,
    filters: _Filters = None,
    lease: _Lease = _LEASE_S,
) -> None:
    """Take a case for a while, or renew one's own lease."""
    with _session(ctx) as (remote, output):
        if case is None:
            taken = desk.claim_next(remote, _wanted(filters), lease)
        else:
            taken = desk.claim(remote, case, lease)
        if not isinstance(taken, Held):
            if output.as_json:
                output.row(taken)
            output.say(empty_sentence(taken))
            return
        if output.as_json:
            output.row({"escalation": taken.case, "lease": taken.lease})
        else:
            output.data.print(plain(taken.id))
        output.say(f"yours until {clock(taken.lease['expires_at'])}")


@app.command()
def release(
    ctx: typer.Context, case: _Case, note: Annotated[str | None, typer.Option(help="For whoever takes it next.")] = None
) -> None:
    """Give a case back that one holds."""
    with _session(ctx) as (remote, output):
        if desk.read_case(remote, case).body["holder"] is None:
            raise RemoteError("nobody holds this case", ExitStatus.CONFLICT)
        held = desk.claim(remote, case)
        _done(output, desk.release(remote, held, note).body, "given back")


@app.command()
def resolve(
    ctx: typer.Context,
    cases: Annotated[list[str], typer.Argument(metavar="ESC…", help="One case or more.")],
    action: Annotated[Action, typer.Option(help="What is decided.")],
    route: Annotated[str | None, typer.Option(help="reroute: text_only, single_look or agent.")] = None,
    guidance: Annotated[str | None, typer.Option(help="resume, reroute: advice to the agent.")] = None,
    extra_steps: Annotated[int | None, typer.Option(help="resume: how many more steps it may take.")] = None,
    ban_tool: Annotated[list[str] | None, typer.Option(help="resume, reroute: a tool that it may not call.")] = None,
    call_id: Annotated[str | None, typer.Option(help="The open call that is meant.")] = None,
    result: Annotated[str | None, typer.Option(help="answer_tool: text or JSON.")] = None,
    output_json: Annotated[str | None, typer.Option("--output", help="answer_item: a JSON file, or JSON.")] = None,
    args: Annotated[str | None, typer.Option(help="edit_call: a JSON file, or JSON.")] = None,
    tool: Annotated[str | None, typer.Option(help="edit_call: another tool.")] = None,
    message: Annotated[str | None, typer.Option(help="To the submitter or the agent.")] = None,
    message_zh: Annotated[str | None, typer.Option(help="reject_item: the message in Chinese.")] = None,
    reason_code: Annotated[str | None, typer.Option(help="reject_item: such as low_resolution.")] = None,
    reason: Annotated[str | None, typer.Option(help="retry: why.")] = None,
    override: Annotated[bool, typer.Option(help="retry: though it would stop again.")] = False,
    question: Annotated[str | None, typer.Option(help="ask_submitter: what is asked.")] = None,
    until: Annotated[str | None, typer.Option(help="ask_submitter: 24h, 3d, or a time.")] = None,
    note: Annotated[str | None, typer.Option(help="For the history.")] = None,
    undo: Annotated[float, typer.Option(min=0, max=60, help="Seconds in which it can be taken back.")] = 0,
    idempotency_key: Annotated[str | None, typer.Option(help="The same again gives the same answer.")] = None,
) -> None:
    """Decide on cases; each is claimed first where it is not yours yet."""
    with _session(ctx) as (remote, output):
        texts = {
            "route": route, "guidance": guidance, "call_id": call_id, "result": result, "output": output_json, "args": args,
            "tool": tool, "message": message, "reason_code": reason_code, "reason": reason, "question": question,
            "until": until, "note": note,
        }  # fmt: skip
        now = datetime.now(UTC)
        decision = {name: value_of(name, text, now=now) for name, text in texts.items() if text is not None}
        if message_zh is not None:
            decision["message"] = {"en": message or message_zh, "zh": message_zh}
        if extra_steps is not None:
            decision["extra_steps"] = extra_steps
        if ban_tool:
            decision["ban_tools"] = ban_tool
        if override:
            decision["override"] = True
        decision["action"] = action.value
        _decide_all(remote, output, cases, decision, key=idempotency_key, undo_s=undo)


@app.command()
def reopen(
    ctx: typer.Context, case: _Case, reason: Annotated[str, typer.Option(help="Why it is taken up again.")]
) -> None:
    """Take a decided case up again, while its effect can be undone; else a new case that names it."""
    with _session(ctx) as (remote, output):
        found = remote.post(f"/v1/escalations/{case}/reopen", {"reason": reason}).body
        _done(output, found, "open again" if found["id"] == case else f"a new case: {found['id']}")


@app.command()
def undo(
    ctx: typer.Context,
    case: Annotated[str | None, typer.Argument(metavar="[ESC]", help="Without it: your last decision.")] = None,
) -> None:
    """Take a decision back before it takes effect."""
    with _session(ctx) as (remote, output):
        held = desk.undo(remote, case)
        until = clock(held.lease["expires_at"])
        again = f"sluicegate queue next {held.id}"
        _done(output, held.case, f"taken back; yours until {until}, decide anew with `{again}`")


@app.command()
def stats(ctx: typer.Context) -> None:
    """How the queue stands, and how quickly people decide."""
    with _session(ctx) as (remote, output):
        found = remote.get("/v1/escalations/stats").body
        if output.as_json:
            output.row(found)
            return
        names = ("open", "claimed", "waiting_submitter", "pending", "overdue", "on_hold")
        rows: list[tuple[str, object]] = [(name.replace("_", " "), found[name]) for name in names]
        if found["oldest_age_s"] is not None:
            rows.append(("oldest", span(found["oldest_age_s"])))
        rows += [(f"  {name}", count) for name, count in found["by_reason"].items()]
        rows += [(f"decided: {name}", count) for name, count in found["decisions"].items()]
        output.table(("now", ""), rows)


def _decide_all(
    remote: Remote, output: Output, cases: list[str], decision: Mapping[str, Any], *, key: str | None, undo_s: float
) -> None:
    failed: list[RemoteError] = []
    for case in cases:
        try:
            _sent(output, desk.decide(remote, case, decision, key=key, undo_s=undo_s).body)
        except RemoteError as error:
            if len(cases) == 1 or error.status in {ExitStatus.REFUSED, ExitStatus.UNREACHABLE}:
                raise
            output.complain(f"{case}: {error.public}")
            failed.append(error)
    if failed:
        raise typer.Exit(ExitStatus.SOME_FAILED)


def _sent(output: Output, body: Mapping[str, Any]) -> None:
    action = body["resolution"].get("route") or body["resolution"].get("action")
    undo_hint = f", can be taken back until {body['apply_at']}" if body.get("apply_at") else ""
    _done(output, body, f"sent: {plain(action).replace('_', ' ')}{undo_hint}")


def _done(output: Output, body: Mapping[str, Any], sentence: str) -> None:
    if output.as_json:
        output.row(body)
    else:
        output.data.print(plain(body["id"]))
    output.say(sentence)


def _row(case: Mapping[str, Any], now: datetime) -> list[object]:
    values = [case["id"], case["reason"], case["tool"], case["status"], case["holder"], due(case, now)]
    return [value or "–" for value in [*values, ", ".join(spent(case)), case["group"]]]


def _wanted(filters: list[str] | None) -> dict[str, str]:
    wanted = {}
    for text in filters or []:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise RemoteError(f"--filter {text}: write NAME=VALUE, such as tool=ocr_extract", ExitStatus.USAGE)
        wanted[name] = value
    return wanted


def _reader() -> Callable[[str], str]:
    """Lines from standard input; the prompt goes to standard error, so that standard output stays data."""
    console = Console(stderr=True, highlight=False, markup=False)

    def read(prompt: str) -> str:
        console.print(prompt, end="")
        line = sys.stdin.readline()
        if not line:
            raise EOFError
        return line.rstrip("\n")

    return read


def _check_url(url: str) -> None:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        parsed = httpx.URL("")
    if parsed.scheme not in {"http", "https"} or not parsed.host or parsed.userinfo:
        raise RemoteError("--url must be such as http://127.0.0.1:8080", ExitStatus.USAGE)


@contextmanager
def _session(ctx: typer.Context) -> Iterator[tuple[Remote, Output]]:
    session: _Session = ctx.obj
    with _ended_well(session.output):
        yield session.remote, session.output


@contextmanager
def _ended_well(output: Output) -> Iterator[None]:
    """What goes wrong becomes one line on standard error and an exit status."""
    try:
        yield
    except RemoteError as error:
        _end(output, error.public, error.status)
    except NotUsable as error:
        _end(output, str(error), ExitStatus.USAGE)
    except KeyboardInterrupt:
        _end(output, "interrupted; what you held is given back", ExitStatus.INTERRUPTED)
    except (KeyError, TypeError, json.JSONDecodeError) as error:
        _end(output, f"the service answered in words that this version does not know: {error!r}", ExitStatus.UNEXPECTED)


def _end(output: Output, sentence: str, status: ExitStatus) -> NoReturn:
    output.complain(sentence)
    raise typer.Exit(status)
