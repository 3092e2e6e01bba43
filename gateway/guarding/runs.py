"""Runs of other people's agents under our guard: each question is one transaction on the run's row, so any process may answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy.engine import Connection
from sqlalchemy.exc import IntegrityError

from gateway.guarding import judging
from gateway.guarding import metrics as guard_metrics
from gateway.guarding.answers import as_text, budget_json, closing_results, tool_result
from gateway.guarding.cases import CallAnswer, GrantedCall, Words, decided_words, own_words
from gateway.guarding.problems import RunProblem, conflict, no_run, reused
from gateway.guarding.requests import CallRequest, EndRequest, NewRunRequest, ReportRequest, ResumeRequest, policy_id
from gateway.guarding.visits import LiveGuards, Progress, Visit, open_visit, spent_json
from gateway.ids import new_id
from gateway.item import Item
from gateway.store import escalations, items
from gateway.store import guard_runs as store
from gateway.store.engine import Database
from gateway.store.guard_runs import Kind, NewDecision, RunRow, RunStatus
from gateway.switches import SwitchBoard
from guard import Guard, GuardPolicy, ToolCall, ToolTraits, record_to_json
from guard.call import read_keys

_SHOWN_CALLS: Final = 200
_VISION: Final = "vision"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a request is answered with: JSON text, the same byte for byte when the request comes again."""

    text: str
    is_replay: bool = False


@dataclass(frozen=True, slots=True)
class RunView:
    """A run as it is shown."""

    row: RunRow
    progress: Progress
    definition: Mapping[str, Any]
    latest: Sequence[Mapping[str, Any]]
    """The newest decisions about calls, newest first."""


