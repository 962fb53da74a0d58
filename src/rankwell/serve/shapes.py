"""The bodies of requests, as pydantic models: what is checked is what ``/openapi.json`` says."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rankwell.models.shape import AttentionRule

Query = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[str, StringConstraints(max_length=256)]
# Far beyond what any service takes, and short enough to be written in a refusal.
LARGEST = 2**31 - 1
Label = Annotated[str, StringConstraints(max_length=64)]
Milliseconds = Annotated[int, Field(ge=1, description="The deadline; a larger one than the service's is lowered.")]


class Asked(BaseModel):
    """What all requests may say."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    query: Query
    model: Name | None = Field(None, description="A name of /models; the first by default.")
    type: Label | None = Field(None, description="The query's type: a label, auto (by rules) or none.")
    timeout_ms: Milliseconds | None = None


class Rerank(Asked):
    """What both shapes of a re-ranking share."""

    raw_scores: bool = False
    truncate: bool = False


class Text(BaseModel):
    """A document as an object."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    text: str


class CohereRerank(Rerank):
    """A request in Cohere's shape."""

    documents: list[str | Text] = Field(min_length=1)
    top_n: int | None = Field(None, ge=1, le=LARGEST)
    return_documents: bool = False

    def texts_given(self) -> list[str]:
        """The documents' texts."""
        return [given if isinstance(given, str) else given.text for given in self.documents]


class TeiRerank(Rerank):
    """A request in the shape of Text Embeddings Inference."""

    texts: list[str] = Field(min_length=1)
    return_text: bool = False
    truncation_direction: Literal["right", "Right"] = "right"

    def texts_given(self) -> list[str]:
        """The texts."""
        return self.texts


class Search(Asked):
    """A search of the index."""

    k: int = Field(10, ge=1, le=LARGEST)
    offset: int = Field(0, ge=0, le=LARGEST)
    stages: Literal["bm25", "hybrid", "rerank", "both"] | None = None
    depth: int = Field(100, ge=1, le=LARGEST, description="How many of the first stage's candidates are re-ranked.")
    highlight: bool = True


class Explain(Asked):
    """A pair to explain: a document's text, or its id in the index."""

    document: str | None = None
    docid: Annotated[str, StringConstraints(max_length=4096)] | None = None
    layer: int | None = Field(None, ge=1, le=LARGEST)
    head: Annotated[int, Field(ge=1, le=LARGEST)] | Literal["mean"] = "mean"
    attention: AttentionRule | None = None
    markers: bool | None = None
    links: int = Field(10, ge=0, le=100)
