"""The request and answer formats of other services' APIs: one class for each, which its clients can use unchanged.

A format reads the texts to score from a request and puts the scores into the answer its clients expect. It is found by
the path and by the fields of the body.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from base64 import b64encode
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from rankwell.core.arrays import Scores
from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document
from rankwell.corpus.sources import as_id
from rankwell.models.spec import AttentionRule

Answer = dict[str, Any]
"""An answer as JSON."""
Query = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[str, StringConstraints(max_length=256)]
# Far above any service's limit, and short enough for an error message.
LARGEST = 2**31 - 1
Label = Annotated[str, StringConstraints(max_length=64)]
Instruction = Annotated[
    Query | None, Field(description="What to look for, if the model's prompt has a place for an instruction.")
]
MinRelevance = Annotated[
    Annotated[float, Field(ge=0, le=1)] | None,
    Field(description="Leave out what has less relevance, if a fitted system is served. Default: the service's own."),
]
Milliseconds = Annotated[int, Field(ge=1, description="The deadline, capped by the service's own.")]


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits on one request; a request beyond them is refused with 413 or 422.

    ``bodies_bytes`` and ``most_timeout_ms`` are raised to the limit of one body and the default timeout.
    ``highlighted`` bounds the documents of an answer whose words are highlighted, ``bodies_bytes`` the bodies held in
    memory at any time, ``explanations`` and ``preparing`` the requests that may wait to be explained and to be searched
    or tokenised.
    """

    body_bytes: int = 8 << 20
    bodies_bytes: int = 256 << 20
    documents: int = 1000
    text_characters: int = 100_000
    query_characters: int = 4000
    k: int = 1000
    depth: int = 1000
    default_timeout_ms: int = 30_000
    most_timeout_ms: int = 120_000
    explained_characters: int = 20_000
    highlighted: int = 20
    explanations: int = 8
    preparing: int = 256

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise RankwellError(f"limit {name}: {getattr(self, name)}; expected 1 or more")
        object.__setattr__(self, "bodies_bytes", max(self.bodies_bytes, self.body_bytes))
        object.__setattr__(self, "most_timeout_ms", max(self.most_timeout_ms, self.default_timeout_ms))

    def public(self) -> dict[str, int]:
        """The limits that clients can run into."""
        internal = ("bodies_bytes", "explanations", "preparing")
        return {name: getattr(self, name) for name in self.__slots__ if name not in internal}


WITHOUT_EFFECT = frozenset(
    "max_tokens_per_doc max_chunks_per_doc rank_fields truncation truncate truncate_prompt_tokens priority user "
    "normalize rewrite_query".split()
)
"""What clients of other services send and a ranking does not depend on here; other unknown fields are refused."""


class Fields(BaseModel):
    """What requests in any format have in common."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _without_effect(cls, fields: Any) -> Any:
        taken = {field.alias or name for name, field in cls.model_fields.items()}
        if not isinstance(fields, dict):
            return fields
        return {n: v for n, v in fields.items() if n in taken or (v is not None and n not in WITHOUT_EFFECT)}


class Body(Fields):
    """Fields that all requests share."""

    query: Query = Field(description="The query's text.")
    model: Name | None = Field(None, description="A name from /models. Default: the first.")
    type: Label | None = Field(None, description="The query's type: a label, auto (by rules) or none.")
    timeout_ms: Milliseconds | None = None


class Search(Body):
    """A search of the index."""

    k: int = Field(10, ge=1, le=LARGEST, description="Results per ranking.")
    offset: int = Field(0, alias="from", ge=0, le=LARGEST, description="Results to skip.")
    filter: str | dict[str, Any] | None = Field(
        None, description="Only documents whose metadata match, as in year >= 2015 and lang = 'de', or as a dict."
    )
    syntax: bool = Field(False, description='Whether the query may have "a phrase", +word, -word and prefix*.')
    fields: list[str] | None = Field(None, description="Metadata to return. Default: all.")
    stages: Literal["bm25", "hybrid", "rerank", "both"] | None = Field(
        None, description="Rankings to return. Default: both, or the first stage's if it is not re-ranked by default."
    )
    depth: int | None = Field(
        None,
        ge=1,
        le=LARGEST,
        description="Candidates to re-rank. Default: the system's, or what takes about a second, at most 100.",
    )
    instruction: Instruction = None
    min_relevance: MinRelevance = None
    words: bool = Field(
        False, description="Return the word of each document that is most similar to each word of the query."
    )
    highlight: bool = Field(
        True, description="Return the positions of matching words and of split words, in up to 20 documents."
    )
    log: bool = Field(True, description="Whether a service with a log logs this search.")


class Explain(Body):
    """A pair to explain: a document's text, or its id in the index."""

    document: str | None = Field(None, description="The document's text.")
    id: Annotated[str, StringConstraints(max_length=4096)] | None = Field(
        None, description="Instead of its text: its id in the index."
    )
    layer: int | None = Field(None, ge=1, le=LARGEST, description="Layer of the attention map. Default: the last.")
    head: Annotated[int, Field(ge=1, le=LARGEST)] | Literal["mean"] = Field(
        "mean", description="Attention head, or the mean over all."
    )
    attention: AttentionRule | None = Field(None, description="Attention rule. Default: the model's.")
    links: int = Field(10, ge=0, le=100, description="Number of strongest links to return.")


