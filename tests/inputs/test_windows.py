"""Windows: where long documents are cut, and one score from the windows' scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import RankwellError
from rankwell.inputs.windows import Windows, aggregate_windows, cut_windows


def windows_of(tokenizer: Any, texts: list[str], windows: Windows) -> list[list[str]]:
    """The windows of each text, as lines of tokens."""
    pieces = tokenizer.encode(texts)
    found, owners = cut_windows(pieces, windows)
    out: list[list[str]] = [[] for _ in texts]
    for begin, end, owner in zip(found.begins, found.ends, owners, strict=True):
        out[owner].append(" ".join(tokenizer.token_names(found.ids[begin:end])))
    return out


class TestCutting:
    def test_every_stride_words_with_a_full_last_window(self, tokenizer: Any) -> None:
        found = windows_of(tokenizer, ["a b c d e f"], Windows(4, 3))
        assert found == [["a b c d", "c d e f"]]

    def test_a_last_window_that_falls_into_place_is_not_doubled(self, tokenizer: Any) -> None:
        assert windows_of(tokenizer, ["a b c d e f"], Windows(4, 2)) == [["a b c d", "c d e f"]]
        assert windows_of(tokenizer, ["a b c d e f"], Windows(2, 2)) == [["a b", "c d", "e f"]]

    def test_between_words_never_within(self, tokenizer: Any) -> None:
        found = windows_of(tokenizer, ["bogue insouciantly bank numeric"], Windows(2, 1))
        assert found == [["bog ##ue ins ##ou ##cian ##tly", "ins ##ou ##cian ##tly bank", "bank nu ##meric"]]

    def test_a_document_that_fits_is_one_window(self, tokenizer: Any) -> None:
        assert windows_of(tokenizer, ["a b", "a b c"], Windows(3, 1)) == [["a b"], ["a b c"]]

    def test_an_empty_document_is_one_empty_window(self, tokenizer: Any) -> None:
        assert windows_of(tokenizer, ["", "a b", "", ""], Windows(1, 1)) == [[""], ["a", "b"], [""], [""]]
        assert windows_of(tokenizer, [""], Windows(100)) == [[""]]

    def test_of_no_documents_are_none(self, tokenizer: Any) -> None:
        found, owners = cut_windows(tokenizer.encode([]), Windows(100))
        assert (len(found), len(owners)) == (0, 0)

    def test_windows_keep_stems_for_markers(self, tokenizer: Any) -> None:
        whole = tokenizer.encode(["bank rate tea"], stems=True)
        found, _ = cut_windows(whole, Windows(2, 1))
        assert found.stems.tolist() == whole.stems[[0, 1, 1, 2]].tolist()
        assert found.opens.all()

    @pytest.mark.parametrize(("size", "stride"), [(3, 0), (3, 4), (0, 0)])
    def test_a_stride_that_skips_words_or_stands_still_is_an_error(self, size: int, stride: int) -> None:
        with pytest.raises(RankwellError, match="stride must be from 1 to the size"):
            Windows(size, stride)

    def test_a_stride_needs_a_size_and_is_half_of_it_by_default(self) -> None:
        assert Windows(5) == Windows(5, 3)
        with pytest.raises(RankwellError, match="a stride of 3 words needs a window size"):
            Windows(stride=3)

    @settings(max_examples=80, deadline=None)
    @given(
        texts=st.lists(st.lists(st.sampled_from(["bank", "bogue", "insouciantly", "."]), max_size=15), max_size=5),
        size=st.integers(1, 6),
        data=st.data(),
    )
    def test_every_word_is_in_a_window_and_the_last_reaches_the_end(
        self, tokenizer: Any, texts: list[list[str]], size: int, data: st.DataObject
    ) -> None:
        stride = data.draw(st.integers(1, size))
        documents = tokenizer.encode([" ".join(words) for words in texts])
        found, owners = cut_windows(documents, Windows(size, stride))
        assert np.array_equal(np.unique(owners), np.arange(len(texts)))
        assert np.array_equal(owners, np.sort(owners))
        for number, words in enumerate(texts):
            own = [
                tuple(found.ids[b:e]) for b, e, o in zip(found.begins, found.ends, owners, strict=True) if o == number
            ]
            pieces = [tuple(tokenizer.encode([word]).ids) for word in words]
            expected = slow_windows(pieces, size, stride)
            assert own == expected
            assert len(expected) <= max(1, len(words)), "no window more than words"


def slow_windows(words: list[tuple[int, ...]], size: int, stride: int) -> list[tuple[int, ...]]:
    """Windows one after the other until one reaches the end, which is moved back to be full."""
    begin = 0
    out = []
    while begin + size < len(words):
        out.append(words[begin : begin + size])
        begin += stride
    out.append(words[max(0, len(words) - size) :])
    return [sum(window, ()) for window in out]


class TestAggregation:
    SCORES = np.array([3, 9, 1, -2, 4, 4, 5], np.float32)
    OWNERS = np.array([0, 0, 0, 1, 2, 2, 2])

    @pytest.mark.parametrize(
        ("how", "expected"),
        [
            ("first", [3, -2, 4]),
            ("max", [9, -2, 5]),
            ("mean", [13 / 3, -2, 13 / 3]),
            ("top1", [9, -2, 5]),
            ("top2", [6, -2, 4.5]),
            ("top3", [13 / 3, -2, 13 / 3]),
            ("top9", [13 / 3, -2, 13 / 3]),
            ("top3:1,1,1", [13 / 3, -2, 13 / 3]),
            ("top2:3,1", [(3 * 9 + 3) / 4, -2, (3 * 5 + 4) / 4]),
            ("top3:0.5,0.3,0.2", [0.5 * 9 + 0.3 * 3 + 0.2 * 1, -2, 0.5 * 5 + 0.3 * 4 + 0.2 * 4]),
            ("top4:1,0,0,1", [9, -2, 5]),
        ],
    )
    def test_by_hand(self, how: str, expected: list[float]) -> None:
        found = aggregate_windows(self.SCORES, self.OWNERS, how)
        assert found.dtype == np.float32
        assert found.tolist() == pytest.approx(expected, rel=1e-6)

    @pytest.mark.parametrize("how", ["first", "max", "mean", "top2"])
    def test_of_nothing_is_nothing(self, how: str) -> None:
        assert len(aggregate_windows(np.zeros(0, np.float32), np.zeros(0, np.int64), how)) == 0

    @settings(max_examples=60, deadline=None)
    @given(
        rows=st.lists(st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=6), min_size=1, max_size=6),
        n=st.integers(1, 7),
    )
    def test_against_numpy_row_by_row(self, rows: list[list[float]], n: int) -> None:
        scores = np.array([score for row in rows for score in row], np.float32)
        owners = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        for how, function in {
            "first": lambda row: row[0],
            "max": np.max,
            "mean": np.mean,
            f"top{n}": lambda row: np.mean(np.sort(row)[::-1][:n]),
        }.items():
            expected = [function(np.array(row, np.float64)) for row in rows]
            assert aggregate_windows(scores, owners, how) == pytest.approx(expected, rel=1e-5, abs=1e-5)

    @pytest.mark.parametrize("how", ["top2:1", "top2:0,1", "top2:1,-1", "top1:nan", "top1:inf", "top1:", "top2:a,b"])
    def test_weights_that_are_none_are_told(self, how: str) -> None:
        with pytest.raises(RankwellError, match="weights separated by commas, none negative and the first above 0"):
            Windows(aggregate=how)

    @pytest.mark.parametrize("how", ["sum", "top0", "top", "top-1", "", "top1001", "max:1"])
    def test_an_unknown_one_is_named(self, how: str) -> None:
        with pytest.raises(RankwellError, match="no aggregation is called"):
            Windows(aggregate=how)
