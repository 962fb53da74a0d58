"""How judged queries are divided."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankwell import sample
from rankwell.core.errors import RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.training.fit.parts import SET_ASIDE, Parts, divide, write_parts


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
    assert "130 judged queries of train: 80 to fit, 50 to choose; 189 of dev to report" in parts.describe()
    assert set(parts.fit.qrels).isdisjoint(parts.choose.qrels)


def test_without_dev_a_third_part_is_set_aside(tmp_path: Path) -> None:
    parts = divided(write_splits(tmp_path / "data", train=400))
    assert (len(parts.fit), len(parts.choose), len(parts.report)) == (240, 80, 80)
    assert parts.source == SET_ASIDE
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


@pytest.mark.parametrize("sizes", [{"train": 30}, {"train": 99, "dev": 10}, {"test": 60}])
def test_with_few_queries_all_of_them_choose(tmp_path: Path, sizes: dict[str, int]) -> None:
    parts = divided(write_splits(tmp_path / "data", **sizes))
    assert len(parts.fit) == 0
    assert len(parts.choose) == next(iter(sizes.values()))
    assert len(parts.report) == sizes.get("dev", len(parts.choose))
    assert parts.tune is parts.choose


def test_queries_without_a_relevant_document_are_left_out(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "data", train=4)
    (folder / "qrels.train.txt").write_text("train0 0 d0 1\ntrain1 0 d1 0\n")
    assert list(divided(folder).choose.qrels) == ["train0"]


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
    assert written.splits == ("choose", "fit")
    assert written.queries("fit") == list(parts.fit.queries)
    assert dict(written.qrels("choose")) == dict(parts.choose.qrels)
    assert list(written.documents()) == list(open_dataset(sample.FOLDER).documents())
