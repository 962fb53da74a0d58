"""duoBERT: comparisons of pairs of documents, and what is made of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.reader import Reader
from rankwell.papers.duobert.ranker import AGGREGATIONS, DuoRanker, PairwiseOptions, aggregate, opponents
from rankwell.rank.cache import ScoreCache
from rankwell.rank.engines.engine import Engine
from rankwell.rank.ranker import Ranker

# p[i, j]: document 0 beats both others, 1 and 2 each think they beat the other.
P = np.array([[np.nan, 0.9, 0.6], [0.2, np.nan, 0.7], [0.5, 0.8, np.nan]])

QUERY = Query("q", "how do bees keep warm")
TEXTS = {
    "a": "the hive is warm in winter",
    "b": "money in the bank",
    "c": "bees cluster",
    "d": "tea and coffee",
    "e": "the river",
}
RUN = Run.from_scores({"q": {"a": 5.0, "b": 4.0, "c": 3.0, "d": 2.0, "e": 1.0}})


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("sum", [1.5, 0.9, 1.3]),
        ("binary", [2, 1, 1]),  # ½ is no win
        ("min", [0.6, 0.2, 0.5]),
        ("max", [0.9, 0.7, 0.8]),
    ],
)
def test_aggregations_by_hand(how: str, expected: list[float]) -> None:
    assert AGGREGATIONS[how](P) == pytest.approx(expected)
    first, second = opponents(3, PairwiseOptions(aggregate=how), "q")
    p = P[first, second].astype(np.float32)
    assert aggregate(3, first, second, p, how) == pytest.approx(expected, rel=1e-6)


def test_sampling_adds_up_the_sampled_opponents_alone() -> None:
    only = P.copy()
    only[0, 1] = only[1, 2] = only[2, 0] = np.nan
    assert AGGREGATIONS["sample"](only) == pytest.approx([0.6, 0.2, 0.8])


def test_all_ordered_pairs_are_compared() -> None:
    first, second = opponents(5, PairwiseOptions(), "q")
    pairs = set(zip(first.tolist(), second.tolist(), strict=True))
    assert len(first) == 20
    assert pairs == {(i, j) for i in range(5) for j in range(5) if i != j}
    assert [len(rows) for n in (0, 1) for rows in opponents(n, PairwiseOptions(), "q")] == [0, 0, 0, 0]


def test_a_sample_is_without_repetition_and_decided_by_seed_and_query() -> None:
    options = PairwiseOptions(aggregate="sample", samples=4, seed=1)
    first, second = opponents(10, options, "q1")
    assert np.bincount(first).tolist() == [4] * 10
    assert len(set(zip(first.tolist(), second.tolist(), strict=True))) == 40
    assert (first != second).all()
    assert (second >= 0).all()
    assert (second < 10).all()
    assert np.array_equal(second, opponents(10, options, "q1")[1])
    assert not np.array_equal(second, opponents(10, options, "q2")[1])
    assert not np.array_equal(second, opponents(10, PairwiseOptions(aggregate="sample", samples=4, seed=2), "q1")[1])


def test_every_opponent_is_sampled_as_often_as_another() -> None:
    options = PairwiseOptions(aggregate="sample", samples=3)
    counts = np.zeros((6, 6))
    for query in range(600):
        np.add.at(counts, opponents(6, options, str(query)), 1)
    others = counts[~np.eye(6, dtype=bool)]
    assert others.min() > 300  # 360 each on average, with a deviation of 12
    assert others.max() < 420


def test_as_many_samples_as_opponents_are_all_of_them() -> None:
    everything = opponents(4, PairwiseOptions(), "q")
    assert np.array_equal(opponents(4, PairwiseOptions(aggregate="sample", samples=3), "q"), everything)


def reference(folder: Path, query: str, one: str, other: str) -> float:
    """p(one before other) from plain transformers: segments 0 and 1, because the model knows two."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertForSequenceClassification.from_pretrained(folder).eval()
    parts = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in (query, one, other)]
    ids = [tokenizer.cls_token_id]
    segments = [0]
    for segment, part in zip((0, 1, 1), parts, strict=True):
        ids += [*part, tokenizer.sep_token_id]
        segments += [segment] * (len(part) + 1)
    with torch.no_grad():
        logits = model(torch.tensor([ids]), token_type_ids=torch.tensor([segments])).logits[0]
    return float(logits.softmax(0)[1])