class Known(BaseModel):
    """A part of an event: further fields, which many clients send, are left out."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Clicked(Known):
    """What an event is about."""

    object_id: Annotated[str, StringConstraints(min_length=1, max_length=4096)]


class Position(Known):
    """Where it was."""

    ordinal: int | None = Field(None, ge=1, le=LARGEST)


class EventAttributes(Known):
    """A document, and its position if that is known."""

    object: Clicked
    position: Position | None = None


class Event(Known):
    """What a user did with a result of a search, as User Behavior Insights has it; further fields are not logged."""

    query_id: Name = Field(description="The one that the answer of the search had.")
    action_name: Annotated[str, StringConstraints(min_length=1, max_length=64)] = Field(
        "click", description="Clicks are what `rankwell fit --log` reads."
    )
    event_attributes: EventAttributes = Field(description='The document, as in {"object": {"object_id": "d7"}}.')


class NewDocument(BaseModel):
    """A document to add, or to replace the one with its id; further fields are its metadata."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    id: Annotated[str, StringConstraints(min_length=1, max_length=512)] | Annotated[int, Field(ge=0)]
    text: str
    title: str = ""

    @property
    def document(self) -> Document:
        """The document as the index takes it."""
        return Document(as_id(str(self.id)), self.text, self.title, self.__pydantic_extra__)


Vectors = NDArray[np.float32]
CHARACTERS_PER_TOKEN = 4
"""An estimate, for texts that are not tokenised yet and for the usage that answers report."""


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of a request's texts, in their order, and what answers say about them.

    ``relevance`` is known where a fitted system re-ranks; texts of less than ``least`` are left out.
    """

    request: str
    model: str
    scores: Scores
    tokens: int
    truncated: int = 0
    type: str | None = None
    relevance: Scores | None = None
    least: float = 0.0

    def best(self, count: int | None = None) -> list[tuple[int, float]]:
        """The texts' numbers and scores, best first; equal scores in the order of the texts."""
        order = np.argsort(-self.scores, kind="stable").tolist()
        if self.relevance is not None:
            order = [number for number in order if self.relevance[number] >= self.least]
        return [(number, float(self.scores[number])) for number in order[:count]]

    @property
    def usage(self) -> dict[str, int]:
        """The tokens that were read."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}


class Rerank(Body):
    """Fields that all re-ranking requests share."""

    texts_field: ClassVar[str]
    """The field with the texts to score."""

    instruction: Instruction = None
    min_relevance: MinRelevance = None
    raw_scores: bool = Field(False, description="Return the model's raw scores instead of probabilities.")
    truncate: bool = Field(False, description="Truncate long texts instead of reading them in windows.")

    def document_texts(self) -> list[str]:
        """The texts to score."""
        texts: str | list[str | Text] = getattr(self, self.texts_field)
        return [texts] if isinstance(texts, str) else [text if isinstance(text, str) else text.text for text in texts]

    @abstractmethod
    def answer(self, scored: Scored) -> Answer | list[Answer]:
        """The answer in this format."""


class Text(BaseModel):
    """A document as an object."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    text: str


def _rows(scored: Scored, count: int | None, score: str, **more: Sequence[Any]) -> list[Answer]:
    """The best texts: their numbers, their scores under the name ``score``, and what ``more`` has of each text."""
    if scored.relevance is not None:
        more["relevance"] = scored.relevance.tolist()
    return [
        {"index": number, score: value, **{name: each[number] for name, each in more.items()}}
        for number, value in scored.best(count)
    ]


class DocumentsRerank(Rerank):
    """What the formats of Cohere and Voyage have in common."""

    texts_field = "documents"

    documents: list[str | Text] = Field(min_length=1, description="The texts to rank.")
    scores: list[float] | None = Field(
        None, description="Your engine's scores of the texts, which count by the system's weight of a first stage."
    )
    return_documents: bool = Field(False, description="Return the texts too.")


class CohereRerank(DocumentsRerank):
    """Cohere's format, which Jina's and vLLM's clients also use."""

    top_n: int | None = Field(None, ge=1, le=LARGEST, description="Number of results. Default: all.")

    def answer(self, scored: Scored) -> Answer:
        """Results by relevance, the tokens used, and rankwell's own notes in ``meta``."""
        texts = {"document": [{"text": text} for text in self.document_texts()]} if self.return_documents else {}
        meta = {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": scored.tokens, "output_tokens": 0},
            "type": scored.type,
            "truncated": scored.truncated,
        }
        results = _rows(scored, self.top_n, "relevance_score", **texts)
        return {"id": scored.request, "results": results, "model": scored.model, "usage": scored.usage, "meta": meta}


