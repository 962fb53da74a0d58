"""Checkpoints: a Hugging Face folder plus ``rankwell.json``.

A folder without ``rankwell.json`` loads as monoBERT: a transformers classifier or sentence-transformers CrossEncoder as
it is and, for training only, a bare encoder with a new head. Saved folders load in plain transformers. Weights are
safetensors, never pickle.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.core.manifest import read_object
from rankwell.inputs.templates import MARKER_PAIRS, Template
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.card import model_card
from rankwell.models.checkpoints.config import (
    RankerConfig,
    check_length,
    read_ranker_config,
)
from rankwell.models.checkpoints.describe import Checkpoint, describe
from rankwell.models.checkpoints.names import find_model
from rankwell.models.checkpoints.tensors import encoder_state, encoder_tensors, fill, read_weights, write_tensors
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.foreign import (
    ForeignCrossEncoder,
    ForeignEncoder,
    PairModel,
    foreign_description,
    load_foreign,
    load_foreign_ranker,
)
from rankwell.models.new_heads import seeded
from rankwell.models.spec import FAMILIES, EncoderConfig

_OWN = ", ".join(FAMILIES)
_HEAD_OUTPUTS = {"two_logits": 2, "score": 1}


def transformers_state(model: PairModel) -> dict[str, Tensor]:
    """The model's tensors, named as in transformers' classifier of its kind."""
    if isinstance(model, ForeignCrossEncoder):
        state: dict[str, Tensor] = model.model.state_dict()
        return state
    out, family = encoder_tensors(model.encoder), FAMILIES[model.encoder.config.model_type]
    for name, part in _head_parts(model):
        saved = family.dense_tensors if name == family.dense else name
        out |= {f"{saved}.{kind}": tensor for kind, tensor in part.state_dict().items()}
    return out


def load_encoder(
    folder: Path, *, causal: bool = False, trust_remote_code: bool = False
) -> tuple[Encoder | ForeignEncoder, dict[str, Tensor], Tokenizer]:
    """The encoder of a folder, all the folder's tensors (for a head), and the tokenizer.

    With ``causal`` it may be a decoder, whose tokens see only those before them.
    """
    checkpoint = describe(folder)
    config = checkpoint.encoder_config() if checkpoint.is_own else None
    tensors = read_weights(folder)
    tokenizer = Tokenizer.open(folder)
    encoder: Encoder | ForeignEncoder
    if config is None:
        encoder = load_foreign(checkpoint, tensors, causal=causal, trust_remote_code=trust_remote_code)
    else:
        state = encoder_state(tensors, config, folder)
        encoder = Encoder(config)
        fill(encoder, state, folder)
    _check_vocabulary(tokenizer, encoder.config, folder)
    return encoder, tensors, tokenizer


def _check_vocabulary(tokenizer: Tokenizer, config: EncoderConfig, folder: Path) -> None:
    if len(tokenizer) > config.vocab_size:
        problem = f"a tokenizer of {len(tokenizer)} tokens, but {config.vocab_size} embeddings"
        raise InputError(folder, None, problem)


def load_checkpoint(
    folder: str | Path, *, new_head: bool = False, seed: int = 0, trust_remote_code: bool = False, **changes: Any
) -> tuple[PairModel, Tokenizer, RankerConfig]:
    """A model, its tokenizer and its configuration; ``changes`` replace parts of the configuration (attention, …).

    ``folder`` may be any name that ``names.find_model`` knows. A checkpoint without a ranking head raises, because its
    scores would be random; with ``new_head``, which is for training, it gets a head drawn with ``seed``. A ranker with
    a ``similarity`` needs no head to start from.
    """
    folder = find_model(folder)
    checkpoint = describe(folder)
    modules = [] if new_head or (folder / "rankwell.json").is_file() else [kind for kind, _ in checkpoint.modules]
    if len(modules) > 1 and not changes.get("similarity"):
        raise _no_head(folder, modules)
    model, tokenizer, ranker, missing = _load_ranker(checkpoint, changes, seed, trust_remote_code=trust_remote_code)
    if missing and not new_head:
        raise _no_head(folder, modules, missing)
    check_length(folder, ranker.template.max_length, model.encoder.config.max_position_embeddings)
    return model.eval(), tokenizer, ranker


def _load_ranker(
    checkpoint: Checkpoint, changes: Mapping[str, Any], seed: int, *, trust_remote_code: bool
) -> tuple[PairModel, Tokenizer, RankerConfig, list[str]]:
    """A cross-encoder, and the parts of its head that are new."""
    folder, stated = checkpoint.folder, read_ranker_config(checkpoint.folder)
    if not checkpoint.is_own:
        outputs = len(checkpoint.labels) or 2 if stated is None else _HEAD_OUTPUTS[stated.head]
        ranker = (stated or RankerConfig(head="score" if outputs == 1 else "two_logits")).changed(changes)
        alone = any(field.alone for field in ranker.template.fields)
        rules = ranker.attention != "full" or ranker.attention_layers is not None
        if ranker.apart or ranker.similarity or alone or rules:
            problem = f"an attention rule or reading texts apart needs an encoder with BERT's layers ({_OWN})"
            raise InputError(folder, None, f"a model of the type {checkpoint.family}; {problem}")
        model, tokenizer, missing = _load_foreign(checkpoint, _HEAD_OUTPUTS[ranker.head], seed, trust_remote_code)
        _check_vocabulary(tokenizer, model.encoder.config, folder)
        if stated is None:
            ranker = as_monobert(outputs, model.encoder.config, tokenizer, folder).changed(changes)
        return model, tokenizer, ranker, missing
    encoder, tensors, tokenizer, dense = _load_own(checkpoint)
    family = FAMILIES[encoder.config.model_type]
    if stated is None:
        outputs = len(tensors.get(f"{family.output}.weight", (0, 0)))
        ranker = as_monobert(outputs, encoder.config, tokenizer, folder, pooler=dense).changed(changes)
    else:
        ranker = stated.changed(changes)
    _restrict(encoder, ranker, folder)
    own = new_cross_encoder(
        encoder, _HEAD_OUTPUTS[ranker.head], pooler=ranker.pooler, seed=seed, similarity=ranker.similarity
    )
    missing = fill_head(own, tensors, folder)
    if missing and stated is not None and (stated.head, stated.pooler) == (ranker.head, ranker.pooler):
        raise InputError(folder, None, f"the weights lack {missing[0]}.weight")
    if ranker.similarity > 0 and family.output in missing:
        start_as_bi_encoder(own)
        missing = []
    return own, tokenizer, ranker, missing


def _load_own(checkpoint: Checkpoint) -> tuple[Encoder, dict[str, Tensor], Tokenizer, bool]:
    """An encoder with BERT's layers, all tensors, the tokenizer, and whether a head has the dense layer before it."""
    encoder, tensors, tokenizer = load_encoder(checkpoint.folder)
    assert isinstance(encoder, Encoder)
    tensors, kind = _without_other_heads(tensors, checkpoint), encoder.config.model_type
    # Other families have the dense layer in every classifier, so a new head has it too.
    return encoder, tensors, tokenizer, kind != "bert" or f"{FAMILIES[kind].dense}.weight" in tensors


