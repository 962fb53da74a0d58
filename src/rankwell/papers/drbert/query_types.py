"""Classifies texts or pairs of texts with a trained encoder: query types, natural language inference.

    single   [CLS] A [SEP]                one text
    pair     [CLS] A [SEP] B [SEP]        two texts, which share the room if both are long

These are the inputs of transformers' ``BertForSequenceClassification``, so a checkpoint scores the same in both.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rankwell.core.progress import track
from rankwell.corpus.query_types import TYPE_SOURCES
from rankwell.inputs.batching import Sequences, slice_sequences, take_sequences
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import TruncationReport
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import check_length
from rankwell.models.checkpoints.folders import load_classifier, save_classifier
from rankwell.papers.drbert.labelled_texts import LabelledTexts, read_labelled
from rankwell.papers.drbert.options import ClassifyOptions
from rankwell.rank.engines.engine import Engine
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.training.loop.loop import train
from rankwell.training.loop.task import Step, Task, backward_chunks
from rankwell.training.recipe import RecipeStage
from rankwell.training.stage import STAGES, StageKind, StageResult, Work

TEXTS_AT_A_TIME = 8192


def lay_out_texts(reader: Reader, texts: Sequence[str], others: Sequence[str] | None = None) -> Sequences:
    """Lay out texts as sequences, or pairs of texts with the template ``pair``."""
    if others is None:
        return reader.lay_out({"query": reader.encode(texts)}).sequences
    reader = replace(reader, template=replace(reader.template, name="pair"))
    return reader.lay_out({"query": reader.encode(texts), "document": reader.encode(others)}).sequences


class Classifier:
    """A classifier ready to use.

    >>> classifier = Classifier.from_pretrained("types-model")                     # doctest: +SKIP
    >>> labels, probabilities = classifier.predict(["who wrote emma"])             # doctest: +SKIP
    """

    def __init__(
        self,
        engine: Engine,
        tokenizer: Tokenizer,
        labels: Sequence[str],
        *,
        max_length: int = 512,
        segments: int = 2,
    ):
        self.engine = engine
        self.labels = tuple(labels)
        self.reader = Reader.of_texts(tokenizer, max_length, segments=segments)

    @classmethod
    def from_pretrained(
        cls, folder: str | Path, *, max_length: int | None = None, engine: Mapping[str, Any] | None = None
    ) -> Classifier:
        """Load a classifier's folder, rankwell's or transformers', with the labels that its ``config.json`` names.

        ``engine`` holds options of :class:`~rankwell.rank.engines.torch_engine.TorchEngine` (device, dtype, budget).
        """
        loaded = load_classifier(folder)
        config = loaded.model.encoder.config
        limit = min(config.max_position_embeddings, loaded.tokenizer.max_length or config.max_position_embeddings)
        check_length(Path(folder), max_length or limit, config.max_position_embeddings)
        return cls(
            TorchEngine(loaded.model, "full", **(engine or {})),
            loaded.tokenizer,
            loaded.labels,
            max_length=max_length or limit,
            segments=config.type_vocab_size,
        )

    def logits(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> NDArray[np.float32]:
        """The logits (texts, classes) of texts, or of pairs of texts."""
        parts = [np.zeros((0, len(self.labels)), np.float32)]
        for begin in track(range(0, len(texts), TEXTS_AT_A_TIME), "classifying", unit="groups of texts"):
            first, second = _columns(texts[begin : begin + TEXTS_AT_A_TIME])
            parts.append(self.engine.logits(lay_out_texts(self.reader, first, second)))
        return np.concatenate(parts)

    def predict(self, texts: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[list[str], NDArray[np.float32]]:
        """The likeliest label of each text, and the probabilities (texts, classes) in the order of ``labels``."""
        logits = self.logits(texts).astype(np.float64)
        raised = np.exp(logits - logits.max(axis=1, keepdims=True))
        probabilities = (raised / raised.sum(axis=1, keepdims=True)).astype(np.float32)
        return [self.labels[number] for number in logits.argmax(axis=1)], probabilities


@TYPE_SOURCES.register("model")
def label_texts(model: Path, texts: Sequence[str], device: str | None) -> list[str]:
    """The likeliest label of each text."""
    return Classifier.from_pretrained(model, engine={"device": device}).predict(texts)[0]


def _columns(texts: Sequence[str] | Sequence[tuple[str, str]]) -> tuple[list[str], list[str] | None]:
    """The texts, and the second texts if they are pairs."""
    if isinstance(texts[0], str):
        return cast("list[str]", list(texts)), None
    pairs = cast("Sequence[tuple[str, str]]", texts)
    return [first for first, _ in pairs], [second for _, second in pairs]


# ``classify``


class ClassificationTask(Task):
    """Cross entropy of the classes' logits; every text once an epoch. All texts are laid out once, beforehand."""

    items = "texts"

    def __init__(self, sequences: Sequences, classes: NDArray[np.int64]):
        if len(sequences) != len(classes):
            raise ValueError(f"{len(sequences)} texts but {len(classes)} labels")
        self.sequences = sequences
        self.classes = classes

    @classmethod
    def of(
        cls,
        data: LabelledTexts,
        tokenizer: Tokenizer,
        *,
        max_length: int = 512,
        segments: int = 2,
        report: TruncationReport | None = None,
    ) -> ClassificationTask:
        """The task of labelled texts; ``report`` counts what is cut."""
        reader = Reader.of_texts(tokenizer, max_length, segments=segments)
        sequences = lay_out_texts(reader, data.texts, data.others)
        if report is not None:
            report.add(reader.truncation)
        return cls(sequences, data.classes)

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.loop.task.Task`."""
        return len(self.classes)

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.loop.task.Task`; also logs ``accuracy`` on the batch."""
        rows = items[part]
        sequences = take_sequences(self.sequences, rows)
        classes = torch.from_numpy(self.classes[rows]).to(step.device, non_blocking=True)

        def figures(chunk: slice) -> dict[str, Tensor]:
            batch = step.place(slice_sequences(sequences, chunk.start, chunk.stop))
            with step.computing():
                logits = model(*batch).float()
            # The mean is over the whole batch, so a chunk adds its texts' losses over the size of all.
            share = functional.cross_entropy(logits, classes[chunk], reduction="sum") / len(items)
            right = (logits.detach().argmax(dim=1) == classes[chunk]).sum() / len(items)
            return {"loss": share, "accuracy": right}

        return backward_chunks(sequences.lengths(), figures, step, ("loss", "accuracy"))


def figures_on(task: ClassificationTask, model: nn.Module, names: tuple[str, ...]) -> dict[str, Any]:
    """Accuracy on a task's texts, and which class a model takes for which: ``confusion[true][predicted]``."""
    device = str(next(model.parameters()).device)
    # fp32: an engine converts the model it is given, and this one's weights are still to be trained.
    engine = TorchEngine(model, "full", device=device, dtype=torch.float32)  # type: ignore[arg-type,unused-ignore]
    found = engine.logits(task.sequences).argmax(axis=1)
    confusion: dict[str, dict[str, int]] = {}
    for (true, predicted), count in sorted(Counter(zip(task.classes.tolist(), found.tolist(), strict=True)).items()):
        confusion.setdefault(names[true], {})[names[predicted]] = count
    return {"accuracy": float((found == task.classes).mean()), "texts": len(found), "confusion": confusion}


