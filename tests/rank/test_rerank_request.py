"""A request for re-ranking: what it reads, refuses, computes and records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Document, Query, Run
from rankwell.inputs.templates import TruncationReport
from rankwell.inputs.windows import Windows
from rankwell.models.devices import Computing
from rankwell.rank import ranker as ranker_module
from rankwell.rank.ranker import Ranker
from rankwell.rank.requests import RerankRequest
from rankwell.rank.texts import Texts
from rankwell.retrieve.index import Index

QUERIES = [Query("q2", "honey in winter"), Query("q1", "a fish in the river")]


@pytest.fixture
def request_(tmp_path: Path, tiny_checkpoint: Path) -> RerankRequest:
    texts = ["bees make honey", "the river has fish", "winter is cold", "a warm hive in winter"]
    Index.build([Document(f"d{n}", text) for n, text in enumerate(texts)], tmp_path / "index")
    (tmp_path / "queries.tsv").write_text("".join(f"{query.qid}\t{query.text}\n" for query in reversed(QUERIES)))
    lines = [f"{query.qid} Q0 d{n} {n + 1} {9 - n} x\n" for query in QUERIES for n in range(4)]
    (tmp_path / "first.run").write_text("".join(lines))
    files = tmp_path / "first.run", tmp_path / "queries.tsv"
    computing = Computing("cpu")
    return RerankRequest(*files, str(tmp_path / "index"), str(tiny_checkpoint), depth=3, computing=computing)


def test_queries_come_in_the_order_of_the_run(request_: RerankRequest) -> None:
    candidates, queries = request_.read()
    assert queries == QUERIES
    assert [ranking.docids for ranking in candidates.values()] == [("d0", "d1", "d2", "d3")] * 2
    request_.queries.write_text("q1\ta fish\n")
    with pytest.raises(InputError, match=r"no query 'q2', for which .*first\.run has results"):
        request_.read()


def test_the_run_is_the_rankers(request_: RerankRequest) -> None:
    result = request_.execute(name="mine")
    ranker = Ranker.from_pretrained(request_.model, device="cpu")
    expected = ranker.rerank(read_run(request_.run).head(3), QUERIES, Index.open(request_.collection))
    assert result.run.name == "mine"
    assert dict(result.run.head(3)) == dict(expected)
    assert [ranking.docids[3:] for ranking in result.run.values()] == [
        r.docids[3:] for r in read_run(request_.run).values()
    ]
    assert result.report.startswith("6 pairs, ")


def test_workers_score_in_the_models_place(request_: RerankRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    class Backwards:
        truncation, takes_types = TruncationReport(), False

        def rerank(self, run: Run, queries: Sequence[Query], texts: Texts, *, depth: int = 1000) -> Run:
            assert (list(queries), depth) == (QUERIES, 3)
            return Run({qid: type(r).of(r.docids, [-float(score) for score in r.scores]) for qid, r in run.items()})

    loaded, requests = [], []
    load = ranker_module.load
    monkeypatch.setattr(ranker_module, "load", lambda *how: loaded.append(how) or load(*how))
    result = request_.execute(lambda request: requests.append(request) or Backwards())
    # All workers compute in the precision of the one model that was loaded here.
    assert len(loaded) == 1
    assert [request.computing.precision for request in requests] == [request_.open_ranker("cpu").engine.precision]
    assert result.run["q1"].docids == ("d2", "d1", "d0", "d3")


def test_windows_are_the_models_unless_changed(request_: RerankRequest) -> None:
    default = request_.open_ranker("cpu").windows
    assert replace(request_, windows=0).open_ranker("cpu").windows is None
    changed = replace(request_, windows=40, stride=10, aggregate="mean").open_ranker("cpu").windows
    assert changed == Windows(40, 10, "mean")
    averaged = replace(request_, aggregate="mean").open_ranker("cpu").windows
    assert averaged == replace(default or Windows(), aggregate="mean")
    with pytest.raises(RankwellError, match="the stride needs --windows"):
        replace(request_, stride=10).open_ranker("cpu")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"computing": Computing("cpu", backend="onnx")}, "--device needs --backend torch, not onnx"),
        ({"fuse": 0.8, "blend": 0.3}, "sum to at most 1"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_read(
    request_: RerankRequest, changes: dict[str, object], problem: str
) -> None:
    request_.run.unlink()
    with pytest.raises(RankwellError, match=problem):
        replace(request_, **changes).check()  # type: ignore[arg-type]
