"""Tests over sample files are left out where there are none, unless somebody said where they must be."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

SAMPLES = "SAMPLES"
"""The global by which a test reaches the sample files."""
DEFAULT_FOLDER = Path(__file__).parents[2] / "shared" / "samples"


def pytest_configure(config: pytest.Config) -> None:
    """`-m case` picks the tests that `./dev chaos --cases` runs at their full size."""
    # A job in the background ignores Ctrl-C, and so would the programs that tests start.
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "case: a reliability case, S1 to S10; see tests/contracts/sizes.py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `SLUICEGATE_SAMPLES` set, as in CI, all run, and fail if the folder is not there."""
    if os.environ.get("SLUICEGATE_SAMPLES") or DEFAULT_FOLDER.is_dir():
        return
    left_out = [item for item in items if _reads_samples(item)]
    items[:] = [item for item in items if item not in left_out]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def _reads_samples(item: pytest.Item) -> bool:
    return isinstance(item, pytest.Function) and SAMPLES in item.function.__code__.co_names
