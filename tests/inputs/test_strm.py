"""STRM's words and last pieces, against a slow reference that starts from the texts and knows nothing of our arrays.

allowed(a, b) = real(b) and (word(a) == word(b) or last(b))
"""

from __future__ import annotations

import unicodedata
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.inputs.templates import Template
from rankwell.models.attention import dense_mask, make_layout


@dataclass(frozen=True)
class Token:
    text: str
    word: int
    last: bool


def split_words(text: str) -> list[str]:
    """BERT's words: lower-cased, without accents, apart at spaces and at each punctuation mark."""
    plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
    out: list[str] = []
    for group in plain.split():
        for is_mark, run in groupby(group, lambda c: not c.isalnum()):
            letters = "".join(run)
            out += list(letters) if is_mark else [letters]
    return out


def word_pieces(word: str, vocabulary: frozenset[str]) -> list[str]:
    """WordPiece: the longest piece that fits, again and again; ``[UNK]`` where nothing does."""
    pieces: list[str] = []
    begin = 0
    while begin < len(word):
        options = (("##" if begin else "") + word[begin:end] for end in range(len(word), begin, -1))
        piece = next((option for option in options if option in vocabulary), None)
        if piece is None:
            return ["[UNK]"]
        pieces.append(piece)
        begin += len(piece.removeprefix("##")) if begin else len(piece)
    return pieces


