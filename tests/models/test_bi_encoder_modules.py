"""Folders of bi-encoders: what is written is what sentence-transformers and rankwell read."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.core.errors import InputError
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.bi_encoder_modules import Modules, save_bi_encoder
from rankwell.models.checkpoints.folders import load_encoder
from rankwell.models.checkpoints.names import model_digest
from rankwell.models.vector_layers import Dense

QUERIES = ["how do bees keep warm", "honey"]
TEXTS = ["the river and the bridge of stone " * 20, "bogue is not bogus", "the cluster shivers"]


def layer(seed: int, out: int = 32, width: int = 32, *, bias: bool = False, tanh: bool = False) -> Dense:
    random = torch.Generator().manual_seed(seed)
    weight = torch.randn(out, width, generator=random)
    return Dense(weight, torch.randn(out, generator=random) if bias else None, "tanh" if tanh else "identity")


def write(folder: Path, start: Path, modules: Modules, **options: object) -> Path:
    encoder, _, tokenizer = load_encoder(start)
    save_bi_encoder(folder, encoder, tokenizer, modules, max_length=40, **options)  # type: ignore[arg-type]
    return folder


SAME = layer(1, 16, bias=True, tanh=True)
FORMS = {
    "plain": Modules(),
    "first": Modules("first"),
    "dense": Modules(query=(SAME,), document=(SAME,)),
    "dense on pooled": Modules("mean", normalised=False, query=(SAME,), document=(SAME,)),
    "router": Modules(query=(layer(2), layer(3)), document=(layer(4),)),
    "query": Modules(query=(layer(5),)),
}


@pytest.mark.parametrize("form", FORMS)
def test_sentence_transformers_computes_the_same_vectors(form: str, tiny_bi_encoder: Path, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    prompts = ("query: ", "passage: ")
    folder = write(tmp_path / "model", tiny_bi_encoder, FORMS[form], prompts=prompts)
    ours = BiEncoder.from_pretrained(folder, device="cpu")
    theirs = library.SentenceTransformer(str(folder), device="cpu")
    np.testing.assert_allclose(ours.encode_queries(QUERIES), theirs.encode_query(QUERIES), atol=1e-5)
    np.testing.assert_allclose(ours.encode_documents(TEXTS), theirs.encode_document(TEXTS), atol=1e-5)
    assert ours.reader.template.max_length == theirs.max_seq_length == 40
    assert (ours.query_prompt, ours.document_prompt) == ("query: ", "passage: ")


def test_vectors_of_documents_are_those_of_the_base_mapped(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    plain = BiEncoder.from_pretrained(write(tmp_path / "plain", tiny_bi_encoder, Modules()), device="cpu")
    folder = write(tmp_path / "both", tiny_bi_encoder, FORMS["router"], base=plain.name)
    both = BiEncoder.from_pretrained(folder, device="cpu")
    assert plain.base is None
    assert both.base is not None
    assert (both.base.name, both.base.base) == (plain.name, None)
    assert both.name != plain.name
    np.testing.assert_array_equal(both.base.encode_documents(TEXTS), plain.encode_documents(TEXTS))
    np.testing.assert_allclose(
        both.map_documents(plain.encode_documents(TEXTS)), both.encode_documents(TEXTS), atol=1e-6
    )
    # Dense layers that read vectors of any length cannot be applied to stored ones.
    on_pooled = write(tmp_path / "pooled", tiny_bi_encoder, FORMS["dense on pooled"])
    assert BiEncoder.from_pretrained(on_pooled, device="cpu").base is None


def test_a_layer_for_queries_alone_leaves_the_name_of_documents_vectors(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    plain = BiEncoder.from_pretrained(write(tmp_path / "plain", tiny_bi_encoder, Modules()), device="cpu")
    query = BiEncoder.from_pretrained(write(tmp_path / "query", tiny_bi_encoder, FORMS["query"]), device="cpu")
    assert (query.name, query.base) == (plain.name, None)
    assert not np.allclose(query.encode_queries(QUERIES), plain.encode_queries(QUERIES), atol=1e-2)


def test_the_layers_are_part_of_what_a_model_is(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    digests = {model_digest(write(tmp_path / form, tiny_bi_encoder, modules)) for form, modules in FORMS.items()}
    assert len(digests) == len(FORMS)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"activation_function": "torch.nn.modules.activation.Mish"}, "with the activation Mish"),
        ({"module_input_name": "token_embeddings"}, "a dense layer on vectors"),
        ({"use_residual": True}, "without a residual"),
    ],
)
def test_layers_that_compute_something_else_are_refused(
    change: dict[str, object],
    problem: str,
    tiny_bi_encoder: Path,
    tmp_path: Path,
    without_checksums: Callable[[Path], None],
) -> None:
    folder = write(tmp_path / "model", tiny_bi_encoder, FORMS["dense"])
    without_checksums(folder)
    path = folder / "3_Dense" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(InputError, match=problem):
        BiEncoder.from_pretrained(folder, device="cpu")


def test_layers_that_do_not_fit_are_refused(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    folder = write(tmp_path / "model", tiny_bi_encoder, Modules(query=(layer(1, 16),), document=(layer(2, 8),)))
    with pytest.raises(InputError, match="its dense layers do not fit together"):
        BiEncoder.from_pretrained(folder, device="cpu")
