"""Fuzz what rankwell reads: each input is read, or is an error of one line, in a second and within 256 MiB.

    make fuzz MINUTES=10                                          # another seed each time
    python bench/fuzz_readers.py --inputs 1000000 --seed 1        # some ten minutes
    python bench/fuzz_readers.py --kinds index model              # only these
    python bench/fuzz_readers.py --replay tests/fuzz              # the inputs found so far; exits with 1 if one fails

========  =============================================================================================================
texts     a small file of some format is mutated and given to every reader of text files
pages     a web page is mutated, also into one of 100 KB, and read
folders   a folder of files and links with odd names, of any depth, is read as a collection
tables    Parquet, Arrow and packed files and stored runs are mutated and given to every reader of tables; two are small
          on disk and large unpacked
hub       odd names of data sets of the hub, and data sets in a folder, mutated, are read as collections
words     odd characters are divided into words, in every language
bodies    a request is mutated and given to every format of the service, and to the reader of new documents
filters   a filter is mutated and read, as a text and as a dict
recipe    a recipe that ships is mutated and read
model     one JSON file of a model is mutated; configuration and tokenizer are read, and a text is tokenised
index     one file of an index is mutated, near its beginning, in half of the cases without its checksums; the index
          is opened and searched, and a text is read
========  =============================================================================================================

An input counts once for each reader. Prints how many were read, refused, and went wrong, with the first input of each
kind that did; ``--keep FOLDER`` also writes these to files. Ends, and prints where, if one takes over a minute.
"""

from __future__ import annotations

import faulthandler
import gzip
import hashlib
import json
import logging
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

from harness import ROOT, make_parser
from rankwell import Query, sample
from rankwell.core.errors import RankwellError
from rankwell.core.manifest import read_json
from rankwell.core.yamlfile import YamlError, parse_yaml
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.filters import parse_filter
from rankwell.corpus.formats import (
    read_documents,
    read_qrels,
    read_queries,
    read_run,
    read_types,
    read_weights,
    write_run,
)
from rankwell.corpus.formats.clicks import read_clicks
from rankwell.corpus.formats.pairs import judged_queries
from rankwell.corpus.formats.texts import read_examples, read_expansions, read_triples
from rankwell.corpus.languages import LANGUAGES
from rankwell.corpus.records import Document, Ranking, Run
from rankwell.corpus.sources import TextFolder, read_text_file
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import read_ranker_config
from rankwell.models.checkpoints.describe import describe
from rankwell.papers.drbert.labelled_texts import read_labelled
from rankwell.retrieve.index import Index
from rankwell.serve.bodies import ApiError, parse, parse_documents, validated
from rankwell.serve.formats import EmbeddingsRequest, Explain, MixedbreadRerank, Rerank, ScoreRequest, Search
from rankwell.serve.paths import rerank_shape
from rankwell.training.recipe_reader import read_recipe

