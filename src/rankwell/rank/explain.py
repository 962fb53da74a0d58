"""Explains a pair's score: its tokens as the model reads them, the effect of the attention rule, and the attention.

Engines do not compute attention probabilities explicitly. A slow dense pass through the same modules does, for one pair
at a time in float32, and gives the engine's logits as well. Layers and heads count from 1, as in the papers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import groupby
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import SpecialTokens, Template, TruncationReport, lay_out_pairs, match_words
from rankwell.models.attention import dense_mask
from rankwell.models.encoder import CrossEncoder, Encoder, Layer, add_similarity, cosine
from rankwell.models.spec import AttentionRule, under_rule
from rankwell.plots.attention_map import AttentionMap, Label
from rankwell.rank.engines.engine import Logits, probability, relevance
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.rank.ranker import Ranker

try:
    import torch
except ImportError:
    raise MissingExtraError("torch", "models", "explaining a score") from None


Head = int | Literal["mean"]


# Placeholders for special tokens when a pair is laid out a second time with numbered pieces (see _origins).
_FIRST_MARKER, _CLS, _SEP = 1 << 29, 1 << 30, (1 << 30) + 1


@dataclass(frozen=True, slots=True)
class Token:
    """One token of the sequence.

    ``match`` is k if its word has the stem of the query's k-th term and that stem occurs in the document; ``marker`` is
    k for ``[ek]`` and ``[/ek]``. Both are 0 otherwise.
    """

    position: int
    id: int
    piece: str
    word: int
    last: bool
    segment: int
    field: str
    match: int
    marker: int


@dataclass(frozen=True, slots=True)
class Word:
    """A word and the positions of its pieces; under STRM others see only the piece at ``stands``, its last one."""

    text: str
    field: str
    positions: tuple[int, ...]
    stands: int
    match: int


@dataclass(frozen=True, slots=True)
class Link:
    """One word's attention to another: summed over the target's pieces, averaged over the source's."""

    source: Word
    target: Word
    weight: float


@dataclass(frozen=True, slots=True)
class TruncatedField:
    """The part of a field that was truncated."""

    field: str
    pieces: int
    text: str


