"""What the engines of exported models share: opening a folder, padding batches. Never imports torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import RankwellError
from rankwell.inputs.batching import Sequences, take_sequences, token_batches
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig, read_encoder_config
from rankwell.models.checkpoints.exported import GRAPHS, Backend, ExportRecord, check_unchanged, read_export
from rankwell.models.shape import under_rule
from rankwell.rank.engines.engine import Logits

Grids = dict[str, NDArray[Any]]


@dataclass(frozen=True, eq=False)
class Exported:
    """An exported folder, opened; ``graph`` is the file with the graph."""

    record: ExportRecord
    graph: Path
    tokenizer: Tokenizer
    config: RankerConfig
    segments: int

    @property
    def outputs(self) -> int:
        """How many logits a pair has."""
        return 2 if self.record.head == "two_logits" else 1


def open_exported(folder: Path, backend: Backend, changes: Mapping[str, Any]) -> Exported:
    """Read everything but the graph; an error where ``changes`` ask for what the graph cannot follow."""
    record, config = read_export(folder, backend)
    config = config.changed(changes)
    check_unchanged(record, config)
    encoder = read_encoder_config(folder)
    if config.template.max_length > encoder.max_position_embeddings:
        limit = encoder.max_position_embeddings
        raise RankwellError(
            f"{folder}: a length of {config.template.max_length}, but the encoder has {limit} positions"
        )
    return Exported(record, folder / GRAPHS[backend], Tokenizer.open(folder), config, encoder.type_vocab_size)


def score_grids(
    sequences: Sequences, exported: Exported, budget: int, compute: Callable[[Grids], NDArray[Any]]
) -> Logits:
    """The logits in the order given; ``budget`` tokens (padding included) of like lengths are computed at a time."""
    sequences = under_rule(sequences, exported.record.attention)
    out = np.empty((len(sequences), exported.outputs), np.float32)
    for rows in token_batches(sequences.lengths(), budget):
        grids = pad_sequences(take_sequences(sequences, rows))
        out[rows] = compute({name: grids[name] for name in exported.record.inputs})
    return out


def pad_sequences(batch: Sequences) -> Grids:
    """The inputs of an exported graph, (B, L) each."""
    lengths = batch.lengths()
    real = np.arange(lengths.max()) < lengths[:, None]

    def spread(values: NDArray[Any], dtype: type[np.generic], padding: int | bool) -> NDArray[Any]:
        grid = np.full(real.shape, padding, dtype)
        grid[real] = values
        return grid

    return {
        "tokens": spread(batch.tokens, np.int32, 0),
        "segments": spread(batch.segments, np.int32, 0),
        "real": real,
        # Padding is no word's, and whole, so that under every rule it sees something; nothing sees it.
        "words": spread(batch.words, np.int32, -1),
        "last": spread(batch.last, np.bool_, True),
    }
