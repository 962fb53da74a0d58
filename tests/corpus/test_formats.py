"""Runs, qrels, queries, types and documents: what is read, and what each mistake in a file is called."""

from __future__ import annotations

import gzip
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.formats import (
    read_documents,
    read_qrels,
    read_queries,
    read_run,
    read_types,
    write_documents,
    write_qrels,
    write_queries,
    write_run,
    write_types,
)
from rankwell.corpus.records import Document, Qrels, Query, Ranking, Run


@pytest.fixture
def file(tmp_path: Path) -> Callable[[str | bytes], Path]:
    def write(content: str | bytes) -> Path:
        path = tmp_path / "file"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    return write


Write = Callable[[str | bytes], Path]


def documents(path: Path) -> list[Document]:
    return list(read_documents(path))


# Runs


def test_a_trec_run_is_ordered_by_score_whatever_its_ranks_and_its_line_order(file: Write) -> None:
    run = read_run(file("q1 Q0 a 1 0.5 bm25\nq2 Q0 a 1 1 bm25\nq1\tQ0\tb\t2\t  1e0\tbm25\n"))
    assert run.name == "bm25"
    assert list(run) == ["q1", "q2"]
    assert list(run["q1"]) == [("b", 1.0), ("a", 0.5)]


def test_an_msmarco_run_has_the_score_one_over_rank(file: Write) -> None:
    run = read_run(file("q1\tb\t2\nq1\ta\t1\nq1\tc\t4\n"))
    assert list(run["q1"]) == [("a", 1.0), ("b", 0.5), ("c", 0.25)]
    assert run.name == "file"
    assert read_run(file("q1\tb\t2\n"), name="mine").name == "mine"


def test_deep_msmarco_ranks_stay_apart(file: Write) -> None:
    run = read_run(file("".join(f"q\td{rank}\t{rank}\n" for rank in (99_999, 100_000, 100_001))))
    assert run["q"].docids == ("d99999", "d100000", "d100001")


def test_comments_blank_lines_and_words_after_the_run_name_are_ignored_as_in_trec_eval(file: Write) -> None:
    run = read_run(file("# made by hand\n\nq1 Q0 a 1 2 tag and more\n \n#q1 Q0 b 1 2 tag\n"))
    assert run.name == "tag"
    assert list(run["q1"]) == [("a", 2.0)]
    assert read_qrels(file("# judged\n1 0 a 2\n\n#1 0 b 2\n"))["1"] == {"a": 2}


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ("q1 Q0 a 1\n", 1, "found 4 columns, expected 6 .* or 3 .*is this a qrels file"),
        ("q1 Q0 a 1 2 tag\nq1 Q0 b 1 2\n", 2, "found 5 columns, expected 6"),
        ("q1 Q0 a 1 2 tag\nq1 Q0 an id 1 2 tag\n", 2, "found 7 columns, expected 6"),
        ("q1 Q0 a 1 2 tag\n\tQ0\ta\t1\t2\ttag\n", 2, "query id is empty"),
        ("q1 Q0 a 1 high tag\n", 1, "score is 'high', expected a finite number"),
        ("q1 Q0 a 1 nan tag\n", 1, "score is 'nan'"),
        ("q1 Q0 a 1 -inf tag\n", 1, "score is '-inf'"),
        ("q1 Q0 a 1 1e39 tag\n", 1, "score is '1e39'"),
        ("q1 Q0 a 1 1_0 tag\n", 1, "score is '1_0'"),
        ("q1 Q0 a 1 2 t\nq2 Q0 a 1 2 t\nq1 Q0 a 1 1 t\n", 3, "document 'a' is listed again for query 'q1'"),
        ("q1\ta\t1\nq1\tb\n", 2, "found 2 columns, expected 3"),
        ("q1\ta\tfirst\n", 1, "rank is 'first', expected a whole number from 1"),
        ("q1\ta\t0\n", 1, "rank is '0'"),
        (f"q1\ta\t{'9' * 400}\n", 1, "rank is '999.*…', expected a whole number from 1"),
        (f"q1\ta\t{2**63 + 1}\n", 1, "rank is '9223372036854775809'"),
        ("q1 Q0 a 1 1 t\n\ufeffq2 Q0 a 1 1 t\n", 2, r"query id '\\ufeffq2' holds '\\ufeff', which is not text"),
        ("q1 Q0 \ufeffa 1 1 t\n", 1, r"document id '\\ufeffa' holds '\\ufeff', which is not text"),
        ("q1\ta\t1\n\tb\t1\n", 2, "query id is empty"),
        ("", None, "is empty, expected a run"),
        ("\n \n# nothing\n", None, "is empty, expected a run"),
    ],
)
def test_mistakes_in_runs_are_named(file: Write, content: str, line: int | None, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read_run(file(content))
    assert caught.value.line == line


def test_every_float32_survives_writing_in_its_shortest_form(tmp_path: Path) -> None:
    bits = np.random.default_rng(7).integers(0, 2**32, 20_000, dtype=np.uint32)
    tiny, huge = np.finfo(np.float32).smallest_subnormal, np.finfo(np.float32).max
    values = np.concatenate([bits.view(np.float32), np.array([0.1, tiny, -tiny, huge, -huge, -0.0, 2**24], np.float32)])
    values = values[np.isfinite(values)]
    run = Run({"q": Ranking.of(map(str, range(len(values))), values)}, name="bits")
    write_run(run, tmp_path / "run.txt")
    again = read_run(tmp_path / "run.txt")
    assert again["q"] == run["q"]
    assert again["q"].scores.tobytes() == run["q"].scores.tobytes()
    assert " 0.1 bits\n" in (tmp_path / "run.txt").read_text()


def test_an_msmarco_run_is_written_in_order(tmp_path: Path) -> None:
    run = Run.from_scores({"q2": {"a": 0.1, "b": 0.2}, "q1": {"c": -1.0}})
    write_run(run, tmp_path / "run.tsv", format="msmarco")
    assert (tmp_path / "run.tsv").read_text() == "q2\tb\t1\nq2\ta\t2\nq1\tc\t1\n"


def test_a_run_stored_as_arrays_is_the_same_run(tmp_path: Path) -> None:
    path = tmp_path / "stored.run.npz"
    run = Run.from_scores({"q 1": {"a": 0.1, "ü\n": 2.5, "b": 0.1}, "q2": {"b": -1.0, "c": 0.0}}, name="first")
    write_run(run, path)
    again = read_run(path)
    assert (again.name, list(again.items())) == ("first", list(run.items()))
    assert read_run(path, name="other").name == "other"
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InputError, match="cannot be read as a run"):
        read_run(path)