@dataclass(frozen=True, eq=False)
class Explanation:
    """A pair's score and what led to it.

    ``attention`` (layers, heads, L, L) holds the probabilities with which a row attends to a column. ``open`` (layers,
    L, L) holds whether a layer allows it: under its attention rule, and within query or document if the layer reads
    them separately. If documents are read in windows, ``score`` is the whole document's, ``windows`` are the windows'
    scores, and everything else describes the best window, number ``window`` from 1.
    """

    query: str
    document: str
    type: str | None
    rule: AttentionRule
    template: Template
    score: float
    probability: float
    logits: tuple[float, ...]
    tokens: tuple[Token, ...]
    cut: tuple[TruncatedField, ...]
    window: int
    windows: tuple[float, ...]
    open: NDArray[np.bool_]
    attention: NDArray[np.float32]

    @property
    def words(self) -> tuple[Word, ...]:
        """The words of all fields in their order."""
        words = []
        for _, group in groupby(self.tokens, key=lambda token: token.word):
            pieces = list(group)
            if pieces[0].field != "special" and not pieces[0].marker:
                places = tuple(token.position for token in pieces)
                text = _joined([token.piece for token in pieces])
                words.append(Word(text, pieces[0].field, places, places[-1], max(token.match for token in pieces)))
        return tuple(words)

    @property
    def split_words(self) -> tuple[Word, ...]:
        """The words that consist of several pieces."""
        return tuple(word for word in self.words if len(word.positions) > 1)

    def positions(self, field: str) -> NDArray[np.int64]:
        """Where a field's tokens are, its markers included."""
        return np.array([token.position for token in self.tokens if token.field == field], np.int64)

    def weights(self, layer: int | None = None, head: Head = "mean") -> NDArray[np.float32]:
        """The probabilities (L, L) of a layer (default: the last) and a head, or their mean over heads."""
        layers, heads = self.attention.shape[:2]
        layer = layers if layer is None else layer
        if not 1 <= layer <= layers:
            raise RankwellError(f"no layer {layer}: this model has layers 1 to {layers}")
        if head == "mean":
            mean: NDArray[np.float32] = self.attention[layer - 1].mean(axis=0)
            return mean
        if not 1 <= head <= heads:
            raise RankwellError(f"no head {head}: this model has heads 1 to {heads}, and mean")
        weights: NDArray[np.float32] = self.attention[layer - 1, head - 1]
        return weights

    def view(self, layer: int | None = None, head: Head = "mean") -> str:
        """What :meth:`weights` shows, as in ``layer 6, mean of 12 heads``. Raises if there is no such layer or head."""
        self.weights(layer, head)
        layers, heads = self.attention.shape[:2]
        return f"layer {layer or layers}, " + (f"mean of {heads} heads" if head == "mean" else f"head {head}")

    def open_in(self, layer: int | None = None) -> NDArray[np.bool_]:
        """What each row may attend to (L, L) in a layer (default: the last)."""
        visible: NDArray[np.bool_] = self.open[-1 if layer is None else layer - 1]
        return visible

    def strongest(self, layer: int | None = None, head: Head = "mean", *, most: int = 10) -> list[Link]:
        """The words of the document that words of the query attend to most, strongest first."""
        weights = self.weights(layer, head)
        links = [
            Link(source, target, float(weights[np.ix_(source.positions, target.positions)].sum(axis=1).mean()))
            for source in self.words
            if source.field == "query"
            for target in self.words
            if target.field == "document"
        ]
        return sorted(links, key=lambda link: -link.weight)[:most]

    def as_dict(self, layer: int | None = None, head: Head = "mean", *, digits: int = 5) -> dict[str, Any]:
        """Everything as JSON, with the rounded attention of one layer and head."""
        weights = self.weights(layer, head).astype(np.float64)
        return {
            **{name: getattr(self, name) for name in ("query", "document", "type", "rule")},
            "template": asdict(self.template),
            "score": round(self.score, 6),
            "probability": round(self.probability, 6),
            "logits": [round(value, 6) for value in self.logits],
            "tokens": [asdict(token) for token in self.tokens],
            "words": [{**asdict(word), "positions": list(word.positions)} for word in self.words],
            "cut": [asdict(cut) for cut in self.cut],
            "window": self.window,
            "windows": [round(value, 6) for value in self.windows],
            "layers": self.attention.shape[0],
            "heads": self.attention.shape[1],
            "layer": self.attention.shape[0] if layer is None else layer,
            "head": head,
            "attention": [[round(value, digits) for value in row] for row in weights.tolist()],
        }


def explain(
    ranker: Ranker,
    query: str,
    document: str,
    type: str | None = None,
    *,
    attention: AttentionRule | None = None,
) -> Explanation:
    """Explain a pair's score; ``attention`` overrides the model's rule."""
    engine, tokenizer = ranker.engine, ranker.tokenizer
    if not engine.explainable:
        raise RankwellError("only BERT rankers with the torch backend can be explained; others do not expose attention")
    assert isinstance(engine, TorchEngine)
    model = engine.model
    assert isinstance(model, CrossEncoder)
    rule = attention or engine.rule
    template, reader = ranker.template, replace(ranker.reader, truncation=TruncationReport())
    template.require("query", "document")
    if type and not reader.typed:
        raise RankwellError(f"the template {template.name} has no place for a type")

    fields = {"query": tokenizer.encode([query], stems=True), "document": tokenizer.encode([document], stems=True)}
    if type and len((label := tokenizer.encode([type.lower()])).ids):
        fields = {"type": label, **fields}
    laid = reader.lay_out(fields)

    scores: list[float] = []
    best = -1
    for number in range(len(laid.sequences)):
        window = take_sequences(laid.sequences, np.array([number]))
        passed = dense_pass(model, window, rule)
        scores.append(float(relevance(passed[0])[0]))
        if best < 0 or scores[number] > scores[best]:
            best, sequence, (logits, weights, is_open) = number, window, passed
    score = float(laid.join(np.array(scores, np.float32))[0])
    tokens, cut = _describe(sequence, {name: rows.take([best]) for name, rows in laid.fields.items()}, reader)
    return Explanation(
        query=query,
        document=document,
        type=type,
        rule=rule,
        template=template,
        score=score,
        probability=float(probability(logits)[0]),
        logits=tuple(logits[0].tolist()),
        tokens=tokens,
        cut=cut,
        window=best + 1,
        windows=tuple(scores),
        open=is_open,
        attention=weights,
    )


