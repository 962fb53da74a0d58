"""Folders that just work, and data sets of ir_datasets."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.core.manifest import file_digest
from rankwell.corpus.datasets import FolderDataset, open_dataset
from rankwell.corpus.formats import read_qrels, read_run, write_documents
from rankwell.corpus.records import Document, Query
from rankwell.corpus.sources import read_questions, resolve_documents

Fill = Callable[..., Path]


@pytest.fixture
def fill(tmp_path: Path) -> Fill:
    """Make a folder of files: the names that have meaning get content that fits, unless it is given."""
    contents = {"coll": "d1\ttext\n", "corp": '{"_id": "d1", "text": "text"}\n', "quer": "q1\tfirst\nq2\tsecond\n"}
    contents |= {"qrel": "q1 0 d1 1\n", "type": "q1\tperson\n"}

    def make(*names: str, **given: str) -> Path:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(given.get(name.replace(".", "_").replace("/", "_"), contents.get(name[:4], "")))
        return tmp_path

    return make


def qids(queries: list[Query]) -> list[str]:
    return [query.qid for query in queries]


def test_a_folder_with_one_split_needs_no_name_for_it(fill: Fill) -> None:
    data = open_dataset(fill("collection.tsv", "queries.dev.tsv", "qrels.dev.txt", "types.dev.tsv"))
    assert data.splits == ("dev",)
    assert list(data.documents()) == [Document("d1", "text")]
    assert isinstance(data, FolderDataset)
    assert data.collection_path.name == "collection.tsv"
    assert data.digest() == file_digest(data.collection_path)
    assert qids(data.queries()) == qids(data.queries("dev")) == ["q1", "q2"]
    assert data.qrels()["q1"] == {"d1": 1}
    assert data.types() == {"q1": "person"}
    assert data.negatives() is None


def test_a_folder_without_splits_has_one_called_all(fill: Fill) -> None:
    data = open_dataset(str(fill("collection.tsv", "queries.tsv", "qrels.txt", "types.tsv")))
    assert data.splits == ("all",)
    assert qids(data.queries()) == ["q1", "q2"]
    assert "q1" in data.qrels("all")
    assert data.types() == {"q1": "person"}


def test_splits_may_hold_dots_and_must_be_named_where_there_are_several(fill: Fill) -> None:
    names = [f"{kind}.{split}.tsv" for kind in ("queries", "qrels") for split in ("questions.dev", "headings.dev")]
    data = open_dataset(fill(*names))
    assert data.splits == ("headings.dev", "questions.dev")
    assert len(data.queries("questions.dev")) == 2
    with pytest.raises(RankwellError, match=r"say which split \(splits: headings\.dev, questions\.dev\)"):
        data.queries()
    with pytest.raises(RankwellError, match="no split is called 'dev'"):
        data.qrels("dev")


def test_beir_splits_are_the_judged_queries(fill: Fill) -> None:
    header = "query-id\tcorpus-id\tscore\n"
    folder = fill(
        "corpus.jsonl",
        "queries.jsonl",
        "qrels/train.tsv",
        "qrels/test.tsv",
        queries_jsonl='{"_id": "q1", "text": "first"}\n{"_id": "q2", "text": "second"}\n{"_id": "q3", "text": "x"}\n',
        qrels_train_tsv=header + "q1\td1\t1\n",
        qrels_test_tsv=header + "q2\td1\t2\n",
    )
    data = open_dataset(folder)
    assert data.splits == ("test", "train")
    assert (qids(data.queries("train")), qids(data.queries("test"))) == (["q1"], ["q2"])
    assert data.qrels("test")["q2"] == {"d1": 2}
    assert list(data.documents()) == [Document("d1", "text")]


def test_qrels_without_a_split_serve_the_queries_of_each(fill: Fill) -> None:
    data = open_dataset(
        fill("queries.a.tsv", "queries.b.tsv", "qrels.txt", queries_b_tsv="q9\tx\n", qrels_txt="q1 0 d 1\nq9 0 d 2\n")
    )
    assert data.splits == ("a", "b")
    assert dict(data.qrels("a")) == {"q1": {"d": 1}}
    assert dict(data.qrels("b")) == {"q9": {"d": 2}}


@pytest.mark.parametrize("name", ["collection.tsv", "collection.full.tsv", "corpus.jsonl", "collection-2024.txt"])
def test_a_single_collection_is_found(fill: Fill, name: str) -> None:
    folder = fill(name, "notes.md")
    assert [document.docid for document in resolve_documents(folder)] == ["d1"]


def test_judgments_need_documents_with_ids(tmp_path: Path) -> None:
    (tmp_path / "collection.csv").write_text("number,title,text\n7,Bees,They shiver.\n")
    assert [document.docid for document in open_dataset(tmp_path).documents()] == ["1"]
    (tmp_path / "qrels.txt").write_text("q1 0 7 1\n")
    with pytest.raises(InputError, match="no field is known as an id, by which judgments name documents; call the"):
        open_dataset(tmp_path).documents()


def test_gzip_is_found_and_read(tmp_path: Path) -> None:
    write_documents([Document("d1", "x")], tmp_path / "collection.tsv.gz")
    assert list(resolve_documents(tmp_path)) == list(resolve_documents(tmp_path / "collection.tsv.gz"))


def test_the_whole_collection_goes_before_its_parts(fill: Fill) -> None:
    path = open_dataset(fill("collection.tsv", "collection.part1.tsv")).collection_path
    assert path is not None
    assert path.name == "collection.tsv"


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["notes.bin"], r"no files of a data set: looked for collection\.tsv, .*; found notes\.bin"),
        ([], r"an empty folder, expected a data set or texts \(\.txt, \.md, \.html\)"),
        (["queries.dev.tsv"], r"no collection: looked for collection\.tsv, corpus\.jsonl; found queries\.dev\.tsv"),
        (["collection.tsv", "corpus.jsonl"], r"found collection\.tsv, corpus\.jsonl, expected one of them"),
        (["collection.a.tsv", "collection.b.tsv"], r"found collection\.a\.tsv, collection\.b\.tsv, expected one"),
    ],
)
def test_errors_say_what_was_looked_for_and_what_is_there(fill: Fill, names: list[str], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        resolve_documents(fill(*names))


def test_missing_and_doubled_files_of_a_split_are_named(fill: Fill) -> None:
    data = open_dataset(fill("queries.dev.tsv", "queries.dev.tsv.gz", "qrels.test.txt"))
    with pytest.raises(InputError, match=r"found queries\.dev\.tsv, queries\.dev\.tsv\.gz, expected one"):
        data.queries("dev")
    with pytest.raises(InputError, match=r"no qrels for the split 'dev': looked for qrels\.SPLIT\.txt.*qrels\.test"):
        data.qrels("dev")
    with pytest.raises(InputError, match="no queries for the split 'test'"):
        data.queries("test")
    with pytest.raises(InputError, match="no types for the split 'test'"):
        data.types("test")


def test_what_is_not_a_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name, problem in (("file", "is a file, expected a folder"), ("absent", "no such folder")):
        with pytest.raises(InputError, match=problem):
            open_dataset(tmp_path / name)
    with pytest.raises(InputError, match="no such file"):
        resolve_documents(tmp_path / "absent")


EXPECTED = {
    "cacm": (3204, {"test": 52}),
    "cranfield": (1398, {"test": 225}),
    "med": (1033, {"test": 30}),
    "insuranceqa": (27_413, {"train": 12_889, "valid": 2000}),
    "medquad": (15_809, {"dev": 1655, "train": 14_752}),
    "msmarco600": (5810, {"dev": 294}),
    "wiki": (
        241_186,
        {"headings.dev": 3000, "headings.train": 50_802, "questions.dev": 1568, "questions.train": 15_730},
    ),
}


@pytest.mark.data
@pytest.mark.parametrize("name", EXPECTED)
def test_the_public_data_sets_open(data_folder: Path, name: str) -> None:
    documents, queries = EXPECTED[name]
    data = open_dataset(data_folder / name)
    assert {split: len(data.queries(split)) for split in data.splits} == queries
    docids = {document.docid for document in data.documents()}
    assert len(docids) == documents
    for split in data.splits:
        qrels = data.qrels(split)
        assert set(qrels) <= set(qids(data.queries(split)))
        assert all(docid in docids for grades in qrels.values() for docid in grades)
    if name in ("insuranceqa", "medquad"):
        assert set(data.types(data.splits[0])) == set(qids(data.queries(data.splits[0])))


@pytest.mark.data
def test_trecs_own_files_are_read(data_folder: Path) -> None:
    data = open_dataset(data_folder / "trec")
    assert len(data.queries("msmarco-passage.dev-subset")) == 6980
    assert len(data.qrels("dl20-passage")) == 54


@pytest.mark.data
def test_trec_evals_own_test_files_are_read(data_folder: Path) -> None:
    folder = data_folder / "trec" / "trec_eval"
    assert len(read_run(folder / "results.trunc")) == 2  # words after the run name
    assert len(read_run(folder / "results.comment.test")) == 301  # '#' within document ids
    commented = read_qrels(folder / "qrels.test.with-comments")
    assert list(map(len, commented.values())) == list(map(len, read_qrels(folder / "qrels.test").values()))
    assert "CR#93E-1860" in commented["301"]
    with pytest.raises(InputError, match="listed again"):  # several assessors, which no measure here can use
        read_qrels(folder / "qrels.123")


# ir_datasets


def test_without_the_package_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    for source in ("irds:msmarco-passage", "ir_datasets:msmarco-passage"):
        with pytest.raises(MissingExtraError, match=r"pip install 'rankwell\[irds\]'"):
            open_dataset(source)


class PlainRecord(NamedTuple):
    doc_id: str
    title: str
    body: str


@pytest.fixture
def registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A data set in ir_datasets' catalogue that needs no download: documents, and below it a split with judgments."""
    monkeypatch.setenv("IR_DATASETS_HOME", str(tmp_path / "home"))
    ir_datasets = pytest.importorskip("ir_datasets")
    monkeypatch.setattr(ir_datasets.registry, "_registered", dict(ir_datasets.registry._registered))
    (tmp_path / "docs.tsv").write_text("d1\tfirst text\nd2\tsecond text\n")
    (tmp_path / "queries.tsv").write_text("q1\tfirst\n")
    (tmp_path / "qrels").write_text("q1 0 d1 2\n")
    files = {
        "docs_tsv": tmp_path / "docs.tsv",
        "queries_tsv": tmp_path / "queries.tsv",
        "qrels_trec": tmp_path / "qrels",
    }
    names = {"tiny": ("docs_tsv",), "tiny/dev": tuple(files)}
    for name, parts in names.items():
        dataset = ir_datasets.create_dataset(**{part: str(files[part]) for part in parts})
        ir_datasets.registry._registered[name] = dataset
    return "irds:tiny"


