"""The data of a recipe: made once, shared, checked before anything is trained."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.training import toys

from rankwell import sample
from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.records import Query, Run
from rankwell.evaluation.evaluate import evaluate
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank.dense import DenseRanker, search_hybrid
from rankwell.rank.first_stage import FirstStage
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index
from rankwell.training.data.prepare import TYPE_SOURCES, find_types, folder_digest, prepare
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import Override, build_recipe


@pytest.fixture(autouse=True)
def _toy_stages(monkeypatch: pytest.MonkeyPatch) -> None:
    toys.Toys(monkeypatch)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return toys.write_data(tmp_path / "data")


def recipe_for(data: Path, **changes: object) -> Recipe:
    tree = toys.recipe_tree(data, data)
    overrides = [Override(path.replace("__", "."), value) for path, value in changes.items()]
    return build_recipe(tree, "r.yaml", overrides)


def append(path: Path, line: str) -> None:
    with path.open("a") as file:
        file.write(line + "\n")


def test_the_first_stage_is_bm25_of_the_recipe(tmp_path: Path) -> None:
    recipe = recipe_for(sample.FOLDER, first_stage__k1=1.2, first_stage__b=0.7, first_stage__depth=20)
    prepared = prepare(recipe, tmp_path / "pool")
    index = Index.build(open_dataset(sample.FOLDER).documents(), tmp_path / "index")
    expected = index.search(open_dataset(sample.FOLDER).queries("dev"), BM25(k1=1.2, b=0.7), k=20)
    assert dict(prepared.dev.run) == dict(expected)
    assert evaluate(prepared.dev.qrels, prepared.dev.run, "RR@10").mean["RR@10"] > 0.5
    assert (
        prepared.collection.store.text(prepared.index.docids([0])[0])
        == next(prepared.collection.dataset.documents()).text
    )


def test_or_bm25_and_a_bi_encoder(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    usual = {"first_stage__depth": 20, "first_stage__encoder": str(tiny_bi_encoder)}
    prepared = prepare(recipe_for(sample.FOLDER, **usual, first_stage__hybrid=0.4), tmp_path / "pool")
    dense = DenseRanker(BiEncoder.from_pretrained(str(tiny_bi_encoder)))
    expected = search_hybrid(prepared.index, dense, open_dataset(sample.FOLDER).queries("dev"), 0.4, k=20)
    assert {qid: own.docids for qid, own in prepared.dev.run.items()} == {q: own.docids for q, own in expected.items()}
    others = [
        prepare(recipe_for(sample.FOLDER, **usual, first_stage__hybrid=h), tmp_path / "pool") for h in (0.5, None)
    ]
    assert len({prepared.dev.digest, *(other.dev.digest for other in others)}) == 3


def test_candidates_by_a_bi_encoder_are_made_on_the_device_that_is_asked_for(
    tiny_bi_encoder: Path, tmp_path: Path
) -> None:
    recipe = recipe_for(sample.FOLDER, first_stage__encoder=str(tiny_bi_encoder), first_stage__hybrid=0.5)
    with pytest.raises(RankwellError, match="device cuda:99: torch sees"):
        prepare(recipe, tmp_path / "pool", device="cuda:99")


def test_candidates_are_searched_on_all_cores(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    threads, search = set(), FirstStage.search

    def counted(first: FirstStage, *given: Any, **options: Any) -> Run:
        threads.add(options.get("threads", 1))
        return search(first, *given, **options)

    monkeypatch.setattr(FirstStage, "search", counted)
    monkeypatch.setattr("os.cpu_count", lambda: 3)
    prepare(recipe_for(data), tmp_path / "pool")
    assert threads == {3}


def test_what_was_made_is_not_made_again(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = prepare(recipe_for(data), tmp_path / "pool")
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "pool").rglob("*.run.npz")}
    assert len(files) == 2
    monkeypatch.setattr(Index, "build", None)
    monkeypatch.setattr(Index, "search", None)
    again = prepare(recipe_for(data), tmp_path / "pool")
    assert (again.train.digest, again.dev.digest) == (first.train.digest, first.dev.digest)
    assert {path: path.stat().st_mtime_ns for path in files} == files


def test_other_settings_or_files_make_other_data(data: Path, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    first = prepare(recipe_for(data), pool)
    deeper = prepare(recipe_for(data, first_stage__depth=3), pool)
    assert deeper.dev.digest != first.dev.digest
    assert deeper.collection.digest == first.collection.digest
    assert max(map(len, deeper.dev.run.values())) == 3
    append(data / "qrels.dev.txt", "dev0 0 d5 1")
    judged = prepare(recipe_for(data), pool)
    assert judged.dev.digest != first.dev.digest
    assert judged.train.digest == first.train.digest
    append(data / "collection.tsv", "d99\tnew text")
    assert prepare(recipe_for(data), pool).collection.digest != first.collection.digest


def test_a_given_run_wins(data: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.run").write_text("dev0 Q0 d7 1 2.5 me\ndev0 Q0 d0 2 1.5 me\nother Q0 d1 1 1 me\n")
    with pytest.warns(UserWarning, match=r"no candidates for 23 of the 24 queries of 'dev' \(the first is 'dev1'\)"):
        prepared = prepare(recipe_for(data, first_stage__dev_run=str(tmp_path / "mine.run")), tmp_path / "pool")
    assert {qid: ranking.docids for qid, ranking in prepared.dev.run.items()} == {"dev0": ("d7", "d0")}
    assert len(prepared.train.run) == 24


def test_limits_take_the_first_queries(data: Path, tmp_path: Path) -> None:
    prepared = prepare(recipe_for(data, data__train_queries=3, data__dev_queries=2), tmp_path / "pool")
    assert [query.qid for query in prepared.train.queries] == ["train0", "train1", "train2"]
    assert list(prepared.dev.qrels) == ["dev0", "dev1"]


def test_the_dev_split_goes_by_several_names(data: Path, tmp_path: Path) -> None:
    for kind in ("queries.{}.tsv", "qrels.{}.txt"):
        (data / kind.format("dev")).rename(data / kind.format("valid"))
    assert prepare(recipe_for(data), tmp_path / "pool").dev.name == "valid"
    for kind in ("queries.{}.tsv", "qrels.{}.txt"):
        (data / kind.format("valid")).rename(data / kind.format("held"))
    with pytest.raises(RankwellError, match=r"set data\.dev to one of: held, test, train"):
        prepare(recipe_for(data), tmp_path / "pool")


@pytest.mark.parametrize(
    ("file", "line", "expected"),
    [
        ("qrels.train.txt", "train0 0 nowhere 1", "split 'train' name 1 documents that are not in the collection; "
         "the first is 'nowhere' (query 'train0')"),
        ("qrels.dev.txt", "dev1 0 nowhere 0", "split 'dev' name 1 documents"),
        ("queries.dev.tsv", "dev0\tagain", "dev0"),
        ("qrels.dev.txt", "dev1 0 d1", "line 25"),
    ],
)  # fmt: skip
def test_bad_files_are_found_before_training(data: Path, tmp_path: Path, file: str, line: str, expected: str) -> None:
    append(data / file, line)
    with pytest.raises(RankwellError) as caught:
        prepare(recipe_for(data), tmp_path / "pool")
    assert expected in str(caught.value)


def test_bad_choices_are_found_before_training(data: Path, tmp_path: Path) -> None:
    pool = tmp_path / "pool"
    with pytest.raises(RankwellError, match="no split is called 'trian'"):
        prepare(recipe_for(data, data__train="trian"), pool)
    (texts := tmp_path / "texts").mkdir()
    shutil.copy(data / "collection.tsv", texts)
    with pytest.raises(RankwellError, match="texts has no judged queries, which every recipe needs"):
        prepare(recipe_for(texts), pool)
    with pytest.raises(InputError, match="has a grade of 2 or more, so there is nothing to learn from"):
        prepare(recipe_for(data, data__relevance=2), pool)
    with pytest.raises(InputError, match="no such folder"):
        prepare(recipe_for(tmp_path / "none"), pool)
    (data / "qrels.dev.txt").rename(data / "kept")
    (data / "qrels.dev.txt").write_text((data / "kept").read_text().replace(" 1\n", " 0\n"))
    with pytest.raises(InputError, match="'dev' has a grade of 1 or more, so there is nothing to measure with"):
        prepare(recipe_for(data), pool)
    (data / "kept").rename(data / "qrels.dev.txt")
    (tmp_path / "other.run").write_text("q9 Q0 d7 1 2.5 me\n")
    with pytest.raises(InputError, match=r"has no query of the split \(it has 'q9', the split 'train0'\)"):
        prepare(recipe_for(data, first_stage__train_run=str(tmp_path / "other.run")), pool)
    (tmp_path / "other.run").write_text("train0 Q0 d777 1 2.5 me\n")
    with pytest.raises(RankwellError, match=r"other\.run names 1 documents that are not in the collection.*'d777'"):
        prepare(recipe_for(data, first_stage__train_run=str(tmp_path / "other.run")), pool)


def test_ids_are_looked_up_together(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One at a time, the ids of a run of millions would take minutes."""
    monkeypatch.delattr(Index, "__contains__")
    (tmp_path / "a.run").write_text("train0 Q0 d7 1 2.5 me\n")
    prepare(recipe_for(data, first_stage__train_run=str(tmp_path / "a.run")), tmp_path / "pool")


