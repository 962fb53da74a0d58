"""The model card: what a checkpoint is, how it was made and what was measured, as Hugging Face's ``README.md``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
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


def model_card(ranker: RankerConfig, encoder: EncoderConfig) -> str:
    """The text of ``README.md``: front matter, then what the two configurations record."""
    template, windows = ranker.template, ranker.inference_windows
    options = {"strm": ranker.attention != "full", "markers": template.markers}
    lost = lost_elsewhere(ranker)
    library = "rankwell" if lost else "sentence-transformers"
    tags = ["cross-encoder", "reranker", "text-ranking", encoder.model_type]
    front = _front(library, tags + [name for name in options if options[name]], ranker.figures)
    rows = {
        "Encoder": _shape(encoder),
        "Template": f"{template.name}: {_TEMPLATES.get(template.name) or TEMPLATES[template.name].__doc__}",
        "Length": f"at most {template.max_length} tokens, of which {template.max_query} for the query",
        "Attention": f"{ranker.attention}: {_RULES[ranker.attention]}",
        "Long documents": "truncated" if windows is None else f"read in windows: {_shown(asdict(windows))}",
        "Other settings": _shown(
            ranker.model_dump(include={"head", "pooler", "attention_layers", "apart", "similarity"})
        ),
    }
    last = 'ranker.rank("how do bees keep warm", ["The cluster shivers.", "Tea is a drink."])'
    if template.name == "typed":
        last = last.removesuffix(")") + ', type="description")'
    figures = {name: _shown(value) for name, value in ranker.figures.items()}
    return _card(
        front,
        _system(ranker),
        "A cross-encoder that scores how relevant a document is to a query, made with rankwell.",
        rows,
        f'from rankwell import Ranker\nranker = Ranker.from_pretrained("this folder")\n{last}',
        f"Plain transformers loads these weights but knows nothing of {', '.join(lost)}: its scores differ."
        * bool(lost),
        "## Training\n\n" + _training(ranker.history),
        "## Measured\n\n" + (_table({"figure": "value"} | figures) if figures else "Nothing was measured."),
    )


def bi_encoder_card(
    encoder: EncoderConfig,
    pooling: str,
    max_length: int,
    prompts: Mapping[str, str],
    history: Sequence[Mapping[str, Any]],
) -> str:
    """The card of a bi-encoder."""
    tags = ["bi-encoder", "sentence-similarity", "feature-extraction", encoder.model_type]
    front = _front("sentence-transformers", tags, {})
    rows = {
        "Encoder": _shape(encoder),
        "Vectors": f"{'the mean over all tokens' if pooling == 'mean' else 'the first token'}, normalised",
        "Length": f"at most {max_length} tokens; longer texts are truncated",
        **{f"Prompt of a {name}": f"`{text}`" for name, text in prompts.items() if text},
    }
    return _card(
        front,
        "A bi-encoder",
        "It gives queries and documents vectors whose product is their similarity. Made with rankwell; "
        "sentence-transformers loads it as it is.",
        rows,
        "from rankwell import BiEncoder\n"
        'encoder = BiEncoder.from_pretrained("this folder")\n'
        'encoder.encode_queries(["how do bees keep warm"]) @ encoder.encode_documents(["The cluster shivers."]).T',
        "## Training\n\n" + _training(history),
    )


def _front(library: str, tags: Sequence[str], figures: Mapping[str, Any]) -> dict[str, Any]:
    """The front matter, in the words by which the hub lists models and shows their figures."""
    task = "sentence-similarity" if "sentence-similarity" in tags else "text-ranking"
    front = {"library_name": library, "pipeline_tag": task, "tags": list(dict.fromkeys(["rankwell", library, *tags]))}
    results = []
    for name, value in figures.items():
        if isinstance(value, int | float):
            metric, _, data = name.partition(" on ")
            data = data or str(figures.get("data", "held-out queries"))
            metrics = [{"type": metric, "name": metric, "value": float(value)}]
            results.append({"task": {"type": task}, "dataset": {"type": data, "name": data}, "metrics": metrics})
    return {**front, "model-index": [{"name": "rankwell", "results": results}]} if results else front


def _card(
    front: Mapping[str, Any], title: str, summary: str, rows: Mapping[str, str], code: str, *sections: str
) -> str:
    opening = f"---\n{yaml.safe_dump(front, sort_keys=False)}---\n\n# {title}"
    code = f"```python\n{code}\n```\n\nTo publish it: `hf upload OWNER/NAME FOLDER`."
    parts = [opening, summary, _table({"": "", **rows}), f"## Use\n\n{code}", *filter(None, sections)]
    return "\n\n".join(parts) + "\n"


def _system(ranker: RankerConfig) -> str:
    """What papers call such a model."""
    template = ranker.template
    if template.name not in ("mono", "typed") or ranker.similarity:
        return f"A ranker with the template {template.name}"
    if template.markers:
        return "A MarkedBERT ranker"
    return "A DR-BERT ranker" if ranker.attention != "full" or template.name == "typed" else "A monoBERT ranker"


def _shape(encoder: EncoderConfig) -> str:
    return (
        f"{encoder.model_type}, {encoder.num_hidden_layers} layers, width {encoder.hidden_size}, "
        f"{encoder.num_attention_heads} heads, {encoder.vocab_size:,} tokens"
    )


def lost_elsewhere(ranker: RankerConfig) -> list[str]:
    """What plain transformers ignores, and sentence-transformers with it."""
    ignored = {
        "the reading apart": ranker.similarity or ranker.apart,
        f"the attention rule {ranker.attention}": ranker.attention != "full",
        "the markers around matching words": ranker.template.markers,
        "the missing pooler (transformers puts an untrained one there)": not ranker.pooler,
        f"the template {ranker.template.name}": ranker.template.name != "mono",
    }
    return [name for name, holds in ignored.items() if holds]


def _training(history: Sequence[Mapping[str, Any]]) -> str:
    if not history:
        return "No training is recorded: the weights are as they were loaded, and a new head is untrained."
    lines = []
    for number, stage in enumerate(history, start=1):
        settings = ", ".join(f"{key} {_shown(value)}" for key, value in stage.items() if key != "stage")
        lines.append(f"{number}. {_shown(stage.get('stage', 'stage'))}{f': {settings}' if settings else ''}")
    return "\n".join(lines)


def _table(rows: Mapping[str, str]) -> str:
    """A table whose first row is the head."""
    head, *others = (f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in rows.items())
    return "\n".join([head, "|---|---|", *others])


def _shown(value: Any) -> str:
    """A value in one line."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key} {_shown(part)}" for key, part in value.items() if part is not None)
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
