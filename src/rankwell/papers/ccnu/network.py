"""SDNet as a ranker (CCNU at TREC 2019): a small network over the features of a frozen BERT.

    words      [word vector; BERT's layers, mixed]; for a passage's words also attention over the query's word
               vectors, whether the query contains them, how frequent they are and, with a tagger, part of speech and
               entity
    encode     two BiLSTM layers over each text; a third over the query's two
    match      three attentions passage → query, one for each of the query's layers, then a BiLSTM
    compress   self-attention without the diagonal, then a BiLSTM: V, a vector for each word of the passage
    score      the query as one vector u; signals of u and V; the ten largest through an MLP

Zhu, Zeng and Huang, 2018 (SDNet); Hu, Wang, Tu and He, 2019 (the last line). BERT reads query and passage separately,
so each passage is read once for all queries, and the query's half is computed once for all of its passages.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from rankwell.core.checksums import verify_folder
from rankwell.core.errors import InputError, RankwellError
from rankwell.core.files import atomic_folder
from rankwell.models.checkpoints.config import first_problem
from rankwell.models.checkpoints.tensors import write_tensors
from rankwell.models.new_heads import seeded
from rankwell.papers.ccnu.words import FEATURES


def masked_softmax(scores: Tensor, allowed: Tensor) -> Tensor:
    """The softmax over the allowed entries of the last dimension; all 0 if none is allowed."""
    low = torch.finfo(scores.dtype).min
    weights = torch.softmax(scores.masked_fill(~allowed, low), dim=-1)
    return weights * allowed


class VariationalDropout(nn.Module):
    """Drops the same features of all words of a text: one draw per text and feature."""

    def __init__(self, p: float):
        super().__init__()
        self.p = p

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, D) → (B, L, D)."""
        if not self.training or not self.p:
            return x
        return x * functional.dropout(x.new_ones(len(x), 1, x.shape[2]), self.p)


class LayerMix(nn.Module):
    """The layers of a frozen encoder as one: γ · Σ softmax(α)ₗ hₗ, (…, K, H) → (…, H)."""

    def __init__(self, layers: int):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(layers))
        self.gamma = nn.Parameter(torch.ones(()))

    def forward(self, layers: Tensor) -> Tensor:
        """A weighted mean of the layers, scaled."""
        weights = self.gamma * torch.softmax(self.alpha, dim=0)
        return torch.einsum("...kh,k->...h", layers.to(weights.dtype), weights)


class Attention(nn.Module):
    """Attention of the words x over the words y with the scores relu(Wx)ᵀ D relu(Wy), D diagonal.

    If ``fixed``, D is 1/√n and not learned, as in SDNet's attention of word vectors.
    """

    def __init__(self, size: int, hidden: int, dropout: float, *, fixed: bool = False):
        super().__init__()
        self.project = nn.Linear(size, hidden, bias=False)
        self.diagonal: nn.Parameter | float = hidden**-0.5 if fixed else nn.Parameter(torch.ones(hidden))
        self.drop = VariationalDropout(dropout)

    def weights(self, x: Tensor, y: Tensor, mask: Tensor, *, others: bool = False) -> Tensor:
        """(B, N, D), (B, M, D), mask of y (B, M) → (B, N, M). With ``others`` (x is y) no word attends to itself."""
        left = functional.relu(self.project(self.drop(x))) * self.diagonal
        right = functional.relu(self.project(self.drop(y)))
        allowed = mask[:, None].expand(-1, x.shape[1], -1)
        if others:
            itself = torch.eye(x.shape[1], dtype=torch.bool, device=x.device)
            # The only word of a text has no others to attend to.
            alone = mask.sum(dim=1)[:, None, None] == 1
            allowed = allowed & (~itself | alone)
        return masked_softmax(left @ right.transpose(1, 2), allowed)

    def forward(self, x: Tensor, y: Tensor, mask: Tensor, values: Tensor, *, others: bool = False) -> Tensor:
        """The weighted means of ``values`` (B, M, V): (B, N, V)."""
        return self.weights(x, y, mask, others=others) @ values