def _load_foreign(
    checkpoint: Checkpoint, outputs: int, seed: int, trust_remote_code: bool, new_outputs: int | None = None
) -> tuple[ForeignCrossEncoder, Tokenizer, list[str]]:
    """A cross-encoder that transformers computes, and the parts of its head that are new.

    With ``new_outputs`` a new last layer of so many outputs takes the place of the folder's.
    """
    tokenizer = Tokenizer.open(checkpoint.folder)
    tensors = _without_other_heads(read_weights(checkpoint.folder), checkpoint)
    with seeded(seed):
        model, missing = load_foreign_ranker(checkpoint, tensors, outputs, trust_remote_code=trust_remote_code)
        if new_outputs is not None:
            head = nn.Linear(model.head.in_features, new_outputs)
            nn.init.normal_(head.weight, std=0.02)
            nn.init.zeros_(head.bias)
            model.set_head(head)
    return model, tokenizer, missing


def _no_head(folder: Path, modules: Sequence[str], missing: Sequence[str] = ()) -> InputError:
    """The error for a folder that would be ranked with random weights; it says what the folder can be used for."""
    train = f"train a ranker from it: rankwell train RECIPE --set model.start={folder}"
    if not modules:
        return InputError(folder, None, f"has no ranking head (no {' and no '.join(missing)}), so cannot rank; {train}")
    kinds = f"a sentence-transformers model of the modules {', '.join(modules)}"
    if set(modules) <= {"Transformer", "Pooling", "Normalize"}:
        uses = "use it as --encoder, re-rank by its word vectors (--set words=true)"
        return InputError(folder, None, f"{kinds}: a bi-encoder, not a re-ranker; {uses}, or {train}")
    problem = "none of them gives scores, as a Dense with the output scores does"
    return InputError(folder, None, f"{kinds}; {problem}; use such a model, or {train}")