LARGE_KB = 256 << 10
HANGS_AFTER = 60
FIRST = 20
SEEDS = [
    b"d1\tBees keep warm.\nd2\tTea\n",
    b"id\ttitle\ttext\nd1\tBees\tBees keep warm.\n",
    b'id,title,text\nd1,Bees,"Bees, ""warm""\nhere"\n',
    b"id;text\n1;a\n2;b\n",
    b'{"_id": "d1", "text": "Bees", "title": "B"}\n{"_id": 7, "text": "Tea"}\n',
    b'[{"id": 1, "text": "a"},\n {"id": 2, "text": "b"}]',
    b'["a", "b"]',
    b"1 Q0 d1 1 2.5 tag\n1 Q0 d2 2 1.5 tag\n",
    b"1\td1\t1\n1\td2\t2\n",
    b"1 0 d1 1\n2 0 d2 0\n",
    b"query-id\tcorpus-id\tscore\n1\td1\t1\n",
    b"query,document,grade\nhow do bees,d1,1\ntea,d2,0\n",
    b"query_id,doc_id,position,impressions,clicks\n1,d1,1,20,3\n1,d2,2,20,1\n",
    b'{"id": "d1", "vector": {"bee": 1.5}}\n',
    b'{"docid": "d1", "queries": ["a", "b"]}\n',
    b'{"query": "q", "pos": ["a"], "neg": ["b"]}\n',
    b"q\ta\tb\n",
    b"NUM:dist\tHow far ?\nLOC:city\tWhere ?\n",
    b"name: small\nstages: {one: &a {x: 1}, two: {<<: *a}}\n",
    b"<html><title>T</title><p>a &amp; b<script>x</script>",
    b"# Heading\n\ntext\n",
]
TOKENS = [
    *(b"\t", b"\n", b"\r\n", b",", b'"', b"{", b"}", b"[", b"]", b":", b" ", b"#", b"\0", b"\xff", b"\xef\xbb\xbf"),
    *(b"9" * 400, b"9" * 5000, b"10000000000000000000", b"-1", b"1e999", b"NaN", b"null", b"true"),
    *(b"\\ud800", b"\\u0000", b"&a ", b"*a", b"!!int ", b"? "),
    *(b"[" * 1500, b'{"a":' * 1500, b"id", b"text", b"\x1f\x8b", b"PAR1", b"%PDF-", b"PK\x03\x04", b"\xe2\x80\xa8"),
]
PAGES = [
    b"<html><head><title>Bees</title><style>p {}</style></head><body><h1>Warm</h1><p>a &amp; b<br>c</p></body></html>",
    b"<!doctype html><a href=\"x\" title='y'>link</a><!-- n --><script>if (a < b) {}</script><textarea><p></textarea>",
    b"<table><tr><td>1<td>2</table><![CDATA[x]]><?php x ?><svg><title>t</title></svg>&#x110000;&#0;&notin;&amp",
]
PAGE_TOKENS = [
    *(b"<", b"</", b"<a ", b'<a a="', b"<a a='", b"<!", b"<!--", b"-->", b"<![CDATA[", b"<?", b">", b"/>", b"&", b"&#"),
    *(b"<script", b"<title>", b"</title", b"<style>", b"<p", b"=", b"<svg>", b"<textarea>", b"\0", b"\xff"),
    *(b"&#99999999999;", b"&#" + b"0" * 5000 + b"65;"),
]
FILE_NAMES = (
    "a.txt",
    "b.html",
    "c.md",
    "d.HTM",
    "e.pdf",
    ".hidden.txt",
    "\u00e9 \n%.txt",
    "-x.txt",
    "f.txt.gz",
    "\udcff.md",
)
BODIES = [
    b'{"query": "bees", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": true}',
    b'{"query": "bees", "documents": ["a"], "top_k": null, "model": "m", "timeout_ms": 5}',
    b'{"query": "bees", "texts": ["a", "b"], "raw_scores": true, "truncate": false, "return_text": true}',
    b'{"query": "bees", "input": ["a", {"text": "b"}], "top_k": 3, "return_input": true}',
    b'{"text_1": "bees", "text_2": ["a", "b"]}',
    b'{"input": ["a", "b"], "encoding_format": "base64", "input_type": "query"}',
    b'{"query": "bees", "k": 10, "from": 2, "stages": "both", "depth": 20, "highlight": false, "type": "auto"}',
    b'{"query": "bees", "id": "d1", "layer": 1, "head": "mean", "attention": "strm", "markers": true, "links": 5}',
]
FILTERS = [
    b"year >= 2015 and lang = 'de'",
    b"lang in ('de', \"fr\") and not (tags != 'draft' or `a b` > -9.5e3) or date < '2024-05-01'",
    b'{"year": {"$gte": 2015}, "$or": [{"lang": "de"}, {"tags": {"$in": ["a", 1, true]}}], "$not": {"a": null}}',
]
FILTER_TOKENS = [*TOKENS, b"(" * 200, b"not " * 200, b"'", b"''", b"`", b" and ", b" in (", b'{"$and": [' * 60, b"$gt"]
CHARACTERS = [
    *(
        "a",
        "B",
        "_",
        "-",
        "'s",
        "\u2019",
        ".",
        "1.2",
        "C++",
        " ",
        "\n",
        "\0",
        "\u200b",
        "\ufeff",
        "\u2028",
        "\u0301",
        "\xdf",
    ),
    *("\u0130", "l'", "\ud800", "\udfff", "\U0001f600", "\U0010ffff", "x" * 300, "\xe9" * 200, "7" * 500, "\u3042"),
    *("\uac00", "\u4e00", "\u0e01\u0e32", "\u0e81\u0ea5", "\u1780\u17b6", "\u1000\u102c", "\u0ba4", "\u0639"),
]
NAMES = ("a", "a.tsv", "a.csv", "a.json", "a.jsonl", "a.txt")


