"""The reader: nothing of a long document is lost, nothing that fits is touched, and everything else is counted."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.inputs.batching import Sequences
from rankwell.inputs.prompts import Frame
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import Template, TruncationReport, lay_out_pairs
from rankwell.inputs.windows import Windows, fit_windows


def windows_of(
    tokenizer: Any, template: Template, query: str, documents: list[str], types: list[str] | None = None
) -> list[list[str]]:
    """The document's tokens of each window, for each document."""
    texts = {"query": [query] * len(documents), "document": documents} | ({"type": types} if types else {})
    fields = {name: tokenizer.encode(rows, stems=template.markers) for name, rows in texts.items()}
    laid = Reader(tokenizer, template).lay_out(fields)
    out: list[list[str]] = [[] for _ in documents]
    rows = laid.fields["document"]
    for begin, end, pair in zip(rows.begins, rows.ends, laid.owners, strict=True):
        out[pair].append(" ".join(tokenizer.token_names(rows.ids[begin:end])))
    return out


def test_they_are_as_large_as_the_room_and_overlap_by_half(tokenizer: Any) -> None:
    # 12 places, of which [CLS], two [SEP] and a query of three leave six.
    template = Template(max_length=12, max_query=4)
    found = windows_of(tokenizer, template, "bank tea milk", ["a b c d e f g h i j", "a b c d e f", ""])
    assert found == [["a b c d e f", "d e f g h i", "e f g h i j"], ["a b c d e f"], [""]]


def test_room_is_what_the_querys_own_length_and_type_leave(tokenizer: Any) -> None:
    template = Template("typed", max_length=26, max_query=4)
    letters = "a b c d e f g h i j k l m n o p q r s t u v w x y z"
    found = windows_of(tokenizer, template, "bank tea", [letters, letters], ["", "numeric"])
    assert [len(part.split()) for part in found[0]] == [21, 21]
    assert [len(part.split()) for part in found[1]] == [18, 18]  # nu ##meric [SEP]


def test_words_are_not_split(tokenizer: Any) -> None:
    template = Template(max_length=15, max_query=4)
    found = windows_of(tokenizer, template, "tea", ["bogue bank " * 8])
    for part in found[0]:
        assert not part.startswith("##")
        assert part.split()[-1] in ("bank", "##ue")


def test_a_word_longer_than_the_room_is_split_rather_than_lost(tokenizer: Any) -> None:
    template = Template(max_length=9, max_query=2)
    whole = tokenizer.token_names(tokenizer.encode(["zyxwvutsrqponmlkji"]).ids)
    (parts,) = windows_of(tokenizer, template, "tea", ["zyxwvutsrqponmlkji"])
    assert len(parts) > 1
    assert {piece for part in parts for piece in part.split()} == set(whole)


WORDS = st.sampled_from(["bank", "bogue", "insouciantly", ".", "3,100", "the", "teas", "zyxwvut"])
TEXTS = st.lists(WORDS, max_size=40).map(" ".join)


@settings(max_examples=150, deadline=None)
@given(
    pairs=st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from(["", "numeric"])), min_size=1, max_size=4),
    max_query=st.integers(1, 12),
    room=st.integers(4, 30),
    markers=st.booleans(),
    typed=st.booleans(),
)
def test_nothing_of_a_document_is_cut_or_left_out(
    marked_tokenizer: Any, pairs: Any, max_query: int, room: int, markers: bool, typed: bool
) -> None:
    name, extra = ("typed", 19) if typed else ("mono", 3)
    template = Template(name, max_query + room + extra, max_query, markers=markers)
    special = marked_tokenizer.special
    queries, documents, types = zip(*pairs, strict=True)
    texts = {"query": queries, "document": documents, "type": types}
    fields = {name: marked_tokenizer.encode(rows, stems=markers) for name, rows in texts.items()}
    reader, plain = Reader(marked_tokenizer, template), TruncationReport()
    laid, report = reader.lay_out(fields), reader.truncation
    lay_out_pairs(template, special, fields, plain)
    assert report.pieces_cut["document"] == 0
    assert report.pieces_cut["query"] <= plain.pieces_cut["query"] or markers  # less where a window leaves room
    assert report.pairs == len(pairs)
    # Those that fit stay one, the others become several.
    whole = fields["document"]
    alone = [TruncationReport() for _ in pairs]
    for row, own in enumerate(alone):
        lay_out_pairs(template, special, {key: rows.take([row]) for key, rows in fields.items()}, own)
        windows = np.flatnonzero(laid.owners == row)
        assert (len(windows) > 1) == (own.pieces_cut["document"] > 0)
        # Windows follow one another without a gap, from the first piece to the last.
        parts = [laid.fields["document"].take([window]).ids.tolist() for window in windows]
        text = whole.take([row]).ids.tolist()
        reached = 0
        for part in parts:
            place = max(at for at in range(reached + 1) if text[at : at + len(part)] == part)
            reached = max(reached, place + len(part))
        assert reached == len(text)


def test_costs_decide_where_marked_words_are(tokenizer: Any) -> None:
    document = tokenizer.encode(["a b c d"])
    begins, ends, owners = fit_windows(document, np.array([1, 3, 1, 1]), np.array([4]))
    assert list(zip(begins.tolist(), ends.tolist(), strict=True)) == [(0, 2), (2, 4)]
    assert owners.tolist() == [0, 0]


def test_windows_of_a_size_are_for_short_documents_too(tokenizer: Any) -> None:
    fields = {"query": tokenizer.encode(["tea"] * 2), "document": tokenizer.encode(["a b c", "d"])}
    laid = Reader(tokenizer, Template(), Windows(2, 1)).lay_out(fields)
    assert laid.owners.tolist() == [0, 0, 1]
    assert tokenizer.token_names(laid.fields["document"].ids) == ["a", "b", "b", "c", "d"]
    assert len(laid.fields["query"]) == 3


