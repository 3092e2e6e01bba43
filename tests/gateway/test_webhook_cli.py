"""`sluicegate webhook` and the example receiver, as processes."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.webhooks import signing
from tests.gateway.delivering import NOON_MS
from tests.gateway.running import command, environment, until

ROOT = Path(__file__).parents[2]
SECRET = signing.new_secret()
BODY = b'{"id":"evt_1","type":"item.ready","seq":7,"resource":"itm_1","resource_version":2,"data":{}}'


def signed(at: int, body: bytes = BODY) -> dict[str, str]:
    return signing.headers([SECRET], message_id="evt_1", timestamp=at, body=body)


@contextlib.contextmanager
def listening(arguments: list[str], folder: Path, **variables: str) -> Iterator[tuple[str, Path]]:
    """A receiver that runs in a process of its own: its address, and the file with what it printed."""
    printed = folder / "printed.txt"
    with printed.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, *arguments], stdout=out, stderr=out, cwd=ROOT, env={**environment(folder, {}), **variables}
        )
    try:
        until(lambda: "listening at" in printed.read_text() or process.poll() is not None)
        yield printed.read_text().split("listening at ")[1].split()[0], printed
    finally:
        process.terminate()
        process.wait(10)


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["-m", "gateway", "webhook", "listen", "--port", "0"], BODY.decode()),
        (["examples/webhook_receiver.py", "0"], "7 item.ready itm_1 v2"),
    ],
    ids=["listen", "example"],
)
def test_receiver_prints_what_is_signed_and_refuses_the_rest(arguments: list[str], line: str, tmp_path: Path) -> None:
    now = int(time.time())
    with listening(arguments, tmp_path, SLUICEGATE_WEBHOOK_SECRET=SECRET) as (url, printed):
        with httpx.Client(trust_env=False) as client:
            assert client.post(url, content=BODY, headers=signed(now)).status_code == 204
            assert client.post(url, content=BODY + b" ", headers=signed(now)).status_code == 400
            assert client.post(url, content=BODY, headers=signed(now - 400)).status_code == 400
        until(lambda: printed.read_text().count("refused:") == 2)
        lines = [each for each in printed.read_text().splitlines() if "listening" not in each and "refused" not in each]
    assert lines == [line]


def test_saved_request_is_verified(tmp_path: Path) -> None:
    at = NOON_MS // 1000
    (tmp_path / "body").write_bytes(BODY)
    headers = signed(at)
    flags = [f"--{name}={headers[f'webhook-{name}']}" for name in ("id", "timestamp", "signature")]

    def run(*more: str, secret: str = SECRET) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "gateway", "webhook", "verify", str(tmp_path / "body"), *flags, *more],
            env={**os.environ, "SLUICEGATE_WEBHOOK_SECRET": secret}, capture_output=True, text=True, check=False,
        )  # fmt: skip

    good = run("--any-time")
    assert (good.returncode, good.stdout.strip()) == (0, "Verified.")
    late = run()
    assert late.returncode == 1
    assert "in the future" in late.stderr or "ago" in late.stderr
    wrong = run("--any-time", secret=signing.new_secret())
    assert (wrong.returncode, "no signature fits" in wrong.stderr) == (1, True)
    none = run(secret="x")
    assert (none.returncode, "SLUICEGATE_WEBHOOK_SECRET" in none.stderr) == (2, True)


def test_endpoint_is_made_listed_and_replayed_to_on_the_machine_itself(tmp_path: Path) -> None:
    def run(*arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        ran = command("webhook", *arguments, data_dir=tmp_path)
        assert ran.returncode == status, ran.stderr
        return ran

    made = run("add", "https://93.184.215.14/hook", "--event", "item.*", "--event", "rule.retired")
    assert made.stdout.startswith("whsec_")
    endpoint_id = made.stderr.split()[1]
    listed = run("list").stdout
    assert endpoint_id in listed
    assert "whsec_" not in listed
    refused = run("add", "https://127.0.0.1/hook", status=2)
    assert "not on the public internet" in refused.stderr
    assert "no event" in run("add", "https://93.184.215.14/", "--event", "item.x", status=2).stderr
    assert "https://hooks.example.com." in run("allow", "https://Hooks.Example.com:443").stdout
    assert run("replay", endpoint_id, "0", "10").stdout.startswith("0 events")
    assert "no webhook endpoint" in run("replay", "whe_x", "0", "10", status=1).stderr
    assert "no delivery" in run("redeliver", "whd_x", status=1).stderr
    found: list[dict[str, Any]] = [json.loads(line) for line in run("deliveries", "--json").stdout.splitlines()]
    assert found == []
