"""Ranking with SDNet."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import rankwell.papers.ccnu.ranker as module
from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.records import Document, Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.models.checkpoints.names import encoder_digest
from rankwell.papers.ccnu.network import SdnetConfig, load_sdnet, new_sdnet, save_sdnet
from rankwell.papers.ccnu.ranker import SdnetRanker
from rankwell.papers.ccnu.stored_features import open_features
from rankwell.papers.ccnu.word_features import FeatureEncoder
from rankwell.papers.ccnu.words import Tagger
from rankwell.rank.engines.engine import load
from rankwell.rank.ranker import Ranker, open_ranker
from rankwell.rank.rankers import kind_of

DOCUMENTS = {
    "a": "The bees keep the hive warm in winter.",
    "b": "A river runs to the sea",
    "c": "",
    "d": "tea and coffee, tea and bread, and honey for the bees " * 3,
}
QUERIES = [Query("q1", "how do bees keep warm"), Query("q2", "tea")]
RUN = Run.from_scores({"q1": {"a": 3.0, "b": 2.0, "c": 1.0, "d": 0.5}, "q2": {"d": 2.0, "a": 1.0}})


@pytest.fixture(scope="module")
def folder(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = SdnetConfig(
        encoder=str(tiny_checkpoint),
        encoder_digest=encoder_digest(tiny_checkpoint),
        width=32,
        layers=2,
        vector_size=32,
        hidden=8,
        attention=12,
        signals="dot",
        max_words=12,
    )
    model = new_sdnet(config, seed=4)
    with torch.no_grad():
        model.mix.alpha.copy_(torch.tensor([0.5, -0.5]))
    target = tmp_path_factory.mktemp("sdnet") / "model"
    save_sdnet(target, model)
    return target


@pytest.fixture(scope="module")
def ranker(folder: Path) -> SdnetRanker:
    return SdnetRanker.from_pretrained(folder, device="cpu")


class Kept:
    """All documents' features, numbered from the last to the first."""

    def __init__(self, encoder: FeatureEncoder, max_words: int):
        self._docids = list(DOCUMENTS)[::-1]
        self._kept = encoder.read([DOCUMENTS[docid] for docid in self._docids], max_words)
        self.vocabulary, self.lengths, self.at = self._kept.vocabulary, self._kept.lengths, self._kept.at

    def numbers(self, docids: list[str]) -> np.ndarray:
        return np.array([self._docids.index(docid) for docid in docids], np.int64)


def scores(run: Run) -> dict[tuple[str, str], float]:
    return {(qid, docid): float(score) for qid, ranking in run.items() for docid, score in ranking}


def test_runs_pairs_and_single_lists_have_the_same_scores(ranker: SdnetRanker) -> None:
    found = ranker.rerank(RUN, QUERIES, DocumentStore.of_texts(DOCUMENTS))
    assert {qid: set(ranking.docids) for qid, ranking in found.items()} == {"q1": set("abcd"), "q2": {"a", "d"}}
    pairs = [("q1", docid) for docid in "abcd"] + [("q2", "d"), ("q2", "a")]
    texts = {query.qid: query.text for query in QUERIES}
    predicted = ranker.predict([(texts[qid], DOCUMENTS[docid]) for qid, docid in pairs])
    assert [scores(found)[pair] for pair in pairs] == pytest.approx(predicted.tolist(), abs=1e-5)
    assert len(set(np.round(predicted, 5).tolist())) == 6
    ranked = ranker.rank(QUERIES[1].text, [DOCUMENTS["d"], DOCUMENTS["a"]], top_k=1)
    assert ranked == [
        {"corpus_id": int(predicted[5] > predicted[4]), "score": pytest.approx(max(predicted[4:]), abs=1e-5)}
    ]


@pytest.mark.parametrize("mixed", [True, False])
def test_kept_features_give_the_scores_of_texts(
    ranker: SdnetRanker, monkeypatch: pytest.MonkeyPatch, mixed: bool
) -> None:
    monkeypatch.setattr(module, "MIXED_BYTES", module.MIXED_BYTES if mixed else 0)
    kept = Kept(ranker.encoder, ranker.model.config.max_words)
    expected = scores(ranker.rerank(RUN, QUERIES, DocumentStore.of_texts(DOCUMENTS)))
    assert scores(ranker.rerank(RUN, QUERIES, passages=kept)) == pytest.approx(expected, abs=1e-5)


