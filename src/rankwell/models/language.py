"""Language models as rankers: the folder's prompt around query and document, and the model's answer as the score.

A decoder answers with the token after the prompt: the score is the logit of "yes", less that of "no". One with a
classifier has its score at the last token. monoT5, an encoder with a decoder, answers "true" or "false". The prompt is
the folder's chat template if that has places for a query and a document; otherwise that of a known model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from rankwell.core.errors import InputError
from rankwell.core.manifest import read_object
from rankwell.inputs.prompts import Prompt
from rankwell.inputs.templates import Template
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.describe import Checkpoint
from rankwell.models.checkpoints.names import published_name
from rankwell.models.checkpoints.tensors import read_weights
from rankwell.models.foreign import ForeignEncoder, build_model, check_remote_code, fill_model, padded
from rankwell.models.layout import Layout, Packed

MAX_LENGTH, MAX_QUERY = 8192, 512
"""Tokens of a pair, unless the model or its tokenizer allows fewer, and of its query."""
_QUERY, _DOCUMENT = "RANKWELLQUERY", "RANKWELLDOCUMENT"


@dataclass(frozen=True)
class Known:
    """A published ranker whose folder does not hold its prompt: its prompt, and its answers for yes and no."""

    prompt: Prompt
    yes: str
    no: str | None
    name: str
    """A folder's name has this in it; other rankers of the type have other prompts, or were not trained to rank."""


KNOWN: Mapping[str, Known] = {
    "qwen3": Known(
        Prompt(
            "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
            'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: Given '
            "a web search query, retrieve relevant passages that answer the query\n<Query>: ",
            "\n<Document>: ",
            "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
            instruction="Given a web search query, retrieve relevant passages that answer the query",
        ),
        "yes",
        "no",
        "qwen3-reranker",
    ),
    "qwen2": Known(
        Prompt(
            "<|im_start|>system\nYou are Qwen, created by Alibaba Cloud. You are a helpful assistant.<|im_end|>\n"
            "<|im_start|>user\nquery: ",
            "\ndocument: ",
            "\nYou are a search relevance expert who evaluates how well documents match search queries. For each "
            "query-document pair, carefully analyze the semantic relationship between them, then provide your binary "
            "relevance judgment (0 for not relevant, 1 for relevant).\nRelevance:<|im_end|>\n<|im_start|>assistant\n",
            joined=False,
        ),
        "1",
        "0",
        "mxbai-rerank",
    ),
    "gemma": Known(
        Prompt(
            "A: ",
            "\nB: ",
            "\nGiven a query A and a passage B, determine whether the passage contains an answer to the query by "
            "providing a prediction of either 'Yes' or 'No'.",
            joined=False,
            begin="<bos>",
        ),
        "Yes",
        None,
        "bge-reranker",
    ),
    "t5": Known(Prompt("Query: ", " Document: ", " Relevant:</s>"), "▁true", "▁false", "monot5"),
}
"""As the publishers' code writes them: the model card of Qwen3-Reranker, and the packages mxbai-rerank (v2),
FlagEmbedding (bge-reranker-v2-gemma) and pygaggle (monoT5)."""


class LanguageRanker(nn.Module):
    """A language model that scores pairs; ``answers`` are the ids of no and yes, of yes, or none with a classifier."""

    similarity = 0.0
    needs_parts = False

    def __init__(self, model: Any, answers: tuple[int, ...]):
        super().__init__()
        self.model = model
        self.answers = answers
        self.both = bool(model.config.is_encoder_decoder)
        # Not a submodule: its parameters are the model's.
        object.__setattr__(self, "encoder", ForeignEncoder(model if self.both else model.base_model))

    encoder: ForeignEncoder

    @property
    def outputs(self) -> int:
        """The numbers per sequence: of an encoder with a decoder both logits, of others their difference."""
        return 2 if self.both else 1

    def forward(self, tokens: Tensor, segments: Tensor, positions: Tensor, layout: Layout | Packed) -> Tensor:
        """The logits (B, outputs)."""
        grid, _, mask = padded(tokens, segments, layout, self.encoder.config.model_type)
        if self.both:
            start = grid.new_full((len(grid), 1), self.model.config.decoder_start_token_id or 0).long()
            logits = self.model(input_ids=grid.long(), attention_mask=mask, decoder_input_ids=start).logits[:, 0]
            both: Tensor = logits[:, list(self.answers)].float()
            return both
        # Sequences are padded after their end, which no token sees.
        states = self.model.base_model(input_ids=grid.long(), attention_mask=mask, use_cache=False)[0]
        assert isinstance(layout, Layout)
        last = states[torch.arange(len(states), device=states.device), layout.lengths - 1]
        if not self.answers:
            scores: Tensor = self.model.score(last).float()
            return scores
        logits = self.model.get_output_embeddings()(last).float()[:, list(self.answers)]
        if cap := getattr(self.model.config, "final_logit_softcapping", None):
            logits = cap * torch.tanh(logits / cap)
        score: Tensor = logits[:, -1:] - (logits[:, :1] if len(self.answers) == 2 else 0)
        return score


