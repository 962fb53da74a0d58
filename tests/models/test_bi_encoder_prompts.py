"""Prompts of bi-encoders: the vectors are those of sentence-transformers' ``encode_query`` and ``encode_document``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.core.manifest import digest
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.stored import StoredTokens
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.names import encoder_digest
from rankwell.rank.passage_vectors import PassageVectors

TEXTS = ["how do bees keep warm", "honey", "the river and the bridge of stone " * 20, "", "bogue is not bogus"]
LENGTH = 24
QUERY, DOCUMENT = "query: ", "passage of a book: "
LONG = "what is long and large and old in the world of music and song: "
"""15 of 24 tokens."""


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory, tiny_bi_encoder: Path) -> Path:
    """The tiny model as sentence-transformers writes it."""
    package = pytest.importorskip("sentence_transformers")
    modules = pytest.importorskip("sentence_transformers.models")
    transformer = modules.Transformer(str(tiny_bi_encoder), max_seq_length=LENGTH)
    pooling = modules.Pooling(32, pooling_mode="mean")
    model = package.SentenceTransformer(modules=[transformer, pooling, modules.Normalize()], device="cpu")
    folder = tmp_path_factory.mktemp("theirs") / "model"
    model.save(str(folder))
    return folder


@pytest.fixture
def folder(theirs: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    target = tmp_path / "model"
    shutil.copytree(theirs, target)
    return target


def record(folder: Path, prompts: object, default: str | None = None) -> None:
    """What the folder says of prompts."""
    path = folder / "config_sentence_transformers.json"
    settings = {**json.loads(path.read_text()), "prompts": prompts, "default_prompt_name": default}
    path.write_text(json.dumps(settings))


def ours(folder: Path, **options: Any) -> BiEncoder:
    return BiEncoder.from_pretrained(folder, device="cpu", **options)


def peer(folder: Path, **options: Any) -> Any:
    return pytest.importorskip("sentence_transformers").SentenceTransformer(str(folder), device="cpu", **options)


@pytest.mark.parametrize(
    ("prompts", "default"),
    [
        ({}, None),
        ({"query": QUERY, "document": DOCUMENT}, None),
        ({"query": QUERY}, "query"),
        ({"query": "", "document": DOCUMENT, "passage": "not this: "}, "document"),
        ({"query": None, "document": None, "else": "neither: "}, "else"),
        ({"query": LONG, "document": LONG}, None),
        ({"query": "bog", "document": "bog"}, None),  # a part of the text's first word
    ],
)
def test_vectors_are_those_of_sentence_transformers(folder: Path, prompts: dict[str, str], default: str | None) -> None:
    record(folder, prompts, default)
    found, expected = ours(folder), peer(folder)
    np.testing.assert_allclose(found.encode_queries(TEXTS), expected.encode_query(TEXTS), atol=1e-5)
    np.testing.assert_allclose(found.encode_documents(TEXTS), expected.encode_document(TEXTS), atol=1e-5)
    store = DocumentStore.build([Document(f"d{i}", text) for i, text in enumerate(TEXTS)], folder / "store")
    kept = PassageVectors.open(store, found).at(np.arange(len(TEXTS)))
    np.testing.assert_allclose(kept, expected.encode_document(TEXTS), atol=1e-3)  # in 16 bits


@pytest.mark.parametrize("name", ["passage", "corpus"])
def test_the_prompt_of_documents_has_other_names(folder: Path, name: str) -> None:
    record(folder, {"query": QUERY, name: DOCUMENT})
    expected = peer(folder).encode(TEXTS, prompt_name=name)
    np.testing.assert_allclose(ours(folder).encode_documents(TEXTS), expected, atol=1e-5)


def test_a_prompt_that_is_given_is_taken_instead(folder: Path) -> None:
    expected = peer(folder)
    for recorded in ({}, {"query": "else: ", "document": LONG}):
        record(folder, recorded)
        found = ours(folder, query_prompt=QUERY, document_prompt=DOCUMENT)
        np.testing.assert_allclose(found.encode_queries(TEXTS), expected.encode(TEXTS, prompt=QUERY), atol=1e-5)
        np.testing.assert_allclose(found.encode_documents(TEXTS), expected.encode(TEXTS, prompt=DOCUMENT), atol=1e-5)
        none = ours(folder, query_prompt="", document_prompt="")
        np.testing.assert_allclose(none.encode_queries(TEXTS), expected.encode(TEXTS), atol=1e-5)


@pytest.mark.parametrize("prompt", [DOCUMENT, LONG, "passage:"])
def test_tokens_have_the_prompt_before_them(folder: Path, prompt: str) -> None:
    encoder = ours(folder, document_prompt=prompt)
    store = DocumentStore.of_texts(dict(zip("abcde", TEXTS, strict=True)))
    tokens = StoredTokens.open(store.documents, encoder.tokenizer)
    numbers = np.array([4, 2, 0, 3, 3])
    found = encoder.encode_tokens(tokens, numbers)
    np.testing.assert_allclose(found, peer(folder).encode(TEXTS, prompt=prompt)[numbers], atol=1e-5)
    assert encoder.reader.truncation.pairs_cut == (2 if prompt == LONG else 1)
    assert encoder.encode_tokens(tokens, numbers[:0]).shape == (0, 32)


def test_tokens_are_not_taken_where_the_prompt_would_change_them(folder: Path) -> None:
    encoder = ours(folder, document_prompt="passage")  # passagehow do bees keep warm
    assert not encoder.takes_tokens
    store = DocumentStore.of_texts({"a": TEXTS[0]})
    with pytest.raises(RankwellError, match="texts have other tokens after the prompt 'passage' than alone"):
        encoder.encode_tokens(StoredTokens.open(store.documents, encoder.tokenizer), np.array([0]))


def in_bytes(folder: Path) -> None:
    """Give the folder a tokenizer like RoBERTa's."""
    tokenizers: Any = pytest.importorskip("tokenizers")
    letters = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())]
    vocabulary = {token: number for number, token in enumerate([*letters, "Ġh", "Ġt", "Ġa", "th", ":("])}
    merges = [("Ġ", "h"), ("Ġ", "t"), ("Ġ", "a"), ("t", "h"), (":", "(")]
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, merges))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = tokenizers.processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    made.save(str(folder / "tokenizer.json"))
    names = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LENGTH, **names}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


