"""Learning to classify texts or pairs of texts: query types, natural language inference."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from rankwell.corpus.labelled import LabelledTexts
from rankwell.evaluation.confusion import Confusion
from rankwell.inputs.batching import Sequences, slice_sequences, take_sequences
from rankwell.inputs.templates import TruncationReport
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.heads import load_classifier, save_classifier
from rankwell.rank.classify import lay_out_texts
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.training.loop import LoopOptions, train
from rankwell.training.tasks.task import Step, Task, chunk_by_tokens


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
        texts, others = tokenizer.encode(data.texts), None if data.others is None else tokenizer.encode(data.others)
        laid_out = lay_out_texts(tokenizer, texts, others, max_length=max_length, segments=segments, report=report)
        return cls(laid_out, data.classes)

    def draw(self, epoch: int) -> int:
        """See :class:`~rankwell.training.tasks.task.Task`."""
        return len(self.classes)

    def backward(self, model: nn.Module, items: NDArray[np.int64], part: slice, step: Step) -> dict[str, Tensor]:
        """See :class:`~rankwell.training.tasks.task.Task`; also logs ``accuracy`` on the batch."""
        own = items[part]
        loss, right = torch.zeros((), device=step.device), torch.zeros((), device=step.device)
        if not len(own):
            return {"loss": loss, "accuracy": right}
        sequences = take_sequences(self.sequences, own)
        classes = torch.from_numpy(self.classes[own]).to(step.device, non_blocking=True)
        for number, chunk in enumerate(chunk_by_tokens(sequences.lengths(), step.budget)):
            step.seed(number)
            batch = step.place(slice_sequences(sequences, chunk.start, chunk.stop))
            with step.computing():
                logits = model(*batch).float()
            # The mean is over the whole batch, so a chunk adds its texts' losses over the size of all.
            share = functional.cross_entropy(logits, classes[chunk], reduction="sum") / len(items)
            step.backward(share)
            loss += share.detach()
            right += (logits.detach().argmax(dim=1) == classes[chunk]).sum() / len(items)
        return {"loss": loss, "accuracy": right}


class AccuracyOn:
    """Measures a model on labelled texts while it trains: ``train(…, validate=AccuracyOn(task))``."""

    def __init__(self, task: ClassificationTask):
        self._task = task

    def classes(self, model: nn.Module) -> NDArray[np.int64]:
        """The number of the class found for each text."""
        device = str(next(model.parameters()).device)
        # fp32: an engine converts the model it is given, and this one's weights are still to be trained.
        engine = TorchEngine(model, "full", device=device, dtype=torch.float32)  # type: ignore[arg-type,unused-ignore]
        found: NDArray[np.int64] = engine.logits(self._task.sequences).argmax(axis=1)
        return found

    def __call__(self, model: nn.Module) -> Mapping[str, float]:
        """``accuracy``, the share of texts whose class is found."""
        return {"accuracy": float((self.classes(model) == self._task.classes).mean())}

    def confusion(self, model: nn.Module, names: tuple[str, ...]) -> Confusion:
        """Which class was taken for which."""
        truth, found = ([names[n] for n in numbers] for numbers in (self._task.classes, self.classes(model)))
        return Confusion.of(truth, found, names)


def train_classifier(
    start: str | Path,
    data: LabelledTexts,
    options: LoopOptions,
    folder: Path,
    *,
    test: LabelledTexts | None = None,
    max_length: int = 64,
    description: str = "training a classifier",
) -> dict[str, Any]:
    """Fit the checkpoint ``start`` to labelled texts; leaves ``folder/model`` and returns its figures on ``test``.

    Accuracy on ``test`` is measured as it trains, but chooses the checkpoint only where ``options.keep`` is ``best``.
    """
    classifier = load_classifier(start, data.names, seed=options.seed)
    model, tokenizer = classifier.model, classifier.tokenizer
    lay_out = partial(
        ClassificationTask.of, tokenizer=tokenizer, max_length=max_length, segments=model.encoder.config.type_vocab_size
    )
    cut = TruncationReport()
    measure = None if test is None else AccuracyOn(lay_out(test))
    outcome = train(
        model,
        lay_out(data, report=cut),
        options,
        folder,
        save=lambda path: save_classifier(path, classifier, max_length),
        validate=measure,
        description=description,
    )
    figures: dict[str, Any] = {"steps": outcome.steps, "seconds": outcome.seconds, "texts_cut": cut.pairs_cut}
    if measure is not None:
        kept = load_classifier(folder / "model").model.to(next(model.parameters()).device)
        figures |= measure.confusion(kept, data.names).as_dict()
    return figures
