"""The lexicon against a dict, which is what it is from the outside."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rankwell.core import native
from rankwell.core.checksums import write_checksums
from rankwell.core.errors import InputError
from rankwell.core.mapped import ArrayFolder
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.word_kernels import intern_words

# Any character there is, half surrogate pairs too; lengths on both sides of 8 bytes and of 64.
anything = st.text(st.characters(exclude_categories=()), max_size=12)
similar = st.text("ab", max_size=20)
long = st.builds(lambda head, tail: "prefix-" * 12 + head + tail, similar, anything)
batches = st.lists(st.lists(st.one_of(anything, similar, long), max_size=30), max_size=4)


def model_of(batches: list[list[str]]) -> dict[str, int]:
    numbers: dict[str, int] = {}
    for batch in batches:
        for string in batch:
            numbers.setdefault(string, len(numbers))
    return numbers


def filled(batches: list[list[str]]) -> Lexicon:
    lexicon = Lexicon()
    for batch in batches:
        lexicon.add(batch)
    return lexicon


@settings(deadline=None)
@given(batches, st.lists(anything))
@example([["a", "a\0", "", "\0", "\0\0"]], ["a\0\0"])
@example([["12345678", "123456789", "1234567", "12345678\0", "éééé", "ééééé"]], [])
def test_strings_are_numbered_in_the_order_of_their_first_coming(batches: list[list[str]], others: list[str]) -> None:
    model = model_of(batches)
    lexicon = Lexicon()
    for batch in batches:
        assert lexicon.add(batch).tolist() == [model[string] for string in batch]
    asked = [*model, *others]
    assert len(lexicon) == len(model)
    assert lexicon.find(asked).tolist() == [model.get(string, -1) for string in asked]
    assert [lexicon.number(string) for string in asked] == [model.get(string, -1) for string in asked]
    assert lexicon.strings(range(len(lexicon))) == list(model)
    assert all(string in lexicon for string in model)


@settings(deadline=None)
@given(batches, batches)
def test_one_lexicon_is_added_to_another(first: list[list[str]], second: list[list[str]]) -> None:
    lexicon = filled(first)
    lexicon.add_all(filled(second))
    assert lexicon.strings(range(len(lexicon))) == list(model_of([*first, *second]))


@settings(deadline=None)
@given(batches)
@example([["a\0", "a", "\0", ""]])
def test_ascending_is_pythons_order(batches: list[list[str]]) -> None:
    lexicon = filled(batches)
    assert lexicon.strings(lexicon.ascending()) == sorted(model_of(batches))


@pytest.mark.parametrize("longest", [1, 8, 9, 64, 65, 300])
def test_ascending_holds_for_ids_of_any_length_with_shared_beginnings(longest: int) -> None:
    strings = [
        head + "x" * n + tail for head in "ba" for n in range(0, longest, 7) for tail in ("", "a", "ü", "\U00010000")
    ]
    lexicon = filled([strings])
    assert lexicon.strings(lexicon.ascending()) == sorted(set(strings))


@settings(max_examples=30, deadline=None)
@given(batches=batches)
@example(batches=[])
@example(batches=[["", "x"]])
def test_a_saved_lexicon_answers_as_before(tmp_path_factory: pytest.TempPathFactory, batches: list[list[str]]) -> None:
    folder = tmp_path_factory.mktemp("lexicon")
    filled(batches).save(folder, "words")
    lexicon = Lexicon.open(ArrayFolder(folder), "words")
    model = model_of(batches)
    assert lexicon.find([*model, "not there"]).tolist() == [*model.values(), -1]
    assert lexicon.strings(range(len(lexicon))) == list(model)
    assert lexicon.strings(lexicon.ascending()) == sorted(model)


@pytest.mark.parametrize("small", [0, 1 << 16])
def test_damage_is_an_error_where_a_string_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, small: int
) -> None:
    """A large lexicon is verified by the blocks that are read, a small one as a whole."""
    monkeypatch.setattr("rankwell.corpus.lexicon.SMALL", small)
    filled([[f"string number {i}" for i in range(10_000)]]).save(tmp_path, "words")
    write_checksums(tmp_path)
    content = bytearray((tmp_path / "words.npy").read_bytes())
    content[-1000] ^= 2
    (tmp_path / "words.npy").write_bytes(content)
    if small == 0:
        assert Lexicon.open(ArrayFolder(tmp_path), "words").find(["string number 7"]).tolist() == [7]
    for string in ["string number 9999"] + ["string number 7"] * (small > 0):
        with pytest.raises(InputError, match=r"words\.npy: damaged"):
            Lexicon.open(ArrayFolder(tmp_path), "words").find([string])


def test_it_grows_past_many_resizes() -> None:
    # Words of up to 8 bytes, longer ones, and some as long as the first arena.
    strings = [*(f"w{i}" for i in range(30_000)), *(f"a longer word, number {i}" for i in range(30_000)), "x" * 20_000]
    lexicon = Lexicon()
    half = len(strings) // 2
    assert lexicon.add(strings[:half]).tolist() == list(range(half))
    assert lexicon.add(strings).tolist() == list(range(len(strings)))
    assert lexicon.find(strings[::-1]).tolist() == list(range(len(strings)))[::-1]


def test_nothing_is_found_in_an_empty_lexicon() -> None:
    lexicon = Lexicon()
    assert (len(lexicon), lexicon.find(["a", ""]).tolist(), lexicon.number("")) == (0, [-1, -1], -1)
    assert lexicon.find([]).tolist() == lexicon.add([]).tolist() == lexicon.ascending().tolist() == []


def test_folding_lower_cases_what_is_added_but_not_what_is_looked_up() -> None:
    lexicon = Lexicon(fold_case=True)
    assert lexicon.add(["Bee", "bee", "BEE", "ÄRGER", "ärger", "ẞ", "ß"]).tolist() == [0, 0, 0, 1, 1, 2, 2]
    assert lexicon.strings(range(3)) == ["bee", "ärger", "ß"]
    assert lexicon.find(["bee", "BEE"]).tolist() == [0, -1]


@settings(deadline=None)
@given(st.lists(st.text(max_size=15)))
@example(["K", "k", "Ⱥ" * 12, "ⱥ" * 12, "𐐀𐐁", "𐐨𐐩", "KKK"])
def test_folding_is_pythons_lower_casing_character_by_character(strings: list[str]) -> None:
    lexicon = Lexicon(fold_case=True)
    # İ alone has a lower-case form of two characters; it becomes a plain i.
    folded = ["".join("i" if c == "İ" else c.lower() for c in string) for string in strings]
    numbers = lexicon.add(strings)
    assert lexicon.strings(numbers) == folded


def test_one_string_by_number() -> None:
    lexicon = filled([["a", "b"]])
    assert lexicon[1] == "b"
    for number in (-1, 2):
        with pytest.raises(IndexError):
            lexicon[number]


def test_only_strings_can_be_in_a_lexicon() -> None:
    assert 7 not in filled([["7"]])


def test_strings_by_number_come_in_the_order_asked_for() -> None:
    assert filled([["a", "", "c"]]).strings(np.array([2, 0, 1, 0])) == ["c", "a", "", "a"]


@pytest.mark.parametrize("missing", ["words.npy", "words.ends.npy", "words.slots.npy"])
def test_a_missing_file_is_named(tmp_path: Path, missing: str) -> None:
    filled([["a"]]).save(tmp_path, "words")
    (tmp_path / missing).unlink()
    with pytest.raises(InputError, match=missing):
        Lexicon.open(ArrayFolder(tmp_path), "words")


def test_a_string_of_megabytes_is_work_for_compiled_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "_uncompiled_steps", native.SMALL)
    vars(intern_words).pop("_compiled", None)
    Lexicon().add(["bee", "x" * 100_000])
    assert "_compiled" not in vars(intern_words)
    Lexicon().add(["bee", "x" * 8_000_000])
    assert "_compiled" in vars(intern_words)