def test_an_unknown_format_is_refused(tmp_path: Path) -> None:
    anything: Any = "xml"
    with pytest.raises(RankwellError, match="no run format is called 'xml'"):
        write_run(Run.from_scores({"q": {"a": 1}}), tmp_path / "run", format=anything)
    with pytest.raises(RankwellError, match="no qrels format is called 'xml'"):
        write_qrels(Qrels({"q": {"a": 1}}), tmp_path / "qrels", format=anything)


# Qrels


@pytest.mark.parametrize(
    "content",
    ["1 0 a 1\n1 0 b -1\n2 Q0 a 0\n", "1\t0\ta\t1\n1\t0\tb\t-1\n2\t0\ta\t0\n", "1  0 a   1\r\n1 0 b -1\r\n2 0 a 0"],
    ids=["TREC", "MS MARCO", "CRLF"],
)
def test_qrels_in_four_columns(file: Write, content: str) -> None:
    assert dict(read_qrels(file(content))) == {"1": {"a": 1, "b": -1}, "2": {"a": 0}}


def test_beir_qrels_have_a_header(file: Write) -> None:
    assert dict(read_qrels(file("query-id\tcorpus-id\tscore\n1\ta\t2\n"))) == {"1": {"a": 2}}


@pytest.mark.parametrize(
    "content",
    [
        "query_id\tdoc_id\tgrade\n1\ta\t2\n\n# more\n2\tb\t0\n",
        "qid iter docno rel\n1 0 a 2\n2 0 b 0\n",
        'Query ID,query,pid,label\n1,"how, why",a,2\n2,what,b,0.0\n',
        "query-id;corpus-id;score\n1;a;2\n2;b;0\n",
        '{"query_id": 1, "doc_id": "a", "relevance": 2}\n{"query_id": "2", "doc_id": "b", "relevance": 0}\n',
        '[{"qid": "1", "docid": "a", "rel": 2.0}, {"qid": "2", "docid": "b", "rel": false}]',
    ],
    ids=["tsv", "spaces", "csv", "semicolons", "jsonl", "json"],
)
def test_qrels_in_tables_with_the_names_that_people_use(file: Write, content: str) -> None:
    assert dict(read_qrels(file(content))) == {"1": {"a": 2}, "2": {"b": 0}}


