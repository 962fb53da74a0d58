"""Request bodies as pydantic models, which ``/openapi.json`` describes, and the limits on them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from rankwell.core.errors import RankwellError
from rankwell.models.spec import AttentionRule

Answer = dict[str, Any]
"""An answer as JSON."""
Query = Annotated[str, StringConstraints(min_length=1)]
Name = Annotated[str, StringConstraints(max_length=256)]
# Far above any service's limit, and short enough for an error message.
LARGEST = 2**31 - 1
Label = Annotated[str, StringConstraints(max_length=64)]
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


class Body(BaseModel):
    """Fields that all requests share."""

    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    query: Query = Field(description="The query's text.")
    model: Name | None = Field(None, description="A name from /models. Default: the first.")
    type: Label | None = Field(None, description="The query's type: a label, auto (by rules) or none.")
    timeout_ms: Milliseconds | None = None


class Search(Body):
    """A search of the index."""

    k: int = Field(10, ge=1, le=LARGEST, description="Results per ranking.")
    offset: int = Field(0, ge=0, le=LARGEST, description="Results to skip.")
    stages: Literal["bm25", "hybrid", "rerank", "both"] | None = Field(
        None, description="Rankings to return. Default: both, or the first stage's if no model is served."
    )
    depth: int | None = Field(
        None,
        ge=1,
        le=LARGEST,
        description="Number of first-stage candidates to re-rank. Default: 100, or the depth of the system.",
    )
    highlight: bool = Field(
        True, description="Return the positions of matching words and of split words, in up to 20 documents."
    )


class Explain(Body):
    """A pair to explain: a document's text, or its id in the index."""

    document: str | None = Field(None, description="The document's text.")
    docid: Annotated[str, StringConstraints(max_length=4096)] | None = Field(
        None, description="Instead of its text: its id in the index."
    )
    layer: int | None = Field(None, ge=1, le=LARGEST, description="Layer of the attention map. Default: the last.")
    head: Annotated[int, Field(ge=1, le=LARGEST)] | Literal["mean"] = Field(
        "mean", description="Attention head, or the mean over all."
    )
    attention: AttentionRule | None = Field(None, description="Attention rule. Default: the model's.")
    markers: bool | None = Field(None, description="Whether to mark matching words. Default: as the model does.")
    links: int = Field(10, ge=0, le=100, description="Number of strongest links to return.")
