"""The incident, played through a service of one's own: a model that never gives up, a guard that stops it, a person who decides.

    python examples/demo.py

`examples/demo.py` shows it after the catalogue. All that is shown here came over REST.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console, Group
from rich.panel import Panel
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from examples import catalogue, pipeline
from examples.stubborn_model import Counters

MODEL = "stubborn-1"
PRICED_AS = "gpt-5-mini"
PRICES = {"input": "0.25", "output": "2"}
"""US dollars per million tokens: a real model's list price, since the stubborn one costs nothing."""
INCIDENT_CALLS = 2_400
"""What one agent spent on one blurry label, in the incident that this project is about."""
MOST_EXECUTED, MOST_REQUESTS = 4, 5
"""The guard's promise: no more calls run, and no more requests made, before a person is asked."""
BLURRED = next(product for product in catalogue.PRODUCTS if product.sku == "JAM-3107")
"""The label that is blurred all over, and so goes past the agent."""
SETTLED_WITHIN_S = 45.0


class NotSettled(Exception):
    """An item did not come to an end in time."""


@dataclass(frozen=True, slots=True)
class Scene:
    """What the scene found out, for the check at its end."""

    stopped: Mapping[str, Any]
    """The half-legible label's item when the guard had stopped it."""
    blurred: Mapping[str, Any]
    """The blurred label's item at its end."""
    cases: Sequence[Mapping[str, Any]]
    """The human queue."""
    finished: Mapping[str, Any]
    """The half-legible label's item at its end."""


def settings(model_url: str) -> dict[str, str]:
    """The environment of a service that works with the stubborn model."""
    return {
        "SLUICEGATE_MODEL_URL": model_url,
        "SLUICEGATE_MODEL": MODEL,
        "SLUICEGATE_MODEL_INPUT_PRICE": PRICES["input"],
        "SLUICEGATE_MODEL_OUTPUT_PRICE": PRICES["output"],
    }


def play(console: Console, url: str, model_url: str, counters: Counters, folder: Path) -> list[str]:
    """Show the whole scene; gives a sentence for everything that did not come out as it should."""
    console.print()
    console.print(Rule("[bold]The incident: a model that never gives up", align="left"))
    console.print(
        Text.assemble(
            "A second service, on a data folder of its own, now works with a model that keeps reading the same smeared "
            "print with ever another contrast, whatever it is told (examples/stubborn_model.py).\n",
            (f"service {url}   SLUICEGATE_MODEL_URL={model_url}", "dim"),
        )
    )
    with pipeline.make_client(url) as client:
        stopped_id = submit(client, catalogue.HALF_LEGIBLE, folder)
        blurred_id = submit(client, BLURRED, folder)
        stopped, blurred = settled(client, stopped_id), settled(client, blurred_id)
        cases = client.get("/v1/escalations", params={"item": stopped_id}).json()["escalations"]
        show_labels(console, stopped, blurred)
        if not cases:
            return [f"{catalogue.HALF_LEGIBLE.sku}: expected a case for a person, came {stopped['status']}"]
        spent = dict(stopped["usage"])
        show_case(console, cases[0])
        answer = decide(client, cases[0]["id"])
        show_decision(console, answer)
        finished = settled(client, stopped_id)
        show_copy(console, finished)
        show_costs(console, spent, finished["usage"])
        scene = Scene(stopped, blurred, cases, finished)
        return [*deviations(scene, counters), *show_addresses(console, client, scene)]


# --- what is asked of the service ------------------------------------------------------------------------------------


def submit(client: httpx.Client, product: catalogue.Product, folder: Path) -> str:
    """Send a product; gives the item's id."""
    path = folder / product.files[0]
    content = path.read_bytes()
    item = {
        "external_id": product.sku,
        "title": product.title,
        "language": product.language,
        "attributes": dict(product.attributes),
        "files": [{"part": "p1", "sha256": hashlib.sha256(content).hexdigest()}],
    }
    parts = {"item": (None, json.dumps(item), "application/json"), "p1": (path.name, content, "image/jpeg")}
    answer = client.post("/v1/items", files=parts, headers={"Prefer": "respond-async"})
    answer.raise_for_status()
    return str(answer.json()["id"])


def settled(client: httpx.Client, item_id: str) -> dict[str, Any]:
    """The item once no worker is busy with it. Raises `NotSettled`."""
    deadline = time.monotonic() + SETTLED_WITHIN_S
    item: dict[str, Any] = client.get(f"/v1/items/{item_id}").json()
    while item["status"] not in pipeline.SETTLED:
        if time.monotonic() > deadline:
            raise NotSettled(f"{item['external_id']} is still {item['status']} after {SETTLED_WITHIN_S:.0f} s")
        headers = {"Prefer": "wait=5", "If-None-Match": f'"{item["version"]}"'}
        answer = client.get(f"/v1/items/{item_id}", headers=headers)
        item = item if answer.status_code == 304 else answer.json()
    return item


