"""``rankwell index --expansions``: found by what was written, kept as it was."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.expansions import write_expansions

from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import write_documents
from rankwell.corpus.formats.texts import Expansion
from rankwell.corpus.records import Document, TermWeights
from rankwell.retrieve.index import Index

DOCUMENTS = [Document("d1", "bees make honey"), Document("d2", "a bank lends money")]
EXPANSIONS = [Expansion("d1", ("what is an apiary", "do bees sting")), Expansion("d2", ())]


def test_terms_of_expansions_count_and_the_text_stays(rankwell: Callable[..., Any], tmp_path: Path) -> None:
    write_documents(DOCUMENTS, tmp_path / "collection.tsv")
    write_expansions(EXPANSIONS, tmp_path / "e.jsonl.gz")
    done = rankwell("index", "collection.tsv", "--expansions", "e.jsonl.gz", "--out", "index")
    assert done.code == 0
    index = Index.open(tmp_path / "index")
    assert index.rank("apiary").docids == ("d1",)
    assert index.text("d1") == "bees make honey"
    # As if the queries stood in the text.
    whole = [Document("d1", "bees make honey what is an apiary do bees sting"), DOCUMENTS[1]]
    reference = Index.build(whole, tmp_path / "reference")
    for query in ("bees", "apiary sting", "money what"):
        assert dict(index.rank(query)) == dict(reference.rank(query))


def test_weights_and_expansions_together(rankwell: Callable[..., Any], tmp_path: Path) -> None:
    write_documents(DOCUMENTS, tmp_path / "collection.tsv")
    write_expansions(EXPANSIONS, tmp_path / "e.jsonl")
    Path("w.jsonl").write_text('{"id": "d1", "vector": {"honey": 50}}\n{"id": "d2", "vector": {"bank": 9}}\n')
    done = rankwell("index", "collection.tsv", "--expansions", "e.jsonl", "--weights", "w.jsonl", "--out", "index")
    assert done.code == 0
    both = [TermWeights("d1", {"honey": 50, "what": 50, "apiary": 50, "do": 50, "bees": 50, "sting": 50})]
    reference = Index.build(DOCUMENTS, tmp_path / "reference", weights=[*both, TermWeights("d2", {"bank": 9})])
    index = Index.open(tmp_path / "index")
    for query in ("bees", "apiary", "honey", "bank"):
        assert dict(index.rank(query)) == dict(reference.rank(query))


def test_expansions_of_other_documents_are_told(tmp_path: Path) -> None:
    for wrong, problem in (
        (EXPANSIONS[:1], "the expansions end before document 'd2'"),
        (EXPANSIONS[::-1], "expansions of 'd2' where 'd1' is expected"),
        ([*EXPANSIONS, Expansion("d3", ())], "the expansions go on after the last document, with 'd3'"),
    ):
        with pytest.raises(RankwellError, match=problem):
            Index.build(DOCUMENTS, tmp_path / "index", expansions=wrong)
    with pytest.raises(RankwellError, match="add the expansions to the weights"):
        Index.build(DOCUMENTS, tmp_path / "index", expansions=EXPANSIONS, weights=[])
