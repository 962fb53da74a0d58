"""Bi-encoders of every family: vectors are those of sentence-transformers, and so are their similarities."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentence_transformers

from rankwell.core.errors import InputError
from rankwell.corpus.records import Query
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker
from rankwell.retrieve.index import Index


def compare(folder: Path, texts: list[str], *, exact: bool = True) -> BiEncoder:
    """Compare vectors, and similarities, with those of sentence-transformers."""
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    ours = BiEncoder.from_pretrained(folder, device="cpu", precision="fp32")
    expected = theirs.encode_document(texts)
    found = ours.encode_documents(texts)
    assert found.shape == expected.shape
    if exact:
        assert np.abs(found - expected).max() < 1e-5 * max(1, np.abs(expected).max())
    queries = theirs.encode_query(texts[:3])
    similarities = theirs.similarity(queries, expected).numpy()
    products = ours.encode_queries(texts[:3]) @ found.T
    assert np.abs(products - similarities).max() < 2e-5 * max(1, np.abs(similarities).max())
    return ours


@pytest.fixture
def texts(tiny_models: Any) -> list[str]:
    return [document for _, document in tiny_models.PAIRS]


@pytest.mark.parametrize("kind", ["xlm-roberta", "roberta", "mpnet", "modernbert", "deberta-v2", "electra"])
@pytest.mark.parametrize("pooling", ["mean", "cls"])
def test_families(tiny_models: Any, tmp_path: Path, texts: list[str], kind: str, pooling: str) -> None:
    prompts = {"query": "query: ", "document": "passage: "}
    compare(tiny_models.make_bi_encoder(kind, tmp_path / "model", pooling=pooling, prompts=prompts), texts)


@pytest.mark.parametrize("pooling", ["max", "lasttoken", "weightedmean"])
def test_other_poolings(tiny_models: Any, tmp_path: Path, texts: list[str], pooling: str) -> None:
    compare(tiny_models.make_bi_encoder("bert", tmp_path / "model", pooling=pooling), texts)


def test_a_decoder_with_the_last_token_s_state(tiny_models: Any, tmp_path: Path, texts: list[str]) -> None:
    compare(tiny_models.make_bi_encoder("qwen3", tmp_path / "model", pooling="lasttoken"), texts)


def test_dense_layers(tiny_models: Any, tmp_path: Path, texts: list[str]) -> None:
    compare(tiny_models.make_bi_encoder("bert", tmp_path / "model", dense=24), texts)


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
@pytest.mark.parametrize("truncate", [None, 16])
@pytest.mark.parametrize("normalize", [True, False])
def test_similarity_and_width_are_the_folder_s(
    tiny_models: Any, tmp_path: Path, texts: list[str], similarity: str, truncate: int | None, normalize: bool
) -> None:
    folder = tiny_models.make_bi_encoder(
        "bert", tmp_path / "model", similarity=similarity, truncate=truncate, normalize=normalize
    )
    # With the cosine, ours have length 1 whether the folder says so or not.
    ours = compare(folder, texts, exact=similarity == "dot" or (normalize and truncate is None))
    assert ours.width == (truncate or 32)


def test_search_ranks_by_the_dot_product(tiny_models: Any, tmp_path: Path, texts: list[str]) -> None:
    folder = tiny_models.make_bi_encoder("bert", tmp_path / "model", similarity="dot", normalize=False)
    documents = {f"d{number}": text for number, text in enumerate(texts)}
    index = Index.build(documents, tmp_path / "index")
    run = DenseRanker(BiEncoder.from_pretrained(folder, precision="fp32")).search([Query("q", "bees in winter")], index)
    theirs = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    scores = theirs.encode_query(["bees in winter"]) @ theirs.encode_document(texts).T
    expected = [f"d{number}" for number in np.argsort(-scores[0], kind="stable")]
    assert list(run["q"].docids) == expected
    assert np.abs(np.sort(run["q"].scores)[::-1] - np.sort(scores[0])[::-1]).max() < 0.02  # stored in 16 bits


def test_a_similarity_that_is_no_product_is_refused(tiny_models: Any, tmp_path: Path) -> None:
    folder = tiny_models.make_bi_encoder("bert", tmp_path / "model")
    path = folder / "config_sentence_transformers.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "similarity_fn_name": "manhattan"}))
    with pytest.raises(InputError, match="vectors are compared by manhattan; expected cosine or dot"):
        BiEncoder.from_pretrained(folder)
