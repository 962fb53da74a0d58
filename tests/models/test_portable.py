"""Exported models elsewhere: sentence-transformers, plain transformers and ONNX Runtime compute what rankwell does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch
import transformers
from numpy.typing import NDArray
from sentence_transformers import CrossEncoder, SentenceTransformer
from torch.nn import functional

from rankwell import BiEncoder, Ranker
from rankwell.core.errors import RankwellError
from rankwell.models.bi_encoder_modules import Modules, save_bi_encoder
from rankwell.models.checkpoints.export import export_weights
from rankwell.models.checkpoints.folders import add_markers, load_checkpoint, save_checkpoint
from rankwell.models.portable import export_encoder, export_ranker
from rankwell.models.vector_layers import Dense

TEXTS = ["how do bees keep warm in winter", "bogue", "tea.", "the bees keep warm in the hive " * 12, "日 ω zyx --"]
PAIRS = [(query, document) for query in (TEXTS[0], TEXTS[1]) for document in TEXTS]
Numbers = NDArray[np.float32]


def of_sentence_transformers(folder: Path, side: str) -> Numbers:
    model = SentenceTransformer(str(folder), device="cpu")
    return np.asarray(model.encode_query(TEXTS) if side == "query" else model.encode_document(TEXTS))


def of_onnx_runtime(folder: Path, prompt: str = "") -> Numbers:
    """As anybody would use the folder: with its tokenizer, by the names of the inputs."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder), padding_side="right")
    read = tokenizer([prompt + text for text in TEXTS], padding=True, truncation=True, return_tensors="np")
    read["token_type_ids"] = read.get("token_type_ids", np.zeros_like(read["input_ids"]))
    graph = onnxruntime.InferenceSession(str(folder / "model.onnx"), providers=["CPUExecutionProvider"])
    return graph.run(["sentence_embedding"], {entry.name: read[entry.name] for entry in graph.get_inputs()})[0]


def of_rankwell(folder: str | Path, side: str) -> Numbers:
    encoder = BiEncoder.from_pretrained(folder, device="cpu", precision="fp32")
    return encoder.encode_queries(TEXTS) if side == "query" else encoder.encode_documents(TEXTS)


