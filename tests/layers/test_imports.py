"""What an import may load: the light packages stay light."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DECODERS = {
    "PIL",
    "cv2",
    "numpy",
    "av",
    "pypdfium2",
    "pikepdf",
    "rapidocr",
    "tesserocr",
    "onnxruntime",
    "pi_heif",
    "zxingcpp",
}
SERVICE = {
    "fastapi",
    "starlette",
    "uvicorn",
    "sqlalchemy",
    "alembic",
    "pydantic",
    "pydantic_settings",
    "structlog",
    "celery",
}
MODELS = {"openai", "pydantic_ai"}


def loaded_by(module: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after importing `module`, beyond those of an empty one."""
    ask = "print(json.dumps(sorted(set(sys.modules) - before)))"
    program = f"import json, sys; before = set(sys.modules); import {module}; {ask}"
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    return {name.split(".")[0] for name in json.loads(run.stdout)}


@pytest.mark.parametrize("module", ["guard", "guard.adapters.plain"])
def test_guard_loads_the_standard_library_only(module: str) -> None:
    assert loaded_by(module) - set(sys.stdlib_module_names) == {"guard"}


@pytest.mark.parametrize(
    ("module", "heavy"),
    [
        ("prefilters", DECODERS | SERVICE | MODELS),
        ("fallback.route", DECODERS | SERVICE | MODELS),
        (
            "gateway.app",
            {"cv2", "av", "pypdfium2", "pikepdf", "rapidocr", "tesserocr", "onnxruntime", "pi_heif"} | MODELS,
        ),
    ],
    ids=["prefilters", "fallback.route", "gateway.app"],
)
def test_import_stays_light(module: str, heavy: set[str]) -> None:
    assert loaded_by(module) & heavy == set()
