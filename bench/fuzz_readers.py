"""Fuzz what rankwell reads: each input is read, or is an error of one line, in a second.

    python bench/fuzz_readers.py --inputs 1000000 --seed 1        # some ten minutes
    python bench/fuzz_readers.py --kinds index model              # only these

========  =============================================================================================================
texts     a small file of some format is mutated and given to every reader of text files
bodies    so is a request, to every format of the service
recipe    a recipe that ships is mutated and read
model     one JSON file of a model is mutated; configuration and tokenizer are read, and a text is tokenised
index     one file of an index is mutated, near its beginning, in half of the cases without its checksums; the index
          is opened and searched, and a text is read
========  =============================================================================================================

An input counts once for each reader. Prints how many were read, refused, and went wrong, with the first input of each
kind that did. If one takes longer than a minute, prints where it is and ends.
"""

from __future__ import annotations

import faulthandler
import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from harness import ROOT, make_parser
from rankwell import Query, sample
from rankwell.core.errors import RankwellError
from rankwell.core.manifest import read_json
from rankwell.core.yamlfile import YamlError, parse_yaml
from rankwell.corpus.datasets import open_dataset
from rankwell.corpus.formats import read_documents, read_qrels, read_queries, read_run, read_types, read_weights
from rankwell.corpus.formats.texts import read_examples, read_expansions, read_labelled, read_triples
from rankwell.corpus.sources import read_text_file
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import read_ranker_config
from rankwell.models.checkpoints.describe import describe
from rankwell.retrieve.index import Index
from rankwell.serve.api import rerank_shape
from rankwell.serve.formats import EmbeddingsRequest, Explain, MixedbreadRerank, Rerank, ScoreRequest, Search
from rankwell.serve.requests import ApiError, parse, validated
from rankwell.training.recipe_reader import read_recipe

HANGS_AFTER = 60
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
    *(b"9" * 400, b"-1", b"1e999", b"NaN", b"null", b"true", b"\\ud800", b"\\u0000", b"&a ", b"*a", b"!!int ", b"? "),
    *(b"[" * 1500, b'{"a":' * 1500, b"id", b"text", b"\x1f\x8b", b"PAR1", b"%PDF-", b"PK\x03\x04", b"\xe2\x80\xa8"),
]
BODIES = [
    b'{"query": "bees", "documents": ["a", {"text": "b"}], "top_n": 1, "return_documents": true}',
    b'{"query": "bees", "documents": ["a"], "top_k": null, "model": "m", "timeout_ms": 5}',
    b'{"query": "bees", "texts": ["a", "b"], "raw_scores": true, "truncate": false, "return_text": true}',
    b'{"query": "bees", "input": ["a", {"text": "b"}], "top_k": 3, "return_input": true}',
    b'{"text_1": "bees", "text_2": ["a", "b"]}',
    b'{"input": ["a", "b"], "encoding_format": "base64", "input_type": "query"}',
    b'{"query": "bees", "k": 10, "offset": 2, "stages": "both", "depth": 20, "highlight": false, "type": "auto"}',
    b'{"query": "bees", "docid": "d1", "layer": 1, "head": "mean", "attention": "strm", "markers": true, "links": 5}',
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
    *(read_triples, read_examples, read_labelled, read_json),
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
]


def mutate(chance: random.Random, seeds: list[bytes], reach: int | None = None) -> bytes:
    """One of ``seeds`` with up to six changes, in the first ``reach`` bytes."""
    content = bytearray(chance.choice(seeds))
    for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
        place, kind = chance.randrange(min(len(content), reach or len(content)) + 1), chance.randrange(5)
        if kind == 0:
            content[place:place] = chance.choice(TOKENS)
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


Call = tuple[bytes, Callable[[], Any]]
"""An input, and what reads it."""


def fuzz_texts(chance: random.Random, folder: Path) -> Iterator[Call]:
    """Files of all formats."""
    while True:
        content = mutate(chance, SEEDS)
        path = folder / chance.choice(NAMES)
        path.write_bytes(content)
        yield from ((content, partial(read, path)) for read in READERS)


def fuzz_bodies(chance: random.Random, folder: Path) -> Iterator[Call]:
    """Requests of all formats."""
    while True:
        content = mutate(chance, BODIES)
        yield from ((content, partial(read, content)) for read in BODY_READERS)


