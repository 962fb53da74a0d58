"""How judged queries are divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell import sample
from rankwell.core.errors import Notice, RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.retrieve.index import Index
from rankwell.training.fit.split import (
    FEW,
    SET_ASIDE,
    TURNS,
    Parts,
    check_judged,
    divide,
    engine_run,
    open_data,
    write_parts,
)


def write_splits(folder: Path, **sizes: int) -> Path:
    folder.mkdir()
    (folder / "collection.tsv").write_text("d0\tbees\nd1\thoney\n")
    for name, size in sizes.items():
        queries = "".join(f"{name}{i}\tquestion {i} of {name}\n" for i in range(size))
        (folder / f"queries.{name}.tsv").write_text(queries)
        (folder / f"qrels.{name}.txt").write_text("".join(f"{name}{i} 0 d{i % 2} 1\n" for i in range(size)))
    return folder


def divided(folder: Path, train: str | None = None, report: str | None = None, seed: int = 1) -> Parts:
    return divide(open_dataset(folder), train=train, report=report, seed=seed)


def test_dev_is_reported_and_training_queries_are_fitted_and_chosen_on() -> None:
    parts = divided(sample.FOLDER)
    assert (len(parts.fit), len(parts.choose), len(parts.report)) == (80, 50, 189)
    assert parts.source == "dev"
    sizes = "130 for training and, in turn, for choosing between trained steps; 189 of dev for the report"
    assert parts.describe() == f"130 judged queries of train: {sizes}"
    assert list(parts.judged.qrels) == [*parts.choose.qrels, *parts.fit.qrels]
    assert set(parts.fit.qrels).isdisjoint(parts.choose.qrels)


def test_without_dev_a_third_part_is_set_aside(tmp_path: Path) -> None:
    parts = divided(write_splits(tmp_path / "data", train=400))
    assert (len(parts.fit), len(parts.choose), len(parts.report)) == (240, 80, 80)
    assert parts.source == SET_ASIDE
    assert len(parts.judged) == 400
    everything = [*parts.fit.qrels, *parts.choose.qrels, *parts.report.qrels]
    assert len(set(everything)) == len(everything) == 400


def test_the_parts_depend_on_the_seed_alone(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "data", train=400)
    first, again, other = (divided(folder, seed=seed) for seed in (1, 1, 2))
    assert list(first.choose.qrels) == list(again.choose.qrels) != list(other.choose.qrels)


def test_queries_of_the_same_text_stay_together(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "data", train=400)
    lines = "".join(f"train{i}\tQuestion  number {i // 2}\n" for i in range(400))
    (folder / "queries.train.tsv").write_text(lines)
    parts = divided(folder)
    texts = [{query.text for query in part.queries} for part in (parts.fit, parts.choose, parts.report)]
    assert texts[0].isdisjoint(texts[1] | texts[2])
    assert texts[1].isdisjoint(texts[2])


@pytest.mark.parametrize("count", [2, 3, 5])
def test_few_queries_are_chosen_on_in_turn_by_what_saw_none_of_their_texts(tmp_path: Path, count: int) -> None:
    folder = write_splits(tmp_path / "data", train=400)
    lines = "".join(f"train{i}\tQuestion  number {i // 2}\n" for i in range(400))
    (folder / "queries.train.tsv").write_text(lines)
    grades = "".join(f"train{i} 0 d{i % 2} {int(i % 10 > 0)}\n" for i in range(400))
    (folder / "qrels.train.txt").write_text(grades)
    parts = divided(folder)
    folds = parts.folds(count)
    assert len({end for end, *_ in folds}) == count
    for _, fit, choose in folds:
        assert {query.text for query in fit.queries}.isdisjoint(query.text for query in choose.queries)
        assert all(max(grades.values()) > 0 for grades in fit.qrels.values())
    chosen = [qid for *_, choose in folds for qid in choose.qrels]
    assert sorted(chosen) == sorted([*parts.choose.qrels, *parts.fit.qrels])
    assert len(chosen) == len(set(chosen))
    assert set(chosen).isdisjoint(parts.report.qrels)
    assert list(parts.judged.head(len(chosen)).qrels) == [*parts.choose.qrels, *parts.fit.qrels]
    _, whole, _ = parts.whole
    assert set(whole.qrels) == {qid for qid in chosen if any(parts.judged.qrels[qid].values())}
    assert [len(fit) for fit in parts.trainings(count)] == [*(len(fit) for _, fit, _ in folds), len(whole)]
    sizes = [len(choose) for *_, choose in folds]
    assert max(sizes) < 1.2 * min(sizes)


def test_many_queries_are_divided_once(tmp_path: Path) -> None:
    for size, turns in ((FEW - 1, (*TURNS, 1)), (FEW, (1,))):
        parts = divided(write_splits(tmp_path / f"{size}", train=size, dev=10))
        assert parts.turns == turns
        assert parts.folds(1) == [("", parts.fit, parts.choose)]
        assert parts.trainings(1) == [parts.fit]
    parts = divided(write_splits(tmp_path / "aside", train=FEW + 400))
    assert len(parts.turns) > 1
    assert len(parts.judged) == parts.fit.pairs + len(parts.choose) + len(parts.report) == FEW + 400


@pytest.mark.parametrize("sizes", [{"train": 30}, {"train": 99, "dev": 10}, {"test": 60}])
def test_with_few_queries_all_of_them_choose(tmp_path: Path, sizes: dict[str, int]) -> None:
    parts = divided(write_splits(tmp_path / "data", **sizes))
    assert len(parts.fit) == 0
    assert len(parts.choose) == next(iter(sizes.values()))
    assert len(parts.report) == sizes.get("dev", len(parts.choose))
    assert parts.judged is parts.choose


def test_queries_are_counted_as_evaluate_does(tmp_path: Path) -> None:
    """A judged query without a relevant document counts 0; there is nothing to learn from it."""
    folder = write_splits(tmp_path / "data", train=4)
    (folder / "qrels.train.txt").write_text("train0 0 d0 1\ntrain1 0 d1 0\n")
    parts = divided(folder)
    run = Run.from_scores({"train0": {"d0": 1.0}})
    assert sorted(parts.choose.qrels) == ["train0", "train1"]
    assert evaluate(parts.choose.qrels, run, "RR@10").mean == evaluate(folder / "qrels.train.txt", run, "RR@10").mean
    (folder / "qrels.train.txt").write_text("train0 0 d0 0\ntrain1 0 d1 0\n")
    assert len(divided(folder).choose) == 0
    more = write_splits(tmp_path / "more", train=400)
    grades = "".join(f"train{i} 0 d{i % 2} {int(i % 4 > 0)}\n" for i in range(400))
    (more / "qrels.train.txt").write_text(grades)
    parts = divided(more)
    assert (len(parts.choose), len(parts.report), len(parts.fit)) == (80, 80, parts.fit.pairs)
    assert len(parts.fit) == 300 - parts.choose.pairs - parts.report.pairs


def test_settings_are_tuned_on_two_thousand_queries_at_most(tmp_path: Path) -> None:
    parts = divided(write_splits(tmp_path / "data", train=3000, dev=10))
    assert (len(parts.judged), len(parts.fit), len(parts.choose)) == (2000, 2400, 600)


def test_an_error_in_judgments_is_not_swallowed(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "data")
    (folder / "queries.tsv").write_text("q1\tbees\n")
    with pytest.warns(Notice, match=r"no qrels for the split 'all': looked for qrels\.SPLIT\.txt, qrels/SPLIT\.tsv"):
        assert divided(folder).describe() == "no judged queries"
    (folder / "qrels.csv").write_text("query_id,doc_id,grade\nq1,d0,good\n")
    with pytest.raises(RankwellError, match=r"qrels\.csv, line 2: the grade is 'good', expected a whole number"):
        divided(folder)
    (folder / "qrels.csv").write_text("query_id,doc_id,grade\nq1,d0,1\n")
    assert dict(divided(folder).judged.qrels) == {"q1": {"d0": 1}}


def test_judged_ids_that_match_nothing_are_counted_or_refused(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "data", train=3)
    (folder / "qrels.train.txt").write_text("train0 0 d0 1\nother 0 d0 1\ntrain1 0 d9 1\n")
    with pytest.warns(Notice, match="1 of 3 judged queries of train are not among its queries"):
        parts = divided(folder)
    index = Index.build(open_dataset(folder).documents(), tmp_path / "index")
    assert check_judged(index, parts) == "1 of 2 relevant documents are not in the collection, such as d9"
    (folder / "qrels.train.txt").write_text("train0 0 x1 1\ntrain1 0 x2 1\n")
    with pytest.raises(RankwellError, match=r"2 of 2 relevant documents .*ids match\? The first of 2 documents is d0"):
        check_judged(index, divided(folder))
    (folder / "qrels.train.txt").write_text("other 0 d0 1\n")
    with pytest.raises(RankwellError, match="1 of 1 judged queries of train are not among its queries; do the ids"):
        divided(folder)


def test_ids_are_looked_up_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, the ids of a run of millions would take minutes."""
    folder = write_splits(tmp_path / "data", train=3)
    dataset, parts = open_dataset(folder), divided(folder)
    index = Index.build(dataset.documents(), tmp_path / "index")
    (tmp_path / "a.run").write_text("train0 Q0 d1 1 2.5 me\ntrain1 Q0 d0 1 2.5 me\n")
    monkeypatch.delattr(Index, "__contains__")
    assert check_judged(index, parts) is None
    run = engine_run([f"train={tmp_path / 'a.run'}"], dataset, parts, index)
    assert run is not None
    assert {qid: ranking.docids for qid, ranking in run.items()} == {"train0": ("d1",), "train1": ("d0",)}