def decide(client: httpx.Client, escalation_id: str) -> dict[str, Any]:
    """Claim the case and decide: write from the text alone. Gives the service's answer."""
    claimed = client.post(f"/v1/escalations/{escalation_id}/claim", json={"lease_s": 300})
    claimed.raise_for_status()
    decision = {
        "lease_token": claimed.json()["lease"]["token"],
        "action": "reroute",
        "route": "text_only",
        "note": "The small print has run; no setting will bring it back.",
    }
    headers = {"If-Match": claimed.headers["ETag"], "Idempotency-Key": f"demo-{escalation_id}"}
    resolved = client.post(f"/v1/escalations/{escalation_id}/resolve", json=decision, headers=headers)
    resolved.raise_for_status()
    answer: dict[str, Any] = resolved.json()
    return answer


# --- what is shown ---------------------------------------------------------------------------------------------------


def show_labels(console: Console, *items: Mapping[str, Any]) -> None:
    """Both labels side by side: what each cost, and where it stands."""
    table = Table(title="Two labels", title_justify="left", expand=True, show_lines=True)
    for name, ratio in (("label", 6), ("edge rules", 5), ("what became of it", 8)):
        table.add_column(name, ratio=ratio, overflow="fold")
    for name in ("route", "tool calls", "requests"):
        table.add_column(name, justify="right", no_wrap=True)
    for item in items:
        usage = item["usage"]
        waits = item["status"] == "awaiting_human"
        table.add_row(
            Text.assemble(item["external_id"], "\n", (item["files"][0]["file_name"], "dim")),
            _edge(item),
            Text(f"stopped, waits for a person ({item['reason']})", style="yellow")
            if waits
            else Text(f"{item['status']}; the agent never saw it", style="green"),
            Text(str(item["route"])),
            Text(f"{usage['tool_calls']} run\n{usage['blocked_calls']} refused"),
            Text(f"{usage['model_calls']}" + ("" if waits else "\n(no tools)")),
        )
    console.print(table)


def _edge(item: Mapping[str, Any]) -> Text:
    file, decision = item["files"][0], item["decision"]
    told = decision.get("reason") or decision.get("problem") or {}
    sharpness = file["facts"].get("image.sharpness")
    measured = "" if sharpness is None else f"sharpness {sharpness:.2f}"
    return Text.assemble(str(told.get("code") or "sharp enough"), "\n", (measured, "dim"))


_DID = {
    "allow": ("let through", ""),
    "warn": ("warned", "yellow"),
    "block": ("blocked", "red"),
    "halt": ("halted", "bold red"),
}


def show_case(console: Console, case: Mapping[str, Any]) -> None:
    """The case as a reviewer gets it: question, why, the calls, the cost, and what can be decided."""
    calls = Table(box=None, padding=(0, 2, 0, 0))
    for name in ("step", "call", "the guard", "ran", "answer"):
        calls.add_column(name, header_style="dim")
    for call in case["calls"]:
        word, style = _DID[call["action"]]
        answer = call["error"] or "ok" if call["executed"] else "-"
        calls.add_row(
            str(call["step"]), _call(call), Text(word, style=style), "yes" if call["executed"] else "no", answer
        )
    cost, steps = case["cost"], case["steps"]
    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim")
    facts.add_column()
    facts.add_row("question", Text(case["question"], style="bold"))
    facts.add_row("why", Text(case["why"]))
    facts.add_row("first answer", Text(case["first_answer"]))
    facts.add_row("spent", f"{cost['spent']} {cost['currency']}, {steps['taken']} of {steps['of']} steps")
    actions = Table.grid(padding=(0, 2))
    for action in case["allowed_actions"]:
        actions.add_row(Text(action["action"], style="cyan"), Text(action["consequence"]["en"]))
    title = f"Human queue, 1 case: {case['id']}"
    body = Group(facts, Text(), calls, Text(), Text("What can be decided", style="dim"), actions)
    console.print(Panel(body, title=title, title_align="left", border_style="yellow"))


def _call(call: Mapping[str, Any]) -> Text:
    try:
        arguments = json.loads(call["arguments"])
    except ValueError:
        return Text(str(call["tool"]))
    contrast = arguments.get("contrast")
    return Text(f"{call['tool']} small print" + ("" if contrast is None else f", contrast {contrast:.2f}"))


def show_decision(console: Console, answer: Mapping[str, Any]) -> None:
    """What was decided, and by whom."""
    resolution = answer["resolution"]
    said = f"POST …/claim, POST …/resolve: {resolution['action']} to {resolution['route']}, by {resolution['by']}"
    console.print(Text.assemble(("decided  ", "dim"), said, "  →  ", (str(answer["status"]), "green")))
    console.print(Text(f"         “{resolution['note']}”", style="dim"))


