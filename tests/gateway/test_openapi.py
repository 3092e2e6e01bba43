"""What `/openapi.json` says is what a real server does: schemathesis asks every operation, with right and with wrong values.

The edges of each schema, values made up from a fixed seed, and chains of operations by the links between them.
`SLUICEGATE_OPENAPI_EXAMPLES=200` asks for that many made-up values per operation instead of a few.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.gateway.running import Service, running

EXAMPLES = int(os.environ.get("SLUICEGATE_OPENAPI_EXAMPLES", "2"))
MOST_S = 900 + 60 * EXAMPLES

# No check is switched off and no operation is left out. What is bent, and why:
# - No text has a NUL character (`--generation-allow-x00 false`): every text refuses it, which a schema could only say by a
#   pattern on each of them; test_bad_input.py and test_random_requests.py send them.
# - A wrong body may be answered with 412 (`WRONG`): a stale `If-Match` is refused before the body is judged.
# - `PUT /v1/switches` gets wrong values only: a right one pauses new work, and every upload after it is a 503.
#   test_pause.py sends the right ones.
# - Where a schema cannot tell right from wrong, a right-looking value may be refused: see `CANNOT_BE_SAID`.

_CURSOR = "a `cursor` is opaque: only one that a page gave is right"
_URL = "whether a URL may be called is decided by resolving it, not by its form"
_DECIMAL = "amounts are decimal strings whose bounds a pattern cannot say"
CANNOT_BE_SAID: dict[tuple[str, str], str] = {
    ("GET", "/v1/items"): f"{_CURSOR}, and `status` is a list of statuses with commas",
    ("GET", "/v1/decisions"): f"{_CURSOR}, and `action` is one of a set that grows",
    ("GET", "/v1/escalations"): f"{_CURSOR}, and `status` is a list of statuses with commas",
    ("GET", "/v1/escalation-groups"): _CURSOR,
    ("GET", "/v1/keys"): _CURSOR,
    ("GET", "/v1/users"): _CURSOR,
    ("GET", "/v1/webhook-endpoints"): _CURSOR,
    ("GET", "/v1/webhook-deliveries"): f"{_CURSOR}, and `status` is a list of statuses with commas",
    ("GET", "/v1/items/{item_id}/trace"): _CURSOR,
    ("GET", "/v1/items/{item_id}/trace/blocks/{number}"): _CURSOR,
    ("GET", "/v1/events"): "`Last-Event-ID` and `token` are what an earlier answer gave",
    ("GET", "/v1/items/{item_id}/events"): "`Last-Event-ID` and `token` are what an earlier answer gave",
    ("POST", "/v1/items"): "parts are named in the item's own text, and something must be there to write about",
    ("POST", "/v1/items/{item_id}/retry"): _DECIMAL,
    (
        "POST",
        "/v1/items/{item_id}/info",
    ): "an answer needs a text, attributes or files, and parts are named in its own text",
    ("POST", "/v1/escalations/claim-next"): "a filter takes what the list takes in its query",
    ("POST", "/v1/escalations/bulk"): "texts must say something, which is more than a length",
    ("POST", "/v1/escalations/{escalation_id}/resolve"): "texts must say something, and On-Behalf-Of must be a name",
    ("POST", "/v1/escalations/{escalation_id}/assign"): "a person's name has printable characters only",
    ("POST", "/v1/escalation-groups/{group_id}/resolve"): "texts must say something, which is more than a length",
    ("POST", "/v1/guard/runs"): f"{_DECIMAL}; a policy has a grammar of its own, with messages that name the entry",
    ("POST", "/v1/guard/runs/{run_id}/before"): "arguments come as `args` or as `args_raw`",
    ("POST", "/v1/guard/runs/{run_id}/before-batch"): "the calls of one message have ids of their own",
    ("POST", "/v1/guard/runs/{run_id}/after"): _DECIMAL,
    ("POST", "/v1/guard/runs/{run_id}/resume"): _DECIMAL,
    ("POST", "/v1/keys"): "the end of a key lies in the future",
    ("POST", "/v1/keys/{key_id}/rotate"): "whole numbers are written without a fraction: 99.0 is refused",
    ("POST", "/v1/users"): "a password may not be a known or a simple one",
    ("PATCH", "/v1/users/{user_id}"): "a password may not be a known or a simple one",
    ("POST", "/v1/items/{item_id}/resume"): "whole numbers are written without a fraction: 99.0 is refused",
    ("PUT", "/v1/tenants/{tenant}/budget"): _DECIMAL,
    ("PUT", "/v1/budget"): "items are limited per tenant, so here `max_items` is null",
    ("POST", "/v1/webhook-endpoints"): f"{_URL}, and events are names, families or `*`",
    ("PATCH", "/v1/webhook-endpoints/{endpoint_id}"): f"{_URL}, and events are names, families or `*`",
    ("POST", "/v1/webhook-endpoints/{endpoint_id}/replay"): "a range ends after it begins",
    ("POST", "/v1/callback-origins"): _URL,
}
"""Operations whose right values JSON Schema cannot tell from wrong ones, each with its reason: there a 400 or 422 may
answer a value that fits the schema. All other checks stay on."""

WRONG = ["400", "401", "403", "404", "405", "406", "409", "412", "413", "415", "422", "428", "429"]
ACCEPTED = ["2xx", "3xx", "400", "401", "403", "404", "409", "410", "412", "415", "422", "428", "429"]


@pytest.fixture(scope="module")
def described(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    """A keyless API of its own, so that the routes of administrators are asked too: it is told to pause and to forget."""
    with running("serve", tmp_path_factory.mktemp("openapi"), default_wait_s=0, stream_cap_s=1) as started:
        yield started


def _settings() -> str:
    """Schemathesis's own configuration, as TOML."""
    lines = [
        f"checks.negative_data_rejection.expected-statuses = {json.dumps(WRONG)}",
        "[[operations]]",
        'include-name = "PUT /v1/switches"',
        'generation.mode = "negative"',
    ]
    for method, path in CANNOT_BE_SAID:
        lines += [
            "[[operations]]",
            f"include-name = {json.dumps(f'{method} {path}')}",
            f"checks.positive_data_acceptance.expected-statuses = {json.dumps(ACCEPTED)}",
        ]
    return "\n".join(lines) + "\n"


