"""Data as people have it: every format gives the same records, says what it guessed, and names file and line."""

from __future__ import annotations

import datetime
import gzip
import json
import os
import random
import subprocess
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rankwell import Index
from rankwell.core.errors import InputError, MissingExtraError, Notice, RankwellError
from rankwell.corpus.formats import read_documents, read_queries
from rankwell.corpus.formats.fields import Columns
from rankwell.corpus.records import Document, Query
from rankwell.corpus.sources import TextFolder, collection_digest, read_page, resolve_documents, resolve_queries

BEES = Document("d1", "Bees keep warm.", "Bees")
TEA = Document("d2", "Tea, hot.")
Write = Callable[[str, str], Path]


@pytest.fixture
def file(tmp_path: Path) -> Write:
    def write(name: str, content: str) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(content.encode()) if name.endswith(".gz") else content.encode())
        return path

    return write


def heard(read: Callable[[], Any]) -> tuple[Any, list[str]]:
    """What is read, and what was said meanwhile."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = read()
        found = found if isinstance(found, list) else list(found)
    assert all(issubclass(warning.category, Notice) for warning in caught)
    return found, [str(warning.message) for warning in caught]


ARRAY = [{"_id": "d1", "text": "Bees keep warm.", "title": "Bees"}, {"_id": "d2", "text": "Tea, hot."}]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.tsv",
            "id\ttext\ttitle\nd1\tBees keep warm.\tBees\nd2\tTea, hot.\t\n",
            "the first line is a header",
        ),
        ("a.tsv.gz", "Doc ID\tTitle\tBody\nd1\tBees\tBees keep warm.\nd2\t\tTea, hot.\n", "id: 'Doc ID', text: 'Body'"),
        ("a.csv", 'id,title,text\nd1,Bees,Bees keep warm.\nd2,,"Tea, hot."\n', "the first line is a header"),
        ("a.csv", 'd1,Bees,Bees keep warm.\nd2,,"Tea, hot."\n', "no header; columns: document id, title, text"),
        ("a", 'docno,headline,contents\nd1,Bees,Bees keep warm.\nd2,,"Tea, hot."\n', "title: 'headline'"),
        ("a.csv", "id;title;text\nd1;Bees;Bees keep warm.\nd2;;Tea, hot.\n", "the first line is a header"),
        ("a.jsonl", "\n".join(map(json.dumps, ARRAY)), None),
        ("a.json", json.dumps(ARRAY), None),
        ("a.json", json.dumps(ARRAY, indent=2), None),
        (
            "a.jsonl",
            '{"doc_id": "d1", "content": "Bees keep warm.", "title": "Bees"}\n{"doc_id": "d2", "content": "Tea, hot."}',
            "id: 'doc_id', text: 'content', title: 'title'",
        ),
    ],
)
def test_documents_in_every_text_format(file: Write, name: str, content: str, said: str | None) -> None:
    path = file(name, content)
    documents, notices = heard(lambda: read_documents(path))
    assert documents == [BEES, TEA]
    assert len(notices) == (said is not None)
    assert all(notice.startswith(f"{path}: ") and str(said) in notice for notice in notices)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("q.tsv", "qid\tquery\n1\thow warm\n2\twhat, tea\n", "the first line is a header; id: 'qid', text: 'query'"),
        ("q.csv", '1,how warm\n2,"what, tea"\n', "no header; columns: query id, text"),
        ("q.csv", 'question_id,question\n1,how warm\n2,"what, tea"\n', "the first line is a header"),
        ("q.json", '[{"id": 1, "question": "how warm"},\n{"id": 2, "question": "what, tea"}]', None),
        ("q.txt", "how warm\n\nwhat, tea\n", "no ids: each line is a query, numbered from 1"),
        ("q.json", '["how warm", "what, tea"]', "text: 'text'; no ids, so numbered from 1"),
    ],
)
def test_queries_in_every_text_format(file: Write, name: str, content: str, said: str | None) -> None:
    queries, notices = heard(lambda: read_queries(file(name, content)))
    assert queries == [Query("1", "how warm"), Query("2", "what, tea")]
    assert len(notices) == (said is not None)
    assert all(str(said) in notice for notice in notices)


@pytest.mark.parametrize("title", ["name", "product_name", "Subject", "heading"])
def test_a_shop_names_its_titles_and_hears_what_is_not_searched(file: Write, title: str) -> None:
    path = file("shop.csv", f"sku,{title},description,price,brand\nd1,Bees,Bees keep warm.,3,Hive\n")
    [document], [notice] = heard(lambda: read_documents(path))
    assert document == replace(BEES, metadata={"price": 3.0, "brand": "Hive"})
    assert notice.endswith(f"id: 'sku', text: 'description', title: '{title}'; not searched: price, brand")


def test_columns_are_named_by_the_user(file: Write) -> None:
    columns = Columns(id="ref", text="notes")
    path = file("a.csv", "ref,notes,other\nd1,Bees,x\n")
    assert heard(lambda: read_documents(path, columns))[0] == [Document("d1", "Bees", metadata={"other": "x"})]
    path = file("a.jsonl", '{"ref": 7, "notes": "Bees", "text": "not this"}\n')
    kept = Document("7", "Bees", metadata={"text": "not this"})
    assert heard(lambda: read_documents(path, columns)) == ([kept], [])
    path = file("a.tsv", "x\td1\tBees\ny\td2\tTea\n")
    by_number, notices = heard(lambda: read_documents(path, Columns(id="2", text="3")))
    assert (by_number, notices) == ([Document("d1", "Bees"), Document("d2", "Tea")], [])
    with pytest.raises(InputError, match="no field 'ref' for the id; found 'a', 'b'"):
        read_documents(file("b.jsonl", '{"a": 1, "b": "x"}\n'), columns)


def test_one_field_beside_the_id_is_the_text(file: Write) -> None:
    path = file("a.jsonl", '{"id": 1, "utterance": "Bees"}')
    assert heard(lambda: read_documents(path))[0] == [Document("1", "Bees")]


def test_a_line_of_the_usual_columns_is_no_header_for_its_words(file: Write) -> None:
    content = "d1\thttp://x\tTitle\tBody\nd2\t\tHeading\tText\n"
    documents, notices = heard(lambda: read_documents(file("a.tsv", content)))
    assert (documents[0], notices) == (Document("d1", "Body", "Title"), [])
    assert heard(lambda: read_documents(file("a.txt", "[1] Smith et al.\n[2] Jones")))[0][0].text == "[1] Smith et al."


@pytest.mark.parametrize("line", ["sku,product,blurb,price", "sku,blurb"])
def test_a_name_that_the_header_lacks_is_reported_with_those_it_has(file: Write, line: str) -> None:
    path = file("a.csv", f"{line}\n{','.join('1' * len(line.split(',')))}\n")
    with pytest.raises(InputError, match=r"no field 'details' for the text; found 'sku', .*'blurb'"):
        read_documents(path, Columns(text="details"))


def test_a_csv_cell_holds_line_ends_quotes_and_any_length(file: Write) -> None:
    long = "x" * 200_000
    path = file("a.csv", f'id,text\n1,"two\nlines, ""quoted"""\n\n2,{long}\n3,a\n')
    documents, _ = heard(lambda: read_documents(path))
    assert [document.text for document in documents] == ['two\nlines, "quoted"', long, "a"]


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", "id,text\n1,a\n2\n", "line 3: found 1 column, expected 2 \\(id, text\\): '2'"),
        ("a.csv", 'id,text\n1,"a\nb"\n2,c,d\n', "line 4: found 3 columns"),
        ("a.csv", 'id,text\n1,"a\nb\n', "line 2: not csv \\(unexpected end of data\\)"),
        ("a.csv", "a,b,c,d\n", "line 1: found 4 columns, expected 2 .*; if it is a header, use --id and --text"),
        (
            "a.csv",
            "name,price\nKettle,29.90\n",
            r"line 1: looks like a header, but no column .*\(name, price\) with --id, --title and",
        ),
        ("a.csv", "produkt,info\nKanne,Hält lange warm\n", r"looks like a header, .*\(produkt, info\)"),
        ("a.csv", "id,text\n", "line 1: a header without rows below it"),
        ("a.tsv", "id\ttext\ttext\n1\ta\tb\n", "line 1: the header names a column twice"),
        ("a.tsv", "no tab here\n", "line 1: found 1 column, expected 2"),
        ("a.csv", "id,text\na b,c\n", "line 2: the document id 'a b' holds whitespace"),
        ("a.json", '[{"id": 1, "text": "a"},\n\n{"id": 2}]', "line 3: no key 'text'"),
        ("a.json", '[{"id": 1, "text": "a"}\n{"id": 2, "text": "b"}]', "line 2: not a JSON array: expected ,"),
        ("a.json", '[{"id": 1, "text": "a"},\n]', "line 2: not JSON|line 2: not a JSON array"),
        ("a.json", '[{"id": 1, "text": "a"}', "line 1: not a JSON array: expected ,, found the end of the file"),
        ("a.json", '[{"id": 1, "text": "a"}] x', "line 1: not a JSON array: found 'x' after its end"),
        ("a.json", '["a", 7]', "line 1: expected objects or strings in the array, found a number"),
        ("a.json", '[{"id": 1, "text": "\\ud800"}]', "line 1: holds half a surrogate pair"),
        ("a.json", "[]", "is empty, expected records"),
        ("a.jsonl", '{"a": "x", "b": "y"}\n', "line 1: no field for the text; found 'a', 'b'; name one with --text"),
        ("a.pdf", "%PDF-1.7\n", "a PDF, not text; convert it first, for example with `pdftotext a.pdf a.txt`"),
        ("a.docx", "PK\x03\x04", "a zip archive or office document, not text"),
    ],
)
def test_mistakes_are_named(file: Write, name: str, content: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        heard(lambda: read_documents(file(name, content)))


def test_a_repeated_id_has_its_lines_in_every_format(file: Write, tmp_path: Path) -> None:
    from rankwell.retrieve.index import Index

    path = file("a.csv", 'id,text\n1,"a\nb"\n2,c\n1,d\n')
    with pytest.warns(Notice), pytest.raises(InputError, match=r"a\.csv, line 5: .* \(first on line 2\)"):
        Index.build(read_documents(path), tmp_path / "index")


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_text, args=("id\ttext\nd1\tBees\n",))
    writer.start()
    assert heard(lambda: read_documents(pipe))[0] == [Document("d1", "Bees")]
    writer.join()