def drain(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
    """Read all of a file, also where it is streamed."""

    def call(path: Path) -> None:
        found = read(path)
        if isinstance(found, Iterable):
            list(found)

    return call


def read_page(path: Path) -> None:
    """The file as a web page."""
    read_text_file(path.rename(path.with_name("a.html")), "a")


TEXT_READERS: tuple[Callable[[Path], Any], ...] = (
    *(read_documents, read_queries, read_run, read_qrels, read_types, read_weights, read_expansions),
    *(read_triples, read_examples, read_labelled, read_json, read_clicks, judged_queries),
)
READERS: list[Callable[[Path], Any]] = [
    *map(drain, TEXT_READERS),
    lambda path: parse_yaml(path.read_bytes().decode("utf-8", "replace")),
    read_page,  # last: it renames the file
]


def read_rerank(raw: bytes) -> None:
    """The body of a re-ranking request whose format is known by its fields."""
    fields = parse(raw)
    validated(rerank_shape(fields), fields).document_texts()


def read_shape(shape: Any) -> Callable[[bytes], None]:
    """Read a body of one format."""

    def call(raw: bytes) -> None:
        body = validated(shape, parse(raw))
        if isinstance(body, Rerank):
            body.document_texts()

    return call


BODY_READERS: list[Callable[[bytes], Any]] = [
    read_rerank,
    *map(read_shape, (MixedbreadRerank, ScoreRequest, EmbeddingsRequest, Search, Explain)),
    parse_documents,
]


def mutate(chance: random.Random, seeds: list[bytes], reach: int | None = None, tokens: list[bytes] = TOKENS) -> bytes:
    """One of ``seeds`` with up to six changes, in the first ``reach`` bytes."""
    content = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
        place, kind = chance.randrange(min(len(content), reach or len(content)) + 1), chance.randrange(5)
        if kind == 0:
            content[place:place] = chance.choice(tokens)
        elif kind == 1:
            del content[place : place + chance.randrange(1, 8)]
        elif kind == 2 and place < len(content):
            content[place] = chance.randrange(256)
        elif kind == 3:
            content[place:place] = chance.choice(seeds)[:1000]
        else:
            end = place + chance.randrange(1, 20)
            content[place:place] = bytes(content[place:end]) * chance.choice((1, 2, 50))
    return bytes(content)


Calls = Iterator[Callable[[], Any]]
"""The readers of an input."""


@dataclass(frozen=True)
class Kind:
    """A kind of input: ``make`` returns one, ``calls`` the readers of one. Both may use a folder of the kind's own."""

    make: Callable[[random.Random, Path], bytes]
    calls: Callable[[bytes, Path], Calls]
    share: int
    """How many inputs are read in turn."""
    prepare: Callable[[Path], None] = lambda folder: None


def call_texts(content: bytes, folder: Path) -> Calls:
    """Read a file under one of the names; which one follows from its contents."""
    path = folder / NAMES[sum(content) % len(NAMES)]
    path.write_bytes(content)
    yield from (partial(read, path) for read in READERS)


def make_page(chance: random.Random, folder: Path) -> bytes:
    """A web page, and now and then one of up to 100 KB."""
    if chance.random() < 0.05:
        parts = [chance.choice(PAGE_TOKENS) for _ in range(chance.randrange(1, 4))]
        return b"<p>bees</p>" + b"".join(parts) * (100_000 // sum(map(len, parts)))
    return mutate(chance, PAGES, tokens=PAGE_TOKENS)


def call_page(content: bytes, folder: Path) -> Calls:
    """Read a web page."""
    (folder / "a.html").write_bytes(content)
    yield lambda: read_text_file(folder / "a.html", "a")


def make_folder(chance: random.Random, folder: Path) -> bytes:
    """A folder as JSON: contents by path; those of a link are its target."""
    files = {}
    for _ in range(chance.randrange(1, 6)):
        depth = chance.choice((0, 0, 1, 3, 3, 400))
        place = "/".join([chance.choice(("d", "d", "e", ".f"))] * depth + [chance.choice(FILE_NAMES)])
        link = chance.choice(("-> /etc/passwd", "-> ..", "-> a.txt", "-> d", "-> nowhere"))
        made = mutate(chance, SEEDS, tokens=PAGE_TOKENS).decode("latin-1")
        files[place] = link if chance.random() < 0.2 else made
    return json.dumps(files).encode()


def call_folder(content: bytes, folder: Path) -> Calls:
    """Read a folder as a collection."""
    tree = folder / "tree"
    tree.mkdir()
    back = os.open(".", os.O_RDONLY)
    for name, text in json.loads(content).items():
        *folders, last = os.fsencode(name).split(b"/")
        os.chdir(tree)  # level by level: a path has at most 4,096 bytes
        try:
            for part in folders:
                os.makedirs(part, exist_ok=True)
                os.chdir(part)
            if text.startswith("-> "):
                os.symlink(text[3:], last)
            else:
                Path(os.fsdecode(last)).write_bytes(text.encode("latin-1"))
        except OSError:  # a file of this name is there
            pass
        finally:
            os.fchdir(back)
    os.close(back)

    def read() -> None:
        for document in TextFolder(tree).documents():
            assert "root:x:" not in document.text, "a link out of the folder was followed"

    yield read
    subprocess.run(["rm", "-r", tree], check=True)  # shutil.rmtree recurses


def call_filters(content: bytes, folder: Path) -> Calls:
    """Read a filter."""
    text = content.decode("utf-8", "replace")
    yield lambda: parse_filter(text)
    yield lambda: parse_filter(parse(content))


def make_recipe(chance: random.Random, folder: Path) -> bytes:
    """One of the recipes that ship, mutated."""
    return mutate(chance, [path.read_bytes() for path in sorted((ROOT / "recipes").glob("*.yaml"))])


def call_recipe(content: bytes, folder: Path) -> Calls:
    """Read a recipe."""
    path = folder / "recipe.yaml"
    path.write_bytes(content)
    yield lambda: read_recipe(path, ["data=my-data"])


def changed_file(chance: random.Random, folder: Path, reach: int | None = None) -> bytes:
    """One of the folder's files, mutated, after a line with its path."""
    path = chance.choice([path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size])
    return os.fsencode(path.relative_to(folder)) + b"\n" + mutate(chance, [path.read_bytes()], reach)


def with_changed_file(read: Callable[[Path], Any]) -> Callable[[bytes, Path], Calls]:
    """Change a file, read it or its folder, and restore it."""

    def calls(content: bytes, folder: Path) -> Calls:
        name, _, changed = content.partition(b"\n")
        path = folder / os.fsdecode(name)
        before = path.read_bytes()
        path.write_bytes(changed)
        yield partial(read, path)
        path.write_bytes(before)

    return calls


def prepare_tables(folder: Path) -> None:
    """Files with rows."""
    import pyarrow as pa
    from pyarrow import parquet

    rows = pa.table({"id": ["d1", "d2"] * 20, "text": ["Bees keep warm.", "Tea"] * 20, "n": list(range(40))})
    parquet.write_table(rows, folder / "a.parquet")
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_file(file, rows.schema) as writer:
        writer.write_table(rows)
    texts = rows["text"]
    parquet.write_table(pa.table([texts, texts, texts], names=["id", "text", "text"]), folder / "twice.parquet")
    parquet.write_table(pa.table({"id": pa.nulls(3), "text": pa.nulls(3)}), folder / "nulls.parquet")
    parquet.write_table(rows.slice(0, 0), folder / "none.parquet")
    import numpy as np
    from pyarrow import feather

    # Columns of every kind, and values that Python has no type for.
    kinds = {
        "lists": [["a", "b"], []] * 20,
        "maps": pa.array([[("k", "v")], None] * 20, pa.map_(pa.string(), pa.string())),
        "structs": [{"a": 1, "b": ["z"]}] * 40,
        "bytes": [b"\xff\xfe"] * 40,
        "decimals": pa.array([1] * 40, pa.decimal128(5)),
        "coded": pa.array(["p", "q"] * 20).dictionary_encode(),
        "dates": pa.array([2**30] * 40, pa.int32()).cast("date32"),
        "zones": pa.array([0] * 40, pa.timestamp("s", "Nowhere/X")),
    }
    rows = pa.table({"id": ["d1", "d2"] * 20, "text": ["Bees keep warm. " * 20, None] * 20, **kinds})
    clicks = {"query_id": [1, 2], "doc_id": ["d1", "d2"], "score": [1, 0], "position": [1, 2]}
    judged = pa.table({**clicks, "impressions": [3, 3], "clicks": [1, 1]})
    for number, (table, packed) in enumerate(product((rows, rows.drop("dates"), judged), ("zstd", "lz4"))):
        feather.write_feather(table, folder / f"{number}.arrow", compression=packed)
        parquet.write_table(table, folder / f"{number}.parquet", compression=packed)

    # Small on disk, large unpacked: a text in a million rows, and arrays of zeros.
    long = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10**6, np.int8)), pa.array(["x" * 10**5]))
    parquet.write_table(pa.table({"text": long}), folder / "long.parquet", compression="zstd")
    run = {
        "ids": (10**8, np.uint8),
        "ends": (9, np.int64),
        "documents": (10**8, np.int32),
        "scores": (10**8, np.float32),
    }
    arrays: dict[str, Any] = {name: np.zeros(*shape) for name, shape in run.items()}
    np.savez_compressed(folder / "zeros.npz", **arrays)
    write_run(Run({"q": Ranking.of(["d1", "d2"], [2.0, 1.0])}), folder / "a.npz")
    for name, seed in (("a.csv.gz", SEEDS[2]), ("a.jsonl.gz", SEEDS[4])):
        (folder / name).write_bytes(gzip.compress(seed * 50))