def test_scores_are_sums_of_the_models_own_probabilities(ranker: Ranker, tiny_checkpoint: Path) -> None:
    found = DuoRanker(ranker, PairwiseOptions(depth=3)).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))["q"]
    top = ["a", "b", "c"]
    expected = {
        one: sum(reference(tiny_checkpoint, QUERY.text, TEXTS[one], TEXTS[other]) for other in top if other != one)
        for one in top
    }
    scores = dict(found)
    assert {docid: scores[docid] for docid in top} == pytest.approx(expected, abs=1e-5)


def test_documents_below_keep_their_order_within_one_of_the_lowest(ranker: Ranker) -> None:
    found = DuoRanker(ranker, PairwiseOptions(depth=3)).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))["q"]
    assert sorted(found.docids[:3]) == ["a", "b", "c"]
    assert found.docids[3:] == ("d", "e")
    lowest = found.scores[2]
    assert lowest > 0.5  # a sum of two probabilities
    np.testing.assert_allclose(found.scores[3:], [lowest - 0.5, lowest - 1], atol=1e-6)


def test_only_the_texts_that_are_compared_are_read(ranker: Ranker) -> None:
    some = DocumentStore.of_texts({docid: TEXTS[docid] for docid in "ab"})
    assert DuoRanker(ranker, PairwiseOptions(depth=2)).rerank(RUN, [QUERY], some)["q"].docids[2:] == ("c", "d", "e")


def test_one_candidate_and_none_are_left_as_they_are(ranker: Ranker) -> None:
    run = Run({**Run.from_scores({"one": {"a": 1.0}}), "none": Run.from_scores({"none": {}})["none"]})
    queries = [Query("one", "x"), Query("none", "y")]
    found = DuoRanker(ranker).rerank(run, queries, DocumentStore.of_texts(TEXTS))
    assert [ranking.docids for ranking in found.values()] == [("a",), ()]


def test_many_pairs_are_computed_in_parts(ranker: Ranker, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = DuoRanker(ranker).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))["q"]
    monkeypatch.setattr("rankwell.papers.duobert.ranker.PAIRS_AT_A_TIME", 7)
    parts = DuoRanker(ranker).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))["q"]
    assert parts.docids == whole.docids
    assert parts.scores == pytest.approx(whole.scores, abs=1e-5)


def test_comparisons_are_cached(tiny_checkpoint: Path, tmp_path: Path) -> None:
    cache = ScoreCache(tmp_path / "scores.db")
    ranker = Ranker.from_pretrained(tiny_checkpoint, cache=cache)
    first = DuoRanker(ranker).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))
    assert (cache.hits, cache.misses, len(cache)) == (0, 20, 20)
    again = DuoRanker(ranker, PairwiseOptions(depth=4)).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))
    assert (cache.hits, cache.misses) == (12, 20)
    assert set(again["q"].docids[:4]) == set("abcd")
    assert DuoRanker(ranker).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))["q"] == first["q"]


def test_the_models_own_template_is_set_aside(tiny_checkpoint: Path, ranker: Ranker) -> None:
    typed = Ranker.from_pretrained(tiny_checkpoint, template={"name": "typed"})
    found = DuoRanker(typed).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))["q"]
    assert found == DuoRanker(ranker).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))["q"]
    assert typed.template.name == "typed"


def test_a_model_of_one_score_cannot_compare(tiny_checkpoint: Path, ranker: Ranker) -> None:
    class OneScore(Engine):
        def logits(self, sequences: object) -> np.ndarray:
            return ranker.engine.logits(sequences)[:, :1]  # type: ignore[arg-type]

    single = Ranker.from_engine(OneScore(), Reader(ranker.tokenizer, ranker.template))
    with pytest.raises(RankwellError, match="two logits"):
        DuoRanker(single).rerank(RUN, [QUERY], DocumentStore.of_texts(TEXTS))


def test_options_are_checked() -> None:
    with pytest.raises(RankwellError, match="no duo aggregation is called 'mean'"):
        PairwiseOptions(aggregate="mean")
    with pytest.raises(RankwellError, match="duo needs at least 1 candidate"):
        PairwiseOptions(depth=0)


def test_a_query_that_is_not_known_is_named(ranker: Ranker) -> None:
    with pytest.raises(RankwellError, match="query 'q'"):
        DuoRanker(ranker).rerank(RUN, [], DocumentStore.of_texts(TEXTS))
