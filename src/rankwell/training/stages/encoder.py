"""``encoder``: which document answers this query? Leaves a first stage that searches with a fine-tuned bi-encoder.

Each training query is to find its relevant document among all documents of the batch. Afterwards BM25 and the
bi-encoder's share beside it are tuned on training queries that were set aside.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path

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


def run(work: Work, stage: RecipeStage[EncoderOptions], folder: Path) -> StageResult:
    """Train, then tune BM25 and the bi-encoder's share."""
    options = stage.options
    place = find_encoder(work, stage, options.encoder)
    assert place is not None
    start = BiEncoder.from_pretrained(place, device="cpu", precision="fp32", max_length=options.max_length)
    model = VectorModel(deepcopy(start.encoder).requires_grad_(True), start.modules.pooling)
    documents = work.data.tokens(start.tokenizer)
    train_queries, tune_queries = hold_out(work.data.train.queries, options.tune_queries, work.seed)
    pairs = training_pairs(work, options, train_queries, documents)
    queries = start.tokenizer.encode([start.query_prompt + text for text in pairs.texts])
    docids = pool_of(work, tune_queries)
    numbers = documents.numbers(docids)

    def encode(trained: nn.Module) -> tuple[Vectors, Vectors]:
        encoder = _as_it_stands(model, start)
        vectors = encoder.encode_queries([query.text for query in tune_queries])
        encoded = vectors, encoder.encode_tokens(documents, numbers)
        if encoder.device.type == "cuda":
            del encoder
            torch.cuda.empty_cache()
        return encoded

    def save(target: Path) -> None:
        save_bi_encoder(
            target,
            model.encoder,
            start.tokenizer,
            Modules(model.pooling),
            max_length=start.reader.template.max_length,
            prompts=(start.query_prompt, start.document_prompt),
            history=[*work.history, record],
        )

    record = {"stage": stage.name, "kind": stage.kind, **options.model_dump(mode="json", exclude_none=True)}
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
    return fit_first_stage(work, stage, folder, model, task, tune_queries, docids, encode, save)


def _as_it_stands(model: VectorModel, start: BiEncoder) -> BiEncoder:
    """A copy of the bi-encoder that is trained, to encode with; ``start`` is what it was."""
    return BiEncoder(
        deepcopy(model.encoder),
        start.tokenizer,
        modules=Modules(model.pooling),
        max_length=start.reader.template.max_length,
        query_prompt=start.query_prompt,
        document_prompt=start.document_prompt,
        device=str(next(model.parameters()).device),
    )


STAGES.register("encoder")(StageKind(EncoderOptions, run, check, measure_first_stage, reads=FINDING, finds=True))
