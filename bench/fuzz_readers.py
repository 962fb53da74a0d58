"""Fuzz every reader of text files with mutated files: each input is read, or is an error of one line, in a second.

    python bench/fuzz_readers.py --seconds 300 --seed 1

Prints how many inputs were read, refused, and went wrong, with the first input of each kind that did.
"""

from __future__ import annotations

import random
import tempfile
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from harness import make_parser
from rankwell.core.errors import RankwellError
from rankwell.core.jsonfile import read_json
from rankwell.core.yamlfile import YamlError, parse_yaml
from rankwell.corpus.formats import read_documents, read_qrels, read_queries, read_run, read_types, read_weights
from rankwell.corpus.formats.expansions import read_expansions
from rankwell.corpus.formats.labelled import read_labelled
from rankwell.corpus.formats.triples import read_examples, read_triples
from rankwell.corpus.text_folder import read_text_file

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


def mutate(chance: random.Random) -> bytes:
    content = bytearray(chance.choice(SEEDS))
    for _ in range(chance.choice((0, 1, 1, 2, 3, 6))):
        place, kind = chance.randrange(len(content) + 1), chance.randrange(5)
        if kind == 0:
            content[place:place] = chance.choice(TOKENS)
        elif kind == 1:
            del content[place : place + chance.randrange(1, 8)]
        elif kind == 2 and place < len(content):
            content[place] = chance.randrange(256)
        elif kind == 3:
            content[place:place] = chance.choice(SEEDS)
        else:
            end = place + chance.randrange(1, 20)
            content[place:place] = bytes(content[place:end]) * chance.choice((1, 2, 50))
    return bytes(content)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance, counts, wrong = random.Random(options.seed), Counter[str](), dict[str, bytes]()
    warnings.simplefilter("ignore")
    begin = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        while time.monotonic() - begin < options.seconds:
            content = mutate(chance)
            path = Path(folder) / chance.choice(NAMES)
            path.write_bytes(content)
            for read in READERS:
                started, outcome = time.process_time(), "read"
                try:
                    read(path)
                except (RankwellError, YamlError) as error:
                    outcome = "refused" if "\n" not in str(error) else f"two lines: {type(error).__name__}"
                except FileNotFoundError:
                    outcome = "refused"
                except Exception as error:
                    outcome = f"traceback: {type(error).__name__}: {str(error)[:80]}"
                if time.process_time() - started > 1:
                    outcome = f"slow: {outcome}"
                counts[outcome] += 1
                if outcome not in ("read", "refused"):
                    wrong.setdefault(outcome, content)
    print(f"{counts.total():,} inputs: " + ", ".join(f"{count:,} {name}" for name, count in counts.most_common()))
    for outcome, content in wrong.items():
        print(f"{outcome}\n    {content[:300]!r}")


if __name__ == "__main__":
    main()