def test_without_windows_documents_are_truncated(tokenizer: Any) -> None:
    fields = {"query": tokenizer.encode(["tea"] * 2), "document": tokenizer.encode(["a b c d e f", "d"])}
    laid = Reader(tokenizer, Template(max_length=8, max_query=2), None).lay_out(fields)
    assert (laid.owners.tolist(), laid.fields, laid.truncated) == ([0, 1], fields, 1)
    assert tokenizer.token_names(laid.sequences.tokens[: laid.sequences.ends[0]])[3:-1] == ["a", "b", "c", "d"]


def test_single_texts_are_read_in_windows_too(tokenizer: Any) -> None:
    reader = Reader.of_texts(tokenizer, 8, windows=Windows())
    laid = reader.lay_out({"query": tokenizer.encode(["a b c d e f g h i", "tea"])})
    assert laid.owners.tolist() == [0, 0, 1]
    assert laid.sequences.lengths().tolist() == [8, 8, 3]
    assert laid.join(np.array([1, 3, 2], np.float32)).tolist() == [3, 2]


def test_single_texts_are_truncated_without_windows(tokenizer: Any) -> None:
    pieces = tokenizer.encode(["a b c d", "", "e f"])
    laid = Reader.of_texts(tokenizer, 5).lay_out({"query": pieces})
    cls, sep = tokenizer.special.cls, tokenizer.special.sep
    assert laid.sequences.tokens.tolist() == [cls, *pieces.ids[:3], sep, cls, sep, cls, *pieces.ids[4:], sep]
    assert laid.sequences.positions.tolist() == [0, 1, 2, 3, 4, 0, 1, 0, 1, 2, 3]
    assert (laid.owners.tolist(), laid.truncated) == ([0, 1, 2], 1)


@pytest.mark.parametrize("most", [1, 2, 3, 100])
def test_parts_hold_whole_pairs(tokenizer: Any, most: int) -> None:
    texts = ["a b c d e f", "a", "a b c", "a b"]
    fields = {"query": tokenizer.encode(["tea"] * 4), "document": tokenizer.encode(texts)}
    reader = Reader(tokenizer, Template(), Windows(2, 2))
    whole = reader.lay_out(fields)
    parts = list(reader.lay_out_parts(fields, most))
    assert np.concatenate([part.owners for part in parts]).tolist() == whole.owners.tolist() == [0, 0, 0, 1, 2, 2, 3]
    assert np.concatenate([part.sequences.tokens for part in parts]).tolist() == whole.sequences.tokens.tolist()
    ends = [set(part.owners.tolist()) for part in parts]
    assert all(not before & after for before, after in pairwise(ends))
    assert all(len(part.owners) <= most or len(set(part.owners.tolist())) == 1 for part in parts)
    assert reader.truncation.pairs == 8  # counted once for each call


class TestReport:
    def test_a_query_and_a_type_that_are_cut_are_reported(self, tokenizer: Any) -> None:
        template = Template("typed", max_length=40, max_query=3)
        texts = {"type": ["a " * 20], "query": ["tea " * 5], "document": ["bank " * 30]}
        fields = {name: tokenizer.encode(rows) for name, rows in texts.items()}
        reader = Reader(tokenizer, template)
        laid, report = reader.lay_out(fields), reader.truncation
        # Cut from each of the windows, but from one pair: 4 of the type, 2 of the query.
        assert report.pieces_cut == {"type": 4, "query": 2, "document": 0}
        assert (report.pairs, report.pairs_cut, report.pairs_windowed, report.windows) == (1, 1, 1, len(laid.owners))
        assert str(report) == (
            "truncated: 4 type tokens, 2 query tokens (1 of 1 pairs); read in windows: 1 of 1 pairs (3 windows)"
        )

    def test_windows_that_are_too_long_are_cut_and_counted(self, tokenizer: Any) -> None:
        template = Template(max_length=8, max_query=2)
        fields = {"query": tokenizer.encode(["tea"]), "document": tokenizer.encode(["a b c d e f g h"])}
        reader = Reader(tokenizer, template, Windows(6, 2))
        reader.lay_out(fields)
        # Room for four of the six words of each of two windows.
        assert str(reader.truncation) == (
            "truncated: 4 document tokens (1 of 1 pairs); read in windows: 1 of 1 pairs (2 windows)"
        )

    def test_threads_lose_no_count(self) -> None:
        report = TruncationReport()
        fields = Template().fields
        cut = np.ones((3, 2), np.int64)

        def count(_: int) -> None:
            for _ in range(200):
                report.count(fields, cut)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(count, range(4)))
        assert (report.pairs, report.pairs_cut) == (2400, 2400)
        assert report.pieces_cut == {"query": 2400, "document": 2400}


def test_only_a_text_without_tokens_becomes_the_filler() -> None:
    tokens, words = np.array([1, 7, 8, 2, 1, 2], np.int32), np.array([0, 1, 2, 3, 0, 1], np.int32)
    nothing, ends = np.empty(0, np.int32), np.array([4, 6])
    whole = Sequences(tokens, np.zeros(6, np.int8), nothing, words, np.ones(6, np.bool_), ends)
    framed = Frame(nothing, nothing, filler=9).around(whole)
    assert framed.tokens.tolist() == [7, 8, 9]
    assert framed.words.tolist() == [0, 1, 0]
    assert framed.positions.tolist() == [0, 1, 0]
    assert framed.ends.tolist() == [2, 3]