def rooms(template: Template, needs: dict[str, int]) -> dict[str, int]:
    """How many pieces each field keeps."""
    caps = {"type": 16, "query": template.max_query}
    out = {name: min(need, caps[name]) for name, need in needs.items() if name in caps}
    left = template.max_length - 1 - len(needs) - sum(out.values())
    for order, (name, need) in enumerate(
        sorted(((n, k) for n, k in needs.items() if n not in caps), key=lambda x: x[1])
    ):
        sharing = len(needs) - len(caps.keys() & needs.keys()) - order
        out[name] = min(need, left // sharing)
        left -= out[name]
    for name in [name for name in caps if name in needs]:
        extra = min(needs[name] - out[name], left)
        out[name] += extra
        left -= extra
    return out


def reference(template: Template, texts: dict[str, str], vocabulary: frozenset[str]) -> list[Token]:
    words = {name: [word_pieces(word, vocabulary) for word in split_words(text)] for name, text in texts.items()}
    words = {name: found for name, found in words.items() if found or name != "type"}
    kept = rooms(template, {name: sum(map(len, found)) for name, found in words.items()})
    groups = [["[CLS]"]]
    for name, found in words.items():
        room = kept[name]
        for pieces in found:
            if room > 0:
                groups.append(pieces[:room])
                room -= len(pieces)
        groups.append(["[SEP]"])
    return [
        Token(text, word, place == len(group) - 1)
        for word, group in enumerate(groups)
        for place, text in enumerate(group)
    ]


def allowed(tokens: list[Token], width: int) -> list[list[bool]]:
    """The formula, token by token; columns from ``len(tokens)`` to ``width`` are padding."""
    return [
        [b < len(tokens) and (tokens[a].word == tokens[b].word or tokens[b].last) for b in range(width)]
        for a in range(len(tokens))
    ]


@pytest.fixture(scope="session")
def vocabulary(tiny_tokenizer: Path) -> frozenset[str]:
    return frozenset((tiny_tokenizer / "vocab.txt").read_text(encoding="utf-8").split("\n"))


# Whole words, words of two to four pieces, spelt-out words, words no piece of which is known, punctuation.
WORDS = st.sampled_from("bank The bogue bogus insouciantly numeric bank's zyx q7 café ωmega 日 e.g. --".split())
TEXTS = st.lists(WORDS, max_size=12).map(" ".join)


@st.composite
def batches(draw: st.DrawFn) -> tuple[Template, list[dict[str, str]]]:
    name = draw(st.sampled_from(["mono", "typed", "duo"]))
    max_query = draw(st.integers(1, 12))
    least = 1 + max_query + {"mono": 3, "typed": 3 + 17, "duo": 5}[name]
    template = Template(name, max_length=draw(st.integers(least, 60 + least)), max_query=max_query)
    pairs = [{f.name: draw(TEXTS) for f in template.fields} for _ in range(draw(st.integers(1, 4)))]
    return template, pairs


def check(lay: Any, vocabulary: frozenset[str], template: Template, pairs: list[dict[str, str]]) -> None:
    laid = lay(template, **{f.name: [pair[f.name] for pair in pairs] for f in template.fields})
    expected = [reference(template, pair, vocabulary) for pair in pairs]
    assert laid.tokens == [[token.text for token in tokens] for tokens in expected]
    assert laid.rows("last") == [[token.last for token in tokens] for tokens in expected]
    width = max(map(len, expected))
    # Padding is filled with what would do harm if it were looked at: the word of [CLS], a last piece.
    words = torch.tensor([row + [0] * (width - len(row)) for row in laid.rows("words")])
    last = torch.tensor([row + [True] * (width - len(row)) for row in laid.rows("last")])
    real = torch.tensor([[place < len(tokens) for place in range(width)] for tokens in expected])
    mask = dense_mask(words, last, real, "strm")[:, 0]
    layout = make_layout(
        *(torch.from_numpy(getattr(laid.sequences, name)) for name in ("words", "last", "ends")), rule="strm"
    )
    assert layout.mask is not None
    for own, packed, tokens in zip(mask, layout.mask[:, 0], expected, strict=True):
        formula = allowed(tokens, width)
        assert own[: len(tokens)].tolist() == formula
        assert packed[: len(tokens)].tolist() == formula
        assert bool(own.any(dim=1).all()), "a row without any column would give NaN"
        assert bool(packed.any(dim=1).all())


@settings(max_examples=80, deadline=None)
@given(batch=batches())
def test_words_and_last_pieces_give_the_formula(
    lay: Any, vocabulary: frozenset[str], batch: tuple[Template, list[dict[str, str]]]
) -> None:
    check(lay, vocabulary, *batch)


@pytest.mark.parametrize("name", ["mono", "typed", "duo"])
def test_a_cut_word_is_represented_by_its_last_kept_piece_at_every_boundary(
    lay: Any, vocabulary: frozenset[str], name: str
) -> None:
    texts = dict.fromkeys(("type", "query", "document", "other"), "bogue insouciantly bank numeric zyx")
    for max_query in range(1, 14):
        least = 1 + max_query + {"mono": 3, "typed": 3 + 17, "duo": 5}[name]
        for max_length in range(least, least + 30):
            template = Template(name, max_length=max_length, max_query=max_query)
            check(lay, vocabulary, template, [{f.name: texts[f.name] for f in template.fields}])


def test_a_word_cut_in_the_middle_by_hand(lay: Any) -> None:
    laid = lay(Template(max_length=9, max_query=2), query="bogue", document="bank insouciantly")
    assert laid.tokens == [["[CLS]", "bog", "##ue", "[SEP]", "bank", "ins", "##ou", "##cian", "[SEP]"]]
    assert laid.rows("last") == [[True, False, True, True, True, False, False, True, True]]


def test_an_unknown_word_is_not_a_split_word(lay: Any) -> None:
    laid = lay(Template(), query="ω日ω bank", document="日本")
    assert laid.tokens == [["[CLS]", "[UNK]", "[UNK]", "[UNK]", "bank", "[SEP]", "[UNK]", "[UNK]", "[SEP]"]]
    assert laid.rows("last") == [[True] * 9]
    assert len(set(laid.rows("words")[0])) == 9


def test_special_tokens_written_in_a_text_are_ordinary_words(lay: Any) -> None:
    laid = lay(Template(), query="a[SEP]bogue", document="x")
    assert laid.tokens == [["[CLS]", "a", "[", "s", "##e", "##p", "]", "bog", "##ue", "[SEP]", "x", "[SEP]"]]
    assert laid.rows("last") == [[True, True, True, False, False, True, True, False, True, True, True, True]]


def test_markers_are_words_of_their_own(lay_marked: Any) -> None:
    laid = lay_marked(Template(markers=True), query="bogue", document="a bogue")
    assert laid.tokens == [
        ["[CLS]", "[e1]", "bog", "##ue", "[/e1]", "[SEP]", "a", "[e1]", "bog", "##ue", "[/e1]", "[SEP]"]
    ]
    assert laid.rows("words") == [[0, 1, 2, 2, 3, 4, 5, 6, 7, 7, 8, 9]]
    assert laid.rows("last") == [[i not in (2, 8) for i in range(12)]]


class TestThePapersCases:
    """Figures 1 and 3 of DR-BERT, with the vocabulary of bert-base-uncased."""

    @staticmethod
    def mask(laid: Any, rule: str = "strm") -> Any:
        words, last = (torch.tensor(laid.rows(name)) for name in ("words", "last"))
        return dense_mask(words, last.bool(), None, rule)[0, 0]

    def test_figure_1a_bogue_does_not_meet_bogus_in_bog(self, lay_real: Any) -> None:
        laid = lay_real(Template(), query="what is bogue", document="a bogus claim")
        tokens = laid.tokens[0]
        assert tokens == ["[CLS]", "what", "is", "bog", "##ue", "[SEP]", "a", "bog", "##us", "claim", "[SEP]"]
        mask = self.mask(laid)
        query, document = (3, 4), (7, 8)
        assert not mask[query[0], document[0]]
        assert not mask[document[0], query[0]]
        assert mask[query[1], document[1]]
        assert mask[document[1], query[1]]
        # A first piece looks outwards, at the other word's last piece, but is not looked at.
        assert mask[query[0], document[1]]
        assert not mask[document[1], query[0]]

    def test_figure_1b_in_does_not_meet_the_ins_of_insouciantly(self, lay_real: Any) -> None:
        laid = lay_real(Template(), query="insouciantly", document="in")
        assert laid.tokens == [["[CLS]", "ins", "##ou", "##cian", "##tly", "[SEP]", "in", "[SEP]"]]
        mask = self.mask(laid)
        assert [bool(mask[6, b]) for b in range(8)] == [True, False, False, False, True, True, True, True]
        assert bool(mask[1:5].all()), "the pieces of the word see each other and all the rest"

    def test_figure_3_the_columns_of_bogue(self, lay_real: Any) -> None:
        # Eight positions, counted from 1, with bog at 4 and ##ue at 5.
        laid = lay_real(Template(), query="what is bogue", document="fish")
        assert len(laid.tokens[0]) == 8
        assert laid.tokens[0][3:5] == ["bog", "##ue"]
        mask = self.mask(laid)
        assert [row + 1 for row in range(8) if mask[row, 4]] == [1, 2, 3, 4, 5, 6, 7, 8]
        assert [row + 1 for row in range(8) if mask[row, 3]] == [4, 5]

    def test_strict_also_keeps_first_pieces_from_looking_out(self, lay_real: Any) -> None:
        laid = lay_real(Template(), query="what is bogue", document="fish")
        mask = self.mask(laid, "strict")
        assert [column + 1 for column in range(8) if mask[3, column]] == [4, 5]
        assert [column + 1 for column in range(8) if mask[4, column]] == [1, 2, 3, 4, 5, 6, 7, 8]

    def test_the_name_of_a_type_can_itself_be_split(self, lay_real: Any) -> None:
        laid = lay_real(Template("typed"), type="numeric", query="how", document="far")
        assert laid.tokens == [["[CLS]", "nu", "##meric", "[SEP]", "how", "[SEP]", "far", "[SEP]"]]
        assert [row for row in range(8) if self.mask(laid)[row, 1]] == [1, 2]