def call_table(content: bytes, folder: Path) -> Calls:
    """Read a file as documents, and as one of the other kinds of records, or as a run."""
    readers = (read_queries, read_qrels, read_clicks, read_types, judged_queries, read_triples)
    stored = content.partition(b"\n")[0].endswith(b".npz")
    for read in (read_run,) if stored else (read_documents, readers[sum(content) % len(readers)]):
        yield from with_changed_file(drain(read))(content, folder)


def make_hub(chance: random.Random, folder: Path) -> bytes:
    """The name of a data set, or what follows that of a folder; then a file's name and contents."""
    name = chance.choice((b"", b":train", b":test", b"/a", b":", mutate(chance, [b"owner/name/part:train"])))
    file = chance.choice((b"a.jsonl", b"a.csv", b"a.parquet", b"a.txt", b"a.tsv", b"train.jsonl", b"a.zip", b"a.json"))
    return b"\0".join((name.replace(b"\0", b""), file, mutate(chance, SEEDS)))


def call_hub(content: bytes, folder: Path) -> Calls:
    """Read a data set, of which nothing is loaded from the network."""
    name, file, contents = content.split(b"\0", 2)
    data = folder / "data"
    data.mkdir()
    (data / os.fsdecode(file)).write_bytes(contents)
    reference = str(data) if name[:1] in b":/" else ""
    yield lambda: list(read_documents(f"hf:{reference}{os.fsdecode(name)}"))
    subprocess.run(["rm", "-r", data], check=True)


