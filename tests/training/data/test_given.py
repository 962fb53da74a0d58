"""Examples and triples become queries, documents, judgments and a run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import RankwellError
from rankwell.corpus.records import Document, Query
from rankwell.corpus.training import Example, Triple, read_examples
from rankwell.inputs.stored import InMemoryTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.training.data.candidates import UNJUDGED, Candidates
from rankwell.training.data.given import from_examples, from_id_triples, from_triples


def test_equal_texts_are_one_query_and_one_document() -> None:
    given = from_examples(
        [Example("q", ("a", "b"), ("c", "b", "c")), Example("r", ("c",), ("a",)), Example("q", (), ("d",))]
    )
    assert given.queries == [Query("q1", "q"), Query("q2", "r")]
    assert given.documents == [Document(f"d{n}", text) for n, text in enumerate("abcd", 1)]
    assert {qid: dict(grades) for qid, grades in given.qrels.items()} == {"q1": {"d1": 1, "d2": 1}, "q2": {"d3": 1}}
    # b is relevant, so it is no negative; the order given is the order of the run.
    assert [(qid, list(ranking)) for qid, ranking in given.run.items()] == [
        ("q1", [("d3", 1.0), ("d4", 0.5)]),
        ("q2", [("d1", 1.0)]),
    ]


def test_negatives_that_were_judged_have_the_grade_0() -> None:
    given = from_triples([Triple("q", "a", "b"), Triple("q", "a", "c")], judged=True)
    assert dict(given.qrels["q1"]) == {"d1": 1, "d2": 0, "d3": 0}


def test_triples_of_ids_take_their_texts_from_the_queries() -> None:
    triples = [Triple("7", "x", "y"), Triple("7", "z", "y"), Triple("8", "y", "x")]
    queries = [Query("8", "eight"), Query("9", "nine"), Query("7", "seven")]
    given = from_id_triples(triples, queries)
    assert given.queries == [queries[0], queries[2]]
    assert given.documents == []
    assert dict(given.qrels["7"]) == {"x": 1, "z": 1}
    assert given.run["7"].docids == ("y",)
    with pytest.raises(RankwellError, match="the triples name the query '7', which has no text; so have 1 of the 2"):
        from_id_triples(triples, queries[:2])


def test_an_examples_file_becomes_candidates(tmp_path: Path, tiny_tokenizer: Path) -> None:
    path = tmp_path / "train.jsonl"
    path.write_text(
        '{"query": "honey", "pos": ["bees make it"], "neg": ["tea", "a bank"]}\n'
        '{"query": "money", "pos": ["a bank"], "neg": []}\n'
    )
    given = from_examples(read_examples(path))
    documents = InMemoryTokens(
        [d.docid for d in given.documents], [d.text for d in given.documents], Tokenizer.open(tiny_tokenizer)
    )
    with pytest.warns(UserWarning, match="1 of 2 queries of train.jsonl are without candidates"):
        candidates = Candidates.of(given.queries, given.qrels, given.run, documents, judgments="train.jsonl")
    assert candidates.qids == ("q1",)
    assert candidates.names(candidates.documents) == ["d2", "d3", "d1"]
    assert candidates.grades.tolist() == [UNJUDGED, UNJUDGED, 1]
    np.testing.assert_array_equal(candidates.scores, np.array([1, 0.5, np.nan], np.float32))
