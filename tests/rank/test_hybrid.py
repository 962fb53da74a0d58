"""Hybrid search against the two runs it is made of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Qrels, Query
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker, search_hybrid, share_table, tune_hybrid
from rankwell.rank.system import System
from rankwell.retrieve.index import Index

WORDS = "bank money interest bee honey hive winter river fish whale city country king queen year music book".split()
QUERIES = [Query("1", "bee honey in winter"), Query("2", "the king of the river"), Query("3", "zzzz")]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    random = np.random.default_rng(0)
    documents = [Document(f"d{i}", " ".join(random.choice(WORDS, 6))) for i in range(60)]
    folder = tmp_path_factory.mktemp("hybrid") / "index"
    Index.build(documents, folder)
    return Index.open(folder)


@pytest.fixture(scope="module")
def dense(tiny_bi_encoder: Path) -> DenseRanker:
    return DenseRanker(BiEncoder.from_pretrained(str(tiny_bi_encoder)))


@pytest.mark.parametrize("share", [0, -0.1, 1.1, float("nan")])
def test_shares_are_checked(share: float, index: Index, dense: DenseRanker) -> None:
    with pytest.raises(RankwellError, match="expected more than 0 and at most 1"):
        search_hybrid(index, dense, QUERIES, share)


def test_how_many_are_wanted_is_checked(index: Index, dense: DenseRanker) -> None:
    for k in (0, -5):
        for share in (0.5, 1):
            with pytest.raises(RankwellError, match=f"k must be at least 1, not {k}"):
                search_hybrid(index, dense, QUERIES, share, k=k)


def test_a_bi_encoder_is_loaded_once(index: Index, tiny_bi_encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = []
    load = BiEncoder.from_pretrained
    monkeypatch.setattr(BiEncoder, "from_pretrained", lambda name, **how: loaded.append(name) or load(name, **how))
    system = System.of_index(index, hybrid=0.6, encoder=tiny_bi_encoder)
    for k in (8, 8, 1000):
        system.search(QUERIES, k)
    assert len(loaded) == 1


def test_the_share_that_ranks_best_is_found(index: Index, dense: DenseRanker) -> None:
    nearest = dense.search(QUERIES, index, 1)
    qrels = Qrels({qid: {ranking.docids[0]: 1} for qid, ranking in nearest.items()})
    tuned = tune_hybrid(index, dense, [*QUERIES, Query("4", "not judged")], qrels, step=0.25, folds=2)
    figures = dict(zip((shares.similarity for shares in tuned.settings), tuned.means, strict=True))
    assert list(figures) == [0, 0.25, 0.5, 0.75, 1]
    assert figures[1] == 1
    share = tuned.best.similarity
    assert share == min(share for share, mean in figures.items() if mean == 1)
    assert f"best on all 3 queries: --hybrid {share:g}, 1.0000" in share_table(tuned)