def make_words(chance: random.Random, folder: Path) -> bytes:
    """Characters that are taken for words, or for none, in one language or another; also halves of pairs."""
    return "".join(chance.choices(CHARACTERS, k=chance.randrange(1, 12))).encode("utf-8", "surrogatepass")


def call_words(content: bytes, folder: Path) -> Calls:
    """Divide a text into words in one of the languages, and index and search it."""
    text, languages = content.decode("utf-8", "surrogatepass"), sorted(LANGUAGES)
    analyzer = Analyzer.of(languages[sum(content) % len(languages)])
    yield lambda: analyzer.words(text)
    yield lambda: Index.build([Document("d", text)], analyzer=analyzer).search([Query("q", text)], k=1)


def prepare_model(folder: Path) -> None:
    """The settings and the tokenizer of a model."""
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "##e", "##s", "bee", "warm"]
    BertWordPieceTokenizer({word: number for number, word in enumerate(words)}).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512, "unk_token": "x"}')
    (folder / "config.json").write_bytes((sample.FOLDER.parent / "shipped/rankwell-mini/config.json").read_bytes())
    (folder / "rankwell.json").write_text('{"version": 1, "template": {"name": "mono", "max_length": 100}}')


def read_model(path: Path) -> None:
    """The model of a changed file."""
    folder = path.parent
    describe(folder).encoder_config()
    read_ranker_config(folder)
    Tokenizer.open(folder).encode(["Bees keep warm.", "a" * 60 + "!"], stems=True)


def prepare_index(folder: Path) -> None:
    """An index with and one without checksums."""
    documents = list(open_dataset(sample.FOLDER).documents())[:50]
    for checked in ("checked", "unchecked"):
        Index.build(documents, folder / checked)
    for table in (folder / "unchecked").rglob("checksums*"):
        table.unlink()


def read_index(path: Path) -> None:
    """The index of a changed file."""
    folder = next(folder for folder in path.parents if folder.name in ("checked", "unchecked"))
    index = Index.open(folder)
    hits = index.search([Query("1", "how do bees keep warm"), Query("2", "the king of rivers")], k=10)
    index.texts(hits["1"].docids)


