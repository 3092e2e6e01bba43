"""`python -m prefilters`."""

from __future__ import annotations

import io
import json
import subprocess
import sys

import pytest

from prefilters.__main__ import COULD_NOT, OK, REFUSED, main
from prefilters.screening import Screening
from tests import media as made

RULES = """\
parameters: {}
rules:
  - {id: a.b, stage: sniff, when: file.bites == 0, effect: reject, code: empty, reason: x, since: 0.1.0}
"""


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        out, err = io.StringIO(), io.StringIO()
        return main(words, out=out, err=err), out.getvalue(), err.getvalue()

    return call


def test_a_refusal_shows_what_was_measured_what_is_needed_and_what_to_do(run, tmp_path):
    (tmp_path / "thumb.jpg").write_bytes(made.thumbnail())
    status, out, err = run("thumb.jpg")
    head, row, *explanation = out.splitlines()
    assert (status, err) == (REFUSED, "")
    assert head.split() == ["file", "verdict", "code", "measured", "needed", "ms"]
    assert row.split()[:7] == ["thumb.jpg", "reject", "low_resolution", "image.short_side", "48", ">=", "64"]
    assert "48 px" in explanation[0]
    assert "sniff" in explanation[-1]
    assert "ms" in explanation[-1]


def test_the_messages_come_in_chinese_too(run, tmp_path):
    (tmp_path / "page.jpg").write_bytes(made.html_page())
    assert "网页" in run("--lang", "zh", "page.jpg")[1]


def test_files_that_are_accepted_or_routed_end_with_0(run, tmp_path):
    (tmp_path / "manual.pdf").write_bytes(made.pdf_text())
    (tmp_path / "noise.wav").write_bytes(made.wav(made.noise(1.0)))
    status, out, _ = run("manual.pdf", "noise.wav")
    verdicts = [line.split()[1] for line in out.splitlines()[1:] if not line.startswith(" ")]
    assert (status, verdicts) == (OK, ["accept", "text_only"])


def test_json_is_one_object_a_line_that_a_program_reads_back(run, tmp_path):
    (tmp_path / "silent.wav").write_bytes(made.wav(made.silence(1.0)))
    (tmp_path / "empty.mp3").write_bytes(b"")
    status, out, _ = run("--json", "silent.wav", "empty.mp3")
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == REFUSED
    assert [(line.pop("file"), line["verdict"]["code"]) for line in lines] == [
        ("silent.wav", "silent"),
        ("empty.mp3", "empty"),
    ]
    assert lines[0]["timings_ms"]["pixels"] > 0
    assert Screening.from_json(lines[0]).facts["audio.peak_dbfs"] == -120.0


def test_measuring_can_stop_early_and_says_that_nothing_is_decided(run, tmp_path):
    (tmp_path / "note.wav").write_bytes(made.wav())
    status, out, _ = run("--through", "header", "note.wav")
    assert status == OK
    assert "undecided" in out
    assert "pixels" not in out


def test_a_file_that_is_not_there_is_said_and_the_others_are_still_screened(run, tmp_path):
    (tmp_path / "empty.png").write_bytes(b"")
    status, out, err = run("missing.png", "empty.png")
    assert status == COULD_NOT
    assert err == "missing.png: No such file or directory\n"
    assert "empty.png" in out


def test_a_name_cannot_move_the_cursor(run, tmp_path):
    (tmp_path / "a\x1b[2Jb\u202e.png").write_bytes(b"")
    out = run("a\x1b[2Jb\u202e.png")[1]
    assert "a?[2Jb?.png" in out
    assert "\x1b" not in out
    assert "\u202e" not in out


def test_a_rule_file_is_checked(run, tmp_path):
    (tmp_path / "broken.yaml").write_text(RULES)
    status, out, err = run("rules", "check", "broken.yaml")
    assert (status, out) == (REFUSED, "")
    assert "broken.yaml" in err
    assert "file.bites" in err
    (tmp_path / "fine.yaml").write_text(RULES.replace("file.bites", "file.bytes"))
    status, out, err = run("rules", "check", "fine.yaml")
    assert (status, err) == (OK, "")
    assert out.startswith("fine.yaml: fine, rs_")
    assert run("rules", "check", "missing.yaml")[0] == COULD_NOT


def test_other_rules_can_be_tried(run, tmp_path):
    (tmp_path / "rules.yaml").write_text(RULES.replace("file.bites == 0", "file.bytes > 100"))
    (tmp_path / "manual.pdf").write_bytes(made.pdf_text())
    assert run("--rules", "rules.yaml", "--through", "sniff", "manual.pdf")[0] == REFUSED
    assert run("--rules", "missing.yaml", "manual.pdf")[0] == COULD_NOT


@pytest.mark.parametrize("words", [[], ["--through", "moon", "x"], ["rules", "check"]])
def test_a_wrong_use_ends_with_2(run, words):
    with pytest.raises(SystemExit) as caught:
        run(*words)
    assert caught.value.code == 2


def test_it_runs_as_a_module_and_help_loads_no_decoder():
    code = (
        "import runpy, sys; sys.argv = ['prefilters', '--help']\n"
        "try: runpy.run_module('prefilters', run_name='__main__')\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'av', 'cv2', 'PIL', 'pypdfium2', 'pikepdf', 'onnxruntime', 'numpy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "FILE" in done.stdout


def test_it_ends_quietly_when_nobody_reads_on(tmp_path):
    (tmp_path / "empty.jpg").touch()
    command = [sys.executable, "-m", "prefilters", "--json", *["empty.jpg"] * 200]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline().startswith("{")
        process.stdout.close()
        assert (process.wait(60), process.stderr.read()) == (141, "")
