"""A system as files that another engine can follow: its models, its settings, and how the scores are joined."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import numpy as np
import pytest
from sentence_transformers import CrossEncoder, SentenceTransformer

from rankwell import Index, Ranker, System
from rankwell.core.errors import RankwellError
from rankwell.rank.exporting import export_system
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares
from rankwell.retrieve.bm25 import BM25

TEXTS = {
    "hive": "the bees keep warm in the hive in winter",
    "bogue": "a bogue is a fish and a bogus claim is not",
    "river": "the fish in the river keep warm",
    "bank": "the bank of the river in winter",
}
QUERY = "how do bees keep warm in winter"


def system(folder: Path, encoder: Path, ranker: Path | None, **more: Any) -> System:
    index = Index.build(TEXTS, folder / "index")
    first = FirstStage(index, BM25(1.2, 0.5), str(encoder), 0.7)
    return System(first, ranker=ranker, depth=3, **more).save(folder / "system")


def z(scores: dict[str, float]) -> dict[str, float]:
    return {docid: (score - fmean(scores.values())) / pstdev(scores.values()) for docid, score in scores.items()}


def test_the_settings_and_the_models_rank_as_the_system(
    tiny_bi_encoder: Path, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    whole = system(tmp_path, tiny_bi_encoder, tiny_checkpoint, shares=Shares(model=0.6, first=0.4))
    returned = export_system(whole, tmp_path / "out", "sentence-transformers")
    settings = json.loads((tmp_path / "out" / "search.json").read_text(encoding="utf-8"))
    assert settings == json.loads(json.dumps(returned))
    assert settings["formula"] == "score = 0.3 · z(BM25) + 0.7 · z(similarity)"
    assert (settings["bm25"]["k1"], settings["bm25"]["b"], settings["depth"]) == (1.2, 0.5, 1000)
    assert settings["bm25"]["analyzer"]["stemmer"] == "porter"
    assert settings["rerank"]["depth"] == 3
    assert (settings["rerank"]["weights"]["model"], settings["rerank"]["weights"]["first"]) == (0.6, 0.4)
    model = SentenceTransformer(str(tmp_path / "out" / settings["vectors"]["models"]["query"]), device="cpu")
    products = np.asarray(model.encode_document(list(TEXTS.values()))) @ np.asarray(model.encode_query(QUERY))
    words = dict(whole.index.rank(QUERY, whole.first_stage.bm25))
    parts = z(words), z(dict(zip(TEXTS, products.tolist(), strict=True)))
    joined = {
        docid: sum(weight * part.get(docid, min(part.values())) for weight, part in zip((0.3, 0.7), parts, strict=True))
        for docid in TEXTS
    }
    plain = System(whole.first_stage).search(QUERY, k=4)
    assert [answer.docid for answer in plain] == sorted(joined, key=lambda docid: -joined[docid])
    assert [answer.score for answer in plain] == pytest.approx(sorted(joined.values(), reverse=True), abs=2e-3)
    pairs = [(QUERY, text) for text in TEXTS.values()]
    theirs = CrossEncoder(str(tmp_path / "out" / settings["rerank"]["model"]), device="cpu").predict(pairs)
    ours = Ranker(tiny_checkpoint, device="cpu").predict(pairs, activation="probability")
    np.testing.assert_allclose(theirs, ours, atol=1e-5)


def test_a_re_ranker_beyond_the_target_is_left_out_with_the_reason(
    tiny_bi_encoder: Path, tiny_twin: Path, tmp_path: Path, rankwell: Any
) -> None:
    whole = system(tmp_path, tiny_bi_encoder, tiny_twin)
    done = rankwell("export", whole.folder, "--to", "sentence-transformers", "--out", tmp_path / "out")
    assert done.code == 0
    assert "warning: the re-ranker is left out: sentence-transformers knows nothing of the reading apart" in done.err
    text = (tmp_path / "out" / "search.json").read_text(encoding="utf-8")
    assert json.loads(text)["rerank"]["model"] is None
    assert str(tmp_path) not in text
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["encoder", "search.json"]


def test_a_system_of_words_alone_has_settings_and_no_model(tmp_path: Path) -> None:
    index = Index.build(TEXTS, tmp_path / "index")
    settings = export_system(System.of_index(index), tmp_path / "out", "onnx")
    assert settings["formula"] == "score = BM25"
    assert "vectors" not in settings
    with pytest.raises(RankwellError, match="out exists already"):
        export_system(System.of_index(index), tmp_path / "out", "onnx")