def test_files_that_sound_like_queries_and_are_not_read_are_named(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "data")
    (folder / "relevance.csv").write_text("a")
    (folder / "my_queries.tsv").write_text("a")
    (folder / "README.txt").write_text("a")
    with pytest.warns(Notice, match=r"not read: my_queries\.tsv, relevance\.csv \(known names: queries"):
        open_data(str(folder))


def test_what_index_takes_is_a_data_set_without_queries(tmp_path: Path) -> None:
    (tmp_path / "shop.csv").write_text("id,title,body\n1,bees,They shiver.\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.md").write_text("# Bees\nThey shiver.\n")
    for name, docid in (("shop.csv", "1"), ("notes", "one.md")):
        dataset = open_data(str(tmp_path / name))
        assert [(d.docid, d.title) for d in dataset.documents()] in ([(docid, "bees")], [(docid, "Bees")])
        assert not len(divide(dataset, train=None, report=None, seed=1).judged)


def test_documents_alone_have_no_parts(tmp_path: Path) -> None:
    parts = divided(write_splits(tmp_path / "data"))
    assert len(parts.fit) == len(parts.choose) == len(parts.report) == 0
    assert parts.describe() == "no judged queries"


def test_several_sets_of_queries_must_be_chosen_from(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "data", headings=5, questions=5)
    with pytest.raises(RankwellError, match=r"choose one with --train \(headings, questions\)"):
        divided(folder)
    assert next(iter(divided(folder, "questions", "headings").report.qrels)) == "headings0"
    with pytest.raises(RankwellError, match="no split is called 'queries'"):
        divided(folder, train="queries")


def test_written_parts_are_a_data_set_of_their_own(tmp_path: Path) -> None:
    parts = divided(sample.FOLDER)
    write_parts(open_dataset(sample.FOLDER), parts, tmp_path / "parts")
    written = open_dataset(tmp_path / "parts")
    assert written.splits[0] == "choose"
    assert len(written.splits) == 2 * (1 + 5 + 3 + 2 + 1)
    assert written.queries("fit") == list(parts.fit.queries)
    assert dict(written.qrels("choose")) == dict(parts.choose.qrels)
    for end, fit, choose in (*parts.folds(3), parts.whole):
        assert written.queries(f"fit{end}") == list(fit.queries)
        assert dict(written.qrels(f"choose{end}")) == dict(choose.qrels)
    assert list(written.documents()) == list(open_dataset(sample.FOLDER).documents())