def show_copy(console: Console, item: Mapping[str, Any]) -> None:
    """How the item ended."""
    copy = item["result"] or {}
    ended = f"attempt {item['attempt']} on {item['route']}: {item['status']}"
    console.print(Text.assemble(("ended    ", "dim"), ended, style="bold green" if copy else "bold red"))
    for bullet in copy.get("bullets", ()):
        console.print(Text(f"         • {bullet}"))
    console.print()


def show_costs(console: Console, spent: Mapping[str, Any], total: Mapping[str, Any]) -> None:
    """Calls and money: spent, avoided, and beside the incident, reckoned at this run's price per call."""
    per_call = Decimal(spent["cost"]) / max(spent["model_calls"], 1)
    avoided = spent["avoided_calls"]
    table = Table(title="What it cost, and what it did not", title_justify="left", expand=True)
    table.add_column("", ratio=7)
    for name in ("model requests", "tool calls run", "money, USD"):
        table.add_column(name, justify="right", ratio=2)
    table.add_row(
        "spent until the guard stopped it", str(spent["model_calls"]), str(spent["tool_calls"]), _money(spent["cost"])
    )
    table.add_row(
        "spent in all, with the copy from text",
        str(total["model_calls"]),
        str(total["tool_calls"]),
        _money(total["cost"]),
    )
    table.add_row(
        Text(
            f"avoided: refused, or still in the budget of {spent['steps'] + avoided - spent['blocked_calls']} steps",
            style="green",
        ),
        "",
        Text(f"{avoided:,}", style="green"),
        Text(f"≈ {_money(per_call * avoided)}", style="green"),
    )
    table.add_row(
        Text("the incident, without a guard or a budget", style="red"),
        Text(f"{INCIDENT_CALLS:,}", style="red"),
        Text(f"{INCIDENT_CALLS:,}", style="red"),
        Text(f"≈ {_money(per_call * INCIDENT_CALLS)}", style="red"),
    )
    console.print(table)
    console.print(
        Text(
            f"≈ is a reckoning, not a bill: calls × {_money(per_call, places=5)} USD, what a request of this run cost on average "
            f"at the list price of {PRICED_AS}. A long run costs more per call: each request repeats all before it.",
            style="dim",
        )
    )


def _money(value: object, *, places: int = 4) -> str:
    return f"{Decimal(str(value)):.{places}f}"


def show_addresses(console: Console, client: httpx.Client, scene: Scene) -> list[str]:
    """Where to look next; gives a sentence for each address that does not answer."""
    base = f"/v1/items/{scene.finished['id']}"
    lines = [
        ("the case, decided", f"/v1/escalations/{scene.cases[0]['id']}"),
        ("the item", base),
        ("  what happened to it", f"{base}/events"),
    ]
    console.print()
    for name, path in lines:
        console.print(Text(f"{name:34}{str(client.base_url).rstrip('/')}{path}"), soft_wrap=True)
    answers = {path: client.get(path).status_code for _, path in lines}
    return [f"{path} answered {status}" for path, status in answers.items() if status != 200]


# --- the check -------------------------------------------------------------------------------------------------------


def deviations(scene: Scene, counters: Counters) -> list[str]:
    """A sentence for everything that should have been otherwise."""
    usage, blurred, finished = scene.stopped["usage"], scene.blurred, scene.finished
    sku, other = catalogue.HALF_LEGIBLE.sku, BLURRED.sku
    checks = (
        (
            scene.stopped["status"] == "awaiting_human",
            f"{sku}: expected awaiting_human, came {scene.stopped['status']}",
        ),
        (usage["tool_calls"] <= MOST_EXECUTED, f"{sku}: {usage['tool_calls']} calls ran before it was stopped"),
        (usage["model_calls"] <= MOST_REQUESTS, f"{sku}: {usage['model_calls']} requests before it was stopped"),
        (counters.calls <= MOST_REQUESTS, f"the model asked for {counters.calls} calls"),
        (len(scene.cases) == 1, f"{sku}: {len(scene.cases)} cases in the queue"),
        (
            (blurred["status"], blurred["route"], blurred["usage"]["tool_calls"]) == ("succeeded", "text_only", 0),
            f"{other}: expected copy from text alone, came {blurred['status']} on {blurred['route']}",
        ),
        (
            (finished["status"], finished["route"]) == ("succeeded", "text_only"),
            f"{sku}: expected copy after the decision, came {finished['status']} on {finished['route']}",
        ),
    )
    return [sentence for is_right, sentence in checks if not is_right]
