"""The ranker on long documents: windows, and what becomes of their scores."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import Template
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.rank.ranker import Ranker


class TestWindows:
    DOCUMENTS = ("bank bank tea tea", "tea bank", "", "tea tea bank tea bank bank")

    @pytest.mark.parametrize(
        ("aggregate", "expected"),
        [
            ("first", [2, 1, 0, 0]),
            ("max", [2, 1, 0, 2]),
            ("mean", [1, 1, 0, 1.0]),
            ("top2", [1.5, 1, 0, 1.5]),
        ],
    )
    def test_join_the_scores_of_their_parts(self, counting: Ranker, aggregate: str, expected: list[float]) -> None:
        windows = Windows(2, 1, aggregate)
        ranker = Ranker.from_engine(counting.engine, Reader(counting.tokenizer, Template(), windows))
        # By hand: the first has the windows 2 1 0; the last has 0 1 1 1 2.
        pairs = [("milk", document) for document in self.DOCUMENTS]
        assert ranker.predict(pairs).tolist() == pytest.approx(expected)
        # Documents again and in another order: each pair finds its own windows.
        again = [pairs[i] for i in (3, 0, 3, 2, 1)]
        assert ranker.predict(again).tolist() == pytest.approx([expected[i] for i in (3, 0, 3, 2, 1)])

    def test_of_a_document_that_fits_change_nothing(self, tiny_checkpoint: Path, ranker: Ranker) -> None:
        windowed = Ranker.from_pretrained(tiny_checkpoint, windows=Windows(200, 100))
        pairs = [("what is bogue", "a bogus claim"), ("bank", ""), ("", "honey"), ("bank", "the river bank, " * 30)]
        assert np.abs(windowed.predict(pairs) - ranker.predict(pairs)).max() < 1e-5

    def test_are_what_fits_by_default(self, counting: Ranker) -> None:
        # [CLS] tea [SEP] … [SEP] leaves six of ten; by hand: the windows of the second begin at 0 3 6 and 7.
        template = Template(max_length=10, max_query=3)
        documents = ["bank " * 6, "tea tea tea bank tea tea tea bank bank tea tea bank bank", ""]
        pairs = [("tea", document) for document in documents]
        ranker = Ranker.from_engine(counting.engine, Reader(counting.tokenizer, template))
        assert ranker.predict(pairs).tolist() == [6, 4, 0]
        assert str(ranker.truncation) == "read in windows: 1 of 3 pairs (4 windows)"
        off = Ranker.from_engine(counting.engine, Reader(counting.tokenizer, template, None))
        assert off.predict(pairs).tolist() == [6, 1, 0]
        assert str(off.truncation) == "truncated: 7 document tokens (1 of 3 pairs)"
        mean = Ranker.from_engine(counting.engine, Reader(counting.tokenizer, template, Windows(aggregate="first")))
        assert mean.predict(pairs).tolist() == [6, 1, 0]

    def test_by_default_a_document_is_scored_by_its_best_part(self, tiny_checkpoint: Path) -> None:
        ranker = Ranker.from_pretrained(tiny_checkpoint, template={"max_length": 104, "max_query": 64})
        assert ranker.windows == Windows()
        words = [word for word in ("river", "bank", "tea", "money", "honey") for _ in range(50)]
        assert len(ranker.tokenizer.encode([" ".join(words)]).ids) == 250
        score = ranker.predict([("bank", " ".join(words))])[0]
        # 100 words fit: windows begin at 0, 50, 100 and, the last, at 150.
        parts = [" ".join(words[begin : begin + 100]) for begin in (0, 50, 100, 150)]
        cut = Ranker.from_pretrained(tiny_checkpoint, template={"max_length": 104, "max_query": 64}, windows=None)
        assert score == pytest.approx(cut.predict([("bank", part) for part in parts]).max(), abs=1e-5)
        assert (cut.truncation.pairs_cut, ranker.truncation.windows) == (0, 4)

    @pytest.mark.parametrize("block", [1, 2, 3, 5, 4096])
    def test_in_parts_of_any_size_give_the_same(
        self, counting: Ranker, monkeypatch: pytest.MonkeyPatch, block: int
    ) -> None:
        monkeypatch.setattr("rankwell.rank.ranker.PAIRS_AT_A_TIME", block)
        monkeypatch.setattr("rankwell.rank.ranker.PIECES_AT_A_TIME", 4 * block)
        template = Template("typed", max_length=24, max_query=2)
        ranker = Ranker.from_engine(counting.engine, Reader(counting.tokenizer, template))
        pairs = [("tea", "bank " * count + "tea " * count) for count in (30, 0, 2, 100, 1, 11)]
        assert ranker.predict(pairs, types=["", "bank", None, "bank", "", None]).tolist() == [20, 1, 2, 19, 1, 11]
        assert ranker.truncation.pairs == 6
        assert ranker.truncation.pairs_cut == 0

    def test_rerank_has_them_too(self, counting: Ranker) -> None:
        ranker = Ranker.from_engine(counting.engine, Reader(counting.tokenizer, Template(), Windows(2, 1)))
        texts = DocumentStore.of_texts({str(number): text for number, text in enumerate(self.DOCUMENTS)})
        found = ranker.rerank(Run.from_scores({"1": dict.fromkeys("0123", 0.0)}), [Query("1", "milk")], texts)
        assert list(found["1"]) == [("3", 2.0), ("0", 2.0), ("1", 1.0), ("2", 0.0)]

    def test_come_from_the_checkpoint_unless_given(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        model, tokenizer, config = load_checkpoint(tiny_checkpoint)
        windows = {"size": 30, "stride": 10, "aggregate": "mean"}
        save_checkpoint(tmp_path / "saved", model, tokenizer, config.changed({"windows": windows}))
        assert Ranker.from_pretrained(tmp_path / "saved").windows == Windows(30, 10, "mean")
        assert Ranker.from_pretrained(tmp_path / "saved", windows=Windows(9, 9)).windows == Windows(9, 9)
        assert Ranker.from_pretrained(tmp_path / "saved", windows=None).windows is None

    def test_are_not_read_only_where_the_checkpoint_says_truncate(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        document = "the river bank, " * 300
        model, tokenizer, config = load_checkpoint(tiny_checkpoint)
        save_checkpoint(tmp_path / "windows", model, tokenizer, config)
        save_checkpoint(tmp_path / "truncate", model, tokenizer, config.changed({"windows": "truncate"}))
        reports = {}
        for name in ("windows", "truncate"):
            ranker = Ranker(tmp_path / name)
            ranker.predict([("bank", document)])
            reports[name] = str(ranker.truncation).partition(":")[0]
        assert reports == {"windows": "read in windows", "truncate": "truncated"}