@pytest.mark.parametrize("prompt", ["p: ", "p:"])
def test_a_word_after_a_space_or_a_mark_may_be_another_token(folder: Path, prompt: str) -> None:
    in_bytes(folder)
    record(folder, {"query": "q: ", "document": prompt})
    texts = [*TEXTS, "(bees)"]  # :( is one token
    found, expected = ours(folder), peer(folder).encode_document(texts)
    assert not found.takes_tokens
    np.testing.assert_allclose(found.encode_documents(texts), expected, atol=1e-5)
    store = DocumentStore.build([Document(f"d{i}", text) for i, text in enumerate(texts)], folder / "store")
    np.testing.assert_allclose(PassageVectors.open(store, found).at(np.arange(6)), expected, atol=1e-3)


def test_only_the_prompt_of_documents_is_in_the_name_of_their_vectors(folder: Path) -> None:
    plain = digest([encoder_digest(folder), "mean", LENGTH, ""])
    assert ours(folder).name == plain
    assert ours(folder, query_prompt=QUERY).name == plain
    named = {ours(folder, query_prompt=QUERY, document_prompt=prompt).name for prompt in (QUERY, DOCUMENT, LONG)}
    assert len(named | {plain}) == 4


def test_a_folder_without_a_record_has_no_prompts(folder: Path) -> None:
    (folder / "config_sentence_transformers.json").unlink()
    encoder = ours(folder)
    assert (encoder.query_prompt, encoder.document_prompt) == ("", "")
    assert encoder.takes_tokens


@pytest.mark.parametrize("prompts", [["query: "], "query: ", {"query": 3}, {"passage": ["x"]}, 0])
def test_prompts_that_are_none_are_refused(folder: Path, prompts: object) -> None:
    record(folder, prompts)
    with pytest.raises(InputError, match=r"config_sentence_transformers\.json: prompts: expected an object of texts"):
        ours(folder)


@pytest.mark.parametrize("content", ["{", "[]"])
def test_a_record_that_is_none_is_refused(folder: Path, content: str) -> None:
    (folder / "config_sentence_transformers.json").write_text(content)
    with pytest.raises(InputError, match=r"config_sentence_transformers\.json"):
        ours(folder)


def test_a_prompt_that_is_no_part_of_the_vector_is_refused(folder: Path) -> None:
    path = folder / "1_Pooling" / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "include_prompt": False}))
    np.testing.assert_allclose(ours(folder).encode_queries(TEXTS), peer(folder).encode_query(TEXTS), atol=1e-5)
    with pytest.raises(InputError, match=r"config\.json: include_prompt"):
        ours(folder, query_prompt=QUERY)
    record(folder, {"document": DOCUMENT})
    with pytest.raises(InputError, match=r"config\.json: include_prompt"):
        ours(folder)


def test_a_prompt_must_leave_room_for_a_text(folder: Path) -> None:
    with pytest.raises(RankwellError, match="has 22 pieces: no room is left in a length of 24"):
        ours(folder, query_prompt="bee " * 22)
    found = ours(folder, query_prompt="bee " * 21).encode_queries(["honey", "tea", "honey tea"])
    assert abs(found[0] - found[1]).max() > 1e-3
    np.testing.assert_allclose(found[0], found[2], atol=1e-6)