def test_a_data_set_of_the_package_has_the_splits_below_it(registered: str) -> None:
    data = open_dataset(registered)
    assert data.splits == ("dev",)
    assert list(data.documents()) == list(resolve_documents("ir_datasets:tiny/dev"))
    assert list(data.documents()) == [Document("d1", "first text"), Document("d2", "second text")]
    assert data.queries() == [Query("q1", "first")]
    assert data.qrels("dev")["q1"] == {"d1": 2}
    assert data.digest() == registered
    assert data.negatives() is None
    with pytest.raises(RankwellError, match="has no query types"):
        data.types()


def test_a_data_set_of_the_package_with_judgments_is_its_own_split(registered: str) -> None:
    data = open_dataset(f"{registered}/dev")
    assert data.splits == ("all",)
    assert data.queries() == [Query("q1", "first")]


def test_a_data_set_of_the_package_can_be_asked_for_queries(registered: str) -> None:
    assert read_questions(f"{registered}/dev") == [Query("q1", "first")]


def test_a_record_without_a_text_of_its_own_gives_title_and_body(registered: str, tmp_path: Path) -> None:
    ir_datasets = pytest.importorskip("ir_datasets")
    (tmp_path / "records.tsv").write_text("d1\tTitle\tBody\n")
    source = ir_datasets.util.LocalDownload(tmp_path / "records.tsv")
    records = ir_datasets.formats.TsvDocs(source, doc_cls=PlainRecord)
    ir_datasets.registry._registered["plain"] = ir_datasets.Dataset(records)
    assert list(resolve_documents("irds:plain")) == [Document("d1", "Body", "Title")]


