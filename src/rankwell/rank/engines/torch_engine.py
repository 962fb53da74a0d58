"""The torch engine: unpadded tokens, the last layer for ``[CLS]`` alone. Exact in fp32, and fast in bf16 on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rankwell.core.arrays import Scores
from rankwell.inputs.batching import Sequences
from rankwell.models.compute import HALF_TYPES, Compute
from rankwell.models.devices import AGREEMENT, DTypeName, chosen_device, resolve
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.foreign import PairModel
from rankwell.models.int8 import int8_lacks
from rankwell.models.spec import AttentionRule
from rankwell.rank.engines.engine import BACKENDS, CHECKPOINTS, TORCH_OPTIONS, Engine, LoadedModel, Logits, relevance

if TYPE_CHECKING:  # scoring stored tokens needs torch and numpy alone
    from rankwell.models.language import LanguageRanker
    from rankwell.models.modular import ModularCrossEncoder


class TorchEngine(Engine):
    """A model on one device.

    ``device``, ``dtype``, ``budget``, ``lanes`` and ``packed`` are those of :class:`~rankwell.models.compute.Compute`.
    With ``joined_gelu`` a packed batch takes the tanh form of gelu, which the GPU's matrix product computes itself; it
    differs from the exact form by up to 5e-4, less than bf16 rounds. By default it is on in 16 bits.
    """

    def __init__(
        self,
        model: PairModel | LanguageRanker | ModularCrossEncoder,
        rule: AttentionRule,
        *,
        device: str | None = None,
        dtype: torch.dtype | DTypeName | None = None,
        budget: int | None = None,
        lanes: int | None = None,
        packed: bool | None = None,
        joined_gelu: bool | None = None,
    ):
        self.model = model
        self.rule = rule
        self.compute = Compute(
            model,
            model.encoder,
            rule,
            parts=model.needs_parts,
            device=device,
            dtype=dtype,
            budget=budget,
            lanes=lanes,
            divide=True,
            packed=packed,
        )
        if isinstance(model.encoder, Encoder):
            model.encoder.join_gelu(self.compute.dtype in HALF_TYPES if joined_gelu is None else joined_gelu)

    def logits(self, sequences: Sequences) -> Logits:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.submit(sequences)()

    def submit(self, sequences: Sequences) -> Callable[[], Logits]:
        """See :class:`~rankwell.rank.engines.engine.Engine`. A GPU computes in the background."""
        logits = self.compute.run(sequences, self._forward, self.model.outputs)
        return lambda: logits.cpu().numpy()

    def _forward(self, batch: Sequences) -> Tensor:
        logits: Tensor = self.model(*self.compute.place(batch))
        return logits

    @property
    def tokens_at_once(self) -> int:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.compute.tokens_at_once

    @property
    def device(self) -> str:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return str(self.compute.device)

    @property
    def precision(self) -> str:
        """See :class:`~rankwell.rank.engines.engine.Engine`."""
        return self.compute.precision

    def continue_after_fork(self) -> bool:
        """See :class:`~rankwell.rank.engines.engine.Engine`. On a CPU, one thread computes; a GPU cannot be used."""
        return self.compute.continue_after_fork()

    @property
    def explainable(self) -> bool:
        """See :class:`~rankwell.rank.engines.engine.Engine`. Encoders that transformers computes show no attention."""
        return isinstance(self.model, CrossEncoder)


@BACKENDS.register("torch")
def load_torch(folder: Path, changes: Mapping[str, Any], options: Mapping[str, Any]) -> LoadedModel:
    """Load a ranker of any kind.

    ``options`` are those of :class:`TorchEngine` and those of :data:`TORCH_OPTIONS`.
    """
    # Imported here because scoring stored tokens needs torch and numpy alone.
    from rankwell.inputs.reader import Reader
    from rankwell.models.checkpoints.describe import describe
    from rankwell.models.checkpoints.folders import load_checkpoint
    from rankwell.models.language import load_language_ranker
    from rankwell.models.modular import load_modular

    model: PairModel | LanguageRanker | ModularCrossEncoder
    code = {"trust_remote_code": bool(options.get("trust_remote_code"))}
    checkpoint = describe(folder)
    column = checkpoint.relevance_column(options.get("label"))
    if checkpoint.kind == "language":
        model, tokenizer, config = load_language_ranker(checkpoint, changes, **code)
    elif checkpoint.kind == "modular":
        model, tokenizer, config = load_modular(checkpoint, changes, **code)
    elif column is None:
        model, tokenizer, config = load_checkpoint(folder, **code, **changes)
    else:
        return CHECKPOINTS["classifier"](folder, changes, options)
    segments = model.encoder.config.type_vocab_size
    options = {key: value for key, value in options.items() if key not in TORCH_OPTIONS}
    device, reader = chosen_device(options.get("device")), Reader(tokenizer, config.template, None, segments)

    def score(dtype: DTypeName, queries: Sequence[str], documents: Sequence[str]) -> Scores:
        fields = {"query": tokenizer.encode(queries), "document": tokenizer.encode(documents)}
        engine = TorchEngine(model, config.attention, **{**options, "dtype": dtype})
        return relevance(engine.logits(reader.lay_out(fields).sequences))

    def agrees() -> bool:
        return column is None and int8_lacks(model.encoder) is None and AGREEMENT["int8"](folder, "rank", score)

    if not isinstance(options.get("dtype"), torch.dtype):
        options["dtype"] = resolve(options.get("dtype"), "rank", device, agrees)
    return LoadedModel(TorchEngine(model, config.attention, **options), tokenizer, config, segments)
