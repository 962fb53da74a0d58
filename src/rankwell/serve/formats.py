"""The request and answer formats of other services' APIs: one class for each, which its clients can use unchanged.

A format reads the texts to score from a request and puts the scores into the answer its clients expect. It is found by
the path and by the fields of the body.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from base64 import b64encode
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rankwell.core.types import Scores
from rankwell.serve.bodies import LARGEST, Answer, Body, Name, Query

Vectors = NDArray[np.float32]
CHARACTERS_PER_TOKEN = 4
"""An estimate, for texts that are not tokenised yet and for counts that nobody bills."""


@dataclass(frozen=True, eq=False)
class Scored:
    """The scores of a request's texts, in their order, and what answers say about them."""

    request: str
    model: str
    scores: Scores
    tokens: int
    truncated: int = 0
    type: str | None = None

    def best(self, count: int | None = None) -> list[tuple[int, float]]:
        """The texts' numbers and scores, best first; equal scores in the order of the texts."""
        order = np.argsort(-self.scores, kind="stable").tolist()
        return [(number, float(self.scores[number])) for number in order[:count]]

    @property
    def usage(self) -> dict[str, int]:
        """The tokens that were read."""
        return {"prompt_tokens": self.tokens, "total_tokens": self.tokens}


class Rerank(Body):
    """Fields that all re-ranking requests share."""

    texts_field: ClassVar[str]
    """The field with the texts to score."""

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


class CohereRerank(Rerank):
    """A request in Cohere's format, which Jina's and vLLM's clients also use."""

    texts_field = "documents"

    documents: list[str | Text] = Field(min_length=1, description="The texts to rank.")
    top_n: int | None = Field(None, ge=1, le=LARGEST, description="Number of results. Default: all.")
    return_documents: bool = Field(False, description="Return the texts too.")

    def answer(self, scored: Scored) -> Answer:
        """Results by relevance, the tokens used, and rankwell's own notes in ``meta``."""
        texts = self.document_texts() if self.return_documents else None
        results = [
            {"index": number, "relevance_score": score, **({"document": {"text": texts[number]}} if texts else {})}
            for number, score in scored.best(self.top_n)
        ]
        meta = {
            "api_version": {"version": "2"},
            "billed_units": {"search_units": 1},
            "tokens": {"input_tokens": scored.tokens, "output_tokens": 0},
            "type": scored.type,
            "truncated": scored.truncated,
        }
        return {"id": scored.request, "results": results, "model": scored.model, "usage": scored.usage, "meta": meta}


class VoyageRerank(Rerank):
    """A request in Voyage's format: Cohere's with ``top_k``."""

    texts_field = "documents"

    documents: list[str | Text] = Field(min_length=1, description="The texts to rank.")
    top_k: int | None = Field(description="Number of results; null: all.", ge=1, le=LARGEST)
    return_documents: bool = Field(False, description="Return the texts too.")

    def answer(self, scored: Scored) -> Answer:
        """A list of results, texts as strings."""
        texts = self.document_texts() if self.return_documents else None
        data = [
            {"index": number, "relevance_score": score, **({"document": texts[number]} if texts else {})}
            for number, score in scored.best(self.top_k)
        ]
        return {"object": "list", "data": data, "model": scored.model, "usage": scored.usage}


class MixedbreadRerank(Rerank):
    """A request in Mixedbread's format."""

    texts_field = "input"

    input: list[str | Text] = Field(min_length=1, description="The texts to rank.")
    top_k: int = Field(10, ge=1, le=LARGEST, description="Number of results.")
    return_input: bool = Field(False, description="Return the texts too.")

    def answer(self, scored: Scored) -> Answer:
        """A list of results."""
        texts = self.document_texts() if self.return_input else None
        data = [
            {"index": number, "score": score, "input": texts[number] if texts else None, "object": "rank_result"}
            for number, score in scored.best(self.top_k)
        ]
        about = {"top_k": self.top_k, "return_input": self.return_input, "object": "list"}
        return {"data": data, "model": scored.model, "usage": scored.usage, **about}


class TeiRerank(Rerank):
    """A request in the format of Text Embeddings Inference."""

    texts_field = "texts"

    texts: list[str] = Field(min_length=1, description="The texts to rank.")
    return_text: bool = Field(False, description="Return the texts too.")
    truncation_direction: Literal["right", "Right"] = "right"

    def answer(self, scored: Scored) -> list[Answer]:
        """A plain list of results."""
        return [
            {"index": number, "score": score, **({"text": self.texts[number]} if self.return_text else {})}
            for number, score in scored.best()
        ]


class ScoreRequest(Rerank):
    """A request in the format of vLLM's ``/score``: one text against one or several others."""

    texts_field = "text_2"

    query: Query = Field(alias="text_1", description="The query.")
    text_2: str | list[str] = Field(description="The text or texts to score.", min_length=1)

    def answer(self, scored: Scored) -> Answer:
        """The scores in the order of the texts."""
        data = [{"index": n, "object": "score", "score": float(score)} for n, score in enumerate(scored.scores)]
        about = {"id": scored.request, "object": "list", "created": int(time.time()), "model": scored.model}
        return {**about, "data": data, "usage": scored.usage}


class EmbeddingsRequest(BaseModel):
    """A request for vectors in OpenAI's format."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    input: str | list[str] = Field(min_length=1, description="The text or texts.")
    model: Name | None = Field(None, description="The bi-encoder's name. Default: the one that is served.")
    encoding_format: Literal["float", "base64"] = Field("float", description="Numbers, or base64 of 32-bit floats.")
    input_type: Literal["query", "document"] = Field("document", description="Which of the model's prompts to use.")
    timeout_ms: int | None = Field(None, ge=1, description="The deadline, capped by the service's own.")

    @property
    def texts(self) -> list[str]:
        """The texts as a list."""
        return [self.input] if isinstance(self.input, str) else self.input


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


def rerank_format(fields: dict[str, Any]) -> type[Rerank] | None:
    """The format of a body by its fields; None if it is none, or not one alone."""
    if ("documents" in fields) == ("texts" in fields):
        return None
    if "texts" in fields:
        return TeiRerank
    return VoyageRerank if "top_k" in fields else CohereRerank