def test_a_misspelt_name_gets_a_suggestion(registered: str) -> None:
    with pytest.raises(RankwellError, match="ir_datasets has no data set 'tinyy'; did you mean tiny"):
        open_dataset("irds:tinyy")


def test_the_real_catalogue_is_listed_without_a_download(registered: str) -> None:
    assert "test" in open_dataset("irds:beir/scifact").splits
    assert open_dataset("irds:vaswani").splits == ("all",)
    assert "dev/small" in open_dataset("irds:msmarco-passage").splits


@pytest.mark.parametrize(
    ("name", "header", "row"),
    [
        ("judgments.csv", "query,document,grade", "{},{},1"),
        ("judgments.dev.jsonl", "", '{{"question": "{}", "doc_id": "{}", "label": 1}}'),
        ("clicks.csv", "query,doc_id,position,impressions,clicks", "{},{},1,50,25"),
    ],
)
def test_words_in_judgments_and_clicks_are_the_queries(tmp_path: Path, name: str, header: str, row: str) -> None:
    pairs = [("how do  bees keep warm", "d1"), ("tea", "d2"), ("how do  bees keep warm", "d2")]
    lines = [header, *(row.format(*pair) for pair in pairs)]
    (tmp_path / name).write_text("\n".join(filter(None, lines)) + "\n")
    (tmp_path / "collection.tsv").write_text("d1\tbees\nd2\ttea\n")
    data = open_dataset(tmp_path)
    assert data.queries() == [Query("how_do_bees_keep_warm", "how do  bees keep warm"), Query("tea", "tea")]
    assert data.qrels()["how_do_bees_keep_warm"].keys() == {"d1", "d2"}
    assert data.qrels()["tea"].keys() == {"d2"}


def test_a_column_of_words_beside_the_ids_is_the_queries(tmp_path: Path) -> None:
    (tmp_path / "judgments.csv").write_text("qid,query,docid,grade\n7,how warm,d1,1\n7,how warm,d2,0\n")
    (tmp_path / "collection.tsv").write_text("d1\tbees\nd2\ttea\n")
    data = open_dataset(tmp_path)
    assert (data.queries(), dict(data.qrels())) == ([Query("7", "how warm")], {"7": {"d1": 1, "d2": 0}})
    (tmp_path / "judgments.csv").write_text("qid,query,docid,grade\n7,how warm,d1,1\n7,how hot,d2,0\n")
    with pytest.raises(InputError, match="line 3: the query '7' has other words before"):
        open_dataset(tmp_path).queries()
