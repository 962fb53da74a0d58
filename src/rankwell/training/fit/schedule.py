"""How long, in which batches and at which rates models are trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.models.devices import chosen_device
from rankwell.training.fit.split import LEAST_TO_FIT, Part
from rankwell.training.stage_options.first_stages import EncoderOptions

LEAST_STEPS, LEAST_BATCH, CPU_EPOCHS = 20, 128, 3.0
"""The steps that a bi-encoder needs, in smaller batches if there is no other way, and its epochs on a CPU."""
WIDTH = 384
"""The width for which the learning rate was chosen; wider encoders train at a lower one."""


def schedule(fit: Part, encoder: str, device: str | None) -> dict[str, Any]:
    """Epochs, batch and rate of a bi-encoder: many documents in a batch, unless that leaves too few steps.

    On a CPU, comparing checkpoints would take about as long as training.
    """
    usual, cuda = EncoderOptions(), chosen_device(device).type == "cuda"
    epochs = usual.epochs if cuda else CPU_EPOCHS
    batch = max(LEAST_BATCH, min(usual.batch, int(epochs * fit.pairs) // LEAST_STEPS))
    checkpoint = describe(find_model(encoder))
    width = checkpoint.dimensions().hidden_size if checkpoint.settings else WIDTH  # a chain's encoder is further down
    rate = usual.learning_rate * min(1, WIDTH / width) ** 2
    last = {} if cuda else {"best": "last", "tune_queries": LEAST_TO_FIT}
    return {"epochs": epochs, "batch": batch, "learning_rate": rate, **last}


POINTWISE: Mapping[str, Any] = {"epochs": 1, "batch": 32, "negatives": 1, "learning_rate": 1e-4, "best": "last"}
LISTWISE: Mapping[str, Any] = {
    "epochs": 2,
    "batch": 16,
    "negatives": 15,
    "learning_rate": 5e-5,
    "head": "pointwise",
    "running_mean": 0.999,
    "best": "last",
}
"""How a re-ranker is trained: as in recipes/fit.yaml."""