KINDS = {
    "texts": Kind(lambda chance, folder: mutate(chance, SEEDS), call_texts, 50),
    "pages": Kind(make_page, call_page, 50),
    "folders": Kind(make_folder, call_folder, 1),
    "tables": Kind(changed_file, call_table, 20, prepare_tables),
    "hub": Kind(make_hub, call_hub, 1),
    "words": Kind(make_words, call_words, 2),
    "bodies": Kind(
        lambda chance, folder: mutate(chance, BODIES),
        lambda content, folder: (partial(read, content) for read in BODY_READERS),
        100,
    ),
    "filters": Kind(lambda chance, folder: mutate(chance, FILTERS, tokens=FILTER_TOKENS), call_filters, 100),
    "recipe": Kind(make_recipe, call_recipe, 5),
    "model": Kind(changed_file, with_changed_file(read_model), 5, prepare_model),
    "index": Kind(partial(changed_file, reach=300), with_changed_file(read_index), 1, prepare_index),
}


def outcome_of(read: Callable[[], Any]) -> str:
    """How reading ends: read, refused, or what went wrong."""
    started, peak, outcome = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, "read"
    try:
        read()
    except (RankwellError, YamlError, ApiError) as error:
        outcome = "refused" if "\n" not in str(error) else f"two lines: {type(error).__name__}"
    except FileNotFoundError:
        outcome = "refused"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # also the panics of native code
        outcome = f"traceback: {type(error).__name__}: {str(error)[:80]}"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak > LARGE_KB:
        return f"large: {outcome}"
    return f"slow: {outcome}" if time.process_time() - started > 1 else outcome


class Fuzz:
    """Reads inputs and counts what became of them."""

    def __init__(self, scratch: Path, kinds: Iterable[str], keep: Path | None = None):
        self.folders = {kind: scratch / kind for kind in kinds}
        self.counts = {kind: Counter[str]() for kind in self.folders}
        self.wrong: dict[tuple[str, str], bytes] = {}
        self.keep = keep
        for kind, folder in self.folders.items():
            folder.mkdir()
            KINDS[kind].prepare(folder)

    @property
    def total(self) -> int:
        """The inputs read so far."""
        return sum(count.total() for count in self.counts.values())

    def read(self, kind: str, content: bytes) -> None:
        """Give an input to its readers."""
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
        for read in KINDS[kind].calls(content, self.folders[kind]):
            outcome = outcome_of(read)
            self.counts[kind][outcome] += 1
            if outcome not in ("read", "refused") and (kind, outcome) not in self.wrong:
                self.wrong[kind, outcome] = content
                if self.keep is not None:
                    name = f"{kind}-{hashlib.sha256(content).hexdigest()[:12]}.gz"
                    (self.keep / name).write_bytes(gzip.compress(content, mtime=0))

    def report(self) -> None:
        """Print the counts and what went wrong."""
        for kind, count in self.counts.items():
            print(f"{kind}: {count.total():,} inputs: " + ", ".join(f"{n:,} {name}" for name, n in count.most_common()))
        for (kind, outcome), content in self.wrong.items():
            print(f"{kind}: {outcome}\n    {content[:600]!r}")


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--inputs", type=int, default=None, help="default: 100,000, unless --minutes is given")
    parser.add_argument("--minutes", type=float, default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--keep", type=Path, help="a folder for inputs that go wrong")
    parser.add_argument("--replay", type=Path, help="read only the inputs of this folder")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable()
    most = options.inputs or (100_000 if options.minutes is None else sys.maxsize)
    end = time.monotonic() + 60 * (options.minutes or float("inf"))
    with tempfile.TemporaryDirectory() as scratch:
        os.environ.update(HF_HUB_OFFLINE="1", HF_HOME=f"{scratch}/cache")
        fuzz = Fuzz(Path(scratch), options.kinds, options.keep)
        chances = {kind: random.Random(f"{kind} {options.seed}") for kind in options.kinds}
        for kind in options.kinds:  # the first calls import modules
            for number in range(FIRST):
                content = KINDS[kind].make(random.Random(number), fuzz.folders[kind])
                for read in KINDS[kind].calls(content, fuzz.folders[kind]):
                    outcome_of(read)
        if options.replay is not None:
            for path in sorted(options.replay.glob("*.gz")):
                fuzz.read(path.name.partition("-")[0], gzip.decompress(path.read_bytes()))
        while options.replay is None and fuzz.total < most and time.monotonic() < end:
            for kind in options.kinds:
                for _ in range(KINDS[kind].share):
                    fuzz.read(kind, KINDS[kind].make(chances[kind], fuzz.folders[kind]))
        fuzz.report()
    sys.exit(1 if fuzz.wrong else 0)


if __name__ == "__main__":
    main()
