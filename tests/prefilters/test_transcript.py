"""A model in a folder, run by the real faster-whisper; only what it has learnt is made up."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from prefilters import DecodeLimits, DecoderPool, RuleSet, Screening, screen
from prefilters.probes.text import Source
from prefilters.transcript import FolderTranscriber, TranscriberInvalid
from tests import media
from tests.prefilters.whisper_model import write_model

LIMITS = DecodeLimits()
SPOKEN = media.speech("This is a linen bath towel, stone washed.")
SENTENCE = "linen bath towel, stone washed, 70 by 140 centimetres"


@pytest.fixture(scope="module")
def speech_pool() -> Iterator[DecoderPool]:
    with DecoderPool(workers=1, limits=LIMITS) as pool:
        yield pool


def heard(recording: bytes, model: Path, tmp_path: Path, rules: RuleSet, pool: DecoderPool) -> Screening:
    note = tmp_path / "note"
    note.write_bytes(recording)
    return screen(
        note,
        rules=rules.with_parameters({"has_transcriber": True}),
        pool=pool,
        limits=LIMITS,
        transcriber=FolderTranscriber(pool, model),
    )


def test_recording_is_written_down_by_the_model_in_the_folder(
    tmp_path: Path, shipped_rules: RuleSet, speech_pool: DecoderPool
) -> None:
    model = write_model(tmp_path / "whisper-small", SENTENCE)
    found = heard(SPOKEN, model, tmp_path, shipped_rules, speech_pool)
    assert (found.verdict.kind.value, found.verdict.notes) == ("accept", ())
    assert found.reading is not None
    assert found.reading.source is Source.TRANSCRIPT
    assert found.reading.confident_text == SENTENCE
    assert found.facts["text.engine"] == "faster-whisper:whisper-small"


def test_speech_with_hardly_a_word_in_it_routes_as_a_picture_with_hardly_a_word_does(
    tmp_path: Path, shipped_rules: RuleSet, speech_pool: DecoderPool
) -> None:
    found = heard(SPOKEN, write_model(tmp_path / "curt", "towel"), tmp_path, shipped_rules, speech_pool)
    assert (found.verdict.kind.value, found.verdict.code) == ("text_only", "sparse_text")


def test_what_the_model_itself_takes_for_no_speech_is_not_text(
    tmp_path: Path, shipped_rules: RuleSet, speech_pool: DecoderPool
) -> None:
    model = write_model(tmp_path / "doubting", "Thank you for watching!", hears_speech=False)
    found = heard(SPOKEN, model, tmp_path, shipped_rules, speech_pool)
    assert found.reading is not None
    assert found.reading.confident_text == ""
    assert (found.verdict.kind.value, found.verdict.code) == ("text_only", "sparse_text")


@pytest.mark.parametrize("missing", ["model.bin", "config.json", "tokenizer.json"])
def test_folder_that_lacks_a_file_is_refused_by_name(missing: str, tmp_path: Path, speech_pool: DecoderPool) -> None:
    model = write_model(tmp_path / "whisper-small", SENTENCE)
    (model / missing).unlink()
    with pytest.raises(TranscriberInvalid, match=missing):
        FolderTranscriber(speech_pool, model)


def test_recording_without_a_sound_is_refused_before_the_model_hears_it(
    tmp_path: Path, shipped_rules: RuleSet, speech_pool: DecoderPool
) -> None:
    model = write_model(tmp_path / "whisper-small", SENTENCE)
    found = heard(media.wav(media.silence()), model, tmp_path, shipped_rules, speech_pool)
    assert (found.verdict.code, "audio.transcribed" in found.facts) == ("silent", False)


def test_model_that_cannot_be_loaded_is_no_fault_of_the_recording(
    tmp_path: Path, shipped_rules: RuleSet, speech_pool: DecoderPool
) -> None:
    model = write_model(tmp_path / "damaged", SENTENCE)
    (model / "model.bin").write_bytes(b"no model")
    found = heard(SPOKEN, model, tmp_path, shipped_rules, speech_pool)
    assert (found.verdict.kind.value, found.facts["audio.transcribed"]) == ("accept", False)
