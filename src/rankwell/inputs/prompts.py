"""Prompts: how a language model is asked whether a document answers a query.

    front  query  between  document  back

A text's tokens may depend on what stands around it: in "Query: bees?\\n" some tokenizers join the question mark and the
line break. So the query is tokenised together with the text up to the document. A break before a space is safe, so the
document is tokenised alone, with the space before it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import gather
from rankwell.inputs.batching import Sequences

Ids = NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Frame:
    """The tokens before and after everything else in a sequence. A sequence without any token becomes ``filler``."""

    front: Ids
    back: Ids
    filler: int = 0

    def __len__(self) -> int:
        return len(self.front) + len(self.back)

    def around(self, sequences: Sequences) -> Sequences:
        """The sequences with the frame in place of their first and their last token."""
        inner = sequences.lengths() - 2
        begins = sequences.ends - inner - 1
        empty = (inner == 0) & (len(self) == 0)
        lengths = inner + len(self) + empty
        ends = np.cumsum(lengths)
        places = gather(ends - lengths + len(self.front), inner)
        source = gather(begins, inner)
        fronts = (ends - lengths)[:, None] + np.arange(len(self.front))
        backs = (ends - len(self.back))[:, None] + np.arange(len(self.back))
        total = int(lengths.sum())
        tokens, segments = np.empty(total, np.int32), np.zeros(total, np.int8)
        words, last = np.empty(total, np.int32), np.ones(total, np.bool_)
        tokens[places], segments[places] = sequences.tokens[source], sequences.segments[source]
        last[places], words[places] = sequences.last[source], sequences.words[source] + len(self.front) - 1
        tokens[fronts], tokens[backs], tokens[ends[empty] - 1] = self.front, self.back, self.filler
        words[fronts] = np.arange(len(self.front))
        words[ends[empty] - 1] = 0
        words[backs] = np.arange(len(self.back)) + (len(self.front) + sequences.words[sequences.ends - 1][:, None] - 1)
        positions = np.arange(total) - np.repeat(ends - lengths, lengths)
        return Sequences(tokens, segments, positions.astype(np.int32), words, last, ends)


@dataclass(frozen=True)
class Prompt:
    """The texts around query and document. With ``joined`` the query is tokenised together with ``between``."""

    front: str = ""
    between: str = ""
    back: str = ""
    joined: bool = True
    begin: str = ""
    """A special token that begins every sequence."""
    instruction: str = ""
    """The words of ``front`` that say what to look for; empty if there are none."""

    def asking(self, instruction: str) -> Prompt:
        """The same prompt with another instruction."""
        return replace(self, front=self.front.replace(self.instruction, instruction, 1), instruction=instruction)

    @property
    def before_query(self) -> str:
        """What is tokenised with the query: the space before it, or its whole line if texts are tokenised apart."""
        return _trailing_space(self.front) if self.joined else self.front.rpartition("\n")[2]

    @property
    def before_document(self) -> str:
        """What is tokenised with the document."""
        return _trailing_space(self.between) if self.joined else self.between.rpartition("\n")[2]

    @property
    def before_all(self) -> str:
        """What stands before the query's tokens."""
        return self.begin + self.front.removesuffix(self.before_query)

    @property
    def after_query(self) -> str:
        """What stands between the query's tokens and the document's."""
        return self.between.removesuffix(self.before_document)


def _trailing_space(text: str) -> str:
    return " " if text.endswith(" ") else ""
