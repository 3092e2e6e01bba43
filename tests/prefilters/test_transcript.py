"""A model in a folder, reached by faster-whisper's own interface: here by a package that keeps its signature."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from prefilters import DecodeLimits, DecoderPool, RuleSet, screen
from prefilters.probes.text import Source
from prefilters.transcript import FolderTranscriber, TranscriberInvalid
from tests import media

LIMITS = DecodeLimits()
_PACKAGE = '''
from dataclasses import dataclass
from pathlib import Path

@dataclass
class Segment:
    text: str
    no_speech_prob: float

class WhisperModel:
    """Takes what faster-whisper 1.2 takes, and nothing else."""

    def __init__(self, model_size_or_path, device="auto", device_index=0, compute_type="default", cpu_threads=0,
                 num_workers=1, download_root=None, local_files_only=False):
        assert Path(model_size_or_path, "model.bin").is_file() and local_files_only and device == "cpu"

    def transcribe(self, audio, language=None, task="transcribe", beam_size=5, vad_filter=False):
        assert audio.dtype == "float32" and audio.ndim == 1 and abs(audio).max() <= 1.0
        seconds = len(audio) / 16_000
        said = [Segment(f" Linen towel, {seconds:.1f} seconds.", 0.01), Segment(" Thank you for watching!", 0.97)]
        return iter(said), None
'''


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "whisper-small"
    folder.mkdir()
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (folder / name).write_bytes(b"{}")
    return folder


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    folder = tmp_path / "site"
    folder.mkdir()
    (folder / "faster_whisper.py").write_text(_PACKAGE)
    monkeypatch.syspath_prepend(str(folder))
    yield
    sys.modules.pop("faster_whisper", None)


@pytest.mark.usefixtures("package")
def test_recording_is_written_down_by_the_model_in_the_folder(
    model_folder: Path, tmp_path: Path, shipped_rules: RuleSet
) -> None:
    note = tmp_path / "note"
    note.write_bytes(media.speech("This is a linen bath towel, stone washed."))
    rules = shipped_rules.with_parameters({"has_transcriber": True})
    with DecoderPool(workers=1, limits=LIMITS) as pool:
        transcriber = FolderTranscriber(pool, model_folder)
        found = screen(note, rules=rules, pool=pool, limits=LIMITS, transcriber=transcriber)
    assert (found.verdict.kind.value, found.verdict.notes) == ("accept", ())
    assert found.reading is not None
    assert found.reading.source is Source.TRANSCRIPT
    assert found.reading.confident_text.startswith("Linen towel,")
    assert "watching" not in found.reading.confident_text
    assert found.facts["text.engine"] == "faster-whisper:whisper-small"


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize("missing", ["model.bin", "config.json", "tokenizer.json"])
def test_folder_that_lacks_a_file_is_refused_by_name(
    missing: str, model_folder: Path, shared_pool: DecoderPool
) -> None:
    (model_folder / missing).unlink()
    with pytest.raises(TranscriberInvalid, match=missing):
        FolderTranscriber(shared_pool, model_folder)


@pytest.mark.usefixtures("package")
def test_recording_that_cannot_be_decoded_is_no_fault_of_the_model(
    model_folder: Path, tmp_path: Path, shipped_rules: RuleSet, shared_pool: DecoderPool
) -> None:
    silent = tmp_path / "silent"
    silent.write_bytes(media.wav(media.silence()))
    found = screen(
        silent,
        rules=shipped_rules.with_parameters({"has_transcriber": True}),
        pool=shared_pool,
        limits=LIMITS,
        transcriber=FolderTranscriber(shared_pool, model_folder),
    )
    assert (found.verdict.code, "audio.transcribed" in found.facts) == ("silent", False)
