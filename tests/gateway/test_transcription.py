"""Speech written down: by a real HTTP endpoint, on a running service; and what is never sent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from gateway.transcription import EndpointTranscriber, TranscriptionEndpoint
from prefilters import DecodeLimits, DecoderPool, ProbeError
from prefilters.media import sniff
from prefilters.transcript import MAX_TRANSCRIPT_CHARS, TranscriptionFailed
from tests import media
from tests.gateway.running import Service, command, running, settled
from tests.gateway.transcriber_stub import SPOKEN, TranscriberStub, said, transcriber_server
from tests.prefilters.whisper_model import write_model

NOTE = media.speech("This is a linen bath towel, stone washed.")


@pytest.fixture(scope="module")
def stub() -> Iterator[TranscriberStub]:
    with transcriber_server() as started:
        yield started


@pytest.fixture(scope="module")
def listening(tmp_path_factory: pytest.TempPathFactory, stub: TranscriberStub) -> Iterator[Service]:
    """A service that has speech written down at the stub."""
    settings = {"transcribe_url": stub.url, "transcribe_model": "heard-1", "transcribe_api_key": "spoken-secret"}
    with running("up", tmp_path_factory.mktemp("listening"), **settings) as service:
        yield service


@pytest.fixture
def caller(listening: Service, stub: TranscriberStub) -> Iterator[httpx.Client]:
    stub.script()
    with listening.client() as client:
        yield client


def submitted(client: httpx.Client, title: str, recording: bytes, mode: str = "generate") -> dict[str, Any]:
    item = (None, json.dumps({"title": title, "mode": mode}), "application/json")
    answer = client.post("/v1/items", files={"item": item, "p1": ("note.wav", recording, "audio/wav")})
    return settled(client, answer.json()["id"])


def test_spoken_note_is_written_down_and_becomes_copy_that_names_it(
    caller: httpx.Client, stub: TranscriberStub, name: str
) -> None:
    item = submitted(caller, f"Towel {name}", NOTE)
    (file,) = item["files"]
    assert (item["status"], item["route"], file["verdict"], file["notes"]) == ("succeeded", "agent", "accept", [])
    assert (file["facts"]["text.source"], file["facts"]["text.engine"]) == ("transcript", "heard-1")
    assert file["facts"]["text.tokens"] >= 4
    grounded = [claim["claim"] for claim in item["result"]["grounded_in"] if claim["source"] == "p1"]
    assert any(SPOKEN[:40] in claim for claim in grounded)
    (heard,) = stub.requests
    assert (heard.path, heard.authorization) == ("/v1/audio/transcriptions", "Bearer spoken-secret")
    assert heard.fields == {"model": "heard-1", "response_format": "json"}


def test_what_is_sent_was_rebuilt_from_the_samples(caller: httpx.Client, stub: TranscriberStub, name: str) -> None:
    tagged = (
        NOTE
        + b"LIST"
        + (4 + 8 + 24).to_bytes(4, "little")
        + b"INFOICMT"
        + (24).to_bytes(4, "little")
        + b"private: recorded at hom"
    )
    submitted(caller, f"Towel {name}", tagged)
    (heard,) = stub.requests
    assert sniff(heard.sound).format == "ogg"
    assert heard.file_name == "recording.ogg"
    assert b"private" not in heard.sound


@pytest.mark.parametrize("recording", [media.wav(media.silence()), media.wav(media.noise()), media.wav(media.tone())])
def test_recording_without_speech_is_never_sent(
    recording: bytes, caller: httpx.Client, stub: TranscriberStub, name: str
) -> None:
    item = submitted(caller, f"Towel {name}", recording)
    assert item["files"][0]["verdict"] in {"reject", "text_only"}
    assert stub.requests == []


def test_transcript_of_a_word_is_routed_like_sparse_print(
    caller: httpx.Client, stub: TranscriberStub, name: str
) -> None:
    stub.script(said("Um."))
    item = submitted(caller, f"Towel {name}", NOTE)
    assert (item["route"], item["decision"]["reason"]["code"]) == ("text_only", "sparse_text")
    assert item["decision"]["reason"]["rule"] == "edge.sparse_speech"
    assert "write down" in item["decision"]["reason"]["user_message"]["en"]


def test_transcriber_that_fails_costs_no_item_and_is_noted(
    caller: httpx.Client, stub: TranscriberStub, name: str
) -> None:
    stub.script((401, b"{}"))
    item = submitted(caller, f"Towel {name}", NOTE, mode="prepare")
    (file,) = item["files"]
    assert (item["status"], file["verdict"], file["notes"]) == ("ready", "accept", ["no_transcriber"])
    assert file["facts"]["audio.transcribed"] is False
    assert len(stub.requests) == 1


def test_payload_carries_the_transcript(caller: httpx.Client, stub: TranscriberStub, name: str) -> None:
    item = submitted(caller, f"Towel {name}", NOTE, mode="prepare")
    payload = caller.get(f"/v1/items/{item['id']}/llm-payload").json()
    assert "seventy by one hundred" in payload["content"][0]["text"]
    assert len(stub.requests) == 1


def test_readiness_says_who_writes_speech_down(caller: httpx.Client, client: httpx.Client) -> None:
    there, missing = (c.get("/readyz").json()["checks"]["transcriber"] for c in (caller, client))
    assert (there["status"], there["engine"]) == ("ok", "heard-1")
    assert (missing["status"], missing["engine"]) == ("missing", None)


def test_without_a_transcriber_speech_is_accepted_and_noted(client: httpx.Client, name: str) -> None:
    item = submitted(client, f"Towel {name}", NOTE)
    assert (item["files"][0]["verdict"], item["files"][0]["notes"]) == ("accept", ["no_transcriber"])


# --- the client by itself ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pool() -> Iterator[DecoderPool]:
    with DecoderPool(workers=1, limits=DecodeLimits()) as started:
        yield started


@pytest.fixture
def note(tmp_path: Path) -> Path:
    path = tmp_path / "note"
    path.write_bytes(NOTE)
    return path


def transcriber(pool: DecoderPool, url: str, naps: list[float] | None = None) -> EndpointTranscriber:
    endpoint = TranscriptionEndpoint(url=url, model="heard-1", api_key=None, timeout_s=10.0)
    return EndpointTranscriber(pool, endpoint, sleep=(naps if naps is not None else []).append)


def test_what_a_repeat_can_mend_is_repeated(pool: DecoderPool, note: Path, stub: TranscriberStub) -> None:
    stub.script((503, b""), (200, b"not JSON"), said("Linen towel"))
    naps: list[float] = []
    assert transcriber(pool, stub.url, naps).transcribe(note, DecodeLimits()).confident_text == "Linen towel"
    assert (len(stub.requests), len(naps)) == (3, 2)


@pytest.mark.parametrize(
    ("answers", "requests"),
    [
        ([(400, b"{}")], 1),
        ([(403, b"{}")], 1),
        ([(500, b"secret of the provider")] * 3, 3),
        ([(200, b'{"text": 5}')] * 3, 3),
        ([(200, b"[" * 100_000)] * 3, 3),
        ([(200, b'{"text": "' + b"a" * 5_000_000 + b'"}')] * 3, 3),
    ],
    ids=["bad request", "forbidden", "down", "no text", "nested without end", "endless"],
)
def test_answer_that_is_none_ends_in_one_kind_of_error(
    answers: list[tuple[int, bytes]], requests: int, pool: DecoderPool, note: Path, stub: TranscriberStub
) -> None:
    stub.script(*answers)
    with pytest.raises(TranscriptionFailed) as failed:
        transcriber(pool, stub.url).transcribe(note, DecodeLimits())
    assert len(stub.requests) == requests
    assert "secret" not in failed.value.public


def test_endpoint_that_is_not_there_is_unreachable(pool: DecoderPool, note: Path) -> None:
    with pytest.raises(TranscriptionFailed, match="cannot be reached"):
        transcriber(pool, "http://127.0.0.1:9/v1").transcribe(note, DecodeLimits())


def test_very_long_transcript_is_cut(pool: DecoderPool, note: Path, stub: TranscriberStub) -> None:
    stub.script(said("linen towel " * 10_000))
    reading = transcriber(pool, stub.url).transcribe(note, DecodeLimits())
    assert MAX_TRANSCRIPT_CHARS - 20 < len(reading.confident_text) <= MAX_TRANSCRIPT_CHARS


def test_damaged_recording_is_not_sent(pool: DecoderPool, tmp_path: Path, stub: TranscriberStub) -> None:
    stub.script()
    path = tmp_path / "broken"
    path.write_bytes(b"RIFF\x24\0\0\0WAVEfmt ")
    with pytest.raises(ProbeError):
        transcriber(pool, stub.url).transcribe(path, DecodeLimits())
    assert stub.requests == []


# --- a model in a folder ----------------------------------------------------------------------------------------------


def test_folder_without_a_model_is_refused_at_the_start(tmp_path: Path) -> None:
    ended = command("serve", data_dir=tmp_path / "data", transcribe_folder=tmp_path)
    assert ended.returncode == 2
    assert "faster-whisper" in ended.stderr
    assert "Traceback" not in ended.stderr


def test_note_is_written_down_by_the_model_in_the_folder_and_becomes_copy_that_names_it(tmp_path: Path) -> None:
    model = write_model(tmp_path / "whisper-small", "linen bath towel, stone washed, 70 by 140 centimetres")
    with running("up", tmp_path / "data", transcribe_folder=model) as service, service.client() as client:
        item = submitted(client, "Towel", NOTE)
        checks = client.get("/readyz").json()["checks"]
    (file,) = item["files"]
    assert (item["status"], item["route"], file["notes"]) == ("succeeded", "agent", [])
    assert (file["facts"]["text.source"], file["facts"]["text.engine"]) == (
        "transcript",
        "faster-whisper:whisper-small",
    )
    assert any("stone washed" in claim["claim"] for claim in item["result"]["grounded_in"] if claim["source"] == "p1")
    assert "faster-whisper:whisper-small" in json.dumps(checks)


def test_two_transcribers_are_one_too_many(tmp_path: Path) -> None:
    ended = command(
        "serve", data_dir=tmp_path / "data", transcribe_folder=tmp_path, transcribe_url="http://127.0.0.1:9/v1"
    )
    assert (ended.returncode, "choose one" in ended.stderr) == (2, True)
