"""Pre-tokenised documents: what is kept is what the tokenizer makes of the texts, whoever made it and when."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore
from rankwell.inputs import stored
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.prompts import Prompt
from rankwell.inputs.stored import StoredTokens, tokens_name
from rankwell.inputs.tokenizer import Tokenizer

TEXTS = {
    "d1": "The banks of bogue, insouciantly",
    "d2": "",
    "d3": "tea [SEP] 3,100 teas \ud83d",
    "ü": "Café it's 日本 bank " * 40,
    "d5": "bogus",
}
NAMES = ("ids", "continues", "ends", "stems", "opens")


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    return DocumentStore.build((Document(*item) for item in TEXTS.items()), tmp_path / "store")


def equal(one: Pieces, other: Pieces) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name)) for name in NAMES)


@pytest.mark.parametrize("stems", [False, True])
@pytest.mark.parametrize("wanted", [["d5", "ü", "d1", "ü", "d2"], ["d2"], list(TEXTS), []])
def test_rows_are_what_the_tokenizer_makes_of_the_texts(
    store: DocumentStore, tokenizer: Tokenizer, stems: bool, wanted: list[str]
) -> None:
    expected = tokenizer.encode([TEXTS[docid] for docid in wanted], stems=stems)
    for documents in (store.documents, store.documents, DocumentStore.of_texts(TEXTS).documents):
        source = StoredTokens.open(documents, tokenizer, stems)
        numbers = source.numbers(wanted)
        assert numbers.dtype == np.int64
        assert equal(source.at(numbers), expected)
        assert source.lengths(numbers).tolist() == expected.lengths().tolist()


def test_documents_are_tokenised_once(
    store: DocumentStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = StoredTokens.open(store.documents, tokenizer)
    monkeypatch.setattr(tokenizer, "encode", None)
    again = StoredTokens.open(DocumentStore.open(store.folder).documents, tokenizer)
    everything = np.arange(len(TEXTS))
    assert equal(first.at(everything), again.at(everything))


def test_tokens_of_another_tokenizer_are_others(
    store: DocumentStore, tokenizer: Tokenizer, marked_tokenizer: Tokenizer
) -> None:
    names = {tokens_name(one, stems=stems) for one in (tokenizer, marked_tokenizer) for stems in (False, True)}
    assert len(names) == 4
    prompts = [Prompt(between=f"\n{text}: ", joined=False) for text in ("Text", "Passage")]
    for prompt in prompts:  # what stands before a document is tokenised with it
        parts = tokenizer._backend, tokenizer._names, tokenizer.max_length
        names.add(tokens_name(Tokenizer(*parts, prompt=prompt, lock=tokenizer._lock)))
    assert len(names) == 6
    StoredTokens.open(store.documents, tokenizer)
    StoredTokens.open(store.documents, tokenizer, stems=True)
    assert sorted(path.name for path in store.folder.glob("tokens-*")) == [
        f"tokens-{tokenizer.digest}",
        f"tokens-{tokenizer.digest}-stems",
    ]


def test_a_piece_takes_two_bytes_or_eight_with_stems(store: DocumentStore, tokenizer: Tokenizer) -> None:
    pieces = len(tokenizer.encode(list(TEXTS.values())).ids)
    for stems, size in ((False, 2), (True, 8)):
        StoredTokens.open(store.documents, tokenizer, stems)
        file = store.folder / f"tokens-{tokens_name(tokenizer, stems=stems)}" / "tokens.npy"
        assert file.stat().st_size == 128 + size * pieces


@pytest.mark.parametrize("kind", ["stored", "kept"])
def test_an_unknown_document_is_named(store: DocumentStore, tokenizer: Tokenizer, kind: str) -> None:
    texts = store if kind == "stored" else DocumentStore.of_texts({"d1": "tea"})
    source = StoredTokens.open(texts.documents, tokenizer)
    with pytest.raises(RankwellError, match="document 'nope' is not "):
        source.numbers(["d1", "nope", "other"])
    for number in (-1, len(TEXTS)):
        with pytest.raises(IndexError):
            source.at(np.array([0, number]))


def test_no_documents_are_no_tokens(tmp_path: Path, tokenizer: Tokenizer) -> None:
    empty = DocumentStore.build([], tmp_path / "store")
    for texts in (empty, DocumentStore.of_texts({})):
        source = StoredTokens.open(texts.documents, tokenizer)
        assert len(source) == 0
        assert len(source.at(source.numbers([]))) == 0


def test_who_finishes_second_takes_what_the_first_made(
    store: DocumentStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenise, begun = stored._tokenise, []

    def overtaken(*arguments: Any) -> Iterator[Any]:
        if not begun:
            begun.append(True)
            StoredTokens.open(store.documents, tokenizer)
        yield from tokenise(*arguments)

    monkeypatch.setattr(stored, "_tokenise", overtaken)
    source = StoredTokens.open(store.documents, tokenizer)
    assert begun
    assert equal(source.at(np.arange(len(TEXTS))), tokenizer.encode(list(TEXTS.values())))
    assert [path.name for path in store.folder.iterdir() if "tokens" in path.name] == [f"tokens-{tokenizer.digest}"]


def test_processes_at_once_have_the_same_tokens(
    store: DocumentStore, tokenizer: Tokenizer, tiny_tokenizer: Path
) -> None:
    program = """if True:
        import hashlib, sys
        import numpy as np
        from rankwell.corpus.store import DocumentStore
        from rankwell.inputs.stored import StoredTokens
        from rankwell.inputs.tokenizer import Tokenizer
        source = StoredTokens.open(DocumentStore.open(sys.argv[1]).documents, Tokenizer.open(sys.argv[2]), stems=True)
        found = source.at(np.arange(len(source)))
        print(hashlib.sha256(b"".join(a.tobytes() for a in (found.ids, found.stems, found.opens))).hexdigest())
    """
    command = [sys.executable, "-c", program, str(store.folder), str(tiny_tokenizer)]
    runs = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, "PYTHONHASHSEED": seed}, text=True)
        for seed in ("1", "2")
    ]
    outputs = [run.communicate()[0].strip() for run in runs]
    assert [run.returncode for run in runs] == [0, 0]
    import hashlib

    here = tokenizer.encode(list(TEXTS.values()), stems=True)
    expected = hashlib.sha256(b"".join(a.tobytes() for a in (here.ids, here.stems, here.opens))).hexdigest()
    assert outputs == [expected, expected]
    assert [path.name for path in store.folder.iterdir() if "tokens" in path.name] == [
        f"tokens-{tokenizer.digest}-stems"
    ]


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_where_nothing_can_be_written_tokens_stay_in_memory(
    store: DocumentStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    fail_to_write(monkeypatch, number)
    before = sorted(store.folder.iterdir())
    source = StoredTokens.open(store.documents, tokenizer, stems=True)
    assert equal(source.at(np.arange(len(TEXTS))), tokenizer.encode(list(TEXTS.values()), stems=True))
    assert sorted(store.folder.iterdir()) == before


def test_a_full_disk_is_an_error(store: DocumentStore, tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_write(monkeypatch, errno.ENOSPC)
    with pytest.raises(RankwellError, match="no space left"):
        StoredTokens.open(store.documents, tokenizer)


def fail_to_write(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "mkdir", refuse)


def test_tokens_of_other_documents_are_refused(store: DocumentStore, tokenizer: Tokenizer, tmp_path: Path) -> None:
    StoredTokens.open(store.documents, tokenizer)
    other = DocumentStore.build([Document("x", "tea")], tmp_path / "other")
    name = f"tokens-{tokenizer.digest}"
    (store.folder / name).rename(other.folder / name)
    with pytest.raises(InputError, match="5 rows of tokens for 1 documents"):
        StoredTokens.open(other.documents, tokenizer)
