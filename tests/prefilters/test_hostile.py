"""Whatever a stranger sends: a verdict in time, no crash, and the service's own process stays as small as it was."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from prefilters import DecodeLimits, DecoderPool, RuleSet, Screening, Stage, VerdictKind, screen
from tests import hostile
from tests.hostile import Hostile

LIMITS = DecodeLimits()
MOST_GROWTH_BYTES = 50 * 1024 * 1024
SEEDS = hostile.seeds()
BY_RULE_OF_EACH = 3
"""Cuts, lies and flips of each seed file; `benchmarks/hostile.py` has more time."""
TIMED_OUT = "timeout"


class Trial:
    """Screens files and keeps what went wrong."""

    def __init__(self, folder: Path, pool: DecoderPool, rules: RuleSet) -> None:
        self._path = folder / "hostile"
        self._pool = pool
        self._rules = rules
        self.tried = 0

    def screened(self, data: bytes, through: Stage) -> Screening:
        self._path.write_bytes(data)
        self.tried += 1
        return screen(self._path, rules=self._rules, pool=self._pool, limits=LIMITS, through=through)

    def complaints(self, files: Iterable[Hostile], through: Stage) -> list[str]:
        found = []
        for file in files:
            started = time.monotonic()
            try:
                screening = self.screened(file.data, through)
            except Exception as error:  # noqa: BLE001 - that is what is looked for
                found.append(f"{file.name}: {type(error).__name__}: {error}")
                continue
            if screening.facts.get("decode.status") == TIMED_OUT:
                found.append(f"{file.name}: timed out after {time.monotonic() - started:.1f} s")
            elif through is Stage.TEXT and not screening.verdict.decided:
                found.append(f"{file.name}: undecided")
        return found


@pytest.fixture
def trial(tmp_path: Path, shared_pool: DecoderPool, shipped_rules: RuleSet) -> Trial:
    return Trial(tmp_path, shared_pool, shipped_rules)


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def test_bombs_are_refused_or_settled_within_limits_and_the_service_does_not_grow(trial: Trial) -> None:
    made = list(hostile.bombs())
    assert trial.complaints(made[:1], Stage.TEXT) == []
    forget_peak()
    before = peak_bytes()
    assert trial.complaints(made, Stage.TEXT) == []
    assert peak_bytes() - before < MOST_GROWTH_BYTES
    assert trial.tried > 50


REFUSED_BOMBS = {
    "png header": "too_many_pixels",
    "png full": "too_many_pixels",
    "png ICC": "corrupt",
    "png iTXt": "corrupt",
    "gif": "too_many_pixels",
    "gif of 10,000 frames": "too_many_frames",
    "webp": "too_many_pixels",
    "tiff header": "too_many_pixels",
    "bmp": "too_many_pixels",
    "png of no size": "corrupt",
    "pdf flate": "resource_limit",
    "pdf flate twice": "resource_limit",
    "pdf cyclic pages": "corrupt",
    "pdf recursive form": "resource_limit",
    "pdf nested forms": "resource_limit",
    "pdf tiling pattern": "resource_limit",
    "pdf fine tiling": "resource_limit",
    "pdf huge page": "too_many_pixels",
    "pdf many pages": "too_many_pages",
    "wav of no rate": "corrupt",
    "wav of no channel": "corrupt",
    "web page": "unsupported_type",
    "gif that is script": "corrupt",
}


@pytest.mark.parametrize("name", REFUSED_BOMBS)
def test_bomb_is_refused_quickly_by_name(name: str, trial: Trial) -> None:
    data = next(file.data for file in hostile.bombs([name]))
    started = time.process_time()
    verdict = trial.screened(data, Stage.TEXT).verdict
    assert (verdict.kind, verdict.code) == (VerdictKind.REJECT, REFUSED_BOMBS[name])
    assert time.process_time() - started < 0.5
    assert {"en", "zh"} == set(verdict.user_message)


def test_polyglot_is_what_its_first_bytes_say(trial: Trial) -> None:
    for file in hostile.bombs(["png that is a zip", "jpeg that is a pdf"]):
        assert trial.screened(file.data, Stage.HEADER).media.kind.value == "image"


def test_cuts_lies_flips_and_splices_end_in_facts_or_a_reason(trial: Trial) -> None:
    made = list(hostile.by_rule(most_of_each=BY_RULE_OF_EACH, seed=1))
    forget_peak()
    before = peak_bytes()
    assert trial.complaints(made, Stage.PIXELS) == []
    assert peak_bytes() - before < MOST_GROWTH_BYTES
    assert trial.tried > 250


def test_damaged_files_are_read_for_text_without_harm(trial: Trial) -> None:
    small = [file for file in hostile.by_rule(most_of_each=1, seed=2) if "scanned" not in file.name]
    assert trial.complaints(small, Stage.TEXT) == []


EDITS = st.lists(
    st.tuples(st.floats(0, 1), st.sampled_from(("set", "cut", "insert")), st.binary(min_size=1, max_size=8)),
    min_size=1,
    max_size=6,
)


@settings(
    max_examples=150,
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(name=st.sampled_from(sorted(SEEDS)), edits=EDITS)
def test_any_edits_of_any_file_end_in_facts_or_a_reason(
    name: str, edits: list[tuple[float, str, bytes]], trial: Trial
) -> None:
    data = SEEDS[name]
    for where, how, piece in edits:
        at = int(where * len(data))
        match how:
            case "set":
                data = data[:at] + piece + data[at + len(piece) :]
            case "cut":
                data = data[:at] + data[at + 8 * len(piece) :]
            case _:
                data = data[:at] + piece + data[at:]
    assert trial.complaints([Hostile("edit", name, data)], Stage.PIXELS) == []


def test_no_process_is_left_behind(trial: Trial) -> None:
    trial.complaints(hostile.bombs(["pdf many states", "wav says 4 GB"]), Stage.PIXELS)
    assert os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
