"""What Prometheus scrapes: counters of this process, gauges of the database, and nothing that callers send."""

from __future__ import annotations

import re
from pathlib import Path

import httpx
import pytest

from tests import media
from tests.contracts.servers import free_port
from tests.gateway.conftest import store_key
from tests.gateway.running import Service, running, until


def value(text: str, line: str) -> float:
    """The value of one series; 0 while it has none."""
    match = re.search(rf"^{re.escape(line)} ([0-9.e+]+)$", text, re.MULTILINE)
    return 0.0 if match is None else float(match[1])


def test_a_refused_photo_shows_in_the_counters_and_in_the_gauges(client: httpx.Client, name: str) -> None:
    counter = 'sluicegate_submissions_total{outcome="rejected"}'
    gauge = 'sluicegate_items{reason="low_resolution",status="rejected"}'
    before = value(client.get("/metrics").text, counter)
    answer = client.post(
        "/v1/items", data={"external_id": name}, files={"p1": ("tiny.png", media.thumbnail(), "image/png")}
    )
    assert answer.json()["status"] == "rejected"
    assert value(client.get("/metrics").text, counter) == before + 1
    assert until(lambda: value(client.get("/metrics").text, gauge) >= 1, within_s=15)


def test_rules_that_matched_are_counted_once_for_each_file(client: httpx.Client, name: str) -> None:
    """Whether headers refuse it, or its pixels do while its caller waits."""

    def hits(rule: str) -> float:
        return value(client.get("/metrics").text, f'sluicegate_rule_hits_total{{mode="active",rule="{rule}"}}')

    whole = media.label_photo(long_side=900)
    for picture in (media.thumbnail(), whole[: len(whole) // 2]):
        files = {"p1": ("p.png", picture, "image/png")}
        answer = client.post("/v1/items", data={"external_id": name, "on_duplicate": "new"}, files=files).json()
        assert answer["status"] == "rejected", answer
        rule = answer["decision"]["problem"]["rule"]
        before = hits(rule)
        client.post("/v1/items", data={"external_id": name, "on_duplicate": "new"}, files=files)
        assert hits(rule) == before + 1


def test_metrics_hold_nothing_that_a_caller_sent(client: httpx.Client, name: str) -> None:
    client.post("/v1/items", data={"external_id": name, "title": f"title {name}"}, headers={"Prefer": "wait=10"})
    assert name not in client.get("/metrics").text


def test_a_key_without_the_scope_admin_sees_no_metrics(api: Service) -> None:
    narrow = store_key(api, "narrow", "items:read")
    answer = api.client(headers={"Authorization": f"Bearer {narrow}"}).get("/metrics")
    assert answer.status_code == 403
    assert answer.json()["code"] == "scope_missing"


def test_a_worker_shows_its_own_counters_where_it_is_told_to(tmp_path: Path) -> None:
    port = free_port()
    with running("worker", tmp_path, metrics_port=port, metrics_host="127.0.0.2"):
        shown = httpx.get(f"http://127.0.0.2:{port}/metrics", trust_env=False).text
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"http://127.0.0.1:{port}/metrics", trust_env=False)
    named = {line.split()[2] for line in shown.splitlines() if line.startswith("# TYPE ")}
    assert {
        "sluicegate_guard_decisions_total",
        "sluicegate_avoided_calls_total",
        "sluicegate_leases_lost_total",
    } <= named