class GuardRuns:
    """Opens, questions and ends runs. Safe to use from many threads, and by many processes on one database."""

    def __init__(self, database: Database, switches: SwitchBoard | None = None) -> None:
        self._database = database
        self._switches = switches
        self._live = LiveGuards()

    def open(self, tenant: str, request: NewRunRequest) -> tuple[RunRow, bool]:
        """The run of this agent under this id, as it was opened first; and whether that was just now.

        Raises PolicyError for a policy that says something unknown, `RunProblem` for an item that is not there.
        """
        policy, traits = request.guard_policy(), request.tool_traits()

        def work(connection: Connection) -> tuple[RunRow, Guard | None]:
            found = store.find(connection, tenant=tenant, agent=request.agent, external_run_id=request.external_run_id)
            return (found, None) if found is not None else _insert(connection, tenant, request, policy, traits)

        try:
            row, guard = self._database.transact(work)
        except IntegrityError:  # opened by another process at the same moment
            row, guard = self._database.transact(work)
        if guard is not None:
            self._live.put(row.id, row.records, guard)
        return row, guard is not None

    def before(
        self, tenant: str, run_id: str, calls: Sequence[CallRequest], *, batch_turn: str | int | None = None
    ) -> list[Answer]:
        """Whether each of these calls may run, judged in order in one transaction. Several calls are one model message.

        A call id that was asked about before gets the decision of then. While all requests to models are paused nothing may
        run, and the time does not count. Raises `RunProblem` when it comes with another
        call, when an identical call of another message is still running, and when the run has ended.
        """
        marks = [call.fingerprint() for call in calls]
        is_paused = self._switches is not None and self._switches.look().model_calls.is_paused

        def work(connection: Connection) -> tuple[list[Answer], Visit | None]:
            row = _lock(connection, run_id, tenant)
            known = store.stored(connection, run_id, [call.call_id for call in calls])
            earlier = [judging.earlier(known, call, mark) for call, mark in zip(calls, marks, strict=True)]
            if all(answer is not None for answer in earlier):
                return [Answer(answer.body, is_replay=True) for answer in earlier if answer is not None], None
            visit = open_visit(connection, row, self._live)
            visit.pause_while(is_paused)
            answers = []
            for call, mark, answer in zip(calls, marks, earlier, strict=True):
                if answer is not None:
                    answers.append(Answer(answer.body, is_replay=True))
                else:
                    answers.append(Answer(judging.ask(visit, call, mark, batch_turn)))
            visit.save()
            return answers, visit

        answers, visit = self._database.transact(work)
        self._keep(visit)
        return answers

    def after(self, tenant: str, run_id: str, report: ReportRequest) -> Answer:
        """What follows from an outcome. Raises `RunProblem` for a call that was not let through, or that ended otherwise."""
        outcome, mark = report.outcome(), report.fingerprint()

        def work(connection: Connection) -> tuple[Answer, Visit | None]:
            row = _lock(connection, run_id, tenant)
            known = store.stored(connection, run_id, [report.call_id])
            told = known.get((Kind.AFTER, report.call_id))
            if told is not None:
                if told.fingerprint != mark:
                    raise reused(report.call_id, "outcome")
                return Answer(told.body, is_replay=True), None
            asked = known.get((Kind.BEFORE, report.call_id))
            judging.check_report(report, asked)
            visit = open_visit(connection, row, self._live)
            text = judging.hear(visit, report, outcome, mark, asked)
            visit.save()
            return Answer(text), visit

        answer, visit = self._database.transact(work)
        self._keep(visit)
        return answer

    def end(self, tenant: str, run_id: str, request: EndRequest) -> RunView:
        """Close the trace; a second time changes nothing. Cases that nobody decided are withdrawn."""

        def work(connection: Connection) -> RunView:
            _lock(connection, run_id, tenant)
            if store.close(connection, run_id, outcome=request.model_dump(mode="json")):
                escalations.withdraw_of_run(connection, run_id)
                store.drop_snapshot(connection, run_id)
            return _view(connection, run_id, tenant)

        return self._database.transact(work)

    def read(self, tenant: str, run_id: str) -> RunView:
        """The run: where it stands, and what was counted. Raises `RunProblem`."""
        with self._database.read() as connection:
            return _view(connection, run_id, tenant)

    def resume(self, tenant: str, run_id: str, request: ResumeRequest, *, key: str | None = None) -> Answer:
        """Let a halted run go on in a new epoch: as a person decided, or by the caller's own word.

        The same escalation, or the same idempotency `key`, gets the same answer again. Raises `RunProblem`.
        """
        name = request.escalation_id or (None if key is None else f"key:{key}"[:200])

        def work(connection: Connection) -> tuple[Answer, Visit | None]:
            row = _lock(connection, run_id, tenant)
            if name is not None:
                told = store.stored(connection, run_id, [name]).get((Kind.RESUME, name))
                if told is not None:
                    return Answer(told.body, is_replay=True), None
            if request.escalation_id is None:
                words = own_words(connection, row, request)
            else:
                words = decided_words(connection, row, request.escalation_id)
            visit = open_visit(connection, row, self._live)
            if visit.status is RunStatus.CANCELLED:
                raise conflict("The run's item was cancelled; it does not go on.", visit.status.value)
            text = _go_on(visit, words, name)
            if request.escalation_id is not None:
                escalations.mark_applied(connection, request.escalation_id)
            visit.save()
            return Answer(text), visit

        answer, visit = self._database.transact(work)
        self._keep(visit)
        return answer

    def _keep(self, visit: Visit | None) -> None:
        """After the commit: the decisions count, and the guard may answer the next question."""
        if visit is not None:
            guard_metrics.count(visit.judged, visit.guard, visit.guard.tools)
            self._live.put(visit.row.id, visit.records, visit.guard)


def _lock(connection: Connection, run_id: str, tenant: str) -> RunRow:
    row = store.lock(connection, run_id, tenant=tenant)
    if row is None:
        raise no_run()
    return row


def _view(connection: Connection, run_id: str, tenant: str) -> RunView:
    row = store.get(connection, run_id, tenant=tenant)
    if row is None:
        raise no_run()
    return RunView(
        row,
        Progress.load(row.progress),
        store.definition_of(connection, run_id),
        store.latest(connection, run_id, limit=_SHOWN_CALLS),
    )


def _insert(
    connection: Connection,
    tenant: str,
    request: NewRunRequest,
    policy: GuardPolicy,
    traits: Mapping[str, ToolTraits],
) -> tuple[RunRow, Guard]:
    item = _linked_item(connection, tenant, request.item_id)
    at_ms = items.now_ms(connection)
    facts = {} if item is None else _facts_of(item)
    guard = Guard(policy, tools=traits, facts=facts)
    banned: list[str] = []
    if item is not None and item.route == "text_only":
        banned = [name for name, one in traits.items() if one.group == _VISION]
        guard.fall_back(banned, now=at_ms / 1000)
    run_id = new_id("run", now_ms=at_ms)
    records = [record_to_json(record) for record in guard.trace.records]
    store.insert(
        connection,
        run_id,
        tenant=tenant,
        agent=request.agent,
        external_run_id=request.external_run_id,
        item_id=request.item_id,
        definition={
            "policy": policy.to_mapping(),
            "tools": {tool.name: tool.traits() for tool in request.tools},
            "facts": facts,
            "banned": banned,
        },
        policy_id=policy_id(policy),
        progress=Progress(banned=list(guard.closed_tools), spent=spent_json(guard)).dump(),
        records=len(records),
        at_ms=at_ms,
    )
    store.append_records(connection, run_id, after=0, records=records)
    guard.trace.records.clear()
    row = store.get(connection, run_id, tenant=tenant)
    assert row is not None
    return row, guard


