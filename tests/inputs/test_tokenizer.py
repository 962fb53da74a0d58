"""Tokenizers and their pieces."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.analyser import Analyzer
from rankwell.inputs.pieces import Pieces, pack_pieces, unpack_pieces
from rankwell.inputs.tokenizer import Tokenizer


def test_pieces_know_which_continue_a_word(tokenizer: Any) -> None:
    found = tokenizer.encode(["bogue, bank", "", "insouciantly"])
    assert tokenizer.token_names(found.ids) == ["bog", "##ue", ",", "bank", "ins", "##ou", "##cian", "##tly"]
    assert found.continues.tolist() == [False, True, False, False, False, True, True, True]
    assert found.ends.tolist() == [4, 4, 8]
    assert found.lengths().tolist() == [4, 0, 4]
    assert len(found.stems) == len(found.opens) == 0


def test_stems_are_numbered_alike_in_every_call(tokenizer: Any) -> None:
    first = tokenizer.encode(["the banks of bogue"], stems=True)
    second = tokenizer.encode(["bank"], stems=True)
    assert first.stems[0] == -1
    assert first.stems[1] == second.stems[0] >= 0
    # The last two pieces are one word.
    assert first.stems[-1] == first.stems[-2] >= 0
    assert first.opens[-2:].tolist() == [True, False]


def test_stems_mean_the_same_in_every_process(tokenizer: Any, tiny_tokenizer: Path) -> None:
    # A hash of the stem, so that what one process keeps another can compare: this number must not change.
    stem = int.from_bytes(hashlib.blake2b(b"bank", digest_size=8).digest()) % (2**31 - 1)
    assert set(tokenizer.encode(["Banks"], stems=True).stems.tolist()) == {stem}
    assert Tokenizer.open(tiny_tokenizer).encode(["tea banking"], stems=True).stems[-1] == stem


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.sampled_from(["the", "Banks", "it's", "café", "日本", "3,100", "-", "tea's"])), max_size=4))
def test_stems_are_those_of_the_analysers_words(tokenizer: Any, rows: list[list[str]]) -> None:
    texts = [" ".join(row) for row in rows]
    found = tokenizer.encode(texts, stems=True)
    analyzer = Analyzer.english()
    stems, opens = [], []
    for text in texts:
        words = analyzer.words(text)
        encoding = tokenizer._backend.encode(text, add_special_tokens=False)
        seen: set[int] = set()
        for begin, _ in encoding.offsets:
            own = [i for i, word in enumerate(words) if word.begin <= begin < word.end and word.term is not None]
            stems.append(words[own[0]].term if own else None)
            opens.append(bool(own) and own[0] not in seen)
            seen.update(own)
    number = dict(zip(stems, found.stems.tolist(), strict=True))
    assert [number[stem] for stem in stems] == found.stems.tolist()
    assert len(set(number.values())) == len(number)
    assert number.get(None, -1) == -1
    assert opens == found.opens.tolist()


@pytest.mark.parametrize("name", ["[SEP]", "[CLS]", "[MASK]", "[PAD]", "[UNK]", "[e1]", "[/e20]"])
def test_a_special_tokens_name_in_a_text_is_text(marked_tokenizer: Any, tmp_path: Path, name: str) -> None:
    marked_tokenizer.save(tmp_path)
    for tokenizer in (marked_tokenizer, Tokenizer.open(tmp_path)):
        found = tokenizer.encode([f"bank {name} tea"])
        assert tokenizer.token_id(name) >= 0
        assert tokenizer.token_id(name) not in found.ids
        pieces = tokenizer.token_names(found.ids)
        assert (pieces[:2], pieces[-2:]) == (["bank", "["], ["]", "tea"])


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(), max_size=4))
def test_any_text_is_encoded_alone_as_among_others(tokenizer: Any, texts: list[str]) -> None:
    together = tokenizer.encode(texts, stems=True)
    assert len(together) == len(texts)
    assert len(together.ids) == len(together.continues) == len(together.stems) == len(together.opens)
    for row, text in enumerate(texts):
        alone, part = tokenizer.encode([text], stems=True), together.take([row])
        for name in ("ids", "continues", "stems", "opens"):
            assert np.array_equal(getattr(alone, name), getattr(part, name)), name
        assert not part.continues[:1].any()


def test_more_texts_than_one_batch(tokenizer: Any) -> None:
    found = tokenizer.encode(["bogue bank"] * 1500)
    assert found.ends.tolist() == list(range(3, 4501, 3))
    assert np.array_equal(found.continues, np.tile([False, True, False], 1500))


def test_half_a_surrogate_pair_is_unknown_not_fatal(tokenizer: Any) -> None:
    found = tokenizer.encode(["bank \ud83d tea"], stems=True)
    assert tokenizer.token_names(found.ids) == ["bank", "?", "tea"]
    assert found.opens.tolist() == [True, False, True]


def test_saved_padding_and_truncation_do_not_matter(tiny_tokenizer: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_tokenizer, tmp_path / "copy")
    saved = tmp_path / "copy" / "tokenizer.json"
    content = json.loads(saved.read_text())
    content["truncation"] = {"max_length": 2, "strategy": "LongestFirst", "stride": 0, "direction": "Right"}
    saved.write_text(json.dumps(content))
    assert len(Tokenizer.open(tmp_path / "copy").encode(["bank tea milk"]).ids) == 3


def test_vocab_txt_alone_gives_the_same(tiny_tokenizer: Path, tokenizer: Any, tmp_path: Path) -> None:
    shutil.copy(tiny_tokenizer / "vocab.txt", tmp_path)
    other = Tokenizer.open(tmp_path)
    text = ["Bogue's Café, INSOUCIANTLY [MASK] 3,100 日本"]
    assert np.array_equal(other.encode(text).ids, tokenizer.encode(text).ids)
    assert other.special == tokenizer.special


def test_saving_and_opening_gives_the_same(marked_tokenizer: Any, tmp_path: Path) -> None:
    marked_tokenizer.save(tmp_path, 180)
    again = Tokenizer.open(tmp_path)
    assert again.digest == marked_tokenizer.digest
    assert again.special == marked_tokenizer.special
    assert again.max_length == 180


def test_names_of_special_tokens_come_from_the_settings(tiny_tokenizer: Path, tmp_path: Path) -> None:
    shutil.copy(tiny_tokenizer / "tokenizer.json", tmp_path)
    settings = {"cls_token": {"content": "["}, "sep_token": "]", "pad_token": "!", "model_max_length": 10**30}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    found = Tokenizer.open(tmp_path)
    assert found.token_names([found.special.cls, found.special.sep, found.pad]) == ["[", "]", "!"]
    assert found.max_length is None


def test_a_folder_without_one_says_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no tokenizer here: expected tokenizer\.json or vocab\.txt"):
        Tokenizer.open(tmp_path)


def test_a_broken_one_says_so(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(InputError, match=r"tokenizer\.json: not a tokenizer"):
        Tokenizer.open(tmp_path)


ROW = st.lists(st.tuples(st.integers(0, 30_000), st.booleans()), max_size=6)
ROWS = st.lists(ROW, max_size=6)


def pieces(rows: list[list[tuple[int, bool]]]) -> Pieces:
    flat = [piece for row in rows for piece in row]
    return Pieces.plain(
        np.array([number for number, _ in flat], np.int32),
        np.array([continues for _, continues in flat], np.bool_),
        np.cumsum(np.array([len(row) for row in rows], np.int64)),
    )


@given(rows=ROWS, data=st.data())
def test_rows_can_be_taken_in_any_order_and_twice(rows: list[list[tuple[int, bool]]], data: st.DataObject) -> None:
    chosen = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    found = pieces(rows).take(chosen)
    expected = pieces([rows[row] for row in chosen])
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.continues, expected.continues)
    assert np.array_equal(found.ends, expected.ends)


@given(rows=ROWS, front=ROW)
def test_rows_may_all_begin_alike(rows: list[list[tuple[int, bool]]], front: list[tuple[int, bool]]) -> None:
    found = pieces(rows).after(pieces([front]))
    expected = pieces([front + row for row in rows])
    assert np.array_equal(found.ids, expected.ids)
    assert np.array_equal(found.continues, expected.continues)
    assert np.array_equal(found.ends, expected.ends)
    assert (found.ids.dtype, found.continues.dtype, found.ends.dtype) == (np.int32, np.bool_, np.int64)


@given(rows=ROWS, vocabulary=st.sampled_from([30_522, 1 << 15, 100_000]))
def test_packed_pieces_come_back(rows: list[list[tuple[int, bool]]], vocabulary: int) -> None:
    whole = pieces(rows)
    packed = pack_pieces(whole, vocabulary)
    assert packed.dtype == (np.uint16 if vocabulary <= 1 << 15 else np.uint32)
    again = unpack_pieces(packed, whole.ends)
    assert np.array_equal(again.ids, whole.ids)
    assert np.array_equal(again.continues, whole.continues)


def test_packing_keeps_the_largest_id() -> None:
    for size in (1 << 15, 1 << 31):
        whole = pieces([[(size - 1, True), (size - 1, False), (0, True)]])
        assert unpack_pieces(pack_pieces(whole, size), whole.ends).ids.tolist() == [size - 1, size - 1, 0]


@pytest.mark.parametrize("vocabulary", [30_522, 1 << 31])
def test_stems_are_packed_too(tokenizer: Any, vocabulary: int) -> None:
    whole = tokenizer.encode(["the banks, insouciantly", "", "3,100"], stems=True)
    packed = pack_pieces(whole, vocabulary, stems=True)
    assert packed.dtype == np.uint64
    again = unpack_pieces(packed, whole.ends)
    for name in ("ids", "continues", "stems", "opens"):
        assert getattr(again, name).dtype == getattr(whole, name).dtype
        assert np.array_equal(getattr(again, name), getattr(whole, name)), name


def with_settings(tiny_tokenizer: Path, folder: Path, **settings: Any) -> Path:
    """A copy of the tokenizer with some settings changed."""
    shutil.copytree(tiny_tokenizer, folder)
    whole = json.loads((folder / "tokenizer.json").read_text())
    (folder / "tokenizer.json").write_text(json.dumps({**whole, **settings}))
    return folder


@pytest.mark.parametrize("part", ["pre_tokenizer", "normalizer"])
def test_a_regular_expression_that_never_ends_is_an_error(tiny_tokenizer: Path, tmp_path: Path, part: str) -> None:
    pattern = {"pattern": {"Regex": "(a+)+$"}}
    kinds = {
        "pre_tokenizer": {"type": "Split", "behavior": "Isolated", "invert": False, **pattern},
        "normalizer": {"type": "Replace", "content": " ", **pattern},
    }
    tokenizer = Tokenizer.open(with_settings(tiny_tokenizer, tmp_path / "slow", **{part: kinds[part]}))
    with pytest.raises(RankwellError, match="tokenizer failed on a text") as problem:
        tokenizer.encode(["a" * 100 + "!"])
    assert "\n" not in str(problem.value)
    assert len(tokenizer.encode(["bees"]).ids)  # the next text is none the worse


def test_a_tokenizer_that_would_split_huge_words_is_refused(tiny_tokenizer: Path, tmp_path: Path) -> None:
    model = json.loads((tiny_tokenizer / "tokenizer.json").read_text())["model"]
    folder = with_settings(tiny_tokenizer, tmp_path / "slow", model={**model, "max_input_chars_per_word": 10**9})
    with pytest.raises(InputError, match="max_input_chars_per_word is 1,000,000,000; expected at most 500"):
        Tokenizer.open(folder)
