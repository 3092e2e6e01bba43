"""The lock files: hashes for everything, addresses nowhere, and the one for tests holds all of the other."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCKS = ("requirements.lock", "requirements-dev.lock")
REQUIREMENT = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)( ; .+?)? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}( \\)?$")
COMMENT = re.compile(r"^ *# .*$")


def pinned(name: str) -> dict[str, str]:
    matches = [REQUIREMENT.match(line) for line in (ROOT / name).read_text("utf-8").splitlines()]
    return {match[1]: match[2] for match in matches if match}


@pytest.mark.parametrize("name", LOCKS)
def test_lock_holds_pins_hashes_and_comments_only(name: str) -> None:
    lines = (ROOT / name).read_text("utf-8").splitlines()
    strange = [line for line in lines if not any(kind.match(line) for kind in (REQUIREMENT, HASH, COMMENT))]
    assert strange == []
    assert "://" not in "\n".join(lines)


def test_tests_run_on_what_the_service_runs_on() -> None:
    service, tests = (pinned(name) for name in LOCKS)
    assert service.items() <= tests.items()


def test_everything_that_is_asked_for_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    extras = project["project"]["optional-dependencies"]
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["build"]]
    for extra in ("media", "agent", "service", "postgres", "s3", "celery"):
        wanted += extras[extra]
    names = {re.split(r"[\[<>=]", requirement)[0].lower().replace("_", "-") for requirement in wanted}
    assert names - set(pinned("requirements.lock")) == set()


def test_only_one_opencv_is_installed() -> None:
    assert [name for name in pinned("requirements-dev.lock") if name.startswith("opencv")] == ["opencv-python-headless"]
