"""Term weights as jsonl."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import InputError
from rankwell.corpus.formats import read_weights
from rankwell.corpus.records import TermWeights


def read(folder: Path, text: str | bytes) -> list[TermWeights]:
    path = folder / "weights.jsonl"
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return list(read_weights(path))


def test_each_line_holds_a_document_and_its_words(tmp_path: Path) -> None:
    assert read(tmp_path, '{"id": "a", "vector": {"bee": 2, "honey": 0.5}}\n\n{"id": 7, "vector": {}}\n') == [
        TermWeights("a", {"bee": 2, "honey": 0.5}),
        TermWeights("7", {}),
    ]


def test_other_tools_keys_are_understood(tmp_path: Path) -> None:
    assert read(tmp_path, '{"_id": "a", "weights": {"bee": 1}}') == [TermWeights("a", {"bee": 1})]


def test_gzip_is_recognised(tmp_path: Path) -> None:
    assert read(tmp_path, gzip.compress(b'{"id": "a", "vector": {"bee": 1}}'))[0].docid == "a"


def test_negative_weights_are_read_because_models_write_them(tmp_path: Path) -> None:
    assert read(tmp_path, '{"id": "a", "vector": {"bee": -1.5}}') == [TermWeights("a", {"bee": -1.5})]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ('{"id": "a", "vector": {"bee": "2"}}', "the weight of 'bee'"),
        ('{"id": "a", "vector": {"bee": true}}', "the weight of 'bee'"),
        ('{"id": "a", "vector": {"bee": null}}', "the weight of 'bee'"),
        ('{"id": "a", "vector": {"bee": NaN}}', "the weight of 'bee'"),
        ('{"id": "a", "vector": {"bee": Infinity}}', "the weight of 'bee'"),
        ('{"id": "a", "vector": {"bee": 1e999}}', "the weight of 'bee'"),
        ('{"id": "a", "vector": {"bee": 1' + 400 * "0" + "}}", "the weight of 'bee'"),
        ('{"id": "a", "vector": ["bee"]}', "expected an object of words and weights"),
        ('{"id": "a"}', "no key 'vector' or 'weights'"),
        ('{"vector": {}}', "no key '_id' or 'id'"),
        ('{"id": "a b", "vector": {}}', "holds whitespace"),
        ("[1]", "expected a JSON object"),
        ("{", "not JSON"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(InputError, match=rf"weights\.jsonl, line 2: .*{problem}"):
        read(tmp_path, '{"id": "ok", "vector": {"bee": 1}}\n' + line)


def test_an_empty_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is empty, expected term weights"):
        read(tmp_path, "")


words = st.text(st.characters(exclude_categories=("Cs",)), max_size=4)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.dictionaries(words, st.floats(allow_nan=False, allow_infinity=False)), min_size=1, max_size=4))
def test_any_words_and_numbers_are_read_as_they_are(
    tmp_path_factory: pytest.TempPathFactory, vectors: list[dict[str, float]]
) -> None:
    lines = [json.dumps({"id": f"d{i}", "vector": vector}) for i, vector in enumerate(vectors)]
    documents = [TermWeights(f"d{i}", vector) for i, vector in enumerate(vectors)]
    assert read(tmp_path_factory.mktemp("weights"), "\n".join(lines)) == documents