def test_the_shipped_model_is_a_bi_encoder_everywhere(tmp_path: Path) -> None:
    expected = of_rankwell("rankwell-mini", "query")
    assert export_encoder("rankwell-mini", tmp_path / "whole", "sentence-transformers") == ()
    assert export_encoder("rankwell-mini", tmp_path / "graph", "onnx") == ()
    np.testing.assert_allclose(of_sentence_transformers(tmp_path / "whole", "query"), expected, atol=1e-5)
    np.testing.assert_allclose(of_onnx_runtime(tmp_path / "graph"), expected, atol=1e-4)
    plain = transformers.AutoModel.from_pretrained(str(tmp_path / "whole")).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "whole"))(TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        mean = functional.normalize(plain(**tokens).last_hidden_state.mean(dim=1))
    np.testing.assert_allclose(mean[0].numpy(), expected[0], atol=1e-5)


def turned(side: str, folder: Path, start: Path) -> Path:
    """A bi-encoder with an adapter of queries, of both sides by one layer, or by two."""
    random = torch.Generator().manual_seed(3)
    base = BiEncoder.from_pretrained(start, device="cpu", precision="fp32")
    first, second = (Dense(torch.eye(32) + 0.3 * torch.randn(32, 32, generator=random)) for _ in range(2))
    layers = {"query": ((first,), ()), "same": ((first,), (first,)), "both": ((first,), (second,))}[side]
    prompts = ("how ", "the bank ")
    modules = Modules(base.modules.pooling, query=layers[0], document=layers[1])
    save_bi_encoder(folder, base.encoder, base.tokenizer, modules, max_length=40, prompts=prompts, base="vectors")
    return folder


@pytest.mark.parametrize("side", ["query", "both"])
def test_an_adapter_that_tells_the_sides_apart_makes_two_models(
    side: str, tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    source = turned(side, tmp_path / "adapted", tiny_bi_encoder)
    for target in ("sentence-transformers", "onnx"):
        assert export_encoder(source, tmp_path / target, target) == ("query", "document")
        assert sorted(path.name for path in (tmp_path / target).iterdir()) == ["document", "query"]
    for name, prompt in (("query", "how "), ("document", "the bank ")):
        expected = of_rankwell(source, name)
        found = of_sentence_transformers(tmp_path / "sentence-transformers" / name, name)
        np.testing.assert_allclose(found, expected, atol=1e-5)
        np.testing.assert_allclose(of_onnx_runtime(tmp_path / "onnx" / name, prompt), expected, atol=1e-4)
        np.testing.assert_allclose(of_rankwell(tmp_path / "sentence-transformers" / name, name), expected, atol=1e-5)


def test_an_adapter_of_queries_leaves_the_vectors_that_an_engine_has(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    source = turned("query", tmp_path / "adapted", tiny_bi_encoder)
    export_encoder(source, tmp_path / "out", "sentence-transformers")
    base = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=40, document_prompt="the bank ")
    found = of_sentence_transformers(tmp_path / "out" / "document", "document")
    np.testing.assert_allclose(found, base.encode_documents(TEXTS), atol=1e-5)
    assert np.abs(of_sentence_transformers(tmp_path / "out" / "query", "query") - found).max() > 0.1


def test_an_adapter_that_both_sides_share_is_part_of_one_model(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    source = turned("same", tmp_path / "adapted", tiny_bi_encoder)
    assert export_encoder(source, tmp_path / "out", "sentence-transformers") == ()
    for side in ("query", "document"):
        np.testing.assert_allclose(
            of_sentence_transformers(tmp_path / "out", side), of_rankwell(source, side), atol=1e-5
        )


@pytest.mark.parametrize(
    ("kind", "how"),
    [
        ("xlm-roberta", {"pooling": "cls", "prompts": {"query": "query: ", "document": "passage: "}}),
        ("mpnet", {"pooling": "max", "dense": 24}),
        ("qwen3", {"pooling": "lasttoken", "normalize": False, "similarity": "dot"}),
        ("modernbert", {"pooling": "weightedmean"}),
    ],
    ids=lambda value: value if isinstance(value, str) else value["pooling"],
)
def test_every_pooling_is_in_the_graph(kind: str, how: dict[str, Any], tiny_models: Any, tmp_path: Path) -> None:
    source = tiny_models.make_bi_encoder(kind, tmp_path / "source", **how)
    expected = of_rankwell(source, "document")
    export_encoder(source, tmp_path / "out", "onnx")
    prompt = how.get("prompts", {}).get("document", "")
    np.testing.assert_allclose(of_onnx_runtime(tmp_path / "out", prompt), expected, atol=1e-4)
    export_encoder(source, tmp_path / "copy", "sentence-transformers")
    np.testing.assert_allclose(of_sentence_transformers(tmp_path / "copy", "document"), expected, atol=1e-5)


def test_weights_in_8_bits_are_restored(tiny_models: Any, tmp_path: Path) -> None:
    source = tiny_models.make_bi_encoder("bert", tmp_path / "source", dense=24)
    export_weights(source, tmp_path / "small")
    with pytest.raises(Exception, match=r"model\.safetensors"):
        SentenceTransformer(str(tmp_path / "small"), device="cpu")
    export_encoder(tmp_path / "small", tmp_path / "out", "sentence-transformers")
    expected = of_rankwell(tmp_path / "small", "query")
    np.testing.assert_allclose(of_sentence_transformers(tmp_path / "out", "query"), expected, atol=1e-5)


@pytest.mark.parametrize("labels", [1, 2])
def test_a_re_ranker_is_a_cross_encoder_whose_score_is_p_relevant(
    labels: int, tiny_models: Any, tmp_path: Path
) -> None:
    source = tiny_models.make("bert", tmp_path / "source", labels=labels)
    expected = Ranker(source, device="cpu").predict(PAIRS, activation="probability")
    export_ranker(source, tmp_path / "out", "sentence-transformers")
    model = CrossEncoder(str(tmp_path / "out"), device="cpu")
    np.testing.assert_allclose(model.predict(PAIRS), expected, atol=1e-5)
    assert np.ptp(expected) > 0.01
    plain = transformers.AutoModelForSequenceClassification.from_pretrained(str(tmp_path / "out")).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))(*PAIRS[3], return_tensors="pt")
    with torch.no_grad():
        score = plain(**tokens).logits.sigmoid().item()
    assert score == pytest.approx(expected[3], abs=1e-5)


def test_the_graph_of_a_re_ranker_takes_what_tokenizers_return(tiny_models: Any, tmp_path: Path) -> None:
    source = tiny_models.make("bert", tmp_path / "source")
    export_ranker(source, tmp_path / "out", "onnx")
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(tmp_path / "out"))
    read = tokenizer([list(pair) for pair in PAIRS], padding=True, return_tensors="np")
    graph = onnxruntime.InferenceSession(str(tmp_path / "out" / "model.onnx"), providers=["CPUExecutionProvider"])
    [scores] = graph.run(["logits"], {entry.name: read[entry.name] for entry in graph.get_inputs()})
    np.testing.assert_allclose(scores[:, 0], Ranker(source, device="cpu").predict(PAIRS), atol=1e-4)