@torch.inference_mode()
def dense_pass(
    model: CrossEncoder, sequence: Sequences, rule: AttentionRule
) -> tuple[Logits, NDArray[np.float32], NDArray[np.bool_]]:
    """One sequence through the model with nothing skipped: logits (1, 1 or 2), attention probabilities (layers, heads,
    L, L) and what each layer may see (layers, L, L).
    """
    sequence = under_rule(sequence, rule)
    encoder, device = model.encoder, model.head.weight.device
    tokens, segments, positions, words = (
        torch.from_numpy(values).to(device, torch.int64)
        for values in (sequence.tokens, sequence.segments, sequence.positions, sequence.words)
    )
    mask = dense_mask(words[None], torch.from_numpy(sequence.last).to(device)[None], None, rule)
    embedded = encoder.embed(tokens, segments, positions)
    free = torch.ones_like(mask)
    masks = encoder.masks(mask, free, segments[None])
    x, attention = _dense_layers(encoder, embedded, masks)
    first = x[:1] if model.pooler is None else model.activation(model.pooler(x[:1]))
    scores = model.head(first).float()
    if model.similarity:
        alone, _ = _dense_layers(encoder, embedded, encoder.masks(mask, free, segments[None], len(encoder.layers)))
        query, document = (alone[part].float().mean(dim=0, keepdim=True) for part in (segments == 0, segments != 0))
        scores = scores + add_similarity(cosine(query, document), model.similarity)
    logits: Logits = scores.cpu().numpy()
    return logits, torch.stack(attention).numpy(), torch.cat(masks)[:, 0].cpu().numpy()