def _restrict(encoder: Encoder, ranker: RankerConfig, folder: Path) -> None:
    """Set which tokens attend to which in the encoder's layers. Raises if it cannot follow the configuration."""
    config = encoder.config
    ranker.check_layers(config.num_hidden_layers)
    alone = any(field.alone for field in ranker.template.fields)
    apart = ranker.apart > 0 or ranker.similarity > 0 or alone
    if apart and config.type_vocab_size < 2:
        raise InputError(folder, None, "it knows one segment only: query and document cannot be told apart")
    encoder.restrict(ranker.apart, ranker.attention_layers)


def new_cross_encoder(
    encoder: Encoder, outputs: int, *, pooler: bool, seed: int, similarity: float = 0.0
) -> CrossEncoder:
    """A cross-encoder with a new head, the same for the same seed."""
    activation = FAMILIES[encoder.config.model_type].activation
    with seeded(seed):
        return CrossEncoder(encoder, outputs, pooler=pooler, activation=activation, similarity=similarity)


def start_as_bi_encoder(model: CrossEncoder) -> None:
    """Start from the similarity alone: the head gives 0, and the document has the query's segment, the only one that a
    bi-encoder was trained with.
    """
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
        model.encoder.segments.weight[1:] = model.encoder.segments.weight[:1]


def fill_head(model: CrossEncoder, tensors: Mapping[str, Tensor], folder: Path) -> list[str]:
    """Fill pooler and head from a checkpoint's tensors; returns the parts that it lacks, which stay new."""
    missing = []
    for name, part in _head_parts(model):
        if f"{name}.weight" not in tensors:
            missing.append(name)
            continue
        if f"{name}.bias" not in tensors:
            raise InputError(folder, None, f"the weights lack {name}.bias")
        outputs = len(tensors[f"{name}.weight"])
        if part is model.head and outputs != part.out_features:
            raise InputError(folder, None, f"a head of {outputs} outputs, but the model is to have {part.out_features}")
        fill(part, {kind: tensors[f"{name}.{kind}"] for kind in ("weight", "bias")}, folder)
    return missing


def _head_parts(model: CrossEncoder) -> list[tuple[str, nn.Linear]]:
    """The pooler, if any, and the head, with their names in transformers."""
    family = FAMILIES[model.encoder.config.model_type]
    pooler = [] if model.pooler is None else [(family.dense, model.pooler)]
    return [*pooler, (family.output, model.head)]


def _without_other_heads(tensors: dict[str, Tensor], checkpoint: Checkpoint) -> dict[str, Tensor]:
    """The tensors without a ``classifier`` that scores tokens or choices instead of sequences."""
    if any(name.endswith(("ForTokenClassification", "ForMultipleChoice")) for name in checkpoint.architectures):
        return {name: tensor for name, tensor in tensors.items() if not name.startswith("classifier.")}
    return tensors


def as_monobert(
    outputs: int, config: EncoderConfig, tokenizer: Tokenizer, folder: Path, *, pooler: bool = True
) -> RankerConfig:
    """The configuration of a checkpoint without one, whose head has so many outputs."""
    if outputs not in (1, 2):
        problem = f"a classifier of {outputs} classes; a ranker has 1 or 2"
        raise InputError(folder, None, f"{problem}; --set label=CLASS names the class that means relevant")
    length = min(Template().max_length, config.max_position_embeddings, tokenizer.max_length or 512)
    return RankerConfig(
        template=Template(max_length=length, max_query=min(Template().max_query, length - 4)),
        head="score" if outputs == 1 else "two_logits",
        pooler=pooler,
    )


def save_checkpoint(folder: str | Path, model: PairModel, tokenizer: Tokenizer, ranker: RankerConfig) -> None:
    """Write a folder that rankwell, plain transformers and sentence-transformers load; it must not exist yet."""
    labels = ["LABEL_0", "LABEL_1"][: model.outputs]
    files = {
        "rankwell.json": ranker.model_dump_json(indent=2) + "\n",
        "README.md": model_card(ranker, model.encoder.config),
    }
    write_folder(
        folder,
        transformers_state(model),
        {**classifier_settings(model), **label_settings(labels)},
        tokenizer,
        ranker.template.max_length,
        files,
    )


def classifier_settings(model: PairModel) -> dict[str, Any]:
    """``config.json`` of a model that scores pairs."""
    if isinstance(model, ForeignCrossEncoder):
        return foreign_description(model.model)
    return encoder_settings(model.encoder, FAMILIES[model.encoder.config.model_type].classifier)


def encoder_settings(encoder: Encoder, architecture: str) -> dict[str, Any]:
    """``config.json`` of an encoder with a head that transformers calls ``architecture``."""
    return {"architectures": [architecture], **encoder.config.as_settings()}


