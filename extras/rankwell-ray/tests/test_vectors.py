"""Vectors of documents are computed as a job."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

from rankwell.core.shards import do
from rankwell.corpus.store import DocumentStore
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.devices import Computing
from rankwell.rank.passage_vectors import PassageVectors
from rankwell_ray.vectors import VectorsJob

from .conftest import make_documents


def test_a_jobs_vectors_are_those_that_a_search_computes(
    tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    documents = make_documents(12)
    store = DocumentStore.build(documents, tmp_path / "store")
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu")
    expected = encoder.encode_documents([document.contents for document in documents])
    do(VectorsJob(store.folder, str(tiny_bi_encoder), Computing("cpu")))
    assert PassageVectors.is_complete(store, encoder)
    monkeypatch.setattr(BiEncoder, "encode_tokens", None)  # nothing is computed again
    np.testing.assert_allclose(PassageVectors.open(store, encoder).at(np.arange(12)), expected, atol=1e-3)
