"""`./dev` on machines that lack something: one clear line, and how to do it by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAMS = (
    "bash",
    "dirname",
    "readlink",
    "grep",
    "head",
    "tail",
    "cat",
    "cut",
    "sha256sum",
    "mkdir",
    "mktemp",
    "tee",
    "env",
    "rm",
)
Machine = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """Runs `./dev` in a checkout of its own, on a PATH that has a few plain programs and the given stand-ins."""
    checkout, programs = tmp_path / "checkout", tmp_path / "bin"
    checkout.mkdir()
    programs.mkdir()
    for name in ("dev", "requirements.lock", "requirements-dev.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout)
    for name in PROGRAMS:
        (programs / name).symlink_to(shutil.which(name) or name)

    def run(*words: str, cwd: Path | None = None, **stand_ins: str) -> subprocess.CompletedProcess[str]:
        for name, script in stand_ins.items():
            path = programs / name.replace("_", "-")
            path.write_text(f"#!/usr/bin/env bash\n{script}\n", "utf-8")
            path.chmod(0o755)
        environment = {"PATH": str(programs), "HOME": str(tmp_path), "TESSDATA_PREFIX": str(tmp_path / "tessdata")}
        return subprocess.run(
            [checkout / "dev", *words], cwd=cwd or checkout, env=environment, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip

    return run


def tesseract_data(tmp_path: Path) -> None:
    (tmp_path / "tessdata").mkdir()
    for language in ("eng", "chi_sim"):
        (tmp_path / f"tessdata/{language}.traineddata").touch()


NOT_ROOT = {"id": "echo 1000", "tesseract": "true"}


def test_without_root_and_sudo_it_says_what_to_install(machine: Machine, tmp_path: Path) -> None:
    tesseract_data(tmp_path)
    ran = machine("demo", **NOT_ROOT, apt_get="exit 1")
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "cannot install espeak-ng: you are not root and there is no sudo" in ran.stderr
    assert "apt-get install espeak-ng" in ran.stderr


def test_sudo_that_would_ask_where_nobody_can_type_is_not_used(machine: Machine, tmp_path: Path) -> None:
    tesseract_data(tmp_path)
    ran = machine("demo", **NOT_ROOT, apt_get="exit 1", sudo="exit 1")
    assert ran.returncode == 1
    assert "sudo asks for a password" in ran.stderr


def test_failing_apt_is_quoted(machine: Machine, tmp_path: Path) -> None:
    tesseract_data(tmp_path)
    ran = machine(
        "test", id="echo 0", tesseract="true", apt_get="echo 'E: Unable to locate package espeak-ng'; exit 100"
    )
    assert ran.returncode == 1
    assert "apt-get failed: E: Unable to locate package espeak-ng" in ran.stderr


def test_old_python_is_named(machine: Machine) -> None:
    ran = machine("lint", python3='if [ "$1" = --version ]; then echo Python 3.9.2; else exit 1; fi')
    assert ran.returncode == 1
    assert "needs Python 3.11 to 3.14" in ran.stderr
    assert "Python 3.9.2" in ran.stderr


def test_python_without_venv_is_named(machine: Machine) -> None:
    python = 'case "$*" in *ensurepip*) exit 1 ;; *version_info\\[:2\\]*) echo 3.11 ;; esac'
    ran = machine("lint", python3=python, **NOT_ROOT)
    assert ran.returncode == 1
    assert "cannot make virtual environments" in ran.stderr
    assert "apt-get install python3.11-venv" in ran.stderr


def test_unreachable_package_index_ends_with_one_line(machine: Machine) -> None:
    # A virtual environment whose pip fails as it does offline.
    python = """
    case "$*" in
      *' venv '*) mkdir -p .venv/bin .venv/lib/python3.11/site-packages/pip; ln -sf "$0" .venv/bin/python ;;
      *' pip install '*) echo 'ERROR: Could not find a version that satisfies the requirement alembic==1.20.1'; exit 1 ;;
      *sys.version,*) echo 3.11 ;;
      *version_info\\[:2\\]*) echo 3.11 ;;
      *) ;;
    esac"""
    ran = machine("lint", python3=python, ln=f'exec {shutil.which("ln")} "$@"')
    assert ran.returncode == 1
    assert "cannot install the Python packages: ERROR: Could not find a version" in ran.stderr
    assert "pip install --require-hashes -r requirements-dev.lock" in ran.stderr


def test_unknown_command_lists_the_known_ones(machine: Machine) -> None:
    ran = machine("tset")
    assert ran.returncode == 1
    assert "there is no command tset" in ran.stderr
    assert "./dev test" in ran.stderr


def test_it_runs_from_any_folder(machine: Machine) -> None:
    assert "./dev demo" in machine("help", cwd=Path(os.sep)).stdout
