"""Re-ranking by word vectors: of any bi-encoder, and of checkpoints that were trained for it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from typer.testing import CliRunner

from rankwell.cli.main import app
from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import read_run
from rankwell.corpus.records import Document, Query, Run
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker
from rankwell.rank.ranker import open_ranker
from rankwell.retrieve.index import Index

TEXTS = {"a": "honey, and a hive.", "b": "an iron bridge", "c": "...", "d": "river " * 10_000, "e": "bee"}
RUN = Run.from_scores({"q": {docid: 9.0 - place for place, docid in enumerate(TEXTS)}})
QUERIES = [Query("q", "the hive honey")]
WIDTH = 12


@pytest.fixture
def index(tmp_path: Path) -> Index:
    return Index.build([Document(docid, text) for docid, text in TEXTS.items()], tmp_path / "index")


def make(folder: Path, bi_encoder: Path, form: str, **settings: Any) -> Path:
    """A late-interaction checkpoint with the tiny bi-encoder's weights and a random projection."""
    shutil.copytree(bi_encoder, folder)
    weight = torch.randn(WIDTH, 32, generator=torch.Generator().manual_seed(3))
    if form == "stanford":
        tensors = load_file(folder / "model.safetensors")
        save_file({**tensors, "linear.weight": weight}, folder / "model.safetensors")
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps({**config, "architectures": ["HF_ColBERT"]}))
        (folder / "artifact.metadata").write_text(json.dumps(settings))
        return folder
    (folder / "1_Dense").mkdir()
    save_file({"linear.weight": weight}, folder / "1_Dense" / "model.safetensors")
    dense = {"in_features": 32, "out_features": WIDTH, "bias": False, "activation_function": "torch.nn.Identity"}
    (folder / "1_Dense" / "config.json").write_text(json.dumps(dense))
    modules = [("sentence_transformers.models.Transformer", ""), ("pylate.models.Dense.Dense", "1_Dense")]
    if form == "sentence-transformers":
        modules.append(("sentence_transformers.multi_vector_encoder.modules.MultiVectorMask", "2_MultiVectorMask"))
        (folder / "2_MultiVectorMask").mkdir()
        mask = {"skiplist_words": settings.pop("skiplist_words", [])}
        (folder / "2_MultiVectorMask" / "config.json").write_text(json.dumps(mask))
        (folder / "sentence_bert_config.json").write_text(json.dumps(settings))
        prompts = {"query": "x ", "document": "y "}
        settings = {"model_type": "MultiVectorEncoder", "prompts": prompts}
    listed = [{"idx": n, "name": str(n), "path": place, "type": kind} for n, (kind, place) in enumerate(modules)]
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def expected(folder: Path, query: str, text: str, *, length: int, attends: bool, skipped: str) -> float:
    """The score as ColBERT defines it, from the padded encoder of transformers."""
    transformers = pytest.importorskip("transformers")
    tokenizer = BiEncoder.from_pretrained(folder, device="cpu", precision="fp32").tokenizer
    model = transformers.BertModel.from_pretrained(folder, add_pooling_layer=False).eval()
    path = folder / "1_Dense" / "model.safetensors"
    weight = load_file(path if path.exists() else folder / "model.safetensors")["linear.weight"]
    cls, sep, mask, marks = (tokenizer.token_id(name) for name in ("[CLS]", "[SEP]", "[MASK]", "x"))

    def vectors(ids: list[int], seen: list[int]) -> Any:
        states = model(input_ids=torch.tensor([ids]), attention_mask=torch.tensor([seen])).last_hidden_state[0]
        return torch.nn.functional.normalize(states @ weight.T, dim=1)

    pieces = [*[cls, marks, *tokenizer.encode([query]).ids.tolist()][: length - 1], sep]
    filled = [*pieces, *[mask] * (length - len(pieces))]
    asked = vectors(filled, [1] * length if attends else [1] * len(pieces) + [0] * (length - len(pieces)))
    ids = [*[cls, tokenizer.token_id("y"), *tokenizer.encode([text]).ids.tolist()][:15], sep]
    kept = [number for number, token in enumerate(ids) if tokenizer.token_names([token])[0] not in list(skipped)]
    return float((vectors(ids, [1] * len(ids))[kept] @ asked.T).max(dim=0).values.sum())


FORMS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "stanford": (
        "stanford",
        {"query_token_id": "x", "doc_token_id": "y", "query_maxlen": 9, "doc_maxlen": 16},
        {"length": 9, "attends": False, "skipped": ".,"},
    ),
    "pylate": (
        "pylate",
        {"query_prefix": "x", "document_prefix": "y", "query_length": 7, "document_length": 16}
        | {"attend_to_expansion_tokens": True, "skiplist_words": [","]},
        {"length": 7, "attends": True, "skipped": ","},
    ),
    "sentence-transformers": (
        "sentence-transformers",
        {"document_length": 16, "query_expansion": {"strategy": "fixed", "attend": False, "length": 12}},
        {"length": 12, "attends": False, "skipped": ""},
    ),
}