def load_language_ranker(
    checkpoint: Checkpoint, changes: Mapping[str, Any], *, trust_remote_code: bool = False
) -> tuple[LanguageRanker, Tokenizer, RankerConfig]:
    """A language model with the configuration of a ranker; the tokenizer has its prompt."""
    check_remote_code(checkpoint, trusted=trust_remote_code)
    folder, settings, kind = checkpoint.folder, checkpoint.settings, checkpoint.family
    tensors, tokenizer, architectures = read_weights(folder), Tokenizer.open(folder), checkpoint.architectures
    classifies = any(name.endswith("ForSequenceClassification") for name in architectures)
    classifies = classifies or (not architectures and "score.weight" in tensors)
    auto = "AutoModelForSequenceClassification" if classifies else "AutoModelForCausalLM"
    auto = "AutoModelForSeq2SeqLM" if settings.get("is_encoder_decoder") or kind in ("t5", "mt5") else auto
    known = KNOWN.get(kind)
    if known is not None and known.name not in f"{published_name(folder)} {settings.get('_name_or_path', '')}".lower():
        known = None
    prompt = _chat_prompt(checkpoint)
    if prompt is None and known is not None:
        prompt = known.prompt
    if prompt is None and classifies:
        prompt = Prompt()
    if prompt is None:
        problem = "no prompt for a query and a document"
        way = "add a chat_template.jinja that has places for the roles query and document"
        raise InputError(folder, None, f"a language model of the type {kind} with {problem}; {way}")
    labels = {"num_labels": len(tensors["score.weight"])} if classifies and "score.weight" in tensors else {}
    model = build_model(checkpoint, tensors, auto, trust_remote_code=trust_remote_code, **labels)
    missing = fill_model(model, tensors, folder)
    if missing:
        raise InputError(folder, None, f"the weights lack {missing[0]}")
    if classifies and model.num_labels != 1:
        raise InputError(folder, None, f"a classifier of {model.num_labels} classes; a language model ranks with 1")
    tokenizer.prompt = prompt
    ranker = LanguageRanker(model, () if classifies else _answers(checkpoint, tokenizer, known))
    limit = min(MAX_LENGTH, ranker.encoder.config.max_position_embeddings, tokenizer.max_length or MAX_LENGTH)
    template = Template("prompt", limit, min(MAX_QUERY, limit // 4) + len(tokenizer.literal(prompt.after_query)))
    config = RankerConfig(template=template, head="two_logits" if ranker.both else "score")
    return ranker.eval(), tokenizer, config.changed(changes)


def _chat_prompt(checkpoint: Checkpoint) -> Prompt | None:
    """The prompt of the folder's chat template; None if it has no place for a query and a document."""
    from transformers import AutoTokenizer

    load: Any = AutoTokenizer.from_pretrained
    tokenizer = load(checkpoint.folder, local_files_only=True)
    if not tokenizer.chat_template:
        return None
    recorded = checkpoint.sentence_settings
    instruction = (recorded.get("prompts") or {}).get(recorded.get("default_prompt_name") or "")
    messages = [{"role": "system", "content": instruction}] if instruction else []
    messages += [{"role": "query", "content": _QUERY}, {"role": "document", "content": _DOCUMENT}]
    try:
        text = str(tokenizer.apply_chat_template(messages, tokenize=False))
    except Exception:  # templates raise what they like for roles that they do not know
        return None
    front, found, rest = text.partition(_QUERY)
    between, also, back = rest.partition(_DOCUMENT)
    asked = instruction if instruction and instruction in front else ""
    return Prompt(front, between, back, instruction=asked) if found and also else None


def _answers(checkpoint: Checkpoint, tokenizer: Tokenizer, known: Known | None) -> tuple[int, ...]:
    """The ids of no and yes, or of yes alone: those of the folder's module LogitScore, or those of a known model."""
    if (place := dict(checkpoint.modules).get("LogitScore")) is not None:
        settings = read_object(checkpoint.folder / place / "config.json")
        recorded = settings.get("false_token_id"), settings["true_token_id"]
        return tuple(int(number) for number in recorded if number is not None)
    yes, no = ("yes", "no") if known is None else (known.yes, known.no)
    ids = [tokenizer.token_id(word) for word in (no, yes) if word is not None]
    if min(ids) < 0:
        raise InputError(
            checkpoint.folder, None, f"the vocabulary has no single token {no!r} or {yes!r} to answer with"
        )
    return tuple(ids)