def test_neither_budget_nor_groups_change_a_score(
    ranker: SdnetRanker, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = scores(ranker.rerank(RUN, QUERIES, DocumentStore.of_texts(DOCUMENTS)))
    monkeypatch.setattr(module, "PAIRS_AT_A_TIME", 1)
    small = SdnetRanker.from_pretrained(folder, device="cpu", budget=1)
    assert scores(small.rerank(RUN, QUERIES, DocumentStore.of_texts(DOCUMENTS))) == pytest.approx(expected, abs=1e-5)


def test_depth_and_unknown_queries(ranker: SdnetRanker) -> None:
    shallow = ranker.rerank(RUN, QUERIES, DocumentStore.of_texts(DOCUMENTS), depth=2)
    assert {qid: set(ranking.docids) for qid, ranking in shallow.items()} == {"q1": {"a", "b"}, "q2": {"a", "d"}}
    with pytest.raises(RankwellError, match="results for query 'q2', which is not among the queries"):
        ranker.rerank(RUN, QUERIES[:1], DocumentStore.of_texts(DOCUMENTS))


def test_the_encoder_must_be_the_one_it_was_trained_on(folder: Path, tiny_checkpoint: Path, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    moved.mkdir()
    for file in tiny_checkpoint.iterdir():
        (moved / file.name).write_bytes(file.read_bytes())
    assert SdnetRanker.from_pretrained(folder, encoder=moved, device="cpu").predict([("tea", "tea")]).shape == (1,)
    data = bytearray((moved / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (moved / "model.safetensors").write_bytes(data)
    with pytest.raises(InputError, match="moved is not the encoder it was trained on"):
        SdnetRanker.from_pretrained(folder, encoder=moved, device="cpu")
    with pytest.raises(InputError, match="cannot open its frozen encoder; give its folder as encoder"):
        SdnetRanker.from_pretrained(folder, encoder=tmp_path / "nowhere", device="cpu")


def test_word_vectors_must_be_those_it_was_trained_on(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("tea " + " ".join(["1"] * 32) + "\n")
    with pytest.raises(InputError, match="does not have the word vectors it was trained on"):
        SdnetRanker.from_pretrained(folder, vectors=tmp_path / "v.txt", device="cpu")


def test_what_is_cut_is_counted(folder: Path) -> None:
    ranker = SdnetRanker.from_pretrained(folder, device="cpu")
    ranker.rerank(RUN, QUERIES, DocumentStore.of_texts(DOCUMENTS))
    # Of "d" twelve words are read; it is a candidate of both queries, and so two of the six pairs are cut.
    pieces = ranker.encoder.vocabulary.tokenizer.encode(
        [DOCUMENTS["d"], "tea and coffee , tea and bread , and honey for the"]
    )
    missing = int(np.subtract(*pieces.lengths()))
    assert str(ranker.truncation) == f"truncated: {2 * missing} document tokens (2 of 6 pairs)"
    again = SdnetRanker.from_pretrained(folder, device="cpu")
    again.predict([("tea", DOCUMENTS["d"]), ("tea", DOCUMENTS["a"])])
    assert str(again.truncation) == f"truncated: {missing} document tokens (1 of 2 pairs)"


def test_a_folder_says_which_ranker_it_holds(folder: Path, tiny_checkpoint: Path) -> None:
    found = open_ranker(folder, device="cpu")
    assert isinstance(found, SdnetRanker)
    ranked = found.rank("tea", [DOCUMENTS["a"], DOCUMENTS["d"]], return_documents=True)
    assert [entry["text"] for entry in ranked] == [DOCUMENTS["ad"[entry["corpus_id"]]] for entry in ranked]
    assert isinstance(open_ranker(tiny_checkpoint, device="cpu", attention="strm"), Ranker)
    assert (kind_of(folder), kind_of(tiny_checkpoint)) == ("sdnet", None)
    with pytest.raises(RankwellError, match="sdnet, not a cross-encoder; open it with rankwell"):
        Ranker.from_pretrained(folder)
    with pytest.raises(RankwellError, match="sdnet, not a cross-encoder"):
        load(folder, "torch", {}, {})  # as the service does


@pytest.mark.parametrize(
    "option", [{"attention": "strm"}, {"backend": "onnx"}, {"precision": "bf16"}, {"template": {"max_length": 80}}]
)
def test_an_option_of_cross_encoders_is_refused(folder: Path, option: dict[str, object]) -> None:
    with pytest.raises(RankwellError, match=f"sdnet rankers have no option {next(iter(option))}"):
        open_ranker(folder, **option)


def test_options_that_are_not_set_are_ignored(folder: Path) -> None:
    ranker = open_ranker(folder, device="cpu", cache=None, windows=None, template={})
    assert (ranker.windows, ranker.template, ranker.takes_types) == (None, None, False)


def tag_lengths(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Short words and long words; names are those with a capital."""
    for word in words:
        yield "long" if len(word) > 3 else "short", "name" if word.istitle() else ""


TAGGER = Tagger(("short", "long"), ("name",), "lengths 1", tag_lengths)


@pytest.fixture
def tagged(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(module, "open_tagger", lambda name: TAGGER)
    changes = {"tagger": "lengths", "tagger_version": "lengths 1", "tag_counts": (2, 1)}
    save_sdnet(tmp_path / "tagged", new_sdnet(load_sdnet(folder).config.model_copy(update=changes), seed=4))
    return tmp_path / "tagged"


def test_a_network_reads_the_tags_of_passages(tagged: Path, tmp_path: Path) -> None:
    ranker = SdnetRanker.from_pretrained(tagged, device="cpu")
    expected = ranker.predict([(QUERIES[0].text, text) for text in DOCUMENTS.values()])
    run = Run.from_scores({"q1": dict.fromkeys(DOCUMENTS, 1.0)})
    documents = [Document(docid, text) for docid, text in DOCUMENTS.items()]
    store = DocumentStore.build(documents, tmp_path / "store")
    passages = open_features(store, ranker.encoder, max_words=12, tagger=ranker.tagger)
    by_text = ranker.rerank(run, QUERIES, DocumentStore.of_texts(DOCUMENTS))
    from_disk = ranker.rerank(run, QUERIES, passages=passages)
    for found in (by_text, from_disk):
        assert [scores(found)["q1", docid] for docid in DOCUMENTS] == pytest.approx(expected.tolist(), abs=1e-3)
    with torch.no_grad():
        ranker.model.tags[0].weight[2] += 5  # type: ignore[index]
    changed = ranker.predict([(QUERIES[0].text, text) for text in DOCUMENTS.values()])
    assert (np.abs(changed - expected) > 1e-6).tolist() == [True, True, False, True]  # the third has no words


def test_the_tagger_must_be_the_version_it_was_trained_with(tagged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "open_tagger", lambda name: replace(TAGGER, version="lengths 2"))
    with pytest.raises(InputError, match="was trained with the tagger lengths 1, found lengths 2"):
        SdnetRanker.from_pretrained(tagged, device="cpu")