class VoyageRerank(DocumentsRerank):
    """Voyage's format."""

    top_k: int | None = Field(description="Number of results; null: all.", ge=1, le=LARGEST)

    def answer(self, scored: Scored) -> Answer:
        """A list of results, texts as strings."""
        texts = {"document": self.document_texts()} if self.return_documents else {}
        data = _rows(scored, self.top_k, "relevance_score", **texts)
        return {"object": "list", "data": data, "model": scored.model, "usage": scored.usage}


class MixedbreadRerank(Rerank):
    """Mixedbread's format."""

    texts_field = "input"

    input: list[str | Text] = Field(min_length=1, description="The texts to rank.")
    top_k: int = Field(10, ge=1, le=LARGEST, description="Number of results.")
    return_input: bool = Field(False, description="Return the texts too.")

    def answer(self, scored: Scored) -> Answer:
        """A list of results."""
        texts = self.document_texts() if self.return_input else [None] * len(self.input)
        data = _rows(scored, self.top_k, "score", input=texts, object=["rank_result"] * len(texts))
        about = {"top_k": self.top_k, "return_input": self.return_input, "object": "list"}
        return {"data": data, "model": scored.model, "usage": scored.usage, **about}


class TeiRerank(Rerank):
    """The format of Text Embeddings Inference."""

    texts_field = "texts"

    texts: list[str] = Field(min_length=1, description="The texts to rank.")
    top_n: int | None = Field(None, ge=1, le=LARGEST, description="Number of results, as LiteLLM asks. Default: all.")
    return_text: bool = Field(False, description="Return the texts too.")
    truncation_direction: Literal["right", "Right"] = "right"

    def answer(self, scored: Scored) -> list[Answer]:
        """A plain list of results."""
        return _rows(scored, self.top_n, "score", **({"text": self.texts} if self.return_text else {}))


class ScoreRequest(Rerank):
    """The format of vLLM's ``/score``: one text against one or several others."""

    texts_field = "text_2"

    query: Query = Field(alias="text_1", description="The query.")
    text_2: str | list[str] = Field(description="The text or texts to score.", min_length=1)

    def answer(self, scored: Scored) -> Answer:
        """The scores in the order of the texts."""
        data = [{"index": n, "object": "score", "score": float(score)} for n, score in enumerate(scored.scores)]
        about = {"id": scored.request, "object": "list", "created": int(time.time()), "model": scored.model}
        return {**about, "data": data, "usage": scored.usage}


class EmbeddingsRequest(Fields):
    """A request for vectors in OpenAI's format."""

    input: str | list[str] = Field(min_length=1, description="The text or texts.")
    model: Name | None = Field(None, description="The bi-encoder's name. Default: the one that is served.")
    encoding_format: Literal["float", "base64"] = Field("float", description="Numbers, or base64 of 32-bit floats.")
    input_type: Literal["query", "document"] = Field("document", description="Which of the model's prompts to use.")
    instruction: Instruction = None
    timeout_ms: int | None = Field(None, ge=1, description="The deadline, capped by the service's own.")

    @property
    def texts(self) -> list[str]:
        """The texts as a list."""
        return [self.input] if isinstance(self.input, str) else self.input


class TeiEmbed(EmbeddingsRequest):
    """A request for vectors in the format of Text Embeddings Inference."""

    input: str | list[str] = Field(alias="inputs", min_length=1, description="The text or texts.")
    input_type: Literal["query", "document"] = Field("document", alias="prompt_name", description="The prompt.")


def search_fields(parameters: dict[str, str]) -> dict[str, Any]:
    """The fields of a search from those of an address, where the query is ``q`` and all are texts."""
    texts: dict[str, Any] = {"query" if name == "q" else name: text for name, text in parameters.items()}
    numbers = {name: int(texts[name]) for name in ("k", "from", "depth", "timeout_ms") if _is_number(texts.get(name))}
    with suppress(KeyError, ValueError):
        texts |= {"min_relevance": float(texts["min_relevance"])}
    flags = {
        name: texts[name] == "true" for name in ("highlight", "syntax", "log") if texts.get(name) in ("true", "false")
    }
    return texts | numbers | flags


def _is_number(text: str | None) -> bool:
    return text is not None and text.isascii() and text.isdigit() and len(text) < 12


def embeddings_answer(body: EmbeddingsRequest, model: str, vectors: Vectors) -> Answer:
    """Vectors in OpenAI's format."""
    rows = np.ascontiguousarray(vectors, "<f4")
    packed = body.encoding_format == "base64"
    data = [
        {"object": "embedding", "index": n, "embedding": b64encode(row.data).decode() if packed else row.tolist()}
        for n, row in enumerate(rows)
    ]
    characters = sum(map(len, body.texts))
    usage = {"prompt_tokens": characters // CHARACTERS_PER_TOKEN, "total_tokens": characters // CHARACTERS_PER_TOKEN}
    return {"object": "list", "data": data, "model": model, "usage": usage}