def fuzz_recipe(chance: random.Random, folder: Path) -> Iterator[Call]:
    """Recipes."""
    seeds = [path.read_bytes() for path in sorted((ROOT / "recipes").glob("*.yaml"))]
    path = folder / "recipe.yaml"
    while True:
        content = mutate(chance, seeds)
        path.write_bytes(content)
        yield content, lambda: read_recipe(path, ["data=my-data"])


def changed_files(chance: random.Random, files: list[Path], reach: int | None = None) -> Iterator[bytes]:
    """Change one of the files at a time, and restore it afterwards."""
    contents = {path: path.read_bytes() for path in files}
    while True:
        path = chance.choice(files)
        changed = mutate(chance, [contents[path]], reach)
        path.write_bytes(changed)
        yield path.name.encode() + b": " + changed
        path.write_bytes(contents[path])


def fuzz_model(chance: random.Random, folder: Path) -> Iterator[Call]:
    """The settings and the tokenizer of a model."""
    from tokenizers.implementations.bert_wordpiece import BertWordPieceTokenizer

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "##e", "##s", "bee", "warm"]
    BertWordPieceTokenizer({word: number for number, word in enumerate(words)}).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": true, "model_max_length": 512, "unk_token": "x"}')
    (folder / "config.json").write_bytes((sample.FOLDER.parent / "shipped/rankwell-mini/config.json").read_bytes())
    (folder / "rankwell.json").write_text('{"version": 1, "template": {"name": "mono", "max_length": 100}}')

    def read() -> None:
        describe(folder).encoder_config()
        read_ranker_config(folder)
        Tokenizer.open(folder).encode(["Bees keep warm.", "a" * 60 + "!"], stems=True)

    for content in changed_files(chance, sorted(folder.glob("*.json"))):
        yield content, read


def fuzz_index(chance: random.Random, folder: Path) -> Iterator[Call]:
    """The files of an index, with and without checksums."""
    documents = list(open_dataset(sample.FOLDER).documents())[:50]
    for checked in ("checked", "unchecked"):
        Index.build(documents, folder / checked / "index")
    for table in (folder / "unchecked").rglob("checksums*"):
        table.unlink()
    files = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.stat().st_size]

    def read() -> None:
        for name in ("checked", "unchecked"):
            index = Index.open(folder / name / "index")
            found = index.search([Query("1", "how do bees keep warm"), Query("2", "the king of rivers")], k=10)
            index.texts(found["1"].docids)

    for content in changed_files(chance, files, reach=300):
        yield content, read


KINDS: dict[str, tuple[Callable[[random.Random, Path], Iterator[Call]], int]] = {
    "texts": (fuzz_texts, 5 * len(READERS)),
    "bodies": (fuzz_bodies, 3 * len(BODY_READERS)),
    "recipe": (fuzz_recipe, 2),
    "model": (fuzz_model, 2),
    "index": (fuzz_index, 1),
}
"""What makes the inputs of a kind, and how many are read in turn."""


def outcome_of(read: Callable[[], Any]) -> str:
    started, outcome = time.process_time(), "read"
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
    return f"slow: {outcome}" if time.process_time() - started > 1 else outcome


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--inputs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    counts, wrong = {kind: Counter[str]() for kind in options.kinds}, dict[tuple[str, str], bytes]()
    with tempfile.TemporaryDirectory() as scratch:
        calls = {}
        for kind in options.kinds:
            (folder := Path(scratch) / kind).mkdir()
            calls[kind] = KINDS[kind][0](random.Random(f"{kind} {options.seed}"), folder)
            for _ in range(20):  # the first calls import modules
                outcome_of(next(calls[kind])[1])
        while sum(count.total() for count in counts.values()) < options.inputs:
            for kind in options.kinds:
                faulthandler.dump_traceback_later(HANGS_AFTER, exit=True)
                for _ in range(KINDS[kind][1]):
                    content, read = next(calls[kind])
                    outcome = outcome_of(read)
                    counts[kind][outcome] += 1
                    if outcome not in ("read", "refused"):
                        wrong.setdefault((kind, outcome), content)
    for kind, count in counts.items():
        print(f"{kind}: {count.total():,} inputs: " + ", ".join(f"{n:,} {name}" for name, n in count.most_common()))
    for (kind, outcome), content in wrong.items():
        print(f"{kind}: {outcome}\n    {content[:600]!r}")


if __name__ == "__main__":
    main()