def check(work: Work, stage: RecipeStage[ClassifyOptions]) -> None:
    """Raise unless the labelled texts exist and have known labels."""
    _read(work, stage.options)


def run(work: Work, stage: RecipeStage[ClassifyOptions], folder: Path) -> StageResult:
    """Train a classifier of labelled texts and measure it on others.

    Accuracy on ``test`` is measured during training, but selects the checkpoint only with ``best: accuracy``.
    """
    options = stage.options
    texts, test = _read(work, options)
    classifier = load_classifier(work.model, texts.names, seed=work.seed)
    model, tokenizer = classifier.model, classifier.tokenizer
    segments = model.encoder.config.type_vocab_size
    lay_out = partial(ClassificationTask.of, tokenizer=tokenizer, max_length=options.max_length, segments=segments)
    truncation = TruncationReport()
    held_out = None if test is None else lay_out(test)

    def accuracy(model: nn.Module) -> dict[str, float]:
        assert held_out is not None
        return {"accuracy": figures_on(held_out, model, texts.names)["accuracy"]}

    task = lay_out(texts, report=truncation)
    save = partial(save_classifier, classifier=classifier, max_length=options.max_length)
    how = {**work.computing, "validate": None if held_out is None else accuracy}
    outcome = train(model, task, options, folder, save=save, description="training a classifier", **how)
    figures: dict[str, Any] = {
        "steps": outcome.step,
        "seconds": outcome.seconds,
        "texts_cut": truncation.pairs_cut,
    }
    if held_out is not None:
        saved = load_classifier(folder / "model").model.to(next(model.parameters()).device)
        figures |= figures_on(held_out, saved, texts.names)
    return StageResult(folder / "model", figures=figures)


def _read(work: Work, options: ClassifyOptions) -> tuple[LabelledTexts, LabelledTexts | None]:
    source = Path(work.recipe.data.folder)
    texts = read_labelled(source / options.train)
    return texts, None if options.test is None else read_labelled(source / options.test, texts.names)


READS = frozenset({"collection", "start", "seed"})
STAGES.register("classify")(StageKind(ClassifyOptions, run, check, reads=READS, ranks=False))
