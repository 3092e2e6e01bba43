"""A service with an agent whose model is played by the tests; several policies as profiles."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from gateway.profiles import loader
from tests import media
from tests.acceptance.reviewing import Desk
from tests.acceptance.talking_model import TalkingModel, talking_model
from tests.gateway.running import Service, running

SHIPPED = Path(loader.__file__).with_name("product-copy.yaml")
STATING = ["ocr_extract", "read_pdf", "lookup_attributes", "set_attribute", "save_copy"]
POLICIES: dict[str, dict[str, Any]] = {
    "asks-first": {"tools": STATING, "guard": {"needs_approval": ["set_attribute"]}},
    "asks-always": {"tools": STATING, "guard": {"needs_approval": ["mutating"]}},
    "loop-human": {"on_loop": "human"},
    "loop-halt": {"on_loop": "halt"},
    "error-ends": {"on_repeated_error": "error"},
    "shadow": {
        "guard": {"mode": "shadow"},
        "budget": {"max_steps": 6, "max_tokens": 60_000, "max_cost": "0.15", "max_seconds": 120},
    },
    "few-steps": {"budget": {"max_steps": 3, "max_tokens": 60_000, "max_cost": "0.15", "max_seconds": 120}},
}


@pytest.fixture(scope="package")
def profiles_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("policies")
    shipped = yaml.safe_load(SHIPPED.read_text("utf-8"))
    for name, changes in POLICIES.items():
        profile = {**shipped, "name": name, **changes}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(profile, allow_unicode=True), "utf-8")
    return folder


@pytest.fixture(scope="package")
def model() -> Iterator[TalkingModel]:
    with talking_model() as started:
        yield started


@pytest.fixture(scope="package")
def service(tmp_path_factory: pytest.TempPathFactory, profiles_dir: Path, model: TalkingModel) -> Iterator[Service]:
    """API and worker; the model is asked twice at most, and may take 2 s."""
    settings = {"model_url": model.url, "model_timeout_s": 2, "model_attempts": 2, "profiles_dir": profiles_dir}
    with running("up", tmp_path_factory.mktemp("agent"), **settings) as started:
        yield started


@pytest.fixture
def client(service: Service) -> Iterator[httpx.Client]:
    with service.client() as made:
        yield made


@pytest.fixture
def desk(service: Service, client: httpx.Client) -> Desk:
    return Desk(client, service.data_dir)


@pytest.fixture
def name() -> str:
    return f"t-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def label() -> bytes:
    """Large print that is sharp, small print that has run."""
    return media.half_legible(long_side=900)


@pytest.fixture(scope="session")
def sheet() -> bytes:
    """A document for the agent, judged in milliseconds."""
    return media.pdf_text()
