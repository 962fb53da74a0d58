"""How good a ranker is while it trains: one measure on the dev queries' candidates, as a user would get it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from rankwell.corpus.records import Qrels, Query, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.evaluation.notation import Measure
from rankwell.inputs.reader import Reader
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.foreign import PairModel
from rankwell.models.heads import merged_copy
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.rank.ranker import Ranker
from rankwell.rank.rankers import Reranker
from rankwell.rank.texts import Texts


@dataclass(frozen=True, eq=False)
class Validation:
    """What ``train`` calls to validate: re-ranks ``run`` and evaluates it; ``wrap`` makes another kind of it."""

    run: Run
    queries: Sequence[Query]
    qrels: Qrels
    texts: Texts
    tokenizer: Tokenizer
    config: RankerConfig
    measure: Measure
    depth: int = 100
    wrap: Callable[[Ranker], Reranker] | None = None

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        """The measure's figure, by its notation."""
        assert isinstance(model, PairModel)
        device = next(model.parameters()).device
        # A copy: an engine turns its model to 16 bits on a GPU, and these weights are still to be trained.
        engine = TorchEngine(merged_copy(model), self.config.attention, device=str(device))
        segments = model.encoder.config.type_vocab_size
        reader = Reader(self.tokenizer, self.config.template, self.config.inference_windows, segments)
        pairs = Ranker.from_engine(engine, reader)
        ranker = pairs if self.wrap is None else self.wrap(pairs)
        run = ranker.rerank(self.run, self.queries, self.texts, depth=self.depth)
        if device.type == "cuda":
            del engine, ranker, pairs
            torch.cuda.empty_cache()
        return dict(evaluate(self.qrels, run, [self.measure]).mean)
