"""What a service takes, and how its engine batches: small frozen sets of options."""

from __future__ import annotations

from dataclasses import dataclass

from rankwell.core.errors import RankwellError


@dataclass(frozen=True, slots=True)
class Limits:
    """The most of everything one request may bring; beyond it, it is refused with 413 or 422.

    ``bodies_bytes`` bounds all bodies that are held at once, so that many large requests cannot fill the memory.
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
    explanations: int = 8
    """How many explanations may wait for their turn; each is computed alone."""
    preparing: int = 256
    """How many requests may wait to be searched or tokenised."""

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise RankwellError(f"a limit of {getattr(self, name)} for {name}; expected 1 or more")

    def shown(self) -> dict[str, int]:
        """What clients may want to know."""
        hidden = ("bodies_bytes", "explanations", "preparing")
        return {name: getattr(self, name) for name in self.__slots__ if name not in hidden}


LEAST_QUEUE = 1 << 17
BATCHES_QUEUED = 16


@dataclass(frozen=True, slots=True)
class Batching:
    """How requests share the engine.

    ================  ================================================================================================
    ``tokens``        of a batch; where there is none, as many as the model's engine computes at a time
    ``wait_ms``       how long the engine waits for a fuller batch when it has nothing else to do
    ``queue_tokens``  how many may wait; a request beyond them is refused. Where there is no number: 131,072, or those
                      of 16 batches where a GPU computes so many at a time
    ``turn_tokens``   a request gets so many at a stretch; what is left of a larger one makes room for others
    ================  ================================================================================================
    """

    tokens: int | None = None
    wait_ms: float = 1.0
    queue_tokens: int | None = None
    turn_tokens: int = 1 << 13

    def __post_init__(self) -> None:
        if self.tokens is not None and self.tokens < 1:
            raise RankwellError(f"batches of {self.tokens} tokens; expected 1 or more")
        if self.wait_ms < 0 or (self.queue_tokens or 1) < 1 or self.turn_tokens < 1:
            raise RankwellError("a queue needs room for a token or more, and cannot wait for less than no time")
