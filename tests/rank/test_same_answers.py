"""A query has one answer: alone, among others, in several threads, and after changes that leave the documents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
from rankwell import sample
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Document, Query, Run
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.system import System
from rankwell.retrieve.index import Index

BOUND, K = 1e-4, 20
"""By which scores may differ, as docs/reliability.md says; BM25's are equal."""


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return list(open_dataset(sample.FOLDER).documents())


@pytest.fixture(scope="module")
def queries(documents: list[Document]) -> list[Query]:
    """The sample's questions and titles: some hundreds."""
    data = open_dataset(sample.FOLDER)
    asked = [query for split in data.splits for query in data.queries(split)]
    asked += [Query(document.docid, " ".join(document.text.split()[:7])) for document in documents]
    return list({query.qid: query for query in asked}.values())[:300]


def assert_same(found: Run, expected: Run, *, exact: bool) -> None:
    """Equal ids and scores; or scores within the bound, and equal ids where neighbours are further apart."""
    assert found.keys() == expected.keys()
    for qid, ranking in expected.items():
        np.testing.assert_allclose(found[qid].scores, ranking.scores, rtol=0, atol=0 if exact else BOUND)
        apart = np.append(-np.diff(ranking.scores) > 2 * BOUND, False)  # from the next
        clear = np.full(len(apart), True) if exact else apart & np.insert(apart[:-1], 0, True)
        assert clear.sum() > len(clear) // 2
        assert np.array(found[qid].docids)[clear].tolist() == np.array(ranking.docids)[clear].tolist(), qid


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_a_query_has_the_same_answer_however_it_is_asked(
    documents: list[Document], queries: list[Query], tiny_bi_encoder: Path, tmp_path: Path, share: float
) -> None:
    index, exact = Index.build(documents, tmp_path / "index"), not share
    first = FirstStage(index, encoder=tiny_bi_encoder if share else None, share=share, words=0.5 if share else 0.0)
    system = System(first).save(tmp_path / "system")
    folder = system.folder
    assert folder is not None
    assert len(queries) >= 300
    expected = system.search(queries, K)
    some = {query.qid: run[query.qid] for query in queries[::3] if (run := system.search([query], K))}
    third = {query.qid for query in queries[::3]}
    assert_same(Run(some), Run({qid: ranking for qid, ranking in expected.items() if qid in third}), exact=exact)
    assert_same(system.search(queries, K, threads=1), expected, exact=True)
    assert_same(system.search(queries, K, threads=3), expected, exact=True)
    with ThreadPoolExecutor(4) as threads:
        parts = list(threads.map(lambda begin: system.search(queries[begin::7], K), range(7)))
    together = {qid: ranking for part in parts for qid, ranking in part.items()}
    assert_same(Run(together), expected, exact=exact)

    system.update(documents[40:60])  # the same texts in another segment
    assert len(system.index.segments) > 1
    assert_same(system.search(queries, K), expected, exact=exact)
    assert_same(System.open(folder).search(queries, K), expected, exact=exact)
    system.delete([document.docid for document in documents[:30]])
    system.add(documents[:30])
    assert_same(system.search(queries, K), expected, exact=exact)
    system.merge()
    assert_same(system.search(queries, K), expected, exact=exact)
    assert_same(System.open(folder).search(queries, K), expected, exact=exact)
