"""Folders of models with heads other than a ranker's: classifiers, and what heads of other kinds share.

Each is saved as the Hugging Face folder of the same kind, whose encoder can also be loaded as a ranker's
(``folders.load_checkpoint``). New heads are drawn with a seed, so loading twice gives the same model.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

from rankwell.core.errors import InputError, RankwellError
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.describe import Checkpoint, describe
from rankwell.models.checkpoints.folders import (
    classifier_settings,
    fill_head,
    label_settings,
    load_encoder,
    new_cross_encoder,
    transformers_state,
    without_other_heads,
    write_folder,
)
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import fill, read_weights
from rankwell.models.encoder import Encoder
from rankwell.models.foreign import PairModel, load_foreign_ranker
from rankwell.models.heads import seeded
from rankwell.models.spec import FAMILIES


@dataclass(frozen=True, eq=False)
class LoadedClassifier:
    """A cross-encoder whose outputs are classes: output ``i`` is the logit of ``labels[i]``."""

    model: PairModel
    tokenizer: Tokenizer
    labels: tuple[str, ...]


def load_classifier(
    folder: str | Path, labels: Sequence[str] | None = None, *, seed: int = 0, trust_remote_code: bool = False
) -> LoadedClassifier:
    """A classifier of texts or pairs of texts: three classes for NLI, five for query types.

    Without ``labels`` the folder's head is used. With them, the folder's head is used if its labels are the same in the
    same order; otherwise a new one takes its place, with a warning if there was one.
    """
    folder = find_model(folder)
    checkpoint = describe(folder)
    trained = checkpoint.labels
    if labels is None and not trained:
        raise InputError(folder, None, "not a classifier, and there are no labels for a new one")
    wanted = tuple(trained if labels is None else labels)
    if len(set(wanted)) != len(wanted) or not wanted:
        raise RankwellError(f"the labels of a classifier must differ: {', '.join(wanted)}")
    if trained and wanted != trained:
        warnings.warn(
            f"{folder} has the classes {', '.join(trained)}: its head is replaced by an untrained one", stacklevel=2
        )
    if checkpoint.is_own:
        return _load_own(checkpoint, wanted, seed, new=wanted != trained)
    return _load_whole(checkpoint, wanted, seed, new=wanted != trained, trust_remote_code=trust_remote_code)


def _load_own(checkpoint: Checkpoint, labels: tuple[str, ...], seed: int, *, new: bool) -> LoadedClassifier:
    encoder, tensors, tokenizer = load_encoder(checkpoint.folder)
    assert isinstance(encoder, Encoder)
    tensors = without_other_heads(tensors, checkpoint)
    family = FAMILIES[encoder.config.model_type]
    dense = f"{family.dense}.weight" in tensors or encoder.config.model_type != "bert"
    model = new_cross_encoder(encoder, len(labels), pooler=dense, seed=seed)
    fill_head(model, _without(tensors, family.output) if new else tensors, checkpoint.folder)
    return LoadedClassifier(model.eval(), tokenizer, labels)


def _load_whole(
    checkpoint: Checkpoint, labels: tuple[str, ...], seed: int, *, new: bool, trust_remote_code: bool
) -> LoadedClassifier:
    tokenizer = Tokenizer.open(checkpoint.folder)
    tensors = without_other_heads(read_weights(checkpoint.folder), checkpoint)
    outputs = len(checkpoint.labels) or len(labels)
    with seeded(seed):
        model, _ = load_foreign_ranker(checkpoint, tensors, outputs, trust_remote_code=trust_remote_code)
        if new:
            head = nn.Linear(model.head.in_features, len(labels))
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
            model.set_head(head)
    return LoadedClassifier(model.eval(), tokenizer, labels)


def _without(tensors: Mapping[str, Tensor], part: str) -> dict[str, Tensor]:
    return {name: tensor for name, tensor in tensors.items() if not name.startswith(f"{part}.")}


def save_classifier(folder: str | Path, classifier: LoadedClassifier, max_length: int | None = None) -> None:
    """Write a folder that transformers loads as a classifier with these labels; it must not exist yet."""
    model, labels = classifier.model, classifier.labels
    if len(labels) != model.outputs:
        raise RankwellError(f"{len(labels)} labels for {model.outputs} outputs")
    description = {**classifier_settings(model), **label_settings(labels)}
    write_folder(folder, transformers_state(model), description, classifier.tokenizer, max_length)


def load_bert(folder: Path, purpose: str) -> tuple[Encoder, dict[str, Tensor], Tokenizer]:
    """A BERT encoder with all tensors of its folder; raises for other encoders, which ``purpose`` does not suit."""
    encoder, tensors, tokenizer = load_encoder(folder)
    if not isinstance(encoder, Encoder) or encoder.config.model_type != "bert":
        raise InputError(folder, None, f"a model of the type {encoder.config.model_type}; {purpose} needs a BERT")
    return encoder, tensors, tokenizer


def fill_if_present(part: nn.Module, name: str, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Give a part of a head the weights that the folder has for it under ``name``, if any."""
    state = {kind: tensors[f"{name}.{kind}"] for kind in ("weight", "bias") if f"{name}.{kind}" in tensors}
    if len(state) == 1:
        raise InputError(folder, None, f"the weights have half of {name}")
    if state:
        fill(part, state, folder)
