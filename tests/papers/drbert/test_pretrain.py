"""Pre-training: spans, masks and labels are what they should be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy import stats

from rankwell.core.errors import RankwellError
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.templates import SpecialTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.papers.drbert.options import PretrainOptions
from rankwell.papers.drbert.pretrain import MaskingVocabulary, PretrainingTask, SpanPairs

CLS, SEP, MASK, UNK, FIRST = 0, 1, 2, 3, 10
WIDTH = 100  # ids for each document
VOCABULARY = 60_000


class Source:
    """Documents in memory."""

    def __init__(self, pieces: Pieces):
        self.pieces = pieces

    def __len__(self) -> int:
        return len(self.pieces)

    def numbers(self, docids: list[str]) -> NDArray[np.int64]:
        return np.array([int(docid) for docid in docids], np.int64)

    def lengths(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return self.pieces.lengths()[numbers]

    def at(self, numbers: NDArray[np.int64]) -> Pieces:
        return self.pieces.take(numbers)


def documents(lengths: list[int], split: float = 0.3) -> Source:
    """Documents whose every piece tells where it stands: the id is FIRST + document × WIDTH + place."""
    rng = np.random.default_rng(7)
    continues = [rng.random(n) < split for n in lengths]
    for row in continues:
        row[:1] = False
    ids = [FIRST + number * WIDTH + np.arange(n) for number, n in enumerate(lengths)]
    return Source(
        Pieces.plain(np.concatenate(ids).astype(np.int32), np.concatenate(continues), np.cumsum(np.array(lengths)))
    )


def vocabulary() -> MaskingVocabulary:
    return MaskingVocabulary(SpecialTokens(CLS, SEP), MASK, np.arange(VOCABULARY) >= FIRST)


def task_over(source: Source, seed: int = 1, **options: object) -> PretrainingTask:
    return PretrainingTask(source, np.arange(len(source)), vocabulary(), PretrainOptions(**options), seed)  # type: ignore[arg-type]


def restored(pairs: SpanPairs) -> NDArray[np.int32]:
    """The tokens before masking."""
    return np.where(pairs.targets >= 0, pairs.targets, pairs.sequences.tokens)


def spans(pairs: SpanPairs) -> list[tuple[NDArray[np.int32], NDArray[np.int32]]]:
    """The ids of the two spans of each pair, before masking, without special tokens."""
    found = []
    for tokens, segments in zip(
        np.split(restored(pairs), pairs.sequences.ends[:-1]),
        np.split(pairs.sequences.segments, pairs.sequences.ends[:-1]),
        strict=True,
    ):
        first, second = tokens[segments == 0], tokens[segments == 1]
        assert first[0] == CLS
        assert first[-1] == second[-1] == SEP
        found.append((first[1:-1], second[:-1]))
    return found


def place(ids: NDArray[np.int32]) -> tuple[int, int, int]:
    """Document, begin and end of a span, which must be consecutive pieces of one document."""
    where = ids - FIRST
    assert len(set((where // WIDTH).tolist())) == 1
    assert (np.diff(where) == 1).all()
    return int(where[0] // WIDTH), int(where[0] % WIDTH), int(where[-1] % WIDTH) + 1


MIXED = [2 + (13 * number) % 90 for number in range(300)]


@pytest.fixture(scope="module")
def mixed() -> Source:
    return documents(MIXED)


# Spans


def test_a_second_span_continues_the_first_or_comes_from_another_passage_as_the_label_says(mixed: Source) -> None:
    task, labels = task_over(mixed, max_length=64), []
    for epoch in range(4):
        pairs = task.pairs(np.arange(len(mixed)), epoch)
        for item, (label, (first, second)) in enumerate(zip(pairs.following, spans(pairs), strict=True)):
            if label < 0:
                continue
            document, _, end = place(first)
            other, begin, _ = place(second)
            assert document == item
            assert (other == item and begin == end) if label == 0 else other != item
            labels.append(label)
    assert stats.binomtest(sum(labels), len(labels), 0.5).pvalue > 0.01


def test_spans_are_whole_words_and_fit(mixed: Source) -> None:
    pairs = task_over(mixed, max_length=40).pairs(np.arange(len(mixed)))
    assert pairs.sequences.lengths().max() == 40
    continues = [*np.split(mixed.pieces.continues, mixed.pieces.ends[:-1])]
    for label, both in zip(pairs.following, spans(pairs), strict=True):
        if label >= 0:
            for span in both:
                document, begin, end = place(span)
                assert not continues[document][begin]
                assert end == len(continues[document]) or not continues[document][end]


def test_the_split_falls_on_every_word_boundary_equally_often() -> None:
    task = task_over(documents([9, 9], split=0), other=0.0, short=0.0)
    splits = [len(spans(task.pairs(np.array([0]), epoch))[0][0]) for epoch in range(2000)]
    counts = np.bincount(splits, minlength=9)
    assert counts[0] == 0
    assert stats.chisquare(counts[1:]).pvalue > 0.01


def test_every_part_of_a_long_passage_has_its_turn() -> None:
    task = task_over(documents([90, 90]), max_length=24)
    seen = set()
    for epoch in range(60):
        first, second = spans(task.pairs(np.array([0]), epoch))[0]
        seen |= {*(first - FIRST).tolist(), *(second - FIRST).tolist()}
    assert seen >= set(range(90))


@pytest.mark.parametrize(("share", "label"), [(0.0, 0), (1.0, 1)])
def test_the_share_of_other_spans_is_an_option(share: float, label: int) -> None:
    pairs = task_over(documents([30] * 50), other=share).pairs(np.arange(50))
    assert set(pairs.following.tolist()) == {label}


def test_some_pairs_are_short() -> None:
    source = documents([90] * 400, split=0)
    lengths = task_over(source, max_length=60, short=0.25).pairs(np.arange(400)).sequences.lengths()
    assert stats.binomtest(int((lengths < 60).sum()), 400, 0.25 * 55 / 56).pvalue > 0.01
    assert (task_over(source, max_length=60, short=0.0).pairs(np.arange(400)).sequences.lengths() == 60).all()


def test_lengths_do_not_give_the_label_away(mixed: Source) -> None:
    task = task_over(mixed, max_length=64)
    lengths: dict[int, list[int]] = {0: [], 1: [], -1: []}
    for epoch in range(20):
        pairs = task.pairs(np.arange(len(mixed)), epoch)
        for label, length in zip(pairs.following.tolist(), pairs.sequences.lengths().tolist(), strict=True):
            lengths[label].append(length)
    # Half the distance of the distributions is what knowing the length adds to guessing the label.
    assert stats.ks_2samp(lengths[0], lengths[1]).statistic < 0.03


def test_passages_that_cannot_be_split_take_no_part_in_next_sentence_prediction() -> None:
    source = documents([0, 1, 3, 20, 20])
    source.pieces.continues[1:4] = [False, True, True]  # the third document is one word of three pieces
    task = task_over(source, short=0.0)
    for epoch in range(20):
        pairs = task.pairs(np.arange(5), epoch)
        assert pairs.following[:3].tolist() == [-1, -1, -1]
        assert (pairs.following[3:] >= 0).all()
        for item, (first, second) in enumerate(spans(pairs)[:3]):
            assert len(first) == [0, 1, 3][item]
            assert len(second) == 0 or place(second)[0] != item


def test_a_word_longer_than_the_room_is_cut() -> None:
    source = documents([90, 90])
    source.pieces.continues[1:90] = True
    pairs = task_over(source, max_length=20, other=0.0, short=0.0).pairs(np.array([0]))
    assert pairs.sequences.lengths().tolist() == [20]  # [CLS] 17 pieces [SEP] [SEP]: A has the room that B leaves
    assert pairs.following.tolist() == [-1]


# Masks


def test_masked_pieces_are_15_percent_of_which_80_10_and_10_percent_are_masked_random_and_kept() -> None:
    task = task_over(documents([90] * 200), max_length=80, short=0.0)
    pieces, masked, fates = 0, 0, np.zeros(3, np.int64)
    randoms = []
    for epoch in range(10):
        pairs = task.pairs(np.arange(200), epoch)
        chosen = pairs.targets >= 0
        now, before = pairs.sequences.tokens[chosen], pairs.targets[chosen]
        pieces += len(chosen) - 3 * len(pairs)
        masked += len(now)
        fates += [(now == MASK).sum(), ((now != MASK) & (now != before)).sum(), (now == before).sum()]
        randoms.append(now[(now != MASK) & (now != before)])
        # Nothing else is changed, and what is to be predicted is what stood there.
        assert set(restored(pairs)[pairs.sequences.tokens == SEP].tolist()) == {SEP}
        for span in (span for both in spans(pairs) for span in both):
            place(span)
    assert masked / pieces == pytest.approx(0.15, abs=0.0005)
    assert stats.chisquare(fates, masked * np.array([0.8, 0.1, 0.1])).pvalue > 0.01
    drawn = np.concatenate(randoms)
    assert drawn.min() >= FIRST
    assert stats.kstest((drawn - FIRST) / (VOCABULARY - FIRST), "uniform").pvalue > 0.01


def test_every_place_is_masked_equally_often() -> None:
    task = task_over(documents([37] * 500, split=0), max_length=40, short=0.0, other=0.0)
    counts = np.zeros(40, np.int64)
    for epoch in range(10):
        pairs = task.pairs(np.arange(500), epoch)
        np.add.at(counts, pairs.sequences.positions[pairs.targets >= 0], 1)
    assert counts[0] == counts[39] == 0
    # The place of the inner [SEP] varies, evenly over all but the first two and the last.
    assert stats.chisquare(counts[2:38]).pvalue > 0.01


def test_at_least_one_piece_is_masked_and_unknown_words_never() -> None:
    source = documents([4] * 50, split=0)
    source.pieces.ids[::4] = UNK
    pairs = task_over(source).pairs(np.arange(50))
    hits = np.add.reduceat(pairs.targets >= 0, np.concatenate([[0], pairs.sequences.ends[:-1]]))
    assert hits.min() >= 1
    assert UNK not in pairs.targets
    assert (pairs.sequences.tokens == UNK).sum() >= 50


def test_masking_leaves_the_groups_of_strm_as_the_text_has_them(mixed: Source) -> None:
    pairs = task_over(mixed, max_length=64).pairs(np.arange(len(mixed)))
    continues = {int(piece): bool(flag) for piece, flag in zip(mixed.pieces.ids, mixed.pieces.continues, strict=True)}
    joined = np.array([continues.get(int(token), False) for token in restored(pairs)])
    begins = np.concatenate([[0], pairs.sequences.ends[:-1]])
    numbers = np.cumsum(~joined)
    expected = numbers - np.repeat(numbers[begins], pairs.sequences.lengths())
    assert (pairs.sequences.words == expected).all()
    assert (pairs.sequences.last == ~np.append(joined[1:], False)).all()
    assert not pairs.sequences.last.all()


# Determinism


def same(one: SpanPairs, two: SpanPairs) -> bool:
    names = ("tokens", "segments", "positions", "words", "last", "ends")
    return (
        all(np.array_equal(getattr(one.sequences, name), getattr(two.sequences, name)) for name in names)
        and np.array_equal(one.targets, two.targets)
        and np.array_equal(one.following, two.following)
    )


def test_a_pair_depends_on_seed_epoch_and_item_alone(mixed: Source) -> None:
    task, order = task_over(mixed), np.random.default_rng(0).permutation(len(mixed))
    together = task.pairs(order, 3)
    for place_in_batch, item in enumerate(order[:40]):
        alone = task_over(mixed).pairs(np.array([item]), 3)
        assert same(alone, together.part(place_in_batch, place_in_batch + 1))
    assert not same(task.pairs(order, 4), together)
    assert not same(task_over(mixed, seed=2).pairs(order, 3), together)


def test_drawing_an_epoch_sets_the_pairs_of_its_batches(mixed: Source) -> None:
    task = task_over(mixed)
    assert task.draw(5) == len(mixed)
    assert same(task.pairs(np.arange(20)), task.pairs(np.arange(20), 5))


def test_only_the_documents_of_the_task_are_drawn(mixed: Source) -> None:
    held = np.sort(np.random.default_rng(3).permutation(300)[:30])
    pairs = PretrainingTask(mixed, held, vocabulary(), PretrainOptions(), 1).pairs(np.arange(len(held)))
    found = {int(where) for both in spans(pairs) for span in both for where in (span - FIRST) // WIDTH}
    assert found == set(held.tolist())


# What cannot be pre-trained


def test_special_tokens_of_a_vocabulary_are_not_ordinary(tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    found = MaskingVocabulary.of(tokenizer)
    assert tokenizer.token_names(np.flatnonzero(~found.ordinary)) == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    assert found.mask == tokenizer.token_id("[MASK]")
    tokenizer.add_markers()
    assert (~MaskingVocabulary.of(tokenizer).ordinary).sum() == 5 + 40


@pytest.mark.parametrize("change", [{"max_length": 4}, {"masked": 0.0}, {"other": 1.5}, {"short": -0.1}])
def test_options_that_make_no_sense_are_refused(change: dict[str, float]) -> None:
    with pytest.raises(ValidationError, match=next(iter(change))):
        PretrainOptions(**change)


def test_one_document_has_no_other() -> None:
    with pytest.raises(RankwellError, match="2 documents or more, found 1"):
        task_over(documents([5]))
    assert task_over(documents([5]), other=0.0).pairs(np.array([0])).following.tolist() == [0]