# Folders of texts


@pytest.fixture
def notes(file: Write, tmp_path: Path) -> Path:
    file("notes/a b.txt", "Bees keep\nwarm.\n")
    file("notes/sub/tea.md", "\n# Tea #\n\nHot.\n\nVery.\n")
    page = "<html><head><title>A &amp; B</title><style>p{}</style></head><body><h1>Big</h1><p>one <b>two</b><br>three"
    file("notes/page.html", page + "<script>var x = '<p>no</p>';</script><ul><li>x<li>y</ul>")
    file("notes/.hidden/no.txt", "no")
    file("notes/picture.png", "no")
    return tmp_path / "notes"


def test_a_folder_has_a_document_per_text_file(notes: Path) -> None:
    documents, notices = heard(lambda: resolve_documents(notes))
    assert documents == [
        Document("a%20b.txt", "Bees keep\nwarm."),
        Document("page.html", "Big\none two\nthree\nx\ny", "A & B"),
        Document("sub/tea.md", "Hot.\n\nVery.", "Tea"),
    ]
    assert notices == [f"{notes}: other files are not read (1 .png)"]
    before = collection_digest(str(notes))
    (notes / "sub/tea.md").write_text("Cold.")
    assert collection_digest(str(notes)) != before


def test_a_folder_that_is_no_collection(file: Write, tmp_path: Path) -> None:
    file("pdfs/a.pdf", "%PDF-")
    with pytest.raises(InputError, match="pdfs: PDF files, but no text: convert them first"):
        resolve_documents(tmp_path / "pdfs")
    file("bad/a.txt", "good")
    (tmp_path / "bad/b.txt").write_bytes(b"fine\n\xff")
    with pytest.raises(InputError, match=r"b\.txt, line 2: not UTF-8"):
        list(resolve_documents(tmp_path / "bad"))
    file("queries/queries.tsv", "1\tx\n")
    file("queries/readme.txt", "x")
    with pytest.raises(InputError, match="no collection"):
        resolve_documents(tmp_path / "queries")


