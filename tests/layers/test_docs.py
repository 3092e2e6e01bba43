"""What the documents say is held against the code, and the README's examples are run."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image
from pydantic.fields import FieldInfo

from gateway.api.problems import KINDS
from gateway.item import ARROWS, Status
from gateway.settings import Settings
from prefilters import messages

ROOT = Path(__file__).parents[2]
READMES = ("README.md", "README.zh-CN.md")
DOCUMENTS = sorted(
    path for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/*.md")] if path.is_file()
)
EXAMPLE = re.compile(r"```python\n(.*?)```\n```text\n(.*?)```", re.DOTALL)


def table_rows(text: str) -> list[list[str]]:
    """The cells of every table row, without heads and rulers being told apart."""
    rows = [line.strip().strip("|").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in row] for row in rows]


def default_shown(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "by cores"
    return "unset" if field.default is None else f"`{field.default}`"


def test_operations_lists_every_setting_with_its_default() -> None:
    rows = table_rows((ROOT / "docs/operations.md").read_text("utf-8"))
    listed = {row[0].strip("`"): row[1] for row in rows if row[0].startswith("`SLUICEGATE_")}
    wanted = {f"SLUICEGATE_{name.upper()}": default_shown(field) for name, field in Settings.model_fields.items()}
    assert listed == wanted


def test_architecture_draws_the_arrows_of_the_code() -> None:
    text = (ROOT / "docs/architecture.md").read_text("utf-8")
    section = text.split("## States of an item")[1].split("\n## ")[0]
    drawn = {row[0].strip("`"): set(re.findall(r"`(\w+)`", row[1])) for row in table_rows(section) if "`" in row[0]}
    assert drawn == {status.value: {after.value for after in ARROWS[status]} for status in Status}


def test_codes_in_the_api_page_exist() -> None:
    text = (ROOT / "docs/api.md").read_text("utf-8")
    verdicts = [code for row in table_rows(text) if row[0] in {"refuse", "take another route", "are noted"}
                for code in re.findall(r"`(\w+)`", row[1]) if code != "notes"]  # fmt: skip
    assert len(verdicts) > 20
    assert [code for code in verdicts if code not in messages.codes()] == []
    assert "idempotency_key_reused" in KINDS


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text("utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


def test_every_decision_is_listed_under_a_number_of_its_own() -> None:
    folder = ROOT / "docs/decisions"
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert sorted(re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", (folder / "README.md").read_text("utf-8"))) == records
    numbers = [name[:4] for name in records]
    assert len(numbers) == len(set(numbers))
    for name in records:
        assert (folder / name).read_text("utf-8").startswith(f"# {name[:4]}: ")


@pytest.mark.parametrize("name", READMES)
@pytest.mark.parametrize("number", [0, 1])
def test_example_in_the_readme_prints_what_stands_below_it(name: str, number: int, tmp_path: Path) -> None:
    source, printed = EXAMPLE.findall((ROOT / name).read_text("utf-8"))[number]
    (tmp_path / "catalogue").mkdir()
    Image.new("RGB", (48, 48), "tan").save(tmp_path / "catalogue/candle_thumbnail.jpg")
    (tmp_path / "example.py").write_text(f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{source}", "utf-8")
    ran = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.stdout, ran.returncode) == (printed, 0), ran.stderr


def test_both_readmes_show_the_same_commands() -> None:
    english, chinese = (
        sorted(set(re.findall(r"`(\./dev [a-z]+)", (ROOT / name).read_text("utf-8")))) for name in READMES
    )
    assert english == chinese
    usage = subprocess.run([ROOT / "dev", "help"], capture_output=True, text=True, check=True).stdout
    assert all(command in usage for command in english if command != "./dev help")
