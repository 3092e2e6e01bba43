"""One pool and one rule set for all tests that screen files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefilters import DecodeLimits, DecoderPool, RuleSet, Screening, load_rules, screen

LIMITS = DecodeLimits()


@pytest.fixture(scope="session")
def shared_pool() -> Iterator[DecoderPool]:
    with DecoderPool(workers=1, ocr_workers=1, limits=LIMITS) as pool:
        yield pool


@pytest.fixture(scope="session")
def shipped_rules() -> RuleSet:
    return load_rules()


@pytest.fixture
def screened(tmp_path: Path, shared_pool: DecoderPool, shipped_rules: RuleSet) -> Callable[..., Screening]:
    """Screens bytes under a file name, as an upload would be."""

    def screen_bytes(content: bytes, name: str = "upload.jpg", **options: Any) -> Screening:
        path = tmp_path / "blob"
        path.write_bytes(content)
        asked = {"rules": shipped_rules, "pool": shared_pool, "limits": LIMITS, "file_name": name, **options}
        return screen(path, **asked)

    return screen_bytes
