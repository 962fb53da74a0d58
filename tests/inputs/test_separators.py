"""Two separators between fields, as MPNet and RoBERTa write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwell.core.errors import RankwellError
from rankwell.inputs.templates import SpecialTokens, Template, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer

CLS, SEP = 2, 3


def laid_out(tokenizer: Tokenizer, texts: dict[str, list[str]], template: Template, between: int) -> list[list[str]]:
    fields = {name: tokenizer.encode(column) for name, column in texts.items()}
    sequences = lay_out_pairs(template, SpecialTokens(CLS, SEP, between=between), fields)
    names = tokenizer.token_names(sequences.tokens)
    assert sequences.last.all() == all(not name.startswith("##") for name in names)
    return [names[end - size : end] for size, end in zip(sequences.lengths(), sequences.ends, strict=True)]


@pytest.fixture
def tokenizer(tiny_tokenizer: Path) -> Tokenizer:
    return Tokenizer.open(tiny_tokenizer)


def test_stand_between_fields_and_one_at_the_end(tokenizer: Tokenizer) -> None:
    found = laid_out(tokenizer, {"query": ["bank"], "document": ["money rate"]}, Template(), 2)
    assert found == [["[CLS]", "bank", "[SEP]", "[SEP]", "money", "rate", "[SEP]"]]


def test_a_type_that_vanishes_takes_both_with_it(tokenizer: Tokenizer) -> None:
    texts = {"type": ["person", ""], "query": ["king", "bank"], "document": ["", "money"]}
    first, second = laid_out(tokenizer, texts, Template("typed"), 2)
    assert first == ["[CLS]", "person", "[SEP]", "[SEP]", "king", "[SEP]", "[SEP]", "[SEP]"]
    assert second == ["[CLS]", "bank", "[SEP]", "[SEP]", "money", "[SEP]"]


@pytest.mark.parametrize("between", [1, 2, 3])
def test_count_towards_the_length(tokenizer: Tokenizer, between: int) -> None:
    texts = {"query": ["bank rate"], "document": ["money " * 50]}
    (found,) = laid_out(tokenizer, texts, Template(max_length=20, max_query=8), between)
    assert len(found) == 20
    assert found.count("[SEP]") == 1 + between
    assert found.count("money") == 20 - 2 - 2 - between


def test_a_length_that_cannot_hold_them_is_an_error(tokenizer: Tokenizer) -> None:
    template = Template(max_length=12, max_query=8)
    laid_out(tokenizer, {"query": ["bank"], "document": ["money"]}, template, 1)
    with pytest.raises(RankwellError, match="needs a length of at least 13, not 12"):
        laid_out(tokenizer, {"query": ["bank"], "document": ["money"]}, template, 2)


def test_are_those_of_a_roberta_tokenizer(tiny_tokenizer: Path, tokenizer: Tokenizer) -> None:
    tokenizers: Any = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer.from_file(str(tiny_tokenizer / "tokenizer.json"))
    theirs.post_processor = tokenizers.processors.RobertaProcessing(("[SEP]", SEP), ("[CLS]", CLS))
    expected = theirs.encode("what is bogue", "a bogus claim").tokens
    found = laid_out(tokenizer, {"query": ["what is bogue"], "document": ["a bogus claim"]}, Template(), 2)
    assert found == [expected]
