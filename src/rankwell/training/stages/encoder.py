"""``encoder``: which document answers this query? Leaves a first stage that searches with a fine-tuned bi-encoder.

Each training query is to find its relevant document among all documents of the batch. Afterwards BM25 and the
bi-encoder's share beside it are tuned on training queries that were set aside.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from rankwell.core.errors import RankwellError
from rankwell.models.bi_encoder import BiEncoder, Vectors
from rankwell.models.bi_encoder_modules import Modules, read_modules, save_bi_encoder
from rankwell.models.checkpoints.describe import describe
from rankwell.models.checkpoints.names import find_model
from rankwell.models.pooling import VectorModel
from rankwell.training.data.teachers import load_bi_encoder
from rankwell.training.first_stage import find_encoder, hold_out, measure_first_stage
from rankwell.training.loop.contrastive import TextPairTask
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import FINDING, STAGES, StageKind, StageResult, Work
from rankwell.training.stage_options.first_stages import EncoderOptions
from rankwell.training.stages.pairs import check_pairs, fit_first_stage, pool_of, training_pairs


@dataclass(frozen=True, eq=False)
class EncoderInTraining:
    """A bi-encoder while it is trained: ``start`` is as it was, ``model`` has the weights that change."""

    model: VectorModel
    start: BiEncoder
    history: Sequence[Mapping[str, Any]]

    @property
    def modules(self) -> Modules:
        """What follows the encoder."""
        return Modules(self.model.pooling)

    @property
    def max_length(self) -> int:
        """Maximum length of a text in tokens."""
        return self.start.reader.template.max_length

    def save(self, folder: Path) -> None:
        """Write it as a sentence-transformers folder."""
        save_bi_encoder(
            folder,
            self.model.encoder,
            self.start.tokenizer,
            self.modules,
            max_length=self.max_length,
            prompts=(self.start.query_prompt, self.start.document_prompt),
            history=self.history,
        )

    def frozen(self) -> BiEncoder:
        """A copy as it stands, to encode with."""
        return BiEncoder(
            deepcopy(self.model.encoder),
            self.start.tokenizer,
            modules=self.modules,
            max_length=self.max_length,
            query_prompt=self.start.query_prompt,
            document_prompt=self.start.document_prompt,
            device=str(next(self.model.parameters()).device),
        )


def check(work: Work, stage: RecipeStage[EncoderOptions]) -> None:
    """Check grid, measure and queries, and that the bi-encoder can be trained."""
    check_pairs(work, stage)
    if stage.options.teacher is not None and not describe(teacher := find_model(stage.options.teacher)).has_vectors:
        raise RankwellError(f"{stage.path}.teacher: {teacher} is a cross-encoder, which has no vectors")
    folder = find_encoder(work, stage, stage.options.encoder)
    if folder is None:
        return
    checkpoint = describe(folder)
    modules = read_modules(checkpoint, checkpoint.dimensions().hidden_size)
    if modules.pooling not in ("mean", "first"):
        raise RankwellError(f"{stage.path}.encoder: {folder} pools by {modules.pooling}, expected mean or first")
    if modules.query or modules.document:
        raise RankwellError(f"{stage.path}.encoder: {folder} has dense layers; name the bi-encoder without them")


def load(work: Work, stage: RecipeStage[EncoderOptions]) -> EncoderInTraining:
    """The bi-encoder to start from."""
    options = stage.options
    folder = find_encoder(work, stage, options.encoder)
    assert folder is not None
    start = BiEncoder.from_pretrained(folder, device="cpu", precision="fp32", max_length=options.max_length)
    encoder = copy.deepcopy(start.encoder).requires_grad_(True)
    model = VectorModel(encoder, start.modules.pooling)
    record = {"stage": stage.name, "kind": stage.kind, **options.model_dump(mode="json", exclude_none=True)}
    return EncoderInTraining(model, start, [*work.history, record])


def run(work: Work, stage: RecipeStage[EncoderOptions], folder: Path) -> StageResult:
    """Train, then tune BM25 and the bi-encoder's share."""
    options, encoder = stage.options, load(work, stage)
    start = encoder.start
    documents = work.data.tokens(start.tokenizer)
    train_queries, tune_queries = hold_out(work.data.train.queries, options.tune_queries, work.seed)
    pairs = training_pairs(work, options, train_queries, documents)
    queries = start.tokenizer.encode([start.query_prompt + text for text in pairs.texts])
    docids = pool_of(work, tune_queries)
    numbers = documents.numbers(docids)

    def encode(model: nn.Module) -> tuple[Vectors, Vectors]:
        frozen = encoder.frozen()
        vectors = frozen.encode_queries([query.text for query in tune_queries])
        found = vectors, frozen.encode_tokens(documents, numbers)
        if frozen.device.type == "cuda":
            del frozen
            torch.cuda.empty_cache()
        return found

    teacher = None
    if options.teacher is not None:
        place = find_model(options.teacher)
        teacher = load_bi_encoder(work.data.collection.store, place, pairs.texts, None, work.device).similarities
    task = TextPairTask(
        pairs.draw,
        pairs.relevant,
        queries,
        documents,
        start.reader,
        options.scale,
        document_prompt=start.prompt_pieces if start.document_prompt else None,
        teacher=teacher,
    )
    return fit_first_stage(work, stage, folder, encoder.model, task, tune_queries, docids, encode, encoder.save)


STAGES.register("encoder")(StageKind(EncoderOptions, run, check, measure_first_stage, reads=FINDING, finds=True))
