"""A caller of the guard over HTTP, as an agent of any language would be one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx

from guard import Effect, GuardAction, Outcome, ToolCall, ToolTraits
from tests.guard.ladder_table import Asked

RUNS = "/v1/guard/runs"


def declared(tools: Mapping[str, ToolTraits]) -> list[dict[str, Any]]:
    """Traits in the words of the API."""
    return [
        {
            "name": name,
            "effect": "read" if traits.effect is Effect.READ_ONLY else "mutate",
            "group": traits.group,
            "poll": traits.poller,
            "ignore_args": list(traits.ignore_args),
            "number_args": list(traits.number_args),
            "volatile_result": list(traits.volatile_result),
            "retryable_codes": list(traits.retryable_codes),
        }
        for name, traits in tools.items()
    ]


def asked_json(call: ToolCall) -> dict[str, Any]:
    """The body of `before`."""
    body = {"call_id": call.call_id, "tool": call.tool, "turn": call.turn}
    return {**body, "args": call.args} if call.args_raw is None else {**body, "args_raw": call.args_raw}


def told_json(call_id: str | None, outcome: Outcome) -> dict[str, Any]:
    """The body of `after`."""
    error = outcome.error
    return {
        "call_id": call_id,
        "status": "ok" if error is None else "error",
        "error": None
        if error is None
        else {
            "code": error.code,
            "message": error.message,
            "retryable": error.retryable,
            "retry_after_s": error.retry_after_s,
        },
        "result": outcome.result,
        "tokens": outcome.tokens,
        "cost": str(outcome.cost),
    }


@dataclass(frozen=True, slots=True)
class HttpRun:
    """One run, asked over one client or over several in turn."""

    clients: tuple[httpx.Client, ...]
    id: str
    numbers: Iterator[int]

    def post(self, path: str, body: Any, **options: Any) -> httpx.Response:
        client = self.clients[next(self.numbers) % len(self.clients)]
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        return client.post(f"{RUNS}/{self.id}/{path}", content=json.dumps(body), headers=headers, **options)

    def get(self) -> dict[str, Any]:
        client = self.clients[next(self.numbers) % len(self.clients)]
        return good(client.get(f"{RUNS}/{self.id}"))

    def before(self, call: ToolCall) -> dict[str, Any]:
        return good(self.post("before", asked_json(call)))

    def after(self, call_id: str | None, outcome: Outcome) -> dict[str, Any]:
        return good(self.post("after", told_json(call_id, outcome)))

    def both(self, call: ToolCall, outcome: Outcome) -> list[dict[str, Any]]:
        """The decisions about one call that runs if it may."""
        decision = self.before(call)
        return [decision, self.after(call.call_id, outcome)] if decision["execute"] else [decision]

    def judge(self, asked: Asked, call: ToolCall) -> GuardAction:
        """As the ladder's table wants it."""
        return hardest(self.both(call, asked.outcome))


def hardest(decisions: list[dict[str, Any]]) -> GuardAction:
    return max((GuardAction(decision["action"]) for decision in decisions), key=lambda action: action.severity)


def good(answer: httpx.Response) -> Any:
    assert answer.status_code < 300, f"{answer.status_code} {answer.text[:500]}"
    return answer.json()


def opened(*clients: httpx.Client, name: str, tools: Mapping[str, ToolTraits] | None = None, **options: Any) -> HttpRun:
    """A new run."""
    body = {"agent": "tests", "external_run_id": name, "tools": declared(tools or {}), **options}
    answer = clients[0].post(RUNS, json=body)
    assert answer.status_code == 201, answer.text
    return HttpRun(clients, answer.json()["run_id"], iter(range(1_000_000)))