def test_every_operation_does_what_its_description_says(described: Service, tmp_path: Path) -> None:
    settings = tmp_path / "schemathesis.toml"
    settings.write_text(_settings(), "utf-8")
    done = subprocess.run(
        [
            sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run", f"{described.url}/openapi.json",
            "--max-examples", str(EXAMPLES), "--seed", "7", "--generation-deterministic", "--generation-allow-x00", "false",
            "--continue-on-failure", "--request-timeout", "30", "--no-color", "--report", "json",
            "--report-json-path", str(tmp_path / "report.json"),
        ],
        cwd=tmp_path, capture_output=True, text=True, timeout=MOST_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
    with described.client() as client:
        assert client.get("/readyz").status_code == 200
        operations = sum(len(methods) for methods in client.get("/openapi.json").json()["paths"].values())
    assert f"Operations:       {operations} selected / {operations} total" in done.stdout


def test_every_operation_describes_its_answers_and_refusals(described: Service) -> None:
    with described.client() as client:
        document: dict[str, Any] = client.get("/openapi.json").json()
    silent = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for status, response in operation["responses"].items():
                kinds = response.get("content", {})
                is_problem = set(kinds) == {"application/problem+json"}
                is_answer = status in {"204", "304"} or any(kind.get("schema") for kind in kinds.values())
                if not (is_problem if status[0] in "45" and path != "/readyz" else is_answer):
                    silent.append((method, path, status))
            if path.startswith("/v1/"):
                assert {"400", "401", "403", "503"} <= set(operation["responses"]), (method, path)
    assert silent == []


def test_exceptions_name_operations_that_exist(described: Service) -> None:
    with described.client() as client:
        paths = client.get("/openapi.json").json()["paths"]
    assert [(method, path) for method, path in CANNOT_BE_SAID if method.lower() not in paths.get(path, {})] == []


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("OPTIONS", "/v1/budget", "GET, PUT"),
        ("PATCH", "/v1/keys", "GET, POST"),
        ("POST", "/v1/items/x", "DELETE, GET"),
        ("PUT", "/v1/escalations/bulk", "POST"),
    ],
)
def test_refused_method_learns_all_that_the_path_takes(
    described: Service, method: str, path: str, allowed: str
) -> None:
    with described.client() as client:
        answer = client.request(method, path)
    assert (answer.status_code, answer.headers["allow"], answer.json()["allowed"]) == (
        405,
        allowed,
        allowed.split(", "),
    )
