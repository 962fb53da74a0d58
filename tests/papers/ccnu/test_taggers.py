"""Parts of speech and entities of words."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
from tests import small_textblob

from rankwell.core.errors import MissingExtraError, RankwellError
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.papers.ccnu.stored_features import open_features
from rankwell.papers.ccnu.word_features import FeatureEncoder
from rankwell.papers.ccnu.words import Tagger, WordVocabulary, open_tagger, tag_words


def capitals(version: str = "capitals 1") -> tuple[Tagger, list[Sequence[str]]]:
    """Words with a capital are names, those of digits numbers, all others words; also lists the texts it is given."""
    texts: list[Sequence[str]] = []

    def tag(words: Sequence[str]) -> Iterator[tuple[str, str]]:
        texts.append(words)
        for word in words:
            yield "number" if word.isdigit() else "word" if word.isalpha() else "?", "name" if word.istitle() else ""

    return Tagger(("word", "number"), ("name",), version, tag), texts


def test_the_words_of_each_text_get_numbered_tags(tiny_tokenizer: Path) -> None:
    vocabulary = WordVocabulary(Tokenizer.open(tiny_tokenizer))
    words = vocabulary.read(["The hive, 3 bees", "", "Tea"])
    tagged = tag_words(capitals()[0], vocabulary, words)
    assert tagged.tags is not None
    assert tagged.tags.tolist() == [[1, 1], [1, 0], [0, 0], [2, 0], [1, 0], [1, 1]]
    taken = tagged.take(np.array([2, 0]))
    assert taken.tags is not None
    assert taken.tags.tolist() == [[1, 1], [1, 1], [1, 0], [0, 0], [2, 0], [1, 0]]
    cut = tagged.cut(np.array([1, 1, 1])).tags
    assert cut is not None
    assert cut.tolist() == [[1, 1], [1, 1]]


def test_tags_are_stored_once_for_each_tagger(tiny_checkpoint: Path, tmp_path: Path) -> None:
    texts = ["The bees keep 3 hives", "", "Tea and bread"]
    store = DocumentStore.build((Document(f"d{i}", text) for i, text in enumerate(texts)), tmp_path / "store")
    encoder = FeatureEncoder.from_pretrained(tiny_checkpoint, device="cpu")
    tagger, tagged = capitals()
    assert open_features(store, encoder).at(np.array([0]))[0].tags is None
    stored = open_features(store, encoder, tagger=tagger)
    assert len(tagged) == 3
    expected = tag_words(tagger, encoder.vocabulary, encoder.vocabulary.read([texts[2], texts[0], texts[2]])).tags
    found = stored.at(np.array([2, 0, 2]))[0].tags
    assert found is not None
    assert expected is not None
    np.testing.assert_array_equal(found, expected)
    for version, count in (("capitals 1", 0), ("capitals 2", 3)):
        again, tagged = capitals(version)
        open_features(store, encoder, tagger=again)
        assert len(tagged) == count
    (folder,) = store.folder.glob("features-*")  # all taggers share the features
    assert len(list(folder.glob("tags-*"))) == 2


def test_textblob_tags_parts_of_speech_and_the_names_it_knows() -> None:
    pytest.importorskip("textblob")
    tagger = open_tagger("textblob")
    words = "Barack Obama bought a policy in Canada for 500 dollars . You can cancel it".split()
    tags = list(tagger.tag(words))
    assert [entity for _, entity in tags] == ["PERS", "PERS", *[""] * 4, "LOC", *[""] * 8]
    parts = dict(zip(words, (part for part, _ in tags), strict=True))
    assert parts["bought"] == "VBD"
    assert parts["500"] == "CD"
    assert parts["can"] == "MD"
    assert parts["cancel"] == "VB"
    assert set(parts.values()) <= set(tagger.parts_of_speech)
    assert list(tagger.tag([])) == []


def test_sentences_are_tagged_one_at_a_time_and_labels_split_into_part_and_entity(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = small_textblob.install(monkeypatch)
    tagger = open_tagger("textblob")
    words = "Obama bought a bought policy . In Canada".split()
    assert list(tagger.tag(words)) == [
        ("NNP", "PERS"),
        ("VBD", ""),
        ("NN", ""),
        ("NN", ""),  # by the rules for its context
        ("NN", ""),
        (".", ""),
        ("NN", ""),
        ("NNP", "LOC"),
    ]
    assert calls == [words[:6], words[6:]]
    assert list(tagger.tag([])) == []


def test_a_spacy_pipeline_gives_its_own_tags(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    pipeline = spacy.blank("en")
    pipeline.add_pipe("tagger").add_label("NN")
    pipeline.add_pipe("ner").add_label("ORG")
    pipeline.initialize()
    pipeline.to_disk(tmp_path / "toy")
    tagger = open_tagger(f"spacy:{tmp_path / 'toy'}")
    assert (tagger.parts_of_speech, tagger.entities) == (("NN",), ("ORG",))
    assert [part for part, _ in tagger.tag(["tea", ",", "bread"])] == ["NN"] * 3
    spacy.blank("en").to_disk(tmp_path / "empty")
    with pytest.raises(RankwellError, match="no tagger or no entity recogniser"):
        open_tagger(f"spacy:{tmp_path / 'empty'}")
    with pytest.raises(RankwellError, match="python -m spacy download nowhere"):
        open_tagger("spacy:nowhere")


def test_a_missing_tagger_names_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("textblob", "textblob.en", "spacy"):
        monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rankwell\[ccnu\]'"):
        open_tagger("textblob")
    with pytest.raises(RankwellError, match="pip install spacy"):
        open_tagger("spacy:en_core_web_sm")
    for name in ("nltk", "spacy", "spacy:"):
        with pytest.raises(RankwellError, match=f"no tagger is called '{name}'"):
            open_tagger(name)