class BiLSTM(nn.Module):
    """Bidirectional recurrent layers: (B, L, D) → the outputs of each, (B, L, 2·hidden)."""

    def __init__(self, size: int, hidden: int, dropout: float, layers: int = 1):
        super().__init__()
        sizes = [size, *[2 * hidden] * (layers - 1)]
        self.layers = nn.ModuleList([nn.LSTM(s, hidden, batch_first=True, bidirectional=True) for s in sizes])
        self.drop = VariationalDropout(dropout)

    def forward(self, x: Tensor, lengths: Tensor, mask: Tensor) -> list[Tensor]:
        """``lengths`` (B,) are on the CPU, so that nothing here waits for a GPU."""
        outputs = []
        for layer in self.layers:
            # Torch accepts no empty texts: they are read as one place of padding, whose output is masked.
            packed = pack_padded_sequence(self.drop(x), lengths.clamp(min=1), batch_first=True, enforce_sorted=False)
            output, _ = pad_packed_sequence(layer(packed)[0], batch_first=True, total_length=x.shape[1])
            x = output * mask[..., None]
            outputs.append(x)
        return outputs


class Pool(nn.Module):
    """One vector per text: Σ βᵢ uᵢ with β ∝ exp(w·uᵢ); (B, L, D) → (B, D)."""

    def __init__(self, size: int, dropout: float):
        super().__init__()
        self.weigh = nn.Linear(size, 1, bias=False)
        self.drop = VariationalDropout(dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """The weighted mean of the words."""
        weights = masked_softmax(self.weigh(self.drop(x))[..., 0], mask)
        return (weights[:, None] @ x)[:, 0]


def match_signals(query: Tensor, words: Tensor, mask: Tensor, kind: str) -> Tensor:
    """How well each word of a passage answers: (B, D), (B, L, D) → (B, L), 0 at padding.

    ``softmax`` and ``dot`` are qᵀV with and without normalisation over the passage; ``cosine`` is their cosine.
    """
    if kind == "cosine":
        query, words = functional.normalize(query, dim=-1), functional.normalize(words, dim=-1)
    products = (words @ query[..., None])[..., 0]
    return masked_softmax(products, mask) if kind == "softmax" else products * mask


def top_signals(signals: Tensor, mask: Tensor, k: int) -> Tensor:
    """The k largest signals, largest first, followed by zeros if a passage has fewer words: (B, L) → (B, k)."""
    signals = functional.pad(
        signals.masked_fill(~mask, -torch.inf), (0, max(0, k - signals.shape[1])), value=-torch.inf
    )
    largest = signals.topk(k, dim=1).values
    return largest.masked_fill(largest == -torch.inf, 0.0)


WEIGHTS, DESCRIPTION = "sdnet.safetensors", "sdnet.json"
TAG_SIZES = (12, 8)
"""The widths of the embeddings of parts of speech and of entities, as in SDNet."""


class SdnetConfig(BaseModel):
    """``sdnet.json``: the network's dimensions, and the encoder and word vectors it was trained with."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: Literal[1] = 1
    encoder: str
    """The frozen BERT: a folder, or a name as :func:`~rankwell.models.checkpoints.names.find_model` takes it."""
    encoder_digest: str
    vectors: str | None = None
    """The file of word vectors; without one, a word's vector is the mean of the encoder's input embeddings."""
    vectors_digest: str | None = None
    tagger: str | None = None
    """What tags the passages' words; without one, the network reads no tags."""
    tagger_version: str | None = None
    tag_counts: tuple[int, int] = (0, 0)
    """How many parts of speech and entities the tagger has."""
    width: int
    """The width of the encoder's states."""
    layers: int
    """How many of the encoder's last layers are mixed; its embeddings count as one."""
    vector_size: int
    hidden: int = 125
    """The width of a recurrent layer in each direction."""
    attention: int = 250
    signals: Literal["softmax", "cosine", "dot"] = "softmax"
    top: int = 10
    mlp: int = 32
    dropout: float = 0.4
    max_words: int = 256
    max_query_words: int = 64
    history: list[dict[str, Any]] = Field(default_factory=list)


class WordBatch(NamedTuple):
    """B texts with T words in all, not padded.

    ============  ==================  =================================================================================
    ``layers``    (T, K, H), (T, H)   the encoder's states of the words, by layer; or mixed already
    ``vectors``   (T, E)              word vectors
    ``places``    (T,)                where each word stands on a grid of B rows of ``longest`` places
    ``lengths``   (B,)                words of each text, on the CPU
    ``tags``      (T, 2)              parts of speech and entities, if the network reads them
    ============  ==================  =================================================================================
    """

    layers: Tensor
    vectors: Tensor
    places: Tensor
    lengths: Tensor
    longest: int
    tags: Tensor | None = None

    def pad(self, flat: Tensor) -> Tensor:
        """(T, D) → (B, L, D), zeros at padding."""
        grid = flat.new_zeros(len(self.lengths) * self.longest, flat.shape[1]).index_copy(0, self.places, flat)
        return grid.view(len(self.lengths), self.longest, -1)

    def mask(self) -> Tensor:
        """(B, L), true where a word is."""
        lengths = self.lengths.to(self.places.device, non_blocking=True)
        return torch.arange(self.longest, device=self.places.device) < lengths[:, None]


@dataclass(frozen=True, eq=False)
class QueryStates:
    """What scoring passages needs of queries, one row per query.

    ============  ===============  ===============================================================
    ``vectors``   (B, L, E)        word vectors
    ``known``     (B, L, E+H+4h)   everything about a word before matching: vector, BERT, h1, h2
    ``states``    3 of (B, L, 2h)  h1, h2 and the layer over them: the values of attention
    ``whole``     (B, 2h)          Wₛᵀu, the query as one vector
    ``mask``      (B, L)           where a word is
    ============  ===============  ===============================================================
    """

    vectors: Tensor
    known: Tensor
    states: tuple[Tensor, ...]
    whole: Tensor
    mask: Tensor

    def take(self, rows: Tensor) -> QueryStates:
        """The queries with these numbers."""
        vectors, known, whole, mask = (
            x.index_select(0, rows) for x in (self.vectors, self.known, self.whole, self.mask)
        )
        return QueryStates(vectors, known, tuple(x.index_select(0, rows) for x in self.states), whole, mask)


class Sdnet(nn.Module):
    """The network; ``model(queries, passages, query_of, matches)`` gives a score for each passage."""

    def __init__(self, config: SdnetConfig):
        super().__init__()
        self.config = config
        p, hidden, out = config.dropout, config.hidden, 2 * config.hidden
        embedded = config.vector_size + config.width
        known = embedded + 2 * out
        self.mix = LayerMix(config.layers)
        self.drop = VariationalDropout(p)
        self.align = Attention(config.vector_size, config.attention, p, fixed=True)
        self.query_words = BiLSTM(embedded, hidden, p, layers=2)
        tags = zip(config.tag_counts, TAG_SIZES, strict=True) if config.tagger is not None else ()
        self.tags = nn.ModuleList([nn.Embedding(count + 1, size) for count, size in tags])
        features = FEATURES + (sum(TAG_SIZES) if config.tagger is not None else 0)
        self.passage_words = BiLSTM(embedded + config.vector_size + features, hidden, p, layers=2)
        self.query_top = BiLSTM(2 * out, hidden, p)
        self.query_self = Attention(out, config.attention, p)
        self.query_pool = Pool(out, p)
        self.inter = nn.ModuleList([Attention(known, config.attention, p) for _ in range(3)])
        self.matched = BiLSTM(5 * out, hidden, p)
        self.passage_self = Attention(embedded + 6 * out, config.attention, p)
        self.passage_top = BiLSTM(2 * out, hidden, p)
        self.match = nn.Linear(out, out, bias=False)
        self.score = nn.Sequential(
            nn.Linear(config.top, config.mlp), nn.ReLU(), nn.Dropout(p), nn.Linear(config.mlp, 1)
        )

    def forward(self, queries: WordBatch, passages: WordBatch, query_of: Tensor, matches: Tensor) -> Tensor:
        """Scores (P,) of P passages: passage ``i`` answers query ``query_of[i]``; ``matches`` is (words, 4)."""
        scores: Tensor = self.score(self.signals(self.encode_queries(queries).take(query_of), passages, matches))
        return scores[:, 0].float()

    def mix_layers(self, layers: Tensor) -> Tensor:
        """The words' states (T, K, H) mixed to (T, H); states that are mixed already stay as they are."""
        return layers.to(self.mix.alpha.dtype) if layers.ndim == 2 else self.mix(layers)

    def encode_queries(self, queries: WordBatch) -> QueryStates:
        """The queries' half, which does not depend on passages."""
        mask = queries.mask()
        vectors = queries.pad(queries.vectors)
        embedded = torch.cat([vectors, queries.pad(self.mix_layers(queries.layers))], dim=2)
        h1, h2 = self.query_words(embedded, queries.lengths, mask)
        (top,) = self.query_top(torch.cat([h1, h2], dim=2), queries.lengths, mask)
        seen = self.query_self(top, top, mask, top, others=True)
        known = torch.cat([embedded, h1, h2], dim=2)
        # Dropout is applied here, not per passage, so that all passages of a list are compared with the same query.
        whole = self.match(self.drop(self.query_pool(seen, mask)[:, None])[:, 0])
        return QueryStates(vectors, known, (h1, h2, top), whole, mask)

    def word_features(self, passages: WordBatch, matches: Tensor) -> Tensor:
        """``matches`` and the embeddings of the words' tags, if the network reads tags: (T, 4) or (T, 24)."""
        if not len(self.tags):
            return matches
        if passages.tags is None:
            raise ValueError("this network reads tags, and its passages have none")
        return torch.cat(
            [matches, *(table(column) for table, column in zip(self.tags, passages.tags.T, strict=True))], 1
        )

    def signals(self, queries: QueryStates, passages: WordBatch, matches: Tensor) -> Tensor:
        """The largest match signals of each passage, largest first: (P, top)."""
        lengths, mask = passages.lengths, passages.mask()
        vectors = passages.pad(passages.vectors)
        embedded = torch.cat([vectors, passages.pad(self.mix_layers(passages.layers))], dim=2)  # (P, L, E+H)
        aligned = self.align(vectors, queries.vectors, queries.mask, queries.vectors)
        words = torch.cat([embedded, aligned, passages.pad(self.word_features(passages, matches))], dim=2)
        h1, h2 = self.passage_words(words, lengths, mask)
        known = torch.cat([embedded, h1, h2], dim=2)
        attended = [
            attention(known, queries.known, queries.mask, values)
            for attention, values in zip(self.inter, queries.states, strict=True)
        ]
        matched = torch.cat([h1, h2, *attended], dim=2)  # (P, L, 5·2h)
        (state,) = self.matched(matched, lengths, mask)
        everything = torch.cat([state, matched, embedded], dim=2)
        seen = self.passage_self(everything, everything, mask, state, others=True)
        (top,) = self.passage_top(torch.cat([state, seen], dim=2), lengths, mask)  # V
        signals = match_signals(queries.whole, self.drop(top), mask, self.config.signals)
        return top_signals(signals, mask, self.config.top)


def new_sdnet(config: SdnetConfig, seed: int = 0) -> Sdnet:
    """A new network, the same for the same seed."""
    with seeded(seed):
        return Sdnet(config)


def save_sdnet(folder: Path, model: Sdnet) -> None:
    """Write ``sdnet.safetensors`` and ``sdnet.json`` to a folder that does not exist yet."""
    if folder.exists():
        raise RankwellError(f"{folder} exists already")
    with atomic_folder(folder) as temporary:
        state = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
        write_tensors(state, temporary / WEIGHTS)
        text = json.dumps(model.config.model_dump(mode="json"), indent=2, ensure_ascii=False)
        (temporary / DESCRIPTION).write_text(text + "\n", encoding="utf-8")


def load_sdnet(folder: Path) -> Sdnet:
    """The network of a folder, without its encoder."""
    verify_folder(folder)
    try:
        config = SdnetConfig.model_validate_json((folder / DESCRIPTION).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise InputError(folder, None, f"not an SDNet ranker (it has no {DESCRIPTION})") from None
    except ValidationError as error:
        raise InputError(folder / DESCRIPTION, None, first_problem(error)) from None
    model = new_sdnet(config)
    try:
        model.load_state_dict(load_file(folder / WEIGHTS))
    except FileNotFoundError:
        raise InputError(folder, None, f"no {WEIGHTS}") from None
    except (SafetensorError, RuntimeError) as error:
        problem = " ".join(str(error).split())
        raise InputError(folder / WEIGHTS, None, f"not the weights {DESCRIPTION} describes ({problem})") from None
    return model.eval()