def _linked_item(connection: Connection, tenant: str, item_id: str | None) -> Item | None:
    if item_id is None:
        return None
    item = items.get(connection, item_id, tenant=tenant)
    if item is None:
        raise RunProblem("not_found", "There is no item of this id. Check `item_id`, or leave it out.")
    return item


def _facts_of(item: Item) -> dict[str, object]:
    """What meta-rules may know of the item: how much text its most legible picture carries."""
    tokens = [
        int(record.screening["facts"]["text.tokens"])
        for record in item.files
        if record.screening is not None
        and record.media_type.startswith("image/")
        and "text.tokens" in record.screening.get("facts", {})
    ]
    return {"text.tokens": max(tokens)} if tokens else {}


def _go_on(visit: Visit, words: Words, name: str | None) -> str:
    """Open a new epoch; gives the answer as it is stored."""
    guard = visit.guard
    always = store.definition_of(visit.connection, visit.row.id)["banned"]
    resumed = guard.resume(
        extra_steps=words.extra_steps,
        extra_tokens=words.extra_tokens,
        extra_cost=words.extra_cost,
        extra_seconds=words.extra_seconds,
        ban_tools=(*always, *words.ban_tools),
        forgive=words.forgive,
        approve=[_signature_of(guard, call) for call in words.granted],
        note=words.note,
        now=visit.now,
    )
    halt = visit.halt or {}
    left = [call for call in visit.progress.open if call.call_id in halt.get("open_calls", ())]
    text = as_text(
        {
            "run_id": visit.row.id,
            "epoch": resumed.epoch,
            "messages_to_append": [] if words.text is None else [{"role": "user", "content": words.text}],
            "call_results": [_answer_json(answer) for answer in words.answers],
            "approved_calls": [_granted_json(call) for call in words.granted],
            "also_close": closing_results(left, str(halt.get("tool")), guard.policy.language),
            "banned_tools": list(guard.closed_tools),
            "budget": budget_json(spent_json(guard), asdict(guard.policy.budget)),
            "policy": visit.row.policy_id,
        }
    )
    visit.status, visit.halt, visit.escalation_id = RunStatus.RUNNING, None, None
    for call in words.granted:
        store.ask_again(visit.connection, visit.row.id, call.call_id, seq=visit.next_seq)
    visit.decisions.append(
        NewDecision(
            seq=visit.next_seq,
            id=new_id("dec", now_ms=visit.at_ms),
            kind=Kind.RESUME,
            call_id=name or f"epoch:{resumed.epoch}",
            step=resumed.steps,
            tool="",
            fingerprint="",
            executes=False,
            body=text,
        )
    )
    return text


def _signature_of(guard: Guard, call: GrantedCall) -> str:
    """What the guard knows a granted call by."""
    if call.signature is not None:
        return call.signature
    traits = guard.tools.get(call.tool)
    ignored = frozenset(() if traits is None else traits.ignore_args)
    return read_keys(ToolCall(call.tool, args=call.args), ignored).signature


def _answer_json(answer: CallAnswer) -> dict[str, Any]:
    """The result to put into the transcript for a call that a person answered or denied."""
    code = "denied_by_reviewer" if answer.is_error else None
    result = tool_result(answer.call_id, answer.text, code=code, is_error=answer.is_error)
    return {"call_id": answer.call_id, "tool": answer.tool, "tool_result": result}


def _granted_json(call: GrantedCall) -> dict[str, Any]:
    """A call that may run once: ask about it again under the same id, run it, report its outcome."""
    return {
        "call_id": call.call_id,
        "tool": call.tool,
        "args": call.args,
        "changed": call.args is not None,
        "note": call.note,
    }
