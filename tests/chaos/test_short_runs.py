"""A short run of each set-up with a seed, so with the same kills each time; `./dev chaos` makes longer ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.chaos.plan import Dispatch, Kind, Target, plan
from tests.chaos.run import run
from tests.chaos.verdict import Verdict

QUICK = {
    "lease_s": 2, "heartbeat_s": 0.4, "sweep_s": 0.3, "hint_again_s": 0.6, "decoder_workers": 1, "ocr_workers": 1,
    "worker_concurrency": 1,  # one request in flight at most, so that one kill costs one request at most
}  # fmt: skip
SHORT = [
    pytest.param(Dispatch.EMBEDDED, 8, {Target.ALL, Target.API, Target.WORKER}, id="embedded"),
    pytest.param(Dispatch.CELERY, 1, {Target.WORKER, Target.API}, id="celery over Redis, PostgreSQL"),
]


@pytest.mark.parametrize(("dispatch", "seed", "targets"), SHORT)
def test_nothing_is_lost_or_done_twice_while_processes_are_killed(
    dispatch: Dispatch, seed: int, targets: set[Target], tmp_path: Path
) -> None:
    made = plan(seed, dispatch, seconds=12, per_second=2)
    assert targets <= {kill.target for kill in made.kills}
    verdict = run(made, tmp_path / "run", broker="redis", settings=QUICK, say=print)
    assert verdict.is_good, list(verdict.lines())
    assert 8 <= verdict.submissions <= 24
    assert verdict.worker_kills >= 1


def test_plan_follows_from_its_seed() -> None:
    one, again, other = (plan(seed, Dispatch.EMBEDDED, seconds=600, per_second=2) for seed in (5, 5, 6))
    assert one == again
    assert (one.products, one.kills) != (other.products, other.kills)
    pauses = [after.at_s - before.at_s for before, after in zip(one.kills, one.kills[1:], strict=False)]
    assert 2 <= min(pauses) <= max(pauses) <= 5
    assert {kill.target for kill in one.kills} == set(Target) - {Target.BROKER}
    assert {product.kind for product in one.products} == set(Kind)
    assert len({product.marker for product in one.products}) == 1200


@pytest.mark.parametrize("fault", ["lost", "undelivered", "doubled", "wrong", "overpaid", "unaccounted", "faults"])
def test_one_fault_of_any_kind_fails_a_run(fault: str) -> None:
    verdict = Verdict(1000, 10, statuses=Counter(succeeded=1000), extra_calls=10)
    assert verdict.is_good
    getattr(verdict, fault).append("c1x00001t")
    assert not verdict.is_good
    assert list(verdict.lines())[-1].startswith("FAIL: 1,000 submissions")


def test_rare_items_that_lost_three_workers_pass_and_many_do_not() -> None:
    verdict = Verdict(1000, 10, worker_lost=["x"] * 10)
    assert verdict.is_good
    verdict.worker_lost.append("x")
    assert not verdict.is_good
