"""Exact-match markers: which words of the query and the document get them, and that truncation respects them."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows, cut_windows

MARKED = Template(markers=True)
OPENING, CLOSING = re.compile(r"\[e(\d+)\]"), re.compile(r"\[/e(\d+)\]")


def one(lay_marked: Any, query: str, document: str, template: Template = MARKED) -> str:
    """The sequence of one pair as a line."""
    return " ".join(lay_marked(template, query=query, document=document).tokens[0])


def test_a_term_of_both_is_marked_on_both_sides(lay_marked: Any) -> None:
    assert one(lay_marked, "bank rate", "the bank") == "[CLS] [e1] bank [/e1] rate [SEP] the [e1] bank [/e1] [SEP]"


def test_terms_are_numbered_by_their_first_occurrence_in_the_query(lay_marked: Any) -> None:
    # tea is the second distinct stem: it has number 2 although the first one is not in the document.
    found = one(lay_marked, "honey tea tea bread", "bread tea")
    assert found == (
        "[CLS] honey [e2] tea [/e2] [e2] tea [/e2] [e3] bread [/e3] [SEP] [e3] bread [/e3] [e2] tea [/e2] [SEP]"
    )


def test_every_occurrence_in_the_document_is_marked(lay_marked: Any) -> None:
    assert one(lay_marked, "tea", "tea, tea").endswith("[SEP] [e1] tea [/e1] , [e1] tea [/e1] [SEP]")


def test_equal_stems_match_in_any_case_and_form(lay_marked: Any) -> None:
    found = one(lay_marked, "Running bees", "bee run ran")
    assert found == ("[CLS] [e1] running [/e1] [e2] bees [/e2] [SEP] [e2] bee [/e2] [e1] run [/e1] r ##a ##n [SEP]")


def test_stop_words_and_punctuation_are_never_marked(lay_marked: Any) -> None:
    assert one(lay_marked, "what is the tea?", "is the what?") == (
        "[CLS] [e1] what [/e1] is the tea ? [SEP] is the [e1] what [/e1] ? [SEP]"
    )


def test_function_words_can_be_left_unmarked_on_both_sides(lay_marked: Any) -> None:
    template = Template(markers=True, unmarked="function words")
    assert one(lay_marked, "what tea can do", "can do tea: what?", template) == (
        "[CLS] what [e1] tea [/e1] can do [SEP] can do [e1] tea [/e1] : what ? [SEP]"
    )


def test_a_split_word_has_its_markers_around_all_its_pieces(lay_marked: Any) -> None:
    assert one(lay_marked, "insouciantly", "ins insouciantly") == (
        "[CLS] [e1] ins ##ou ##cian ##tly [/e1] [SEP] ins [e1] ins ##ou ##cian ##tly [/e1] [SEP]"
    )


def test_a_word_of_several_tokens_is_marked_as_one(lay_marked: Any) -> None:
    assert one(lay_marked, "3,100", "cost 3,100.") == (
        "[CLS] [e1] 3 , 1 ##0 ##0 [/e1] [SEP] cost [e1] 3 , 1 ##0 ##0 [/e1] . [SEP]"
    )


def test_a_query_term_that_is_not_in_the_document_is_marked_on_request(lay_marked: Any) -> None:
    template = Template(markers=True, mark_unmatched_query=True)
    assert one(lay_marked, "bank tea", "tea", template) == (
        "[CLS] [e1] bank [/e1] [e2] tea [/e2] [SEP] [e2] tea [/e2] [SEP]"
    )


def test_there_are_twenty_pairs(lay_marked: Any) -> None:
    terms = (
        "bank money rate loan cost price honey hive wing tree leaf water river sea fish bird dog cat city king".split()
    )
    found = one(lay_marked, " ".join([*terms, "queen"]), "king queen", Template(markers=True))
    assert len(terms) == 20
    assert "[e20] king [/e20] queen [SEP] [e20] king [/e20] queen [SEP]" in found


def test_each_pair_is_matched_by_itself(lay_marked: Any) -> None:
    laid = lay_marked(MARKED, query=["tea", "milk tea"], document=["milk", "tea milk"])
    assert laid.tokens == [
        "[CLS] tea [SEP] milk [SEP]".split(),
        "[CLS] [e1] milk [/e1] [e2] tea [/e2] [SEP] [e2] tea [/e2] [e1] milk [/e1] [SEP]".split(),
    ]


def test_a_type_is_not_marked(lay_marked: Any) -> None:
    laid = lay_marked(Template("typed", markers=True), type="person", query="person", document="person")
    assert " ".join(laid.tokens[0]) == "[CLS] person [SEP] [e1] person [/e1] [SEP] [e1] person [/e1] [SEP]"


class TestTruncation:
    @pytest.mark.parametrize(
        ("length", "document", "cut"),
        [
            (12, "a [e1] bog ##ue [/e1]", 0),
            (11, "a [e1] bog [/e1]", 1),  # the word keeps its markers and a piece
            (10, "a", 2),  # no room for a piece between markers: the word goes
            (9, "a", 2),
        ],
    )
    def test_a_marker_is_never_split_from_its_term(self, lay_marked: Any, length: int, document: str, cut: int) -> None:
        laid = lay_marked(Template(markers=True, max_length=length, max_query=5), query="bogue", document="a bogue")
        assert " ".join(laid.tokens[0]) == f"[CLS] [e1] bog ##ue [/e1] [SEP] {document} [SEP]"
        assert laid.report.pieces_cut == {"query": 0, "document": cut}

    def test_markers_count_towards_the_querys_cap(self, lay_marked: Any) -> None:
        template = Template(markers=True, max_length=14, max_query=5)
        assert one(lay_marked, "tea milk bank", "tea milk") == one(lay_marked, "tea milk bank", "tea milk", MARKED)
        found = one(lay_marked, "tea milk bank", "tea milk", template)
        assert found == "[CLS] [e1] tea [/e1] [SEP] [e1] tea [/e1] [e2] milk [/e2] [SEP]"

    def test_a_window_that_begins_within_a_marked_word_is_not_cut(self, marked_tokenizer: Any) -> None:
        # 3,100 is one word of the analyser and three of BERT's, so a window may begin between them.
        document = marked_tokenizer.encode(["cost 3,100 tea"], stems=True)
        windows, _ = cut_windows(document, Windows(size=2, stride=1))
        query = marked_tokenizer.encode(["3,100 tea"] * len(windows), stems=True)
        report = TruncationReport()
        found = lay_out_pairs(MARKED, marked_tokenizer.special, {"query": query, "document": windows}, report)
        assert report.pairs_cut == 0
        names = " ".join(marked_tokenizer.token_names(found.tokens[found.ends[-2] :]))
        assert names.endswith("[SEP] [e1] 1 ##0 ##0 [/e1] [e2] tea [/e2] [SEP]")


WORDS = st.sampled_from(
    ["the", "bank", "banks", "Bogue", "bogus", "insouciantly", "3,100", "tea", "zyx", "ω", "-", "it's"]
)
TEXTS = st.lists(WORDS, max_size=14).map(" ".join)


@settings(max_examples=100, deadline=None)
@given(query=TEXTS, document=TEXTS, max_query=st.integers(1, 20), room=st.integers(4, 60), unmatched=st.booleans())
def test_markers_are_paired_within_the_limit_and_leave_the_text_as_it_is(
    lay_marked: Any, query: str, document: str, max_query: int, room: int, unmatched: bool
) -> None:
    template = Template("mono", max_query + room, max_query, markers=True, mark_unmatched_query=unmatched)
    laid = lay_marked(template, query=query, document=document)
    tokens = laid.tokens[0]
    assert len(tokens) <= template.max_length

    opened = None
    plain: list[str] = []
    for before, token in zip(["", *tokens], tokens, strict=False):
        if found := OPENING.fullmatch(token):
            assert opened is None, "markers do not nest"
            opened = found[1]
        elif found := CLOSING.fullmatch(token):
            assert opened == found[1]
            assert not OPENING.fullmatch(before), "a marked word keeps a piece or more"
            opened = None
        else:
            plain.append(token)
    assert opened is None

    bare = lay_marked(Template(max_length=512), query=query, document=document).tokens[0]
    kept_query, kept_document = split_fields(plain)
    whole_query, whole_document = split_fields(bare)
    assert kept_query == whole_query[: len(kept_query)]
    assert kept_document == whole_document[: len(kept_document)]
    missing = len(whole_query) - len(kept_query), len(whole_document) - len(kept_document)
    assert tuple(laid.report.pieces_cut.values()) == missing


def split_fields(tokens: list[str]) -> tuple[list[str], list[str]]:
    middle = tokens.index("[SEP]")
    return tokens[1:middle], tokens[middle + 1 : -1]


class TestTheVocabulary:
    def test_markers_are_forty_tokens_in_order(self, marked_tokenizer: Any, tokenizer: Any) -> None:
        special = marked_tokenizer.special
        assert tokenizer.special.first_marker == -1
        assert special.first_marker == len(tokenizer)
        assert len(marked_tokenizer) == len(tokenizer) + 40
        names = marked_tokenizer.token_names(range(special.first_marker, special.first_marker + 40))
        assert names[:4] == ["[e1]", "[/e1]", "[e2]", "[/e2]"]
        assert names[-1] == "[/e20]"

    def test_another_vocabularys_e1_is_not_a_marker(self, tiny_tokenizer: Any) -> None:
        tokenizer = Tokenizer.open(tiny_tokenizer)
        tokenizer._backend.add_tokens(["[e1]"])
        assert tokenizer.special.first_marker == -1
        with pytest.raises(RankwellError, match=r"already has the token \[e1\]"):
            tokenizer.add_markers()

    def test_adding_them_changes_the_tokenizers_digest(self, marked_tokenizer: Any, tokenizer: Any) -> None:
        assert marked_tokenizer.digest != tokenizer.digest

    def test_a_model_without_them_says_so(self, lay: Any) -> None:
        with pytest.raises(RankwellError, match="no marker tokens"):
            lay(MARKED, query="tea", document="tea")

    def test_duo_has_none(self, lay_marked: Any) -> None:
        with pytest.raises(RankwellError, match="not defined for a template with two documents"):
            lay_marked(Template("duo", markers=True), query="tea", document="tea", other="tea")

    def test_they_need_stems(self, marked_tokenizer: Any) -> None:
        fields = {"query": marked_tokenizer.encode(["tea"]), "document": marked_tokenizer.encode(["tea"])}
        with pytest.raises(RankwellError, match="need the stems"):
            lay_out_pairs(MARKED, marked_tokenizer.special, fields)


def test_threads_share_a_tokenizer(marked_tokenizer: Any) -> None:
    texts = [[f"bank {word}ing {word}s {number}" for word in ("walk", "play", "run")] for number in range(40)]
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda part: marked_tokenizer.encode(part, stems=True), texts))
    for part, found in zip(texts, together, strict=True):
        alone = marked_tokenizer.encode(part, stems=True)
        for name in ("ids", "continues", "ends", "stems", "opens"):
            assert np.array_equal(getattr(found, name), getattr(alone, name)), name
