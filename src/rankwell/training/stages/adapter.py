"""``adapter``: which direction of a vector matters here? Leaves a first stage that searches with mapped vectors.

A bi-encoder stays as it is; linear maps of its vectors, of queries alone or of documents too, are learned on stored
vectors. That takes seconds on a CPU, and no document has to be encoded again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.arrays import Rows
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.bi_encoder_modules import Modules, save_bi_encoder
from rankwell.models.vector_layers import Dense
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.training.data.sampling import Lists
from rankwell.training.first_stage import find_encoder, hold_out, measure_first_stage
from rankwell.training.loop.contrastive import PairTask
from rankwell.training.loop.task import Step, StepParts
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import FINDING, STAGES, StageKind, StageResult, Work
from rankwell.training.stage_options.first_stages import AdapterOptions
from rankwell.training.stages.pairs import TrainingPairs, check_pairs, fit_first_stage, pool_of, training_pairs


class MapModel(nn.Module):
    """Maps of vectors, as what they add to a vector: they start with adding nothing, and weight decay pulls them back.

    ``document`` is None where vectors of documents stay as they are.
    """

    def __init__(self, width: int, side: str):
        super().__init__()
        self.query = nn.Parameter(torch.zeros(width, width))
        self.document = nn.Parameter(torch.zeros(width, width)) if side == "both" else None

    def forward(self, queries: Tensor, documents: Tensor) -> Tensor:
        """The mapped vectors of queries, then those of documents, each of length 1."""
        mapped = [queries + queries @ self.query.T]
        mapped.append(documents if self.document is None else documents + documents @ self.document.T)
        return functional.normalize(torch.cat(mapped), dim=1)

    def modules_after(self, base: Modules) -> Modules:
        """The maps as dense layers behind a bi-encoder's modules."""
        identity = torch.eye(len(self.query))
        query = Dense(self.query.detach().cpu() + identity)
        document = () if self.document is None else (Dense(self.document.detach().cpu() + identity),)
        return Modules(base.pooling, True, (query,), document)


class VectorPairTask(PairTask):
    """Pairs of vectors that are computed already."""

    def __init__(
        self,
        pairs: TrainingPairs,
        queries: Vectors,
        documents: Callable[[Rows], NDArray[np.floating]],
        scale: float,
    ):
        super().__init__(pairs.draw, pairs.relevant, scale)
        self._queries, self._documents = queries, documents

    def texts(self, lists: Lists, step: Step) -> StepParts:
        """See :class:`~rankwell.training.loop.contrastive.PairTask`; a vector costs as much as a token."""
        place = partial(torch.as_tensor, dtype=torch.float32, device=step.device)
        queries, documents = self._queries[lists.queries], self._documents(lists.documents.reshape(-1))

        def encode(model: nn.Module, chunk: slice) -> Tensor:
            size = len(queries)
            of_queries = queries[chunk.start : min(chunk.stop, size)]
            of_documents = documents[max(0, chunk.start - size) : max(0, chunk.stop - size)]
            mapped: Tensor = model(place(of_queries), place(of_documents))
            return mapped

        return StepParts(np.ones(len(queries) + len(documents), np.int64), encode)


def check(work: Work, stage: RecipeStage[AdapterOptions]) -> None:
    """Check grid, measure and queries, and that there is a bi-encoder."""
    check_pairs(work, stage)
    find_encoder(work, stage, stage.options.encoder)


def run(work: Work, stage: RecipeStage[AdapterOptions], folder: Path) -> StageResult:
    """Compute vectors that are missing, learn the maps, then tune BM25 and the bi-encoder's share."""
    options = stage.options
    start = find_encoder(work, stage, options.encoder)
    assert start is not None
    encoder = BiEncoder.from_pretrained(start, device=work.device)
    base = encoder.base or encoder
    vectors = PassageVectors.open(work.data.collection.store, base)
    documents = work.data.tokens(encoder.tokenizer)
    train_queries, tune_queries = hold_out(work.data.train.queries, options.tune_queries, work.seed)
    pairs = training_pairs(work, options, train_queries, documents)
    model = MapModel(base.width, options.side)
    queries = base.encode_queries(pairs.texts)
    task = VectorPairTask(pairs, queries, vectors.at, options.scale)
    docids = pool_of(work, tune_queries)
    pool = vectors.at(documents.numbers(docids)).astype(np.float32)
    asked = base.encode_queries([query.text for query in tune_queries])

    def encode(trained: nn.Module) -> tuple[Vectors, Vectors]:
        with torch.no_grad():
            device = next(trained.parameters()).device
            mapped = trained(torch.from_numpy(asked).to(device), torch.from_numpy(pool).to(device)).cpu().numpy()
        return mapped[: len(asked)], mapped[len(asked) :]

    def save(target: Path) -> None:
        save_bi_encoder(
            target,
            base.encoder,
            base.tokenizer,
            model.modules_after(base.modules),
            max_length=base.reader.template.max_length,
            prompts=(base.query_prompt, base.document_prompt),
            base=base.exact_name,
            history=[*work.history, {"stage": stage.name, "kind": stage.kind, **options.model_dump(mode="json")}],
        )

    return fit_first_stage(work, stage, folder, model, task, tune_queries, docids, encode, save)


STAGES.register("adapter")(StageKind(AdapterOptions, run, check, measure_first_stage, reads=FINDING, finds=True))