def test_qrels_and_runs_in_parquet_and_gzip(tmp_path: Path) -> None:
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = pyarrow.table({"qid": ["q", "q"], "docid": [7, 8], "score": [1, 2]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "rows.csv.gz").write_bytes(gzip.compress(b"qid,docid,score\nq,7,1\nq,8,2\n"))
    for name in ("rows.parquet", "rows.csv.gz"):
        assert dict(read_qrels(tmp_path / name)) == {"q": {"7": 1, "8": 2}}
        assert read_run(tmp_path / name)["q"].docids == ("8", "7")


def test_a_run_in_a_table_has_scores_or_ranks(file: Write) -> None:
    by_rank = read_run(file('{"qid": "q", "docid": "a", "rank": 2}\n{"qid": "q", "docid": "b", "rank": 1}\n'))
    assert list(by_rank["q"]) == [("b", 1.0), ("a", 0.5)]
    by_score = read_run(file("query_id,doc_id,rank,score\nq,a,1,0.5\nq,b,2,1.5\n"))
    assert list(by_score["q"]) == [("b", 1.5), ("a", 0.5)]


@pytest.mark.parametrize(
    ("content", "line", "problem"),
    [
        ("1 0 a\n", 1, "found 3 columns, expected 4 .*is this a run"),
        ("1 Q0 a 1 2 tag\n", 1, "found 6 columns, expected 4 .*is this a run"),
        ("1 0 a 1\n1 0 b 1 1\n", 2, "found 5 columns, expected 4"),
        ("1 0 a 1.0\n", 1, "grade is '1.0', expected a whole number"),
        ("1 0 a 1_0\n", 1, "grade is '1_0'"),
        ("1 0 a 1\n1 0 a 1\n", 2, "document 'a' is listed again for query '1'"),
        ("1\t0\ta\t1\n1\t0\t\t1\n", 2, "document id is empty"),
        ("query-id\tcorpus-id\tscore\n1\t0\ta\t2\n", 2, "found 4 columns, expected 3"),
        ("query-id\tcorpus-id\tscore\n", 1, "a header without rows"),
        ("qid,docid\nq1,d1\n", 1, "qrels: no field for the grade; found qid, docid"),
        ("qid,docid,grade\nq1,d1,high\n", 2, "grade is 'high', expected a whole number"),
        ("qid,docid,grade\nq1,d1,1\nq1,d1,2\n", 3, "document 'd1' is listed again"),
        ('{"qid": "q1", "docid": "d1", "rel": 0.5}\n', 1, "grade is '0.5', expected a whole number"),
        ('{"qid": "q1", "rel": 1}\n', 1, "qrels: no field for the document id; found qid, rel"),
        ("q1,d1,1\n", 1, "found 1 column, expected 4 .* or a header such as query-id,corpus-id,score"),
        ("", None, "is empty, expected qrels"),
    ],
)
def test_mistakes_in_qrels_are_named(file: Write, content: str, line: int | None, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read_qrels(file(content))
    assert caught.value.line == line


# Queries, types, documents


def test_queries_come_as_tsv_and_jsonl(file: Write) -> None:
    queries = [Query("1", " what is\u2028this "), Query("2", "")]
    assert read_queries(file("1\t what is\u2028this \n2\t\n")) == queries
    assert read_queries(file('{"_id": "1", "text": " what is\\u2028this "}\n\n{"_id": 2, "text": ""}')) == queries


def test_types_map_queries_to_labels(file: Write) -> None:
    assert read_types(file("1\tlocation\n2\tperson\n")) == {"1": "location", "2": "person"}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("d1\tfirst\n\nd2\t\n", [Document("d1", "first"), Document("d2", "")]),
        ("d1\thttp://x\tTitle\tBody\nd2\t\t\tBody\n", [Document("d1", "Body", "Title"), Document("d2", "Body")]),
        ('{"_id": "d1", "title": "T", "text": "x", "metadata": {}}', [Document("d1", "x", "T")]),
        ('{"id": 7, "contents": "x", "title": null}', [Document("7", "x")]),
        ('{"docid": "d1", "body": "x"}', [Document("d1", "x")]),
        ("{d1\t{not json}\n", [Document("{d1", "{not json}")]),
        ("#d1\tnot a comment\n", [Document("#d1", "not a comment")]),
        ("\ufeffd1\tbyte-order mark\r\n", [Document("d1", "byte-order mark")]),
        ('{"_id": "d1", "text": "\\ud83d\\ude00"}', [Document("d1", "\U0001f600")]),
    ],
)
def test_documents_are_recognised_by_their_first_line(file: Write, content: str, expected: list[Document]) -> None:
    assert documents(file(content)) == expected


