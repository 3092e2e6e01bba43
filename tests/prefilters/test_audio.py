"""What a recording is measured to be: by what was decoded, never by what its header says."""

from __future__ import annotations

import io
import os
import random
import struct
from pathlib import Path

import av
import numpy as np
import pytest

from prefilters.errors import DecodeStatus, ProbeError
from prefilters.facts import check_facts
from prefilters.limits import DecodeLimits
from prefilters.pool import DecoderPool
from prefilters.probes import audio
from tests import media as made

SAMPLES = Path(os.environ.get("SLUICEGATE_SAMPLES", Path(__file__).parents[2].parent / "shared" / "samples"))
LIMITS = DecodeLimits()


@pytest.fixture
def saved(tmp_path):
    def save(data: bytes) -> Path:
        path = tmp_path / "upload"
        path.write_bytes(data)
        return path

    return save


def _data_size(wav: bytes, size: int) -> bytes:
    at = wav.index(b"data") + 4
    return wav[:at] + struct.pack("<I", size) + wav[at + 4 :]


@pytest.mark.parametrize("coding", ["u8", "s16", "s24", "s32", "f32", "f64", "alaw", "mulaw"])
def test_every_coding_of_wav_gives_the_same_length_and_loudness(coding, saved):
    facts = audio.samples(saved(made.wav(made.tone(1.5, peak_dbfs=-6.0), coding=coding)), LIMITS)
    check_facts(facts)
    assert facts["audio.duration_s"] == pytest.approx(1.5, abs=0.01)
    assert facts["audio.peak_dbfs"] == pytest.approx(-6.0, abs=0.4)
    assert facts["audio.rms_dbfs"] == pytest.approx(-9.0, abs=0.4)
    assert facts["audio.clipping_share"] == 0.0
    assert facts["audio.cut"] is False