def test_a_folder_finds_its_files_in_the_new_formats(file: Write, tmp_path: Path) -> None:
    from rankwell.corpus.datasets import open_dataset

    file("set/corpus.csv", "id,text\nd1,Bees\n")
    file("set/queries.dev.json", '[{"id": 1, "text": "warm"}]')
    file("set/qrels.dev.txt", "1 0 d1 1\n")
    data = open_dataset(tmp_path / "set")
    assert heard(data.documents)[0] == [Document("d1", "Bees")]
    assert data.queries("dev") == [Query("1", "warm")]


# Passages


def test_passages_end_between_paragraphs_sentences_and_words_in_this_order() -> None:
    text = "One two.\n\nThree four. Five six seven eight. Nine!\n\nTen"
    (whole,) = resolve_documents([Document("d", text, "T")], passages=50)
    assert whole == Document("d#1", text, "T")
    passages = [document.text for document in resolve_documents([Document("d", text)], passages=4)]
    assert passages == ["One two.\n\nThree four.", "Five six seven eight.", "Nine!\n\nTen"]
    assert [d.text for d in resolve_documents([Document("d", "a b c d e")], passages=2)] == ["a b", "c d", "e"]
    assert list(resolve_documents([Document("d", " ")], passages=2)) == [Document("d#1", "")]