@pytest.mark.parametrize("name", FORMS)
def test_late_interaction_checkpoints_score_as_they_define(
    name: str, tiny_bi_encoder: Path, tmp_path: Path, index: Index
) -> None:
    form, settings, options = FORMS[name]
    folder = make(tmp_path / "model", tiny_bi_encoder, form, **settings)
    ranker = open_ranker(folder, device="cpu", precision="fp32")
    texts = list(TEXTS.values())
    query = "honey hive, the iron bridge and a river market " * (name == "pylate") + QUERIES[0].text
    scores = [expected(folder, query, text, **options) for text in texts]
    np.testing.assert_allclose(ranker.predict([(query, text) for text in texts]), scores, rtol=1e-4)
    reranked = ranker.rerank(RUN, [Query("q", query)], index)["q"]
    assert dict(zip(reranked.docids, reranked.scores, strict=True)) == pytest.approx(
        dict(zip(TEXTS, scores, strict=True)), rel=1e-4
    )
    assert [row["corpus_id"] for row in ranker.rank(query, TEXTS)] == list(reranked.docids)


def test_stored_words_of_such_a_checkpoint_are_close(tiny_bi_encoder: Path, tmp_path: Path, index: Index) -> None:
    form, settings, _ = FORMS["stanford"]
    folder = make(tmp_path / "model", tiny_bi_encoder, form, **settings)
    ranker: Any = open_ranker(folder, device="cpu", precision="fp32")
    exact = ranker.rerank(RUN, QUERIES, index)["q"]
    for store in index.documents.stores:
        ranker.dense.words(store)
    stored = ranker.rerank(RUN, QUERIES, index)["q"]
    assert set(stored.docids) == set(exact.docids)
    assert stored != exact
    found = dict(zip(stored.docids, stored.scores, strict=True))
    np.testing.assert_allclose([found[docid] for docid in exact.docids], exact.scores, atol=0.1 * 9)
    [met] = ranker.dense.explain_words(QUERIES[0].text, ["a"], index)
    assert [word for word, _, _ in met] == ["x", "the", "hive", "honey"]


@pytest.mark.filterwarnings("ignore:truncated")
def test_a_bi_encoder_re_ranks_a_run_by_its_words(index: Index, tiny_bi_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "engine.run").write_text("".join(f"q Q0 {d} {r} {9 - r} e\n" for r, d in enumerate(TEXTS, 1)))
    (tmp_path / "queries.tsv").write_text("q\tthe hive honey\n")
    (tmp_path / "texts.tsv").write_text("".join(f"{docid}\t{text}\n" for docid, text in TEXTS.items()))
    command = [
        "rerank",
        str(tmp_path / "engine.run"),
        "--queries",
        str(tmp_path / "queries.tsv"),
        "--set",
        "words=true",
    ]
    command += ["--model", str(tiny_bi_encoder), "--precision", "fp32", "--device", "cpu"]

    def rerank(collection: Path, out: str) -> Run:
        told = CliRunner().invoke(app, [*command, "--collection", str(collection), "--out", str(tmp_path / out)])
        assert told.exit_code == 0, told.output
        return read_run(tmp_path / out)

    dense = DenseRanker(BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", precision="fp32"))
    exact = dict(zip(TEXTS, dense.compare_texts("the hive honey", list(TEXTS.values())), strict=True))
    for collection, out in ((tmp_path / "texts.tsv", "file.run"), (index.folder, "index.run")):
        run = rerank(collection, out)["q"]
        assert dict(zip(run.docids, run.scores, strict=True)) == pytest.approx(exact, rel=1e-4)
    for store in index.documents.stores:
        dense.words(store)
    stored = rerank(index.folder, "stored.run")["q"]
    codes = dense.compare_words(RUN, QUERIES, index)["q"]
    assert stored.docids == codes.docids
    np.testing.assert_allclose(stored.scores, codes.scores, rtol=1e-5)


def test_what_a_word_ranker_cannot_do_is_one_line(tiny_bi_encoder: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    for options in ({"windows": None, "max_length": 3}, {"backend": "onnx"}):
        with pytest.raises(RankwellError, match="words rankers have no option") as told:
            open_ranker(tiny_bi_encoder, words=True, **options)
        assert "\n" not in str(told.value)
    folder = make(tmp_path / "model", tiny_bi_encoder, "pylate", query_prefix="[Q] ", query_length=8)
    (folder / "1_Dense" / "config.json").write_text(
        '{"activation_function": "torch.nn.Identity", "use_residual": true}'
    )
    with pytest.raises(RankwellError, match="without a residual"):
        open_ranker(folder)
