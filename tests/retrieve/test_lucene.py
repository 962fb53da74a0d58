"""BM25 agrees with Lucene's figures (Anserini 1.7.1, Lucene 9.9.1) on fully judged collections."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell import Index, evaluate
from rankwell.corpus.datasets import open_dataset
from rankwell.retrieve.bm25 import BM25

pytestmark = pytest.mark.data

LUCENE = {
    "cranfield": {"RR@10": 0.5078, "nDCG@10": 0.3510, "AP": 0.2880, "R@1000": 0.9520},
    "cacm": {"RR@10": 0.6900, "nDCG@10": 0.4754, "AP": 0.3270, "R@1000": 0.8867},
    "med": {"RR@10": 0.8872, "nDCG@10": 0.6651, "AP": 0.5118, "R@1000": 0.9118},
}


@pytest.mark.parametrize("name", LUCENE)
def test_bm25_matches_lucene(name: str, data_folder: Path, tmp_path: Path) -> None:
    dataset = open_dataset(data_folder / name)
    index = Index.build(dataset.documents(), tmp_path / name, store=False)
    ours = evaluate(
        dataset.qrels("test"), index.search(dataset.queries("test"), BM25(k1=0.9, b=0.4)), list(LUCENE[name])
    )
    for measure, theirs in LUCENE[name].items():
        assert ours.mean[measure] == pytest.approx(theirs, abs=0.003), measure