def label_settings(labels: Sequence[str]) -> dict[str, Any]:
    """The entries of ``config.json`` that name a classifier's outputs."""
    return {
        "id2label": {str(number): label for number, label in enumerate(labels)},
        "label2id": {label: number for number, label in enumerate(labels)},
    }


def write_folder(
    folder: str | Path,
    tensors: Mapping[str, Tensor],
    description: Mapping[str, Any],
    tokenizer: Tokenizer,
    max_length: int | None,
    files: Mapping[str, str | bytes] | None = None,
) -> None:
    """Write a Hugging Face folder, whole or not at all; it must not exist yet. ``files`` are further files by path."""
    folder = Path(folder)
    if folder.exists():
        raise RankwellError(f"{folder} exists already")
    settings = {"pad_token_id": tokenizer.pad, **description}
    state = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    with atomic_folder(folder) as temporary:
        write_tensors(state, temporary / "model.safetensors")
        for name, content in {"config.json": json.dumps(settings, indent=2) + "\n", **(files or {})}.items():
            (temporary / name).parent.mkdir(exist_ok=True, parents=True)
            (temporary / name).write_bytes(content.encode() if isinstance(content, str) else content)
        tokenizer.save(temporary, max_length)
        if description.get("type_vocab_size", 1) < 2:
            _leave_segments_out(temporary / "tokenizer_config.json")


def _leave_segments_out(path: Path) -> None:
    """Configure transformers' tokenizer for a model without segments, which would fail if it got any."""
    settings = read_object(path)
    settings["model_input_names"] = [name for name in settings["model_input_names"] if name != "token_type_ids"]
    path.write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")


def add_markers(model: PairModel, tokenizer: Tokenizer) -> None:
    """Add MarkedBERT's 40 tokens to a model and its tokenizer; an embedding starts as the mean of its pieces.

    Does nothing if they have the tokens already.
    """
    pieces = tokenizer.add_markers()
    first, old = tokenizer.special.first_marker, model.encoder.tokens.weight
    if not pieces:
        if first + 2 * MARKER_PAIRS > len(old):
            raise RankwellError("the tokenizer has markers, but the model has no embeddings for them")
        return
    # A vocabulary may be padded: then the markers take existing rows that were never trained.
    grown = old.new_zeros(max(len(old), len(tokenizer)), old.shape[1])
    with torch.no_grad():
        grown[: len(old)] = old
        grown[first : first + len(pieces)] = torch.stack([old[ids].mean(dim=0) for ids in pieces])
    model.encoder.tokens.weight = nn.Parameter(grown)
    model.encoder.tokens.num_embeddings = len(grown)
    model.encoder.config = replace(model.encoder.config, vocab_size=len(grown))


# Heads other than a ranker's: classifiers, and what further kinds share


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
    new = wanted != trained
    if checkpoint.is_own:
        encoder, tensors, tokenizer, dense = _load_own(checkpoint)
        own = new_cross_encoder(encoder, len(wanted), pooler=dense, seed=seed)
        output = f"{FAMILIES[encoder.config.model_type].output}."
        kept = {name: tensor for name, tensor in tensors.items() if not (new and name.startswith(output))}
        fill_head(own, kept, folder)
        return LoadedClassifier(own.eval(), tokenizer, wanted)
    outputs, head = len(trained) or len(wanted), len(wanted) if new else None
    model, tokenizer, _ = _load_foreign(checkpoint, outputs, seed, trust_remote_code, head)
    return LoadedClassifier(model.eval(), tokenizer, wanted)


def save_classifier(folder: str | Path, classifier: LoadedClassifier, max_length: int | None = None) -> None:
    """Write a folder that transformers loads as a classifier with these labels; it must not exist yet."""
    model, labels = classifier.model, classifier.labels
    if len(labels) != model.outputs:
        raise RankwellError(f"{len(labels)} labels for {model.outputs} outputs")
    description = {**classifier_settings(model), **label_settings(labels)}
    write_folder(folder, transformers_state(model), description, classifier.tokenizer, max_length)


def fill_if_present(part: nn.Module, name: str, tensors: Mapping[str, Tensor], folder: Path) -> None:
    """Give a part of a head the weights that the folder has for it under ``name``, if any."""
    state = {kind: tensors[f"{name}.{kind}"] for kind in ("weight", "bias") if f"{name}.{kind}" in tensors}
    if len(state) == 1:
        raise InputError(folder, None, f"the weights have half of {name}")
    if state:
        fill(part, state, folder)
