"""The torch engine: unpadded tokens, like lengths together, the last layer for ``[CLS]`` alone. Exact in fp32."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rankwell.inputs.batching import take_sequences, token_batches
from rankwell.inputs.templates import Sequences
from rankwell.models.attention import make_layout
from rankwell.models.checkpoints import load_checkpoint
from rankwell.models.config import AttentionRule
from rankwell.models.encoder import CrossEncoder
from rankwell.rank.engine import Loaded, Logits

CPU_BUDGET = 2048
GPU_BUDGET = 1 << 17


def load(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> Loaded:
    """A checkpoint folder on a torch device; ``options`` are those of :class:`TorchEngine`."""
    model, tokenizer, config = load_checkpoint(folder, **changes)
    engine = TorchEngine(model, config.attention, **options)
    return Loaded(engine, tokenizer, config, model.encoder.config.type_vocab_size)


class TorchEngine:
    """A model on one device. ``budget`` is how many tokens (padding included) are computed at a time."""

    def __init__(
        self,
        model: CrossEncoder,
        rule: AttentionRule,
        *,
        device: str | None = None,
        dtype: torch.dtype | None = None,
        budget: int | None = None,
    ):
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        on_gpu = self.device.type != "cpu"
        self.model = model.eval().to(self.device, dtype or (torch.bfloat16 if on_gpu else torch.float32))
        self.rule = rule
        self.budget = budget or (GPU_BUDGET if on_gpu else CPU_BUDGET)
        self._halved = False

    @torch.inference_mode()
    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engine.Engine`."""
        out = np.empty((len(sequences), self.model.head.out_features), np.float32)
        for rows in token_batches(sequences.lengths(), self.budget):
            out[rows] = self._compute(take_sequences(sequences, rows))
        return out

    def _compute(self, batch: Sequences) -> Logits:
        try:
            return self._forward(batch)
        except torch.cuda.OutOfMemoryError:
            if self._halved:
                raise
            # Once, and loudly: a budget that is too large twice is the user's to lower.
            self._halved = True
            self.budget //= 2
            warnings.warn(f"out of GPU memory; going on with {self.budget:,} tokens at a time", stacklevel=2)
            torch.cuda.empty_cache()
            half = max(1, len(batch) // 2)
            parts = (np.arange(half), np.arange(half, len(batch)))
            return np.concatenate([self._forward(take_sequences(batch, part)) for part in parts if len(part)])

    def _forward(self, batch: Sequences) -> Logits:
        def move(values: np.ndarray, dtype: torch.dtype) -> torch.Tensor:
            return torch.from_numpy(values).to(self.device, dtype, non_blocking=True)

        layout = make_layout(
            move(batch.words, torch.int32), move(batch.last, torch.bool), move(batch.ends, torch.int64), self.rule
        )
        logits = self.model(
            move(batch.tokens, torch.int64),
            move(batch.segments, torch.int64),
            move(batch.positions, torch.int64),
            layout,
        )
        found: Logits = logits.float().cpu().numpy()
        return found
