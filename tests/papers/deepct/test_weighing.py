"""Term weights: from a model's numbers to term frequencies, over texts, windows and whole collections."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.papers.conftest import OtherProcess

from rankwell.core.errors import RankwellError
from rankwell.core.shards import do
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.formats import read_weights, write_documents
from rankwell.corpus.records import Document, TermWeights
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.batching import Sequences
from rankwell.inputs.reader import Reader
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.inputs.windows import Windows
from rankwell.papers.deepct.weighing import (
    PassageWindows,
    StemWords,
    TermWeigher,
    WeighJob,
    WeightOptions,
    lay_out_passages,
    read_shards,
    term_frequencies,
    weigh_texts,
)
from rankwell.papers.shared.passages import write_collection

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
KERNELS_RUN = INTERPRETED or torch.cuda.is_available()
TEXTS = [
    "Bees make honey, and honey keeps.",
    "",
    "The bridge over the river: bridges, rivers and the U.S. Navy's iron.",
    "of the and to",
    "Müller's café — naïve coffee; coffees don't keep! " * 6,
]


@pytest.fixture(scope="module")
def weigher(tiny_weigher: Path) -> TermWeigher:
    return TermWeigher.from_pretrained(tiny_weigher, device="cpu")


def slow_terms(weigher: TermWeigher, text: str) -> dict[str, float]:
    """The largest weight of each term, word by word, for a text that is one window."""
    pieces = weigher.tokenizer.encode([text], stems=True)
    passages = weigher.lay_out(pieces)
    assert len(passages.sequences) == 1
    with torch.inference_mode():
        weights = weigher.model(*weigher._compute.place(passages.sequences)).tolist()
    encoding = weigher.tokenizer._backend.encode(text, add_special_tokens=False)
    begins = [begin for begin, _ in encoding.offsets]
    found: dict[str, float] = {}
    for word in Analyzer.english().words(text):
        if word.term is not None:
            weight = weights[1 + begins.index(word.begin)]
            found[word.term] = max(weight, found.get(word.term, -np.inf))
    return found


@pytest.mark.parametrize("text", [TEXTS[0], TEXTS[2]])
def test_a_term_takes_the_largest_weight_of_its_words_first_pieces(tiny_weigher: Path, text: str) -> None:
    weigher = TermWeigher.from_pretrained(tiny_weigher, device="cpu", max_length=64)
    (found,) = weigh_texts(weigher, [text], WeightOptions())
    expected = {term: round(100 * y) for term, y in slow_terms(weigher, text).items() if round(100 * y) >= 1}
    terms = Analyzer.english().stems(list(found))
    assert dict(zip(terms, found.values(), strict=True)) == expected
    assert len(expected) >= 3


def test_words_are_kept_as_they_stand_and_in_order(weigher: TermWeigher) -> None:
    found = weigh_texts(weigher, TEXTS, WeightOptions(scale=1e4))
    assert found[1] == found[3] == {}
    words = [word.text for word in Analyzer.english().words(TEXTS[4])]
    assert set(found[4]) <= set(words)
    assert sorted(found[4], key=words.index) == list(found[4])
    assert not {"coffee", "coffees"} <= set(found[4])  # one stem is one term, as its first word


def _passages(rows: list[int], stems: list[int]) -> PassageWindows:
    nothing = np.zeros(0, np.int32)
    sequences = Sequences(nothing, nothing.astype(np.int8), nothing, nothing, nothing.astype(bool), np.zeros(0, int))
    return PassageWindows(sequences, np.zeros(0, np.int64), np.arange(len(rows)), np.array(rows), np.array(stems))


def test_frequencies_by_hand() -> None:
    passages = _passages([0, 0, 0, 0, 1, 1], [7, 3, 7, 5, 7, 9])
    weights = np.array([0.2, -0.4, 0.904, 0.004, 0.25, 0.0049], np.float32)
    linear = term_frequencies(passages, weights, WeightOptions())
    assert linear.rows.tolist() == [0, 1]
    assert linear.stems.tolist() == [7, 7]
    assert linear.frequencies.tolist() == [90, 25]
    root = term_frequencies(passages, weights, WeightOptions("root"))
    assert list(zip(root.rows.tolist(), root.stems.tolist(), root.frequencies.tolist(), strict=True)) == [
        (0, 7, 95),
        (0, 5, 6),
        (1, 7, 50),
        (1, 9, 7),
    ]


def test_options_that_cannot_be_are_refused() -> None:
    with pytest.raises(RankwellError, match="no scaling of term weights is called 'log'"):
        WeightOptions("log")
    with pytest.raises(RankwellError, match="scaled by 0"):
        WeightOptions(scale=0)


def test_long_passages_are_read_in_windows_and_nothing_is_cut(weigher: TermWeigher) -> None:
    pieces = weigher.tokenizer.encode(TEXTS, stems=True)
    passages = lay_out_passages(Reader.of_texts(weigher.tokenizer, 24, windows=Windows()), pieces)
    assert passages.sequences.lengths().max() <= 24
    assert np.bincount(passages.owners).tolist()[:4] == [1, 1, 2, 1]
    assert np.bincount(passages.owners)[4] > 3
    # Every first piece of a word is among the windows', with its own token.
    for row in range(len(TEXTS)):
        own = pieces.take([row])
        assert set(passages.stems[passages.rows == row]) == set(own.stems[own.opens].tolist())
        ids = passages.sequences.tokens[passages.tokens[passages.rows == row]]
        assert set(ids) == set(own.ids[own.opens].tolist())


def test_a_windowed_term_has_the_largest_of_its_windows(weigher: TermWeigher) -> None:
    text = " ".join(["honey bridge iron coffee bread"] * 9)
    pieces = weigher.tokenizer.encode([text], stems=True)
    passages = weigher.lay_out(pieces)
    weights, largest = weigher.weigh(passages), {}
    assert len(passages.sequences) > 2
    for window in range(len(passages.sequences)):
        part = passages.part(window, window + 1)
        assert len(part.sequences) == 1
        for stem, weight in zip(part.stems.tolist(), weigher.weigh(part).tolist(), strict=True):
            largest[stem] = max(largest.get(stem, -9.0), weight)
    found = term_frequencies(passages, weights, WeightOptions(scale=1e5))
    for stem, frequency in zip(found.stems.tolist(), found.frequencies.tolist(), strict=True):
        assert frequency == pytest.approx(1e5 * largest[stem], abs=2)


def test_batches_do_not_change_the_weights(tiny_weigher: Path) -> None:
    whole, small = (TermWeigher.from_pretrained(tiny_weigher, device="cpu", budget=budget) for budget in (None, 30))
    passages = whole.lay_out(whole.tokenizer.encode(TEXTS, stems=True))
    np.testing.assert_allclose(whole.weigh(passages), small.weigh(passages), atol=2e-6)


@pytest.mark.skipif(not KERNELS_RUN, reason="no GPU, no interpreter of its kernels")
def test_packed_batches_give_the_weights_of_padded_ones(tiny_weigher: Path, tmp_path: Path) -> None:
    device, folder = "cpu" if INTERPRETED else "cuda", tmp_path / "one-head"
    shutil.copytree(tiny_weigher, folder)
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    # One head of 32: the kernels have no heads of 8.
    (folder / "config.json").write_text(json.dumps(config | {"num_attention_heads": 1}), encoding="utf-8")
    grid, packed = (
        TermWeigher.from_pretrained(folder, device=device, dtype=torch.float32, packed=packed)
        for packed in (False, True)
    )
    passages = grid.lay_out(grid.tokenizer.encode(TEXTS, stems=True))
    np.testing.assert_allclose(packed.weigh(passages), grid.weigh(passages), atol=2e-3)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_a_gpu_in_16_bits_gives_nearly_the_same_frequencies(tiny_weigher: Path, weigher: TermWeigher) -> None:
    fast = TermWeigher.from_pretrained(tiny_weigher, device="cuda")
    passages = fast.lay_out(fast.tokenizer.encode(TEXTS, stems=True))
    np.testing.assert_allclose(fast.weigh(passages), weigher.weigh(passages), atol=0.05)


@pytest.fixture
def store(tmp_path: Path) -> DocumentStore:
    documents = [Document(f"d{i}", f"{TEXTS[i % 5]} number{i}") for i in range(57)]
    return DocumentStore.build([*documents, Document('quo"te\\d', 'a "quoted" word')], tmp_path / "documents")


@pytest.fixture
def collection(store: DocumentStore, tmp_path: Path) -> str:
    write_documents(iter(store), tmp_path / "collection.jsonl")
    return str(tmp_path / "collection.jsonl")


def test_shards_are_the_weights_file_of_the_whole_collection(
    store: DocumentStore, tiny_weigher: Path, weigher: TermWeigher, tmp_path: Path
) -> None:
    options = WeightOptions()
    job = WeighJob(tiny_weigher, options, "cpu", 10, store.folder, tmp_path / "weights")
    shards = do(job)
    shards.join(tmp_path / "joined.jsonl")
    documents = list(store)
    vectors = weigh_texts(weigher, [document.text for document in documents], options)
    expected = [TermWeights(d.docid, vector) for d, vector in zip(documents, vectors, strict=True)]
    # Batches differ between the two, so a weight may round the other way; the words may not.
    for ours, theirs in zip(read_weights(tmp_path / "joined.jsonl"), expected, strict=True):
        assert ours.docid == theirs.docid
        assert list(ours.weights) == list(theirs.weights)
        assert np.abs(np.subtract([*ours.weights.values()], [*theirs.weights.values()])).max(initial=0) <= 1
    line = (tmp_path / "joined.jsonl").read_text().splitlines()[0]
    assert line == json.dumps(json.loads(line), ensure_ascii=False)
    assert list(read_shards(shards)) == list(read_weights(tmp_path / "joined.jsonl"))
    with pytest.raises(RankwellError, match="holds shards of other work"):
        do(replace(job, options=WeightOptions("root")))


def request(collection: str, out: Path, model: Path) -> Callable[..., int]:
    return partial(write_collection, WeighJob(model, device="cpu", shard_size=10), collection, out)


def test_the_file_has_a_line_for_each_document(
    collection: str, store: DocumentStore, tiny_weigher: Path, tmp_path: Path
) -> None:
    assert request(collection, tmp_path / "weights.jsonl.gz", tiny_weigher)() == len(store)
    assert not (tmp_path / "weights.jsonl.gz.shards").exists()
    assert [document.docid for document in read_weights(tmp_path / "weights.jsonl.gz")] == [d.docid for d in store]
    with pytest.raises(RankwellError, match="exists already"):
        request(collection, tmp_path / "weights.jsonl.gz", tiny_weigher)()


@pytest.mark.parametrize("first", ["here", "on the cluster"])
@pytest.mark.parametrize("second", ["here", "on the cluster"])
def test_interrupted_weighing_resumes_wherever_it_is_done(
    collection: str,
    store: DocumentStore,
    tiny_weigher: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    first: str,
    second: str,
) -> None:
    weighed: list[int] = []
    submit = TermWeigher.submit
    places = {"here": None, "on the cluster": OtherProcess()}

    def stops(self: TermWeigher, passages: PassageWindows) -> object:
        weighed.append(int(passages.owners.max()) + 1)
        if len(weighed) == 3:
            raise KeyboardInterrupt
        return submit(self, passages)

    monkeypatch.setattr(TermWeigher, "submit", stops)
    with pytest.raises(KeyboardInterrupt):
        request(collection, tmp_path / "a", tiny_weigher)(workers=places[first])
    assert not (tmp_path / "a").exists()
    request(collection, tmp_path / "a", tiny_weigher)(workers=places[second])
    assert sum(weighed) == len(store) + 10  # only the shard in which it was interrupted is done twice
    monkeypatch.setattr(TermWeigher, "submit", submit)
    request(collection, tmp_path / "b", tiny_weigher)()
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_tokens_of_other_texts_are_noticed(weigher: TermWeigher) -> None:
    terms = weigher.frequencies(weigher.tokenizer.encode(["bees make honey"], stems=True), WeightOptions(scale=1e4))
    with pytest.raises(RankwellError, match="stored tokens do not belong to the texts"):
        StemWords(weigher.tokenizer).read(["bread and salt"]).of(terms)


def test_a_word_has_one_stem_whatever_stands_around_it(tiny_tokenizer: Path) -> None:
    tokenizer = Tokenizer.open(tiny_tokenizer)
    alone, within = (tokenizer.encode([text], stems=True) for text in ("rivers", "The rivers' banks"))
    assert int(alone.stems[0]) in within.stems.tolist()
