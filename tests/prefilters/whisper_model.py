"""A Whisper model in CTranslate2's form, made by hand: whatever it hears, it says one given sentence.

Every layer adds nothing, so what the decoder sees is its input alone: the embedding of the last token, and of the
position a vector that points at the token to come. The package that runs it is the real one; only the weights are not.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import WhisperSpec
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

_WIDTH = 128
_POSITIONS = 448
_FRAMES = 1500
_MELS = 80
_PULL = 20.0
"""How much longer the position's vector is than a token's: by so much its token is the likelier one."""
_CONTROL = (
    "<|endoftext|>",
    "<|startoftranscript|>",
    "<|translate|>",
    "<|transcribe|>",
    "<|startoflm|>",
    "<|startofprev|>",
    "<|nospeech|>",
    "<|notimestamps|>",
)
_TIMES = tuple(f"<|{step * 0.02:.2f}|>" for step in range(1501))


def write_model(folder: Path, sentence: str, *, seconds: float = 2.0, hears_speech: bool = True) -> Path:
    """A model in `folder` that takes the first `seconds` of anything for `sentence`; by its own word speech, or not."""
    folder.mkdir(parents=True, exist_ok=True)
    words = [f"Ġ{word}" for word in sentence.split()]
    spoken = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *dict.fromkeys(words)]
    vocabulary = [*spoken, *_CONTROL, *_TIMES]
    _write_tokenizer(folder / "tokenizer.json", spoken)

    number = {token: place for place, token in enumerate(vocabulary)}
    embeddings = np.random.default_rng(7).standard_normal((len(vocabulary), _WIDTH)).astype(np.float32)
    embeddings /= np.linalg.norm(embeddings, axis=1, keepdims=True)
    script = ["<|0.00|>", *words, f"<|{seconds:.2f}|>", "<|endoftext|>"]
    positions = np.stack(
        [_PULL * embeddings[number[script[min(place, len(script) - 1)]]] for place in range(_POSITIONS)]
    )
    if not hears_speech:
        positions[0] += 2 * _PULL * embeddings[number["<|nospeech|>"]]
    _write_weights(folder, vocabulary, embeddings, positions)
    return folder


def _write_tokenizer(path: Path, spoken: list[str]) -> None:
    tokenizer = Tokenizer(models.BPE(vocab={token: place for place, token in enumerate(spoken)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (*_CONTROL, *_TIMES)])
    tokenizer.save(str(path))


def _write_weights(
    folder: Path, vocabulary: list[str], embeddings: NDArray[np.float32], positions: NDArray[np.float32]
) -> None:
    spec = WhisperSpec(num_encoder_layers=1, num_encoder_heads=2, num_decoder_layers=1, num_decoder_heads=2)
    encoder, decoder = spec.encoder, spec.decoder
    for convolution, channels in ((encoder.conv1, _MELS), (encoder.conv2, _WIDTH)):
        convolution.weight, convolution.bias = _zeros(_WIDTH, channels, 3), _zeros(_WIDTH)
    encoder.position_encodings.encodings = _zeros(_FRAMES, _WIDTH)
    decoder.position_encodings.encodings = positions
    decoder.embeddings.weight = decoder.projection.weight = embeddings
    for norm, scale in ((encoder.layer_norm, 1.0), (decoder.layer_norm, 3.0)):
        norm.gamma, norm.beta = np.full(_WIDTH, scale, np.float32), _zeros(_WIDTH)
    for layer in (*encoder.layer, *decoder.layer):
        _silence(layer.self_attention, (3 * _WIDTH, _WIDTH))
        _silence(layer.ffn, (4 * _WIDTH, _WIDTH), inner=4 * _WIDTH)
    for layer in decoder.layer:
        _silence(layer.attention, (_WIDTH, 2 * _WIDTH, _WIDTH))
    spec.register_vocabulary(vocabulary)
    for name, value in (
        ("suppress_ids", []),
        ("suppress_ids_begin", []),
        ("lang_ids", []),
        ("alignment_heads", [(0, 0)]),
    ):
        setattr(spec.config, name, value)
    spec.validate()
    spec.save(str(folder))


def _silence(block: Any, widths: tuple[int, ...], *, inner: int = _WIDTH) -> None:
    """Let a block of a layer add nothing. `widths`: of what each of its linear parts gives; `inner`: what the last takes."""
    block.layer_norm.gamma, block.layer_norm.beta = np.ones(_WIDTH, np.float32), _zeros(_WIDTH)
    parts = block.linear if hasattr(block, "linear") else [block.linear_0, block.linear_1]
    for part, width in zip(parts, widths, strict=True):
        takes = inner if part is parts[-1] else _WIDTH
        part.weight, part.bias = _zeros(width, takes), _zeros(width)


def _zeros(*shape: int) -> NDArray[np.float32]:
    return np.zeros(shape, np.float32)