@pytest.mark.parametrize(
    ("read", "content", "line", "problem"),
    [
        (read_queries, "1\ta\n2 b\n", 2, "found 1 column, expected 2 \\(query id, text\\)"),
        (read_queries, "1\ta\tb\n", 1, "found 3 columns, expected 2"),
        (read_queries, "1\ta\n2\tb\n1\tc\n", 3, "query id '1' was already on line 1"),
        (read_queries, "\ta\n", 1, "query id is empty"),
        (read_queries, "my id\ta\n", 1, "query id 'my id' holds whitespace"),
        (read_queries, "1\ta\n#2\tb\n", 2, "query id '#2' starts with '#', which marks a comment in a run"),
        (read_queries, '{"_id": "#2", "text": "a"}\n', 1, "query id '#2' starts with '#'"),
        (read_queries, '{"_id": "1\\u0000", "text": "a"}\n', 1, r"query id '1\\x00' holds '\\x00', which is not text"),
        (read_queries, "1\ta\n\ufeff2\tb\n", 2, r"query id '\\ufeff2' holds '\\ufeff'"),
        (documents, '{"_id": "1\\u0000", "text": "a"}\n', 1, r"document id '1\\x00' holds '\\x00'"),
        (documents, '{"_id": "\\ufeff1", "text": "a"}\n', 1, r"document id '\\ufeff1' holds '\\ufeff'"),
        (read_queries, '{"_id": "1"}\n', 1, "no field for the text; found '_id'; name one with --text"),
        (read_queries, '{"_id": "1", "text": "a"}\n["2"]\n', 2, "expected a JSON object"),
        (read_queries, "", None, "is empty, expected queries"),
        (read_types, "1\ta\n1\tb\n", 2, "was already on line 1"),
        (read_types, "1\n", 1, "expected 2 \\(query id, label\\)"),
        (read_types, "1\t\n", 1, "label is empty"),
        (read_types, "", None, "is empty, expected query types"),
        (documents, "d1\ta\nd2\tb\tc\n", 2, "found 3 columns, expected 2 \\(document id, text\\)"),
        (documents, "d1\tu\tt\tb\nd2\tb\n", 2, "expected 4 \\(document id, url, title, body\\)"),
        (documents, "d1\ta\n\tb\n", 2, "document id is empty"),
        (documents, "d1\ta\nd 2\tb\n", 2, "document id 'd 2' holds whitespace"),
        (documents, '{"_id": "d1", "text": "a"}\n{"_id": "d2"\n', 2, "not JSON"),
        (
            documents,
            '{"_id": "d1", "text": "a"}\n{"text": "a"}\n',
            2,
            "no key '_id' or 'id' or 'docid' or 'pid'; found",
        ),
        (documents, '{"_id": "", "text": "a"}\n', 1, "document id is empty"),
        (documents, '{"_id": true, "text": "a"}\n', 1, "document id is true or false, expected a string"),
        (documents, '{"_id": "d1", "text": 5}\n', 1, "key 'text': expected a string, found a number"),
        (documents, '{"pid": "d1", "passage": 5}\n', 1, "key 'passage': expected a string, found a number"),
        (documents, '{"_id": "d1", "text": "\\ud800"}\n', 1, "half a surrogate pair"),
        (documents, "\n\n", None, "is empty, expected a collection"),
        (documents, b"d1\tcaf\xe9\n", 1, "not UTF-8"),
        (documents, b"\x7fELF\0\0\0\n", 1, "NUL"),
        (documents, gzip.compress(b"d1\ttext\n" * 9999)[:-9], None, "broken gzip"),
    ],
)
def test_mistakes_in_texts_are_named(
    file: Write, read: Callable[[Path], object], content: str | bytes, line: int | None, problem: str
) -> None:
    with pytest.raises(InputError, match=problem) as caught:
        read(file(content))
    if problem != "broken gzip":
        assert caught.value.line == line


