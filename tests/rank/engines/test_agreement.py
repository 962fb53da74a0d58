"""Scores in int8 are the default on an Arm CPU if they agree with the exact ones."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.errors import Notice
from rankwell.corpus.records import Document
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.devices import Computing
from rankwell.rank.cache import ScoreCache
from rankwell.rank.engines import agreement
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.ranker import Ranker
from rankwell.rank.requests import RerankRequest
from rankwell.rank.system import System
from rankwell.retrieve.index import Index

PAIRS = [("how do bees keep warm", "The cluster shivers."), ("how do bees keep warm", "Tea and bread.")]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("rankwell.models.devices.CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(agreement, "TOLERANCE", 0.2)  # a random model's scores differ little
    (tmp_path / "cpuinfo").write_text("Features\t: fp asimd asimddp\n")
    return tmp_path / "rankwell"


def test_a_model_that_agrees_is_measured_once(tiny_one_head: Path, folder: Path) -> None:
    with pytest.warns(
        Notice, match=r"in int8, scores differ by \d+\.\d% of their spread on 80 pairs; scores are computed"
    ):
        ranker = Ranker(tiny_one_head, device="cpu", precision="auto")
    assert ranker.engine.precision == "int8"
    exact = Ranker(tiny_one_head, device="cpu", precision="fp32").predict(PAIRS)
    assert not np.array_equal(ranker.predict(PAIRS), exact)
    np.testing.assert_allclose(ranker.predict(PAIRS), exact, atol=0.05)
    again = Ranker(tiny_one_head, device="cpu", precision="auto")  # without a notice, which would be an error
    assert again.engine.precision == "int8"
    (error,) = json.loads((folder / agreement.RECORD).read_text()).values()
    assert 0 < error < agreement.TOLERANCE
    (folder.parent / "cpuinfo").write_text("Features\t: fp asimd asimddp sve\n")
    with pytest.warns(Notice, match="in int8, scores differ"):  # another processor is measured anew
        Ranker(tiny_one_head, device="cpu", precision="auto")
    assert len(json.loads((folder / agreement.RECORD).read_text())) == 2


def test_a_model_that_disagrees_is_exact(tiny_one_head: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agreement, "TOLERANCE", 0.0)
    with pytest.warns(Notice, match="using fp32"):
        ranker = Ranker(tiny_one_head, device="cpu", precision="auto")
    assert ranker.engine.precision == "fp32"
    np.testing.assert_array_equal(ranker.predict(PAIRS), Ranker(tiny_one_head, device="cpu").predict(PAIRS))


def test_bi_encoders_are_measured_too(one_head_bi_encoder: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(Notice, match=r"in int8, scores differ by \d+\.\d% .* scores are computed in int8"):
        encoder = BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu")
    assert encoder.precision == "int8"
    texts = [text for pair in PAIRS for text in pair]
    fast = BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu", precision="int8")
    np.testing.assert_array_equal(encoder.encode_documents(texts), fast.encode_documents(texts))
    assert BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu").name == fast.name  # recorded
    monkeypatch.setattr(agreement, "TOLERANCE", 0.0)
    disagrees = BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu")
    exact = BiEncoder.from_pretrained(one_head_bi_encoder, device="cpu", precision="fp32")
    assert (disagrees.precision, disagrees.name) == ("fp32", exact.name)
    np.testing.assert_array_equal(disagrees.encode_documents(texts), exact.encode_documents(texts))


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_cached_scores_are_those_of_the_chosen_precision(tiny_one_head: Path, tmp_path: Path) -> None:
    with ScoreCache(tmp_path / "scores.db") as cache:
        keys = {
            precision: Ranker(tiny_one_head, device="cpu", precision=precision, cache=cache).identity
            for precision in ("auto", "int8", "fp32", None)
        }
    assert keys["auto"] == keys["int8"] != keys["fp32"] == keys[None]


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_a_cache_folder_that_cannot_be_used_is_done_without(tiny_one_head: Path, folder: Path) -> None:
    folder.write_text("not a folder")
    assert Ranker(tiny_one_head, device="cpu", precision="auto").engine.precision == "int8"
    folder.unlink()
    folder.mkdir()
    (folder / agreement.RECORD).write_text("[]")
    assert Ranker(tiny_one_head, device="cpu", precision="auto").engine.precision == "int8"


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_re_ranking_uses_it_and_says_so(tiny_one_head: Path, tmp_path: Path) -> None:
    (tmp_path / "collection.tsv").write_text("d1\tThe cluster shivers.\nd2\tTea and bread.\n")
    texts, on_cpu = str(tmp_path / "collection.tsv"), Computing("cpu")
    request = RerankRequest(None, "how do bees keep warm", texts, str(tiny_one_head), computing=on_cpu)
    assert "scores in int8 (exact: --precision fp32)" in request.execute().report
    resolved = request.resolved(request.open_ranker("cpu")).computing
    assert resolved.precision == "int8"
    exact = replace(request, computing=Computing("cpu", "fp32"))
    assert exact.resolved(exact.open_ranker("cpu")) == exact
    assert "exact" not in exact.execute().report


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_a_system_uses_it_unless_told_otherwise(tiny_one_head: Path, tmp_path: Path) -> None:
    documents = [Document("d1", "The cluster shivers."), Document("d2", "Tea and bread.")]
    first = FirstStage(Index.build(documents, tmp_path / "index"), computing=Computing("cpu"))
    system = System(first, ranker=tiny_one_head).save(tmp_path / "system")
    for opened, precision in ((system, "int8"), (System.open(system.folder, device="cpu", precision="fp32"), "fp32")):
        assert isinstance(opened.reranker, Ranker)
        assert opened.reranker.engine.precision == precision
        assert pickle.loads(pickle.dumps(opened)).computing == opened.computing  # noqa: S301
