"""Texts as words: their pieces, what fits, and what they share with a query."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from rankwell.inputs.tokenizer import Tokenizer
from rankwell.papers.ccnu.words import WordRows, WordVocabulary, lay_out_words, match_features

TEXTS = ["The bogue, insouciantly; isn't numeric!", "", "Bee bees honey-bee  BEE?", "in 12 days: 3.5 hours"]


@pytest.fixture
def vocabulary(tiny_tokenizer: Path) -> WordVocabulary:
    return WordVocabulary(Tokenizer.open(tiny_tokenizer))


def forms(vocabulary: WordVocabulary, words: WordRows) -> list[list[str]]:
    strings = vocabulary.forms.strings(words.numbers)
    ends = [0, *words.ends.tolist()]
    return [strings[a:b] for a, b in pairwise(ends)]


def test_words_are_runs_of_letters_and_digits_or_one_other_character(vocabulary: WordVocabulary) -> None:
    texts = ["Don't stop: a_b $3.50!", " \n", "cafe\u0301 中文x"]
    assert forms(vocabulary, vocabulary.read(texts)) == [
        ["Don", "'", "t", "stop", ":", "a", "_", "b", "$", "3", ".", "50", "!"],
        [],
        ["cafe\u0301", "中", "文", "x"],
    ]


def test_the_pieces_of_a_text_are_those_of_its_words(vocabulary: WordVocabulary) -> None:
    words = vocabulary.read(TEXTS)
    sequences, counts = lay_out_words(vocabulary, words)
    whole = vocabulary.tokenizer.encode(TEXTS)
    special = vocabulary.tokenizer.special
    begin = 0
    for row, end in enumerate(sequences.ends.tolist()):
        pieces = whole.ids[whole.begins[row] : whole.ends[row]].tolist()
        assert sequences.tokens[begin:end].tolist() == [special.cls, *pieces, special.sep]
        assert sequences.positions[begin:end].tolist() == list(range(end - begin))
        begin = end
    assert counts.sum() == len(whole.ids)
    # insouciantly = ins ##ou ##cian ##tly is the fourth word: after [CLS], the, bog ##ue and the comma.
    assert counts[3] == 4
    assert sequences.words[5:9].tolist() == [4] * 4
    assert sequences.last[5:9].tolist() == [False, False, False, True]


def test_what_has_no_pieces_is_no_word(vocabulary: WordVocabulary) -> None:
    assert forms(vocabulary, vocabulary.read(["bee \x00\x07 hive", "\x00"])) == [["bee", "hive"], []]


def test_texts_are_cut_to_whole_words_that_fit(vocabulary: WordVocabulary) -> None:
    words = vocabulary.read(["bee insouciantly honey hive", "bee", ""])
    assert forms(vocabulary, vocabulary.fit(words, 3, 100)) == [["bee", "insouciantly", "honey"], ["bee"], []]
    assert forms(vocabulary, vocabulary.fit(words, 100, 5)) == [["bee", "insouciantly"], ["bee"], []]
    assert forms(vocabulary, vocabulary.fit(words, 100, 4)) == [["bee"], ["bee"], []]


def test_rows_are_taken_in_any_order(vocabulary: WordVocabulary) -> None:
    words = vocabulary.read(["bee hive", "", "honey"]).take(np.array([2, 0, 2, 1]))
    assert forms(vocabulary, words) == [["honey"], ["bee", "hive"], ["honey"], []]


def test_match_features_by_hand(vocabulary: WordVocabulary) -> None:
    queries = vocabulary.read(["running Bee", "the hive", ""])
    documents = vocabulary.read(["Bee bee runs bees", "", "hive"])
    assert match_features(vocabulary, queries, documents).tolist() == [
        [1, 1, 1, 0.5],  # Bee: the very word, twice in four in any case
        [0, 1, 1, 0.5],
        [0, 0, 1, 0.25],  # runs and running: one stem
        [0, 0, 1, 0.25],
        [0, 0, 0, 1],  # hive: the other query has it
    ]


def test_words_keep_their_numbers_as_the_vocabulary_grows(vocabulary: WordVocabulary) -> None:
    first = vocabulary.read(["bee hive"]).numbers
    assert vocabulary.read(["honey HIVE hive"]).numbers.tolist() == [2, 3, first[1]]
    assert vocabulary.lower[3] == vocabulary.lower[first[1]]
    assert len(vocabulary) == len(vocabulary.stems) == len(vocabulary.pieces) == 4
