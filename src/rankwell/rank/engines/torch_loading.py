"""Loading with the torch backend: a checkpoint of a ranker, or of a judge of entailment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.rank.engines.engine import Loaded
from rankwell.rank.engines.entailment import is_entailment, load_entailment
from rankwell.rank.engines.torch_engine import TorchEngine


def load(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> Loaded:
    """A checkpoint folder on a torch device; ``options`` are those of :class:`TorchEngine`."""
    if is_entailment(folder):
        return load_entailment(folder, changes, options)
    model, tokenizer, config = load_checkpoint(folder, **changes)
    engine = TorchEngine(model, config.attention, **options)
    return Loaded(engine, tokenizer, config, model.encoder.config.type_vocab_size)
