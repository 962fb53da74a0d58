"""The model card: what a checkpoint is, how it was made and what was measured, as Hugging Face's ``README.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from rankwell.core.files import atomic_folder, link_tree
from rankwell.inputs.templates import TEMPLATES
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.describe import describe
from rankwell.models.spec import EncoderConfig

_TEMPLATES = {
    "mono": "`[CLS] query [SEP] document [SEP]`",
    "typed": "`[CLS] type [SEP] query [SEP] document [SEP]`; without a type, it and its `[SEP]` are left out",
    "twin": "`[CLS] query [SEP] [CLS] document [SEP]`, the positions of each counted from 0",
    "nli": "`[CLS] document [SEP] query [SEP]`: the document is the premise, the query the hypothesis",
}
_RULES = {
    "full": "every token attends to every token",
    "strm": "a token attends to the pieces of its own word and to the last pieces of all others",
    "strict": "as strm, and only last pieces attend to other words' last pieces",
    "exact_match": "as strm, and the pieces of a split word attend to those of its other occurrences",
}
_HEADS = {"two_logits": "two logits; the score is log p(relevant)", "score": "one score"}


def model_card(ranker: RankerConfig, encoder: EncoderConfig) -> str:
    """The text of ``README.md``: front matter, then what the two configurations record."""
    front = {
        "library_name": "rankwell",
        "pipeline_tag": "text-ranking",
        "tags": ["rankwell", "cross-encoder", "reranker", encoder.model_type, *_option_tags(ranker)],
    }
    sections = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {_system(ranker)}",
        "A cross-encoder that scores how relevant a document is to a query, made with rankwell.",
        _what(ranker, encoder),
        "## Use\n\n" + _use(ranker),
        "## Training\n\n" + _training(ranker.history),
        "## Measured\n\n" + _measured(ranker.figures),
    ]
    if caveat := _plain_transformers(ranker, encoder):
        sections.insert(-2, caveat)
    return "\n\n".join(sections) + "\n"


def bi_encoder_card(
    encoder: EncoderConfig,
    pooling: str,
    max_length: int,
    prompts: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
) -> str:
    """The card of a bi-encoder."""
    front = {
        "library_name": "sentence-transformers",
        "pipeline_tag": "sentence-similarity",
        "tags": ["rankwell", "sentence-transformers", "bi-encoder", encoder.model_type],
    }
    rows = {
        "Encoder": _shape(encoder),
        "Vectors": f"{'the mean over all tokens' if pooling == 'mean' else 'the first token'}, normalised",
        "Length": f"at most {max_length} tokens; longer texts are truncated",
        **{f"Prompt of a {name}": f"`{text}`" for name, text in prompts.items() if text},
    }
    use = (
        "from rankwell import BiEncoder\n"
        'encoder = BiEncoder.from_pretrained("this folder")\n'
        'encoder.encode_queries(["how do bees keep warm"]) @ encoder.encode_documents(["The cluster shivers."]).T'
    )
    sections = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        "# A bi-encoder",
        "It gives queries and documents vectors whose product is their similarity. Made with rankwell; "
        "sentence-transformers loads it as it is.",
        _table(("", ""), rows),
        f"## Use\n\n```python\n{use}\n```",
        "## Training\n\n" + _training(history),
    ]
    return "\n\n".join(sections) + "\n"


def _system(ranker: RankerConfig) -> str:
    """What papers call such a model."""
    if ranker.template.name == "nli":
        return "A judge of entailment as a ranker"
    if ranker.template.markers:
        return "A MarkedBERT ranker"
    if ranker.similarity:
        return "A bi-encoder and cross-encoder in one"
    if ranker.template.name not in _TEMPLATES:
        return f"A ranker with the template {ranker.template.name}"
    return "A DR-BERT ranker" if ranker.attention != "full" or ranker.template.name == "typed" else "A monoBERT ranker"


def _option_tags(ranker: RankerConfig) -> list[str]:
    options = {"strm": ranker.attention != "full", "markers": ranker.template.markers}
    return [name for name, on in options.items() if on]


def _what(ranker: RankerConfig, encoder: EncoderConfig) -> str:
    template = ranker.template
    limits = (
        f"at most {template.max_length} tokens, of which {template.max_query} for the query; only documents are cut"
    )
    rows = {
        "Encoder": _shape(encoder),
        "Template": f"{template.name}: {_TEMPLATES.get(template.name) or TEMPLATES[template.name].__doc__}",
        "Length": limits,
        "Attention": f"{ranker.attention}: {_RULES[ranker.attention]}",
        "Head": f"{_HEADS[ranker.head]}, {'after' if ranker.pooler else 'without'} {_dense(encoder)}",
    }
    if ranker.similarity:
        rows["Similarity"] = f"{ranker.similarity:g} times the cosine of both texts' mean states, read apart, is added"
    if ranker.apart:
        rows["Apart"] = f"the first {ranker.apart} layers read query and document apart"
    if ranker.attention_layers is not None:
        layers = ", ".join(map(str, ranker.attention_layers)) or "none"
        rows["Attention"] += f", in the layers {layers} (from 0; -1 is the last)"
    if template.markers:
        rows["Markers"] = "`[ek] … [/ek]` around words whose stem the query and the document share"
    if (windows := ranker.inference_windows) is None:
        rows["Long documents"] = "truncated to the length above"
    elif windows.size is None:
        rows["Long documents"] = f"read in windows of the length above, their scores joined by {windows.aggregate}"
    else:
        rows["Long documents"] = (
            f"read in windows of {'sentences of up to ' if windows.unit == 'sentences' else ''}{windows.size} words "
            f"every {windows.stride}, their scores joined by {windows.aggregate}"
        )
    return _table(("", ""), rows)


def _shape(encoder: EncoderConfig) -> str:
    return (
        f"{_kind(encoder)}, {encoder.num_hidden_layers} layers, width {encoder.hidden_size}, "
        f"{encoder.num_attention_heads} heads, {encoder.vocab_size:,} tokens"
    )


def _kind(encoder: EncoderConfig) -> str:
    return "BERT" if encoder.model_type == "bert" else encoder.model_type


def _dense(encoder: EncoderConfig) -> str:
    """The name of the layer between [CLS] and the head."""
    return f"{_kind(encoder)}'s {'pooler' if encoder.model_type == 'bert' else 'dense layer'}"


def _use(ranker: RankerConfig) -> str:
    last = 'ranker.rank("how do bees keep warm", ["The cluster shivers.", "Tea is a drink."])'
    if ranker.template.name == "typed":
        last = last.removesuffix(")") + ', type="description")'
    return f'```python\nfrom rankwell import Ranker\nranker = Ranker.from_pretrained("this folder")\n{last}\n```'


def _plain_transformers(ranker: RankerConfig, encoder: EncoderConfig) -> str:
    """What plain transformers ignores; empty if nothing."""
    lost = []
    if ranker.similarity or ranker.apart:
        lost.append("the reading apart")
    if ranker.attention != "full":
        lost.append(f"the attention rule {ranker.attention}")
    if ranker.template.markers:
        lost.append("the markers around matching words")
    if not ranker.pooler:
        missing = _dense(encoder).partition(" ")[2]
        lost.append(f"the missing {missing} (transformers puts an untrained one there)")
    if not lost:
        return ""
    return f"Plain transformers loads these weights but knows nothing of {', '.join(lost)}: its scores differ."


def _training(history: Sequence[Mapping[str, Any]]) -> str:
    if not history:
        return "No training is recorded: the weights are as they were loaded, and a new head is untrained."
    lines = []
    for number, stage in enumerate(history, start=1):
        settings = ", ".join(f"{key} {_shown(value)}" for key, value in stage.items() if key != "stage")
        lines.append(f"{number}. {_shown(stage.get('stage', 'stage'))}{f': {settings}' if settings else ''}")
    return "\n".join(lines)


def _measured(figures: Mapping[str, Any]) -> str:
    if not figures:
        return "Nothing was measured with this checkpoint."
    return _table(("figure", "value"), {name: _shown(value) for name, value in figures.items()})


def _table(head: tuple[str, str], rows: Mapping[str, str]) -> str:
    lines = [head, ("---", "---"), *rows.items()]
    return "\n".join(
        f"| {left.replace('|', chr(92) + '|')} | {right.replace('|', chr(92) + '|')} |" for left, right in lines
    )


def _shown(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items())
    if isinstance(value, float):
        return f"{value:.4g}"
    return " ".join(str(value).split())


def link_model(model: Path, target: Path, ranker: RankerConfig | None) -> None:
    """Hard-link a checkpoint's files into ``target``, or copy them; ``ranker`` replaces the configuration."""
    with atomic_folder(target) as folder:
        link_tree(model, folder, skip=Path.is_dir)
        if ranker is not None:
            _replace(folder / "rankwell.json", ranker.model_dump_json(indent=2) + "\n")
            _replace(folder / "README.md", model_card(ranker, describe(model).dimensions()))


def _replace(path: Path, text: str) -> None:
    # Unlinked first: writing into a linked file would change the original.
    path.unlink(missing_ok=True)
    path.write_text(text, encoding="utf-8")
