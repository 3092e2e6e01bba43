"""Rules change while the service runs; a file that is no good leaves the old ones in force, and readiness says so."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.wiring import SHIPPED_RULES
from tests import media
from tests.gateway.conftest import SHIPPED_PROFILE
from tests.gateway.running import Service, command, running

GOOD = SHIPPED_RULES.read_text("utf-8")
STRICTER = GOOD.replace("min_short_side: 64", "min_short_side: 900")
BROKEN = {
    "not YAML": "rules: [\n",
    "half-written": GOOD[: len(GOOD) * 6 // 10],
    "misspelt fact": GOOD.replace("when: file.bytes == 0", "when: file.byte == 0"),
    "wrong type": GOOD.replace("when: file.bytes == 0", 'when: file.bytes == "none"'),
    "no rules": "",
    "a list": "- 1\n- 2\n",
    "10 MB": GOOD + "#" * 10_000_000,
    "names that explode": "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{chr(98 + n)}: &{chr(98 + n)} [{','.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(12)
    ) + GOOD,
    "code": "rules: !!python/object/apply:os.system ['touch /tmp/sluicegate-was-here']\n",
    "nested without end": "rules: " + "[" * 20_000,
    "condition without end": GOOD.replace("when: file.bytes == 0", "when: " + "(" * 5_000 + "true" + ")" * 5_000),
    "binary": "\x00\x01\x02" * 1000,
}  # fmt: skip


@pytest.fixture(scope="module")
def ruled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("ruled")
    shutil.copy(SHIPPED_RULES, folder / "edge.yaml")
    with running("serve", folder / "data", rules_file=folder / "edge.yaml", default_wait_s=0) as service:
        yield service


@pytest.fixture
def rules_file(ruled: Service) -> Path:
    path = ruled.data_dir.parent / "edge.yaml"
    path.write_text(GOOD, "utf-8")
    return path


@pytest.fixture
def caller(ruled: Service) -> Iterator[httpx.Client]:
    with ruled.client() as client:
        yield client


def state(client: httpx.Client) -> dict[str, Any]:
    answer = client.get("/readyz")
    assert answer.status_code == 200
    return answer.json()["checks"]["ruleset"]


def verdict(client: httpx.Client, name: str) -> tuple[str, str]:
    """The code for a photo of 700 px, and the rule set that gave it."""
    files = {"p1": ("photo.jpg", media.label_photo(long_side=700), "image/jpeg")}
    item = client.post("/v1/items", data={"title": name}, files=files, headers={"Prefer": "respond-async"}).json()
    decision = item["decision"] or {}
    return ((decision.get("problem") or {}).get("code", "none"), decision.get("ruleset", ""))


def test_changed_rules_judge_the_next_upload(caller: httpx.Client, rules_file: Path, name: str) -> None:
    before = state(caller)["version"]
    assert verdict(caller, name)[0] == "none"
    rules_file.write_text(STRICTER.replace("  min_short_side: 900", "  min_short_side: 64"), "utf-8")
    assert state(caller)["version"] == before  # the same rules, whatever the bytes
    swapped = rules_file.with_suffix(".new")
    swapped.write_text(
        GOOD.replace("short_side < param.min_short_side", "short_side < param.min_short_side + 900"), "utf-8"
    )
    swapped.replace(rules_file)
    code, ruleset = verdict(caller, f"{name}-2")
    assert code == "low_resolution"
    after = state(caller)
    assert (after["kept_old_because"], after["version"] != before) == (None, True)
    assert ruleset.startswith("rs_")


@pytest.mark.parametrize("kind", BROKEN)
def test_file_that_is_no_good_leaves_the_old_rules_in_force(
    kind: str, ruled: Service, caller: httpx.Client, rules_file: Path, name: str
) -> None:
    before = state(caller)["version"]
    memory = ruled.resident_bytes()
    rules_file.write_text(BROKEN[kind], "utf-8")
    told = state(caller)
    assert told["version"] == before
    assert "edge.yaml" in told["kept_old_because"]
    assert len(told["kept_old_because"]) < 5_000
    assert verdict(caller, name)[0] == "none"
    assert ruled.resident_bytes() - memory < 50 * 1024 * 1024
    assert not Path("/tmp/sluicegate-was-here").exists()
    rules_file.write_text(GOOD, "utf-8")
    assert state(caller)["kept_old_because"] is None


def test_file_that_vanishes_leaves_the_old_rules_in_force(caller: httpx.Client, rules_file: Path, name: str) -> None:
    before = state(caller)["version"]
    rules_file.unlink()
    told = state(caller)
    assert (told["version"], bool(told["kept_old_because"])) == (before, True)
    assert verdict(caller, name)[0] == "none"


@pytest.mark.parametrize("kind", ["misspelt fact", "code"])
def test_rules_are_checked_on_the_command_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "edge.yaml"
    path.write_text(BROKEN[kind], "utf-8")
    refused = command("rules", "check", str(path), data_dir=tmp_path / "data")
    assert (refused.returncode, "edge.yaml" in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)


@pytest.mark.parametrize(
    ("old", "new", "named"),
    [
        ("sparse_text: text_only", "sparse_text: guess", "sparse_text"),
        ("as_of: 2021-08-30", "as_of: yesterday", "as_of"),
    ],
)
def test_profiles_are_checked_on_the_command_line(old: str, new: str, named: str, tmp_path: Path) -> None:
    path = tmp_path / "work.yaml"
    text = SHIPPED_PROFILE.read_text("utf-8")
    assert old in text
    path.write_text(text.replace(old, new), "utf-8")
    refused = command("profiles", "check", str(path), data_dir=tmp_path / "data")
    assert (refused.returncode, named in refused.stderr, "Traceback" in refused.stderr) == (1, True, False)


@pytest.mark.parametrize(("words", "file"), [("rules", SHIPPED_RULES), ("profiles", SHIPPED_PROFILE)])
def test_what_ships_passes_its_check(words: str, file: Path, tmp_path: Path) -> None:
    fine = command(words, "check", str(file), data_dir=tmp_path / "data")
    assert (fine.returncode, "version" in fine.stdout) == (0, True)