@pytest.fixture
def marked(tiny_checkpoint: Path, tmp_path: Path) -> Path:
    model, tokenizer, config = load_checkpoint(tiny_checkpoint)
    add_markers(model, tokenizer)
    changes = {"template": {"name": "typed", "markers": True, "max_length": 96}}
    save_checkpoint(tmp_path / "marked", model, tokenizer, config.changed(changes))
    return tmp_path / "marked"


def test_types_and_marks_need_a_graph(marked: Path, tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match=r"the markers around matching words, the template typed; --to onnx keeps"):
        export_ranker(marked, tmp_path / "out", "sentence-transformers")
    export_ranker(marked, tmp_path / "graph", "onnx")
    theirs, ours = Ranker(tmp_path / "graph", backend="onnx"), Ranker(marked, device="cpu")
    for types in (None, ["description"] * len(PAIRS)):
        expected = ours.predict(PAIRS, types=types)
        np.testing.assert_allclose(theirs.predict(PAIRS, types=types), expected, atol=1e-4)
    assert np.abs(expected - ours.predict(PAIRS)).max() > 1e-3


def test_what_cannot_be_exported_is_refused_with_the_reason(
    tiny_checkpoint: Path, tiny_twin: Path, tiny_models: Any, tmp_path: Path
) -> None:
    language = tiny_models.make_language_model("qwen3", tmp_path / "qwen3")
    modular = tiny_models.make_modular("bert", tmp_path / "modular")
    short = tiny_models.make_bi_encoder("bert", tmp_path / "short", truncate=16)
    export_weights(short, tmp_path / "small")
    before = sorted(tmp_path.iterdir())
    for source, changes, problem in (
        (tiny_checkpoint, {"attention": "strm"}, "knows nothing of the attention rule strm; --to onnx keeps it"),
        (tiny_twin, {}, "the reading apart, the missing pooler .*, the template twin; --to onnx"),
        (language, {}, "is a language model, which is not exported"),
        (modular, {}, "sentence-transformers loads it as it is"),
    ):
        with pytest.raises(RankwellError, match=problem):
            export_ranker(source, tmp_path / "out", "sentence-transformers", **changes)
    with pytest.raises(RankwellError, match="small truncates its vectors, which is not exported"):
        export_encoder(tmp_path / "small", tmp_path / "out", "sentence-transformers")
    with pytest.raises(RankwellError, match="short exists already"):
        export_encoder(short, short, "onnx")
    with pytest.raises(RankwellError, match="is a cross-encoder, which has no vectors"):
        export_encoder(tiny_checkpoint, tmp_path / "out", "onnx")
    assert sorted(tmp_path.iterdir()) == before
