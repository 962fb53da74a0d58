"""Options of the stage `deepct`."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rankwell.training.options import STAGE_OPTIONS, TrainingOptions
from rankwell.training.stage_options.first_stages import TuningOptions


@STAGE_OPTIONS.register("deepct")
class DeepctOptions(TuningOptions, TrainingOptions):
    """`deepct`: learns the importance of each word of a passage and indexes the collection with it (DeepCT)."""

    # The paper: 3 epochs, 16 passages a step, 2e-5 for BERT-base.
    epochs: float = Field(default=3, gt=0, description="Passes over the training data; may be a fraction.")
    batch: int = Field(default=16, ge=1, description="Passages per optimiser step, over all devices.")
    learning_rate: float = Field(default=1e-4, gt=0, description="Peak learning rate (paper: 2e-5).")
    max_length: int = Field(
        default=128, ge=8, description="Maximum window length in tokens; longer passages are read in several windows."
    )
    scaling: Literal["linear", "root"] = Field(
        default="linear",
        description="A term's frequency is `scale` times its weight (linear) or the square root of it (root).",
    )
    scale: float = Field(default=100, gt=0, description="Term frequency of a term with weight 1.")
    k1: str = Field(
        default="0.9,2,4,6,8,10,14,20,30,50,80,150",
        description="Values of k1 to try: FIRST:LAST:STEP or a comma-separated list.",
    )
    b: str = Field(default="0.1,0.3,0.5,0.7,0.8,0.9,1", description="Values of b to try.")
    shard: int = Field(default=4096, ge=1, description="Passages weighted and written at a time.")
