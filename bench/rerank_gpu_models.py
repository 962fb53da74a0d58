"""What ``rerank_gpu.py`` scores: models of the usual shapes with random weights, and pairs of the usual lengths.

Nothing is downloaded and nothing but numpy and torch is needed. The vocabulary is made up so that text and tokens are
each other's exact image: ``w123`` is a word's first piece, ``x456`` goes on with it (``##x456``). Peers can so be given
the same pairs as text.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from rankwell.inputs.batching import Sequences
from rankwell.models.encoder import CrossEncoder, Encoder, Layer
from rankwell.models.spec import EncoderConfig

VOCABULARY = 30522
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
CLS, SEP = 2, 3
FIRST_CONTINUATION = 22000
LONGEST = 180
SHAPES = {
    "bert-large": EncoderConfig(VOCABULARY, 1024, 24, 16, 4096),
    "bert-base": EncoderConfig(VOCABULARY, 768, 12, 12, 3072),
    "minilm-l6": EncoderConfig(VOCABULARY, 384, 6, 12, 1536),
    "smoke": EncoderConfig(VOCABULARY, 32, 3, 1, 64),
}


def make_pairs(count: int, seed: int = 0) -> Sequences:
    """``[CLS] Q [SEP] D [SEP]`` of 32 to 180 tokens, 140 in the mean; a piece in five goes on with a word."""
    rng = np.random.default_rng(seed)
    lengths = np.clip(rng.normal(141, 32, count).round(), 32, LONGEST).astype(np.int64)
    queries = np.clip(rng.poisson(8, count), 2, 24)
    ends = np.cumsum(lengths)
    begins = ends - lengths
    positions = (np.arange(ends[-1]) - np.repeat(begins, lengths)).astype(np.int32)
    inner = np.ones(len(positions), np.bool_)
    for special in (begins, begins + queries + 1, ends - 1):
        inner[special] = False
    continues = inner & np.concatenate([[False], inner[:-1]]) & (rng.random(len(inner)) < 0.2)
    starts = np.cumsum(~continues)
    words = (starts - np.repeat(starts[begins], lengths)).astype(np.int32)
    last = np.concatenate([~continues[1:], [True]])
    tokens = np.where(
        continues,
        rng.integers(FIRST_CONTINUATION, VOCABULARY, len(inner)),
        rng.integers(len(SPECIAL), FIRST_CONTINUATION, len(inner)),
    ).astype(np.int32)
    tokens[~inner] = SEP
    tokens[begins] = CLS
    segments = (positions > np.repeat(queries + 1, lengths)).astype(np.int8)
    return Sequences(tokens, segments, positions, words, last, ends)


def pieces() -> list[str]:
    """The vocabulary."""
    words = [f"w{number}" for number in range(len(SPECIAL), FIRST_CONTINUATION)]
    return [*SPECIAL, *words, *(f"##x{number}" for number in range(FIRST_CONTINUATION, VOCABULARY))]


def texts(sequences: Sequences) -> list[tuple[str, str]]:
    """The pairs as text."""
    written = [f" {piece}" if not piece.startswith("##") else piece[2:] for piece in pieces()]
    found = []
    for tokens in np.split(sequences.tokens, sequences.ends[:-1]):
        border = int(np.flatnonzero(tokens == SEP)[0])
        query, document = tokens[1:border].tolist(), tokens[border + 1 : -1].tolist()
        found.append(("".join(written[t] for t in query).strip(), "".join(written[t] for t in document).strip()))
    return found


def random_model(config: EncoderConfig, device: str) -> CrossEncoder:
    """A model whose scores depend on its input: weights that keep the variance, queries and keys that choose."""
    torch.manual_seed(0)
    with torch.device(device):
        model = CrossEncoder(Encoder(config), 1, pooler=True)
    with torch.inference_mode():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=parameter.shape[1] ** -0.5)
        for layer in model.encoder.layers:
            assert isinstance(layer, Layer)
            layer.qkv.weight[: 2 * config.hidden_size] *= 1.5
        for table in (model.encoder.segments, model.encoder.positions):
            assert isinstance(table, nn.Embedding)
            table.weight *= 0.3
    return model.eval()


def flops(config: EncoderConfig, lengths: NDArray[np.int64]) -> tuple[float, float]:
    """Floating-point operations for real tokens: those computed (the last layer for ``[CLS]`` alone), and those of the
    whole model, every layer for every token.
    """
    hidden, inner, layers = config.hidden_size, config.intermediate_size, config.num_hidden_layers
    tokens, pairs, squares = float(lengths.sum()), float(len(lengths)), float((lengths**2).sum())
    a_token = 2 * (4 * hidden**2 + 2 * hidden * inner)
    a_layer = a_token * tokens + 4 * hidden * squares
    last = 4 * hidden**2 * tokens + 4 * hidden * tokens + (a_token - 4 * hidden**2) * pairs
    head = 2 * hidden**2 * pairs
    return (layers - 1) * a_layer + last + head, layers * a_layer + head


def transformers_model(model: CrossEncoder, device: str) -> Any:
    """The same weights as transformers' BertForSequenceClassification, in fp32."""
    import transformers

    config = model.encoder.config
    described: Any = transformers.BertConfig
    kind: Any = transformers.BertForSequenceClassification
    with torch.device(device):
        theirs = kind(
            described(
                vocab_size=config.vocab_size,
                hidden_size=config.hidden_size,
                num_hidden_layers=config.num_hidden_layers,
                num_attention_heads=config.num_attention_heads,
                intermediate_size=config.intermediate_size,
                num_labels=1,
            )
        )
    theirs.eval()
    state = {name: tensor.float() for name, tensor in model.state_dict().items()}
    renamed = {
        f"bert.embeddings.{theirs_}.weight": state[f"encoder.{ours}.weight"]
        for theirs_, ours in {
            "word_embeddings": "tokens",
            "position_embeddings": "positions",
            "token_type_embeddings": "segments",
        }.items()
    }
    for part in ("weight", "bias"):
        renamed[f"bert.embeddings.LayerNorm.{part}"] = state[f"encoder.norm.{part}"]
        renamed[f"bert.pooler.dense.{part}"] = state[f"pooler.{part}"]
        renamed[f"classifier.{part}"] = state[f"head.{part}"]
        for number in range(config.num_hidden_layers):
            ours, new = f"encoder.layers.{number}.", f"bert.encoder.layer.{number}."
            for name, own in zip(("query", "key", "value"), state[f"{ours}qkv.{part}"].chunk(3), strict=True):
                renamed[f"{new}attention.self.{name}.{part}"] = own
            renamed[f"{new}attention.output.dense.{part}"] = state[f"{ours}mix.{part}"]
            renamed[f"{new}attention.output.LayerNorm.{part}"] = state[f"{ours}mix_norm.{part}"]
            renamed[f"{new}intermediate.dense.{part}"] = state[f"{ours}inner.{part}"]
            renamed[f"{new}output.dense.{part}"] = state[f"{ours}outer.{part}"]
            renamed[f"{new}output.LayerNorm.{part}"] = state[f"{ours}outer_norm.{part}"]
    missing, unexpected = theirs.load_state_dict(renamed, strict=False)
    wrong = [name for name in missing if "position_ids" not in name] + list(unexpected)
    if wrong:
        raise RuntimeError(f"transformers names its weights otherwise: {wrong[:4]}")
    return theirs


def save_checkpoint(theirs: Any, folder: Path) -> None:
    """A folder that CrossEncoder loads: the model and a tokenizer for the made-up vocabulary."""
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    theirs.save_pretrained(folder)
    vocabulary = pieces()
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    tokenizer = BertWordPieceTokenizer({piece: number for number, piece in enumerate(vocabulary)}, lowercase=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