def _dense_layers(
    encoder: Encoder, x: torch.Tensor, masks: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """The last states of one sequence (L, H), and each layer's attention probabilities (heads, L, L)."""
    attention = []
    for layer, seen in zip(encoder.layers, masks, strict=True):
        assert isinstance(layer, Layer)
        query, key, value = layer.qkv(x).view(len(x), 3, layer.heads, -1).permute(1, 2, 0, 3)  # (heads, L, size) each
        fit = (query @ key.transpose(1, 2)).float() * query.shape[-1] ** -0.5
        weights = fit.masked_fill(~seen[0], -torch.inf).softmax(dim=-1)
        attention.append(weights.cpu())
        x = layer.finish(x, (weights.to(x.dtype) @ value).transpose(0, 1).flatten(1))
    return x, attention


def _describe(
    sequence: Sequences, fields: Mapping[str, Pieces], reader: Reader
) -> tuple[tuple[Token, ...], tuple[TruncatedField, ...]]:
    """Each token with the field it came from and its match, and the pieces that have no token."""
    tokenizer = reader.tokenizer
    origins = _origins(fields, reader.template, tokenizer.special.between)
    marks = match_words(fields["query"], fields["document"])  # whether or not the template marks them
    match = np.concatenate([marks.get(name, np.zeros(len(rows.ids), np.int32)) for name, rows in fields.items()])
    ids = np.concatenate([rows.ids for rows in fields.values()])
    owners = np.repeat(list(fields), [len(rows.ids) for rows in fields.values()])
    separators = np.cumsum((origins == _SEP) & (np.append(0, origins[:-1]) != _SEP))
    tokens = tuple(
        Token(
            *(position, number, piece, word, last, segment),
            field="special" if origin >= _CLS else list(fields)[separators[position]],
            match=int(match[origin]) if origin < _FIRST_MARKER else 0,
            marker=(origin - _FIRST_MARKER) // 2 + 1 if _FIRST_MARKER <= origin < _CLS else 0,
        )
        for position, (number, piece, word, last, segment, origin) in enumerate(
            zip(
                sequence.tokens.tolist(),
                tokenizer.token_names(sequence.tokens),
                sequence.words.tolist(),
                sequence.last.tolist(),
                sequence.segments.tolist(),
                origins.tolist(),
                strict=True,
            )
        )
    )
    left = ~np.isin(np.arange(len(ids)), origins)
    cut = {name: tokenizer.token_names(ids[left & (owners == name)]) for name in fields}
    return tokens, tuple(TruncatedField(name, len(pieces), _joined(pieces)) for name, pieces in cut.items() if pieces)


def _origins(fields: Mapping[str, Pieces], template: Template, between: int) -> NDArray[np.int32]:
    """For each token the number of its piece (counted through the fields), or a placeholder.

    The pair is laid out once more with numbers in place of the pieces' ids, since ids alone do not tell fields apart.
    """
    numbered, begin = {}, 0
    for name, rows in fields.items():
        numbered[name] = replace(rows, ids=np.arange(begin, begin + len(rows.ids), dtype=np.int32))
        begin += len(rows.ids)
    return lay_out_pairs(template, SpecialTokens(_CLS, _SEP, _FIRST_MARKER, between), numbered).tokens


def _joined(pieces: Sequence[str]) -> str:
    """Pieces as text."""
    return " ".join(pieces).replace(" ##", "")


# Turns explanations into attention maps of a readable size, which :mod:`rankwell.plots.attention_map` draws


MOST_WORDS = 24


def attention_maps(
    explanations: Sequence[Explanation], layer: int | None = None, head: Head = "mean", *, most: int = MOST_WORDS
) -> list[AttentionMap]:
    """The query's attention to the document, for one or more explanations of the same tokens.

    A document of more than ``most`` words is shown by those that the query attends to most, and the note says so.
    """
    if any(explanation.tokens != explanations[0].tokens for explanation in explanations):
        raise RankwellError("only explanations of the same tokens can be compared in one picture")
    weights = [explanation.weights(layer, head) for explanation in explanations]
    first = explanations[0]
    rows, note = first.positions("query"), ""
    highest = np.max(weights, axis=0)[rows].max(axis=0, initial=0.0)
    words = [word for word in first.words if word.field == "document" and any(map(str.isalnum, word.text))]
    columns = first.positions("document")
    if len(words) > most:
        shown = sorted(words, key=lambda word: -max(highest[place] for place in word.positions))[:most]
        columns = np.array(sorted(place for word in shown for place in word.positions), np.int64)
        note = f"Shown are the {most} of the document's {len(words)} words with the highest weights. "
    shares = [matrix[np.ix_(rows, columns)].sum() / max(1, len(rows)) for matrix in weights]
    rules = [f" ({explanation.rule})" if len(explanations) > 1 else "" for explanation in explanations]
    parts = [f"{share:.0%}{rule}" for share, rule in zip(shares, rules, strict=True)]
    note += f"The columns get {' and '.join(parts)} of the query's attention; the rest goes to other tokens."
    titles = [f"{shown.rule} attention, score {shown.score:.3f}".replace("-", "−") for shown in explanations]
    return [
        _map(explanation, title, rows, columns, matrix, note, layer)
        for explanation, title, matrix in zip(explanations, titles, weights, strict=True)
    ]


def _map(
    explanation: Explanation,
    title: str,
    rows: NDArray[np.int64],
    columns: NDArray[np.int64],
    weights: NDArray[np.float32],
    note: str,
    layer: int | None = None,
) -> AttentionMap:
    cells = np.ix_(rows, columns)
    labels = [Label(token.piece, token.position, token.word, token.last, token.match) for token in explanation.tokens]
    across, down = [labels[i] for i in columns], [labels[i] for i in rows]
    return AttentionMap(title, down, across, weights[cells], explanation.open_in(layer)[cells], note)
