"""Stages that read texts alone: pre-training on the collection, and classifiers of questions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rankwell.core.jsonfile import write_json
from rankwell.corpus.labelled import LabelledTexts, read_labelled
from rankwell.models.heads import load_pretraining, save_pretraining
from rankwell.training.data.domain_gap import count_words, measure_domain_gap
from rankwell.training.loop import LoopOptions, Outcome, train
from rankwell.training.optimiser import OptimiserOptions
from rankwell.training.options import ClassifyOptions, PretrainOptions, TrainingOptions, ValidatedOptions
from rankwell.training.stage import Produced, Work
from rankwell.training.tasks.classification import train_classifier
from rankwell.training.tasks.pretraining import MaskingVocabulary, PretrainingOptions, PretrainingTask


def loop_options(work: Work, options: TrainingOptions) -> LoopOptions:
    """The loop's options of a stage's; one that is not measured while it trains keeps the last checkpoint."""
    measured: dict[str, Any] = {"keep": "last"}
    if isinstance(options, ValidatedOptions):
        measured = {
            "evaluate_every": options.evaluate_every,
            "patience": options.patience,
            "keep": "last" if options.best == "last" else "best",
        }
    return LoopOptions(
        epochs=options.epochs,
        max_steps=options.max_steps,
        batch=options.batch,
        optimiser=OptimiserOptions(
            learning_rate=options.learning_rate,
            weight_decay=options.weight_decay,
            warm_up=options.warm_up,
            schedule=options.schedule,
            clip=options.clip,
            head_scale=options.head_scale,
        ),
        seed=work.seed,
        precision=options.precision,
        budget=options.budget,
        save_every=options.save_every,
        running_mean=options.running_mean,
        device=work.device,
        **measured,
    )


def outcome_figures(outcome: Outcome) -> dict[str, Any]:
    """What a stage records of its training."""
    figures: dict[str, Any] = {"steps": outcome.steps, "training seconds": round(outcome.seconds, 1)}
    if outcome.best is not None:
        figures |= {"best validation": outcome.best, "best step": outcome.best_step}
    return figures


def pretrain(work: Work, options: PretrainOptions, folder: Path) -> Produced:
    """Masked words and next spans of the collection itself; also leaves ``domain-gap.json``."""
    model, tokenizer = load_pretraining(work.model, seed=work.seed)
    documents = work.data.tokens(tokenizer)
    model.encoder.ruled = work.recipe.model.attention_layers
    gap = measure_domain_gap(count_words(work.data.collection.store), tokenizer)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "domain-gap.json", gap.as_json())
    spans = PretrainingOptions(options.max_length, options.masked, options.whole_word, options.other, options.short)
    task = PretrainingTask(
        documents,
        np.arange(len(work.data.collection.store)),
        MaskingVocabulary.of(tokenizer),
        spans,
        work.seed,
        segments=model.encoder.config.type_vocab_size,
    )
    outcome = train(
        model,
        task,
        loop_options(work, options),
        folder,
        save=lambda target: save_pretraining(target, model, tokenizer, options.max_length),
        rule=work.recipe.model.attention,
        description="pre-training",
    )
    return Produced(folder / "model", figures={**outcome_figures(outcome), "domain gap": gap.gap})


def check_classify(work: Work, options: ClassifyOptions) -> None:
    """The labelled texts must be there, and their labels be known."""
    _read_labelled(work, options)


def classify(work: Work, options: ClassifyOptions, folder: Path) -> Produced:
    """A classifier of labelled texts, measured on others."""
    data, test = _read_labelled(work, options)
    loop = loop_options(work, options)
    figures = train_classifier(work.model, data, loop, folder, test=test, max_length=options.max_length)
    return Produced(folder / "model", figures=figures)


def _read_labelled(work: Work, options: ClassifyOptions) -> tuple[LabelledTexts, LabelledTexts | None]:
    source = Path(work.recipe.data.folder)
    data = read_labelled(source / options.train)
    return data, None if options.test is None else read_labelled(source / options.test, data.names)