# Python objects


@pytest.mark.parametrize(
    "source",
    [
        [BEES, TEA],
        iter([BEES, TEA]),
        {"d1": {"title": "Bees", "text": "Bees keep warm."}, "d2": "Tea, hot."},
        [{"id": "d1", "title": "Bees", "text": "Bees keep warm."}, {"id": "d2", "title": None, "text": "Tea, hot."}],
    ],
)
def test_documents_from_python_objects(source: Any) -> None:
    assert heard(lambda: resolve_documents(source)) == ([BEES, TEA], [])


def test_texts_are_numbered_by_their_place_in_the_list() -> None:
    assert list(resolve_documents(["a", "b"])) == [Document("0", "a"), Document("1", "b")]
    assert heard(lambda: resolve_documents([{"text": "a"}, {"text": "b"}]))[0][1] == Document("1", "b")
    assert resolve_queries(["a"]) == [Query("0", "a")]
    assert resolve_queries({"q": "a"}) == resolve_queries([Query("q", "a")]) == [Query("q", "a")]


def test_objects_of_the_wrong_kind_are_told_what_is_right() -> None:
    for source in (7, [7], [b"text"], {"d": 7}):
        with pytest.raises(RankwellError, match=r"documents: expected a file name, a list of texts, .* found"):
            list(resolve_documents(source))
    for source in ([Document("a b", "x")], {"a b": "x"}):
        with pytest.raises(RankwellError, match="document id 'a b' holds whitespace"):
            list(resolve_documents(source))
    with pytest.raises(RankwellError, match="query id 'q' comes twice"):
        resolve_queries([Query("q", "a"), Query("q", "b")])


# Other packages


def test_pandas_frames() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"id": [1, 2], "title": ["Bees", None], "text": ["Bees keep warm.", "Tea"]})
    documents, _ = heard(lambda: resolve_documents(frame))
    assert documents == [Document("1", "Bees keep warm.", "Bees"), Document("2", "Tea")]
    queries, _ = heard(lambda: resolve_queries(frame[["id", "text"]]))
    assert queries == [Query("1", "Bees keep warm."), Query("2", "Tea")]
    with pytest.raises(InputError, match="documents, row 1: key 'text': expected a string, found a number"):
        list(resolve_documents(pandas.DataFrame({"id": [1, 2], "text": ["a", float("nan")]})))


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_columnar_files(kind: str, tmp_path: Path) -> None:
    pyarrow, parquet, feather = (pytest.importorskip(f"pyarrow{part}") for part in ("", ".parquet", ".feather"))
    rows = [{"_id": d.docid, "text": d.text, "title": d.title, "vector": [0.0] * 9} for d in (BEES, TEA)]
    table, path = pyarrow.Table.from_pylist(rows), tmp_path / f"a.{kind}"
    write = parquet.write_table if kind == "parquet" else feather.write_feather
    write(table, path)
    assert heard(lambda: read_documents(path)) == ([BEES, TEA], [])
    write(pyarrow.Table.from_pylist([{"_id": "1", "text": "a"}, {"_id": "2", "text": None}]), path)
    with pytest.raises(InputError, match=rf"a\.{kind}, row 2: key 'text': expected a string, found null"):
        list(read_documents(path))
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(InputError, match=rf"a\.{kind}: not a readable"):
        read_documents(path)
    if kind == "parquet":  # Feather writes no such table
        texts = pyarrow.array(["a"])
        write(pyarrow.table([texts, texts, texts], names=["_id", "text", "text"]), path)
        with pytest.raises(InputError, match="several columns are called 'text'; rename all but one"):
            read_documents(path)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_values_that_python_has_no_type_for_are_one_line(kind: str, tmp_path: Path) -> None:
    pyarrow, parquet, feather = (pytest.importorskip(f"pyarrow{part}") for part in ("", ".parquet", ".feather"))
    write = parquet.write_table if kind == "parquet" else feather.write_feather
    for numbers, type in (((2**30, "int32"), "date32"), ((2**62, "int64"), pyarrow.timestamp("us"))):
        column = pyarrow.array(numbers[:1], numbers[1]).cast(type)
        write(pyarrow.table({"_id": ["1"], "text": ["a"], "date": column}), tmp_path / f"a.{kind}")
        with pytest.raises(InputError, match=rf"a\.{kind}, line 1: not a readable"):
            list(read_documents(tmp_path / f"a.{kind}"))


