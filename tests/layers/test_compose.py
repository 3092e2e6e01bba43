"""compose.yaml against what the service really takes: no engine is at hand to run it, so what can be checked is checked."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from gateway.cli.app import app
from gateway.settings import Settings

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "compose.yaml").read_text())
OURS = {name: service for name, service in COMPOSE["services"].items() if service.get("image") == "sluicegate:local"}


@pytest.mark.parametrize("name", OURS)
def test_service_is_locked_down_and_its_command_and_settings_exist(name: str) -> None:
    service = OURS[name]
    assert (service["read_only"], service["cap_drop"]) == (True, ["ALL"])
    assert "no-new-privileges:true" in service["security_opt"]
    known = {f"SLUICEGATE_{field.upper()}" for field in Settings.model_fields}
    assert set(service["environment"]) <= known
    command = typer.main.get_command(app)
    context = command.make_context("sluicegate", list(service["command"]), resilient_parsing=True)
    _, found, rest = command.resolve_command(context, list(service["command"]))  # type: ignore[attr-defined]
    found.make_context(service["command"][0], list(rest))  # raises where an option or a value is not known


def test_settings_of_the_workers_make_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in OURS["worker-edge"]["environment"].items():
        monkeypatch.setenv(name, re.sub(r"\$\{\w+:[-?]([^}]*)\}", r"\1", value).replace(" ", "-"))
    made = Settings()
    assert (made.dispatch, made.is_redis_broker, made.metrics_port, made.model_url) == ("celery", True, 9100, None)


def test_whatever_is_waited_for_or_mounted_is_there() -> None:
    services = COMPOSE["services"]
    for service in services.values():
        assert set(service.get("depends_on", ())) <= set(services)
        named = {volume.split(":")[0] for volume in service.get("volumes", ()) if ":" in volume}
        assert named <= set(COMPOSE["volumes"])
        assert {config["source"] for config in service.get("configs", ())} <= set(COMPOSE["configs"])


def test_every_queue_has_a_worker() -> None:
    from gateway.work.dispatch import Bulkhead

    consumed = {word for service in OURS.values() for word in service["command"]}
    assert {bulkhead.value for bulkhead in Bulkhead} <= consumed


def test_no_secret_has_a_default() -> None:
    text = (ROOT / "compose.yaml").read_text()
    for variable in ("POSTGRES_PASSWORD", "S3_SECRET"):
        assert set(re.findall(rf"\$\{{{variable}([^}}]*)\}}", text)) == {":?set it in .env"}
