"""The screening measures the cheap things first, stops as soon as the verdict stands, and goes on where it stopped."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from prefilters import (
    Bulkhead,
    DecodeLimits,
    DecoderPool,
    ProbeError,
    RuleSet,
    Screening,
    Stage,
    VerdictKind,
    screen,
)
from prefilters.errors import DecodeStatus
from prefilters.facts import check_facts
from tests import media

Screened = Callable[..., Screening]


class NoPool(DecoderPool):
    """Fails the test that reaches it, or answers with one fault."""

    def __init__(self, fault: Exception | None = None) -> None:
        super().__init__(limits=DecodeLimits())
        self.fault = fault

    def run(
        self, task: Callable[..., Any], *args: Any, bulkhead: Bulkhead = Bulkhead.DECODE, wall_s: float | None = None
    ) -> Any:
        if self.fault is None:
            pytest.fail(f"{task.__name__} was not needed")
        raise self.fault


STOPS: dict[str, tuple[Callable[[], bytes], str, str, set[str]]] = {
    "empty file": (lambda: b"", "empty", "x.jpg", {"sniff"}),
    "web page": (media.html_page, "unsupported_type", "x.jpg", {"sniff"}),
    "archive": (media.zip_archive, "unsupported_type", "x.zip", {"sniff"}),
    "thumbnail": (media.thumbnail, "low_resolution", "x.jpg", {"sniff", "header"}),
    "bomb": (media.gif_bomb, "too_many_pixels", "x.gif", {"sniff", "header"}),
    "frames": (lambda: media.gif_frames(205), "too_many_frames", "x.gif", {"sniff", "header"}),
    "cut header": (lambda: media.label_photo()[:150], "corrupt", "x.jpg", {"sniff", "header"}),
}


@pytest.mark.parametrize("name", STOPS)
def test_cheap_refusal_starts_no_process(screened: Screened, name: str) -> None:
    build, code, file_name, stages = STOPS[name]
    found = screened(build(), file_name, pool=NoPool())
    assert found.verdict.code == code
    assert set(found.timings_ms) - {"rules"} == stages


def test_corrupt_pixels_are_not_read_for_text(screened: Screened) -> None:
    found = screened(media.truncated())
    assert found.verdict.code == "corrupt"
    assert found.facts["decode.status"] == "truncated"
    assert "text" not in found.timings_ms


def test_very_blurry_photo_is_routed_without_ocr(screened: Screened) -> None:
    found = screened(media.blurred(strength=2.5))
    assert (found.verdict.kind, found.verdict.code) == (VerdictKind.TEXT_ONLY, "very_blurry")
    assert "text" not in found.timings_ms
    assert found.reading is None


def test_good_photo_is_accepted_with_its_text(screened: Screened) -> None:
    found = screened(media.label_photo())
    assert found.verdict.kind is VerdictKind.ACCEPT
    assert found.verdict.decided
    assert found.reading is not None
    assert int(found.facts["text.tokens"]) >= 4
    assert found.measured is Stage.TEXT
    check_facts(found.facts)


def test_facts_of_every_kind_are_in_the_table(screened: Screened) -> None:
    for content in (media.pdf_text(), media.wav(media.tone()), media.png(long_side=300), media.heic()):
        check_facts(screened(content, "x").facts)


def test_going_on_measures_nothing_twice(screened: Screened, shared_pool: DecoderPool) -> None:
    photo = media.label_photo()
    cheap = screened(photo, through=Stage.HEADER, pool=NoPool())
    assert not cheap.verdict.decided
    assert cheap.verdict.kind is VerdictKind.ACCEPT
    kept = Screening.from_json(json.loads(json.dumps(cheap.to_json())))
    whole = screened(photo, known=kept)
    assert whole.verdict.decided
    assert whole.timings_ms["header"] == cheap.timings_ms["header"]
    assert set(whole.timings_ms) == {"sniff", "header", "pixels", "text", "rules"}
    again = screened(photo, known=whole, pool=NoPool())
    assert again.facts == whole.facts
    assert again.verdict == whole.verdict


def test_known_facts_are_judged_by_the_rules_of_today(screened: Screened, shipped_rules: RuleSet) -> None:
    whole = screened(media.label_photo())
    stricter = shipped_rules.with_parameters({"min_short_side": 5_000})
    found = screened(media.label_photo(), known=whole, rules=stricter, pool=NoPool())
    assert found.verdict.code == "low_resolution"
    assert found.verdict.ruleset == stricter.version


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (media.thumbnail(), "thumbnail"),
        (media.label_photo(), "photo"),
        (media.pdf_owner_password(), "pdf"),
        (media.wav(media.silence()), "silence"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_screening_survives_json(screened: Screened, content: bytes, name: str) -> None:
    found = screened(content, name)
    assert Screening.from_json(json.loads(json.dumps(found.to_json(), allow_nan=False))) == found


def test_fault_of_a_probe_is_judged_by_a_rule(screened: Screened) -> None:
    found = screened(media.label_photo(), pool=NoPool(ProbeError(DecodeStatus.TIMEOUT)))
    assert found.verdict.code == "timeout"
    assert found.facts["decode.status"] == "timeout"


def test_what_is_not_the_files_fault_is_raised(screened: Screened, shipped_rules: RuleSet, tmp_path: Path) -> None:
    with pytest.raises(ImportError):
        screened(media.label_photo(), pool=NoPool(ImportError("no engine")))
    with pytest.raises(FileNotFoundError):
        screen(tmp_path / "gone.jpg", rules=shipped_rules, pool=NoPool(), limits=DecodeLimits())


def test_profile_decides_what_is_too_small(screened: Screened, shipped_rules: RuleSet) -> None:
    rules = shipped_rules.with_parameters({"min_short_side": 32, "min_pixels": 1_000})
    assert screened(media.thumbnail(), rules=rules).verdict.kind is not VerdictKind.REJECT


def test_importing_the_package_loads_no_decoder() -> None:
    code = (
        "import sys, prefilters\n"
        "heavy = {'PIL', 'cv2', 'numpy', 'av', 'pypdfium2', 'pikepdf', 'onnxruntime', 'tiktoken', 'rapidocr'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