def test_a_collection_is_not_held_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "collection.tsv"
    text = "word " * 60
    with path.open("w") as lines:
        lines.writelines(f"{i}\t{text}{i}\n" for i in range(100_000))
    assert path.stat().st_size > 30e6
    tracemalloc.start()
    count = sum(1 for _ in read_documents(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 100_000
    assert peak < 5e6


def test_a_missing_collection_is_an_error_at_the_call_not_at_the_first_document(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_documents(tmp_path / "absent")


# What the writers refuse


@pytest.mark.parametrize(
    "bad", ["", "two words", "tab\tid", "line\nend", "nul\0", "\ufeffmark", "half\ud800", "no\u3000"]
)
def test_ids_that_would_not_be_read_back_are_refused(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "file"
    for write in (
        lambda: write_run(Run.from_scores({bad: {"a": 1}}), path),
        lambda: write_run(Run.from_scores({"q": {bad: 1}}), path, format="msmarco"),
        lambda: write_run(Run.from_scores({"q": {"a": 1}}, name=bad), path),
        lambda: write_qrels(Qrels({bad: {"a": 1}}), path),
        lambda: write_qrels(Qrels({"q": {bad: 1}}), path, format="beir"),
        lambda: write_queries([Query(bad, "x")], path),
        lambda: write_types({bad: "x"}, path),
        lambda: write_documents([Document("good", "x"), Document(bad, "x")], path),
        lambda: write_documents([Document(bad, "x")], tmp_path / "file.jsonl"),
    ):
        with pytest.raises(RankwellError, match=r"cannot write .* expected characters other than whitespace"):
            write()
    assert list(tmp_path.iterdir()) == []


def test_a_query_id_that_trec_eval_takes_for_a_comment_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="would be read as a comment"):
        write_run(Run.from_scores({"#1": {"a": 1}}), tmp_path / "run")
    with pytest.raises(RankwellError, match="would be read as a comment"):
        write_qrels(Qrels({"#1": {"a": 1}}), tmp_path / "qrels")
    with pytest.raises(RankwellError, match="would be read as a comment"):
        write_queries([Query("#1", "a")], tmp_path / "queries.jsonl")


def test_a_grade_has_at_most_63_bits(file: Write) -> None:
    assert read_qrels(file(f"1 0 d {2**63 - 1}\n2 0 d {1 - 2**63}\n"))["1"] == {"d": 2**63 - 1}
    for grade in (2**63, -(2**63), 10**20):
        with pytest.raises(InputError, match=r"line 1: the grade is .*, expected a number of at most 63 bits"):
            read_qrels(file(f"1 0 d {grade}\n"))
        with pytest.raises(RankwellError, match="query '1' has a grade of over 63 bits"):
            Qrels({"1": {"d": grade}})


@pytest.mark.parametrize("text", ["tab\t", "line\n", "return\r"])
def test_a_text_that_tsv_cannot_hold_is_refused_and_jsonl_holds_it(tmp_path: Path, text: str) -> None:
    document, query = Document("d", text, "a title"), Query("q", text)
    with pytest.raises(RankwellError, match=r"which a tsv file cannot; use a \.jsonl file"):
        write_queries([query], tmp_path / "queries.tsv")
    with pytest.raises(RankwellError, match=r"has a title, which a tsv file cannot hold; use a \.jsonl file"):
        write_documents([document], tmp_path / "collection.tsv")
    write_queries([query], tmp_path / "queries.jsonl")
    write_documents([document], tmp_path / "corpus.jsonl.gz")
    assert read_queries(tmp_path / "queries.jsonl") == [query]
    assert documents(tmp_path / "corpus.jsonl.gz") == [document]


def test_an_empty_label_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match="label of query 'q' is empty"):
        write_types({"q": ""}, tmp_path / "types.tsv")


def test_nothing_is_not_written(tmp_path: Path) -> None:
    for write in (
        lambda: write_run(Run({"q": Ranking.of([], [])}), tmp_path / "f"),
        lambda: write_qrels(Qrels({"q": {}}), tmp_path / "f"),
        lambda: write_queries([], tmp_path / "f"),
        lambda: write_types({}, tmp_path / "f"),
        lambda: write_documents(iter([]), tmp_path / "f"),
    ):
        with pytest.raises(RankwellError, match="there are no"):
            write()
    assert list(tmp_path.iterdir()) == []


def test_a_generator_that_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "collection.tsv"
    write_documents([Document("old", "x")], path)

    def failing() -> Any:
        yield Document("new", "x")
        raise KeyError

    with pytest.raises(KeyError):
        write_documents(failing(), path)
    assert documents(path) == [Document("old", "x")]
