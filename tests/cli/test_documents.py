"""``rankwell rerank`` on long documents: windows, aggregates and weights, with every kind of model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell.corpus.formats import read_queries, read_run, write_run
from rankwell.corpus.query_types import rule_type
from rankwell.inputs.windows import Windows
from rankwell.rank.ranker import Ranker
from rankwell.retrieve.index import Index


@pytest.fixture(scope="module")
def first(index: Path, queries: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("documents") / "bm25.run"
    write_run(Index.open(index).search(read_queries(queries)[:2], k=4), path)
    return path


@pytest.fixture(scope="module")
def nli(make_classifier: Callable[[Sequence[str]], Path]) -> Path:
    """A random classifier of natural language inference."""
    return make_classifier(("contradiction", "entailment", "neutral"))


@pytest.mark.parametrize("aggregate", ["top3", "top3:0.5,0.3,0.2"])
@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        ((), {}),
        (("--set", "attention=strm"), {"attention": "strm"}),
        (("--set", "template=typed"), {"template": {"name": "typed"}}),
        (("NLI",), {}),
    ],
    ids=["monoBERT", "STRM", "typed", "NLI"],
)
def test_windows_work_with_every_model(
    rankwell: Callable[..., Any],
    first: Path,
    queries: Path,
    index: Path,
    tiny_checkpoint: Path,
    nli: Path,
    aggregate: str,
    arguments: tuple[str, ...],
    changes: dict[str, Any],
) -> None:
    model = nli if "NLI" in arguments else tiny_checkpoint
    given = ["rerank", first, "--queries", queries, "--collection", index, "--model", model, "--out", "out.run"]
    windows = ["--windows", "20", "--set", "stride=10", "--set", f"aggregate={aggregate}"]
    done = rankwell(*given, *windows, *(part for part in arguments if part != "NLI"))
    assert done.code == 0, done.err
    ranker = Ranker.from_pretrained(model, windows=Windows(20, 10, aggregate), **changes)
    asked = read_queries(queries)
    if "template=typed" in arguments:  # the command types queries by the rules
        asked = [replace(query, type=rule_type(query.text)) for query in asked]
    expected = ranker.rerank(read_run(first), asked, Index.open(index))
    found = read_run("out.run")
    assert {qid: found[qid].docids for qid in found} == {qid: expected[qid].docids for qid in expected}