@pytest.mark.parametrize("compression", ["zstd", "lz4"])
def test_a_damaged_arrow_file_is_one_line(compression: str, tmp_path: Path) -> None:
    pyarrow, feather = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.feather")
    path, own = tmp_path / "a.arrow", random.Random(1)
    columns = {"_id": ["1", "2"] * 40, "text": ["Bees keep warm. " * 9, "Tea"] * 40, "words": [["a"]] * 80}
    feather.write_feather(pyarrow.table(columns), path, compression=compression)
    content, whole = path.read_bytes(), 0
    for _ in range(400):
        damaged = bytearray(content)
        damaged[own.randrange(8, len(content))] = own.randrange(256)
        path.write_bytes(damaged)
        with suppress(InputError):
            list(read_documents(path))
            whole += 1
    assert whole < 300


def test_data_sets_of_hugging_face(file: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    for split in ("train", "test"):
        file(f"set/{split}.jsonl", json.dumps({"_id": split, "text": "Bees", "title": ""}) + "\n")
    name = f"hf:{tmp_path / 'set'}"
    assert list(resolve_documents(f"{name}:test")) == [Document("test", "Bees")]
    assert read_queries(f"{name}:train") == [Query("train", "Bees")]
    with pytest.raises(InputError, match=r"say which split, as in .*:SPLIT \(splits: train, test\)"):
        resolve_documents(name)
    for part, line in (("a", '{"_id": "d1", "text": "Bees"}\n'), ("b", "{")):  # the columns are those of the first
        file(f"broken/train-{part}.jsonl", line)
    with pytest.raises(InputError, match=r"broken, line 2: not a readable data set \(JSON parse error"):
        list(resolve_documents(f"hf:{tmp_path / 'broken'}"))
    for name in ("no/such-data", "/", "x" * 300 + "/y"):
        with pytest.raises(InputError, match="not a readable data set"):
            resolve_documents(f"hf:{name}")
    for name in ("", "a/b\n", "\ud800", "../x/y", f"{tmp_path}/none/a", "/etc/none"):  # nobody walks /etc
        with pytest.raises(InputError, match="no such folder, and not OWNER/NAME") as caught:
            resolve_documents(f"hf:{name}")
        assert "\n" not in str(caught.value)


def test_a_missing_package_is_named_with_its_command(
    file: Write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in ("pyarrow", "pyarrow.parquet", "datasets"):
        monkeypatch.setitem(__import__("sys").modules, module, None)
    with pytest.raises(MissingExtraError, match=r"pip install 'rankwell\[parquet\]'"):
        read_documents(file("a.parquet", "PAR1"))
    with pytest.raises(MissingExtraError, match=r"hf:owner/name needs .*pip install 'rankwell\[hf\]'"):
        resolve_documents("hf:owner/name\n")


@pytest.mark.parametrize(
    "part",
    ["<a ", '<a a="', "<!--", "</", "<?", "<![CDATA[", "<", "<svg>", "</noscript>", "<script>", "<a = ", "&amp", "<p>"],
)
def test_a_page_of_broken_markup_is_read_in_a_moment(part: str) -> None:
    begin = time.process_time()
    title, text = read_page(f"<p>bees</p>{'<svg>' * 20_000 if part == '</noscript>' else ''}{part * 40_000}")
    assert text.startswith("bees")
    assert title == ""
    assert time.process_time() - begin < 60  # some of these took html.parser minutes


@pytest.mark.parametrize(
    ("page", "text"),
    [
        ("x < y and 3<4", "x < y and 3<4"),
        ("<a href='a>b' title=\"q>r\">link</a><br/>n<!-- c > --> m", "link\nn m"),
        ("<svg><title>no</title>t</svg> end &lt;b&gt;", "end <b>"),
        ('<p title=""">stray quote</p> after', "stray quote\nafter"),
        ("before <b unfinished", "before"),
        ("<style>p > a { }</style><!DOCTYPE html><?php ?>text", "text"),
        ("&#65;&#x42;&#00067; &#0; &#; &#x110000;", "ABC \ufffd &#; \ufffd"),
        (f"a&#{'0' * 5000}66;c &#{'9' * 5000};", "aBc \ufffd"),
    ],
)
def test_a_page_is_read_as_browsers_do(page: str, text: str) -> None:
    assert read_page(page) == ("", text)


def test_a_deep_folder_is_read_and_links_out_of_it_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    (tmp_path / "secret.txt").write_text("a secret")
    (folder / "inside.txt").write_text("a note")
    (folder / "out.txt").symlink_to(tmp_path / "secret.txt")
    (folder / "in.txt").symlink_to(folder / "inside.txt")
    here = os.open(folder, os.O_RDONLY)
    for _ in range(1100):  # deeper than Python's functions may call themselves
        os.mkdir("d", dir_fd=here)
        below = os.open("d", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    try:
        with pytest.warns(Notice, match="1 links out of the folder"):
            found = {document.docid: document.text for document in TextFolder(folder).documents()}
    finally:
        subprocess.run(["rm", "-r", folder / "d"], check=True)  # shutil cannot
    assert found == {"inside.txt": "a note", "in.txt": "a note"}


def test_several_fields_are_the_text_and_stay_fields(file: Write) -> None:
    csv = file("a.csv", "sku,name,description,brand,price\ns1,Kettle,Boils water.,Casa,29\ns2,Pan,,Casa,\n")
    columns = Columns("sku", ["description", "brand", "price"], "name")
    documents, notices = heard(lambda: read_documents(csv, columns))
    assert [document.text for document in documents] == ["Boils water.\nCasa\n29", "Casa"]
    assert [document.metadata for document in documents] == [{"brand": "Casa", "price": p} for p in (29.0, "")]
    assert "id: 'sku', text: 'description', text: 'brand', text: 'price', title: 'name'" in notices[0]
    assert "not searched" not in notices[0]
    [kettle, _], _ = heard(lambda: read_documents(csv, Columns("sku", ["name", "brand"])))
    assert (kettle.text, kettle.title) == ("Kettle\nCasa", "")  # what is text is not the title as well
    rows = [{"id": "a", "text": "Boils.", "tags": ["new", "eco"]}, {"id": "b", "text": "Cuts."}]
    texts = [document.text for document in resolve_documents(rows, Columns(text=["text", "tags"]))]
    assert texts == ["Boils.\nnew, eco", "Cuts."]
    with pytest.raises(RankwellError, match="no field 'color' for the text"):
        read_documents(csv, Columns("sku", ["description", "color"]))


def test_front_matter_is_the_title_and_fields_of_a_note(tmp_path: Path) -> None:
    for name, content in {
        "a.md": "\ufeff---\r\ntitle: Vacation\r\ntags: [hr, leave]\r\ndate: 2024-05-01\r\n---\r\n\r\nThirty days.\r\n",
        "b.md": "---\ntags: hr\n---\n# Heading\n\nText.\n",
        "c.md": "---\nno yaml: [\n---\nText.\n",
        "d.md": "---\nA rule, not fields.\n",
        "e.txt": "---\ntitle: Not Markdown\n---\n",
    }.items():
        (tmp_path / name).write_text(content, newline="")
    a, b, c, d, e = resolve_documents(tmp_path)
    fields = {"tags": ["hr", "leave"], "date": datetime.date(2024, 5, 1)}
    assert (a.title, a.text, a.metadata) == ("Vacation", "Thirty days.", fields)
    assert (b.title, b.text, b.metadata) == ("Heading", "Text.", {"tags": "hr"})
    assert [document.text[:3] for document in (c, d, e)] == ["---"] * 3
    index = Index.build(tmp_path)
    assert index.search("days", filter="date >= '2024-05-01' and tags = 'leave'").docids == ("a.md",)