@pytest.mark.parametrize(
    ("build", "codec"),
    [
        (made.aiff, "pcm_s16be"),
        (made.flac, "flac"),
        (made.mp3, "mp3"),
        (made.m4a, "aac"),
        (made.ogg, "vorbis"),
        (made.opus, "opus"),
        (made.webm, "opus"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_every_container_is_decoded(build, codec, saved):
    path = saved(build(made.tone(2.0)))
    header, facts = audio.header(path, LIMITS), audio.samples(path, LIMITS)
    check_facts(header)
    check_facts(facts)
    assert header["audio.codec"] == codec
    assert header["audio.channels"] in (1, 2)
    assert facts["decode.status"] == "ok"
    assert facts["audio.duration_s"] == pytest.approx(2.0, abs=0.1)
    assert facts["audio.peak_dbfs"] == pytest.approx(-7.5, abs=3.0)  # Opus and AAC overshoot, stereo halves


def test_a_browser_recording_without_duration_is_measured(saved):
    path = saved(made.webm(made.tone(2.5), live=True))
    assert "audio.declared_s" not in audio.header(path, LIMITS)
    facts = audio.samples(path, LIMITS)
    assert facts["audio.duration_s"] == pytest.approx(2.5, abs=0.1)
    assert "audio.cut" not in facts


@pytest.mark.parametrize("build", [made.wav, made.aiff, made.mp3, made.flac], ids=lambda build: build.__name__)
def test_a_recording_cut_off_is_seen_by_the_length_it_declares(build, saved):
    whole = build(made.tone(6.0))
    facts = audio.samples(saved(whole[: len(whole) // 2]), LIMITS)
    assert facts["audio.declared_s"] == pytest.approx(6.0, abs=0.1)
    assert 1.5 < facts["audio.duration_s"] < 4.5
    assert facts["audio.cut"] is True


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_streamed_wav_declares_nothing_and_is_not_cut(size, saved):
    facts = audio.samples(saved(_data_size(made.wav(made.tone(2.0)), size)), LIMITS)
    assert facts["audio.duration_s"] == pytest.approx(2.0, abs=0.01)
    assert "audio.declared_s" not in facts
    assert "audio.cut" not in facts


def test_a_wav_that_lies_about_its_size_is_measured_by_what_is_there(saved):
    facts = audio.samples(saved(_data_size(made.wav(made.tone(0.1)), 16_000_000)), LIMITS)
    assert facts["audio.declared_s"] == pytest.approx(500.0)
    assert facts["audio.duration_s"] == pytest.approx(0.1, abs=0.01)
    assert facts["audio.cut"] is True


def test_an_m4a_cut_before_its_index_is_called_truncated(saved):
    whole = made.m4a()
    with pytest.raises(ProbeError) as caught:
        audio.samples(saved(whole[: len(whole) * 6 // 10]), LIMITS)
    assert caught.value.status is DecodeStatus.TRUNCATED


def test_an_mp3_behind_a_large_tag_and_junk_is_decoded(saved):
    tag = b"ID3\x03\x00\x00\x00\x01\x7f\x7f" + bytes(32_767)
    assert audio.samples(saved(tag + made.mp3(made.tone(2.0))), LIMITS)["audio.duration_s"] == pytest.approx(2, abs=0.1)
    junk = b"\x00\x13junk\x91" * 30
    assert audio.samples(saved(junk + made.mp3(made.tone(2.0))), LIMITS)["audio.duration_s"] == pytest.approx(
        2, abs=0.2
    )


@pytest.mark.parametrize(
    ("samples", "peak"),
    [(made.silence(1.0), -120.0), (made.noise(3.0, peak_dbfs=-75.0), -75.0), (made.noise(1.0, peak_dbfs=-28.0), -28.0)],
    ids=["digital silence", "hiss", "quiet"],
)
def test_silence_is_a_number_that_a_rule_can_compare(samples, peak, saved):
    facts = audio.samples(saved(made.wav(samples, coding="s24")), LIMITS)
    assert facts["audio.peak_dbfs"] == pytest.approx(peak, abs=1.0)


def test_clipping_is_the_share_of_samples_at_full_scale(saved):
    square = np.sign(made.tone(1.0))
    assert audio.samples(saved(made.wav(square)), LIMITS)["audio.clipping_share"] > 0.95
    assert audio.samples(saved(made.wav(square * 0.9)), LIMITS)["audio.clipping_share"] == 0.0


def test_samples_that_are_no_numbers_count_as_silence(saved):
    facts = audio.samples(saved(made.wav(made.tone(1.0), coding="f32")), LIMITS)
    assert facts["audio.peak_dbfs"] < 0
    wav = made.wav(made.silence(1.0), coding="f32")
    at = wav.index(b"data") + 8
    poisoned = wav[:at] + struct.pack("<f", float("nan")) * ((len(wav) - at) // 4)
    assert audio.samples(saved(poisoned), LIMITS)["audio.peak_dbfs"] == -120.0


def test_decoding_ends_just_past_the_longest_length(saved):
    facts = audio.samples(saved(made.wav(made.tone(8.0))), DecodeLimits(max_audio_s=2.0))
    assert 2.0 < facts["audio.duration_s"] < 4.5
    assert "audio.cut" not in facts


def test_a_recording_too_long_for_the_time_at_hand_is_measured_by_packet_times(saved):
    facts = audio.samples(saved(made.mp3(made.tone(60.0))), DecodeLimits(decode_wall_s=0.0001))
    assert facts["audio.duration_s"] == pytest.approx(60.0, abs=0.5)
    assert "audio.cut" not in facts


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", DecodeStatus.EMPTY),
        (made.wav(made.silence(0.0)), DecodeStatus.EMPTY),
        (b"RIFF\x24\x00\x00\x00WAVEjunk", DecodeStatus.CORRUPT),
        (b"OggS" + bytes(200), DecodeStatus.CORRUPT),
        (b"fLaC" + bytes(200), DecodeStatus.CORRUPT),
        (b"\xff\xfb\x90\x64" + bytes(413), DecodeStatus.CORRUPT),
        (b"#EXTM3U\nfile:///etc/passwd\n", DecodeStatus.CORRUPT),
        (b"ffconcat version 1.0\nfile /etc/passwd\n", DecodeStatus.CORRUPT),
    ],
    ids=lambda value: value if isinstance(value, str) else repr(value[:16]),
)
def test_what_cannot_be_decoded_says_why(data, status, saved):
    with pytest.raises(ProbeError) as caught:
        audio.samples(saved(data), LIMITS)
    assert caught.value.status in (status, DecodeStatus.TRUNCATED)


def test_a_container_without_an_audio_stream_is_no_audio(saved):
    with pytest.raises(ProbeError) as caught:
        audio.header(saved(made.mp4_video().replace(b"vide", b"text")), LIMITS)
    assert caught.value.status is DecodeStatus.NO_AUDIO


def test_a_decoder_that_is_not_on_the_list_is_never_opened(saved):
    out = io.BytesIO()
    with av.open(out, "w", format="wav") as container:
        stream = container.add_stream("g722", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 16_000), np.int16), format="s16", layout="mono")
        frame.sample_rate = 16_000
        for packet in (*stream.encode(frame), *stream.encode(None)):
            container.mux(packet)
    for probe in (audio.header, audio.samples):
        with pytest.raises(ProbeError) as caught:
            probe(saved(out.getvalue()), LIMITS)
        assert caught.value.status is DecodeStatus.CORRUPT


def test_damage_of_any_kind_ends_in_facts_or_a_reason(tmp_path):
    chance = random.Random(4)
    whole = [
        build(made.tone(0.5)) for build in (made.wav, made.aiff, made.mp3, made.m4a, made.ogg, made.flac, made.webm)
    ]
    failed = []
    with DecoderPool(workers=1, limits=LIMITS) as pool:
        for number in range(140):
            data = bytearray(whole[number % len(whole)])
            if number % 2:
                del data[chance.randrange(1, len(data)) :]
            for _ in range(chance.choice((0, 1, 20, 200))):
                data[chance.randrange(len(data))] = chance.randrange(256)
            (tmp_path / "hostile").write_bytes(data)
            try:
                check_facts(pool.run(audio.samples, tmp_path / "hostile", LIMITS))
            except ProbeError as error:
                failed.append(error)
    assert {error.status for error in failed} <= {DecodeStatus.CORRUPT, DecodeStatus.TRUNCATED, DecodeStatus.NO_AUDIO}
    assert [
        error for error in failed if error.__cause__
    ] == []  # the probe's own words, not faults that the pool caught


def test_mono_samples_come_at_the_rate_asked_for(saved):
    pieces = list(audio.mono(saved(made.ogg(made.tone(2.0, rate=44_100), rate=44_100)), LIMITS, rate_hz=16_000))
    whole = np.concatenate(pieces)
    assert whole.dtype == np.float32
    assert len(whole) == pytest.approx(32_000, abs=1_000)
    assert 0.3 < np.abs(whole).max() < 0.7


@pytest.mark.parametrize(
    ("name", "duration_s", "peak_dbfs"),
    [
        ("aud_car_horn.wav", 4.0, -9.2),
        ("aud_music.ogg", 3.03, -3.6),
        ("aud_opus.webm", 1.48, -3.3),
        ("aud_silent.mp3", 1.07, -120.0),
        ("aud_silent.wav", 1.0, -120.0),
        ("aud_speech.mp3", 8.56, -1.6),
        ("aud_speech.ogg", 9.99, -11.8),
        ("aud_speech_quiet.m4a", 6.44, -27.7),
        ("aud_speech_short.wav", 1.12, -1.3),
    ],
)
def test_sample_recordings_measure_as_expected(name, duration_s, peak_dbfs):
    facts = audio.samples(SAMPLES / name, LIMITS)
    assert facts["decode.status"] == "ok"
    assert facts["audio.duration_s"] == pytest.approx(duration_s, abs=0.1)
    assert facts["audio.peak_dbfs"] == pytest.approx(peak_dbfs, abs=0.5)