def test_judged_queries_without_text_are_left_out_and_counted(data: Path, tmp_path: Path) -> None:
    append(data / "qrels.dev.txt", "unasked 0 d1 1")
    with pytest.warns(UserWarning, match=r"1 of 25 judged queries of the split 'dev' have no text .* 'unasked'"):
        prepared = prepare(recipe_for(data), tmp_path / "pool")
    assert "unasked" not in prepared.dev.qrels


def test_types_are_looked_for_only_where_the_template_has_a_place(data: Path, tmp_path: Path) -> None:
    (data / "types.dev.tsv").write_text("dev0\tnumeric\n")
    (data / "types.train.tsv").write_text("train0\tperson\n")
    plain = prepare(recipe_for(data), tmp_path / "pool")
    assert {query.type for query in plain.dev.queries} == {None}
    typed = prepare(recipe_for(data, model__template="typed", model__max_length=120), tmp_path / "pool")
    assert [query.type for query in typed.dev.queries[:2]] == ["numeric", None]
    assert typed.train.queries[0].type == "person"
    assert typed.dev.digest != plain.dev.digest


def test_where_types_come_from(data: Path, tmp_path: Path) -> None:
    queries = [Query("dev0", "who wrote emma"), Query("dev1", "where is harrowmere")]
    dataset = open_dataset(data)
    assert find_types("none", dataset, "dev", queries, tmp_path) == {}
    rules = {"dev0": "person", "dev1": "location"}
    assert find_types("rules", dataset, "dev", queries, tmp_path) == rules
    assert find_types("auto", dataset, "dev", queries, tmp_path) == rules
    (data / "types.dev.tsv").write_text("dev0\tauthor\nx\ty\n")
    assert find_types("auto", open_dataset(data), "dev", queries, tmp_path) == {"dev0": "author"}
    assert find_types("auto", open_dataset(data), "train", queries, tmp_path) == rules
    (tmp_path / "mine.dev.tsv").write_text("dev1\tplace\n")
    assert find_types(str(tmp_path / "mine.{split}.tsv"), dataset, "dev", queries, tmp_path) == {"dev1": "place"}
    (tmp_path / "mine.dev.tsv").write_text("q\tplace\n")
    with pytest.raises(RankwellError, match="the types are of other queries"):
        find_types(str(tmp_path / "mine.{split}.tsv"), dataset, "dev", queries, tmp_path)
    with pytest.raises(InputError, match="no such file"):
        find_types(str(tmp_path / "none.tsv"), dataset, "dev", queries, tmp_path)


