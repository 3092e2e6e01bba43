"""How much of a recording is speech."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import check_facts
from prefilters.limits import DecodeLimits
from prefilters.probes.speech import WINDOW_S, speech, speech_seconds
from tests import media as made

SAMPLES = Path(os.environ.get("SLUICEGATE_SAMPLES", Path(__file__).parents[2].parent / "shared" / "samples"))
LIMITS = DecodeLimits()


@pytest.mark.parametrize(
    ("scores", "windows"),
    [
        ([], 0),
        ([0.1] * 50, 0),
        ([0.9] * 50, 50),
        ([0.1] * 20 + [0.9] * 20 + [0.1] * 20, 20),
        ([0.9] * 3 + [0.1] * 20, 0),
        ([0.6] + [0.4] * 19 + [0.1], 20),
        ([0.4] * 50, 0),
    ],
    ids=["nothing", "none", "all", "a stretch", "a click", "ends later than it starts", "never starts"],
)
def test_runs_of_high_scores_are_speech(scores, windows):
    assert speech_seconds(scores) == pytest.approx(windows * WINDOW_S)


def test_counting_takes_no_more_windows_than_enough_needs():
    scores = iter([0.9] * 1_000)
    assert speech_seconds(scores, enough_s=1.0) == pytest.approx(1.0, abs=WINDOW_S)
    assert len(list(scores)) > 900


@pytest.mark.parametrize(
    "samples",
    [made.silence(2.0), made.tone(2.0), made.noise(2.0)],
    ids=["silence", "tone", "noise"],
)
def test_what_is_no_voice_is_no_speech(samples, tmp_path):
    (tmp_path / "note.wav").write_bytes(made.wav(samples))
    facts = speech(tmp_path / "note.wav", LIMITS)
    check_facts(facts)
    assert facts["audio.speech_s"] < 0.3
    assert facts["audio.listened_s"] == pytest.approx(2.0, abs=0.05)


@pytest.mark.parametrize("encode", [made.wav, made.mp3, made.webm, made.m4a], ids=lambda encode: encode.__name__)
def test_a_spoken_note_is_speech_in_every_format(encode, tmp_path):
    samples, rate = made.speech_samples()
    at = np.arange(0, len(samples), rate / 16_000)
    (tmp_path / "note").write_bytes(encode(np.interp(at, np.arange(len(samples)), samples), rate=16_000))
    facts = speech(tmp_path / "note", LIMITS)
    assert facts["audio.speech_s"] > 1.5
    assert facts["audio.speech_share"] > 0.4


def test_listening_stops_once_there_is_enough_speech_and_says_how_far_it_came():
    facts = speech(SAMPLES / "aud_speech.mp3", LIMITS, enough_s=1.0)
    assert facts["audio.speech_s"] == pytest.approx(1.0, abs=0.1)
    assert facts["audio.listened_s"] < 4.0
    assert speech(SAMPLES / "aud_speech.mp3", LIMITS, enough_s=None)["audio.listened_s"] == pytest.approx(8.56, abs=0.1)


def test_a_recording_without_a_sample_is_corrupt(tmp_path):
    (tmp_path / "note.mp3").write_bytes(b"\xff\xfb\x90\x64" + bytes(413))
    with pytest.raises(ProbeError) as caught:
        speech(tmp_path / "note.mp3", LIMITS)
    assert caught.value.status is DecodeStatus.CORRUPT


@pytest.mark.parametrize(
    ("name", "at_least_s", "at_most_s"),
    [
        ("aud_car_horn.wav", 0.0, 0.2),
        ("aud_music.ogg", 0.0, 0.2),
        ("aud_silent.mp3", 0.0, 0.0),
        ("aud_silent.wav", 0.0, 0.0),
        ("aud_speech.mp3", 6.0, 8.6),
        ("aud_speech.ogg", 5.0, 10.0),
        ("aud_speech_quiet.m4a", 1.5, 6.5),
        ("aud_speech_short.wav", 0.5, 1.2),
    ],
)
def test_sample_recordings_hold_this_much_speech(name, at_least_s, at_most_s):
    assert at_least_s <= speech(SAMPLES / name, LIMITS)["audio.speech_s"] <= at_most_s