def test_a_classifier_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def label_texts(model: Path, texts: list[str], device: str | None) -> list[str]:
        assert device == "cpu"
        asked.append(list(texts))
        return ["person" if "who" in text else "numeric" for text in texts]

    monkeypatch.setattr(TYPE_SOURCES, "_parts", {"model": label_texts})
    model, data = tmp_path / "model", toys.write_data(tmp_path / "data")
    model.mkdir()
    (model / "config.json").write_text("{}")
    queries = [Query("a", "who is it"), Query("b", "how many")]
    for _ in range(2):
        found = find_types(str(model), open_dataset(data), "dev", queries, tmp_path / "pool", "cpu")
        assert found == {"a": "person", "b": "numeric"}
    assert asked == [["who is it", "how many"]]
    (model / "config.json").write_text("{1}")
    find_types(str(model), open_dataset(data), "dev", queries, tmp_path / "pool", "cpu")
    assert len(asked) == 2


def test_tokens_are_those_of_the_texts(tmp_path: Path, tiny_tokenizer: Path) -> None:
    prepared = prepare(recipe_for(sample.FOLDER), tmp_path / "pool")
    tokenizer = Tokenizer.open(tiny_tokenizer)
    source = prepared.tokens(tokenizer)
    docids = list(prepared.dev.run["d1"].docids[:3]) if "d1" in prepared.dev.run else prepared.index.docids([4, 2, 9])
    found, expected = source.at(source.numbers(docids)), tokenizer.encode(prepared.index.texts(docids))
    assert found.ids.tolist() == expected.ids.tolist()


def test_a_folders_digest_follows_the_files_that_are_read(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    first = folder_digest(tmp_path)
    (tmp_path / "README.md").write_text("about")
    assert folder_digest(tmp_path) == first
    (tmp_path / "config.json").write_text('{"a": 1}')
    assert folder_digest(tmp_path) != first
