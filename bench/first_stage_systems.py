"""The corpora and the systems of the first-stage benchmark, each system in its best setting.

Corpora are real collections, and larger ones resampled from ``wiki``. A resampled passage is two windows of running
words taken from two places of the real text, as long together as a real passage drawn at random (shortened in
proportion where a mean length is set). The words, their frequencies and the spread of lengths are thus real, and no two
passages are alike; the vocabulary, however, is that of ``wiki``.

- **rankwell** reads text throughout, so its query times include analysing the query (some 5 µs); the peers are given
  tokens.
- **bm25s** 0.3 does not compile its index builder although ``auto_compile`` is on (the test of NUMBA_DISABLE_JIT is
  inverted), so ``compile`` is called here: less CPU than its NumPy and SciPy builders, though SciPy's needs a little
  less memory. Texts are streamed to its tokeniser; tokens come to it as numbers with a vocabulary, its cheapest input.
  It keeps no document ids.
- **tantivy** indexes frequencies without positions, stores no text and keeps the document's number as a fast field.
  Its k1 = 1.2 and b = 0.75 cannot be changed, and it stores lengths in one byte: same postings, other scores.
"""

from __future__ import annotations

import gzip
import json
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from harness import DATA

MSMARCO_PASSAGES = 8_841_823
MSMARCO_WORDS = 56.0
SEED = 20_240_131
BLOCK = 1 << 16
QUERIES = {"wiki": "queries.questions.dev.tsv", "insuranceqa": "queries.valid.tsv"}
K1, B = 0.9, 0.4
TANTIVY_HEAP = 1_000_000_000
TANTIVY_TEXT = "english"

Hits = list[list[tuple[int, float]]]


class Corpus:
    """One corpus in the cache: ``passages.tsv``, ``queries.tsv`` and, once analysed, the tokens of both."""

    def __init__(self, name: str, folder: Path):
        self.name, self.folder = name, folder
        self.passages, self.queries = folder / "passages.tsv", folder / "queries.tsv"
        self.passage_tokens, self.query_tokens = folder / "passages.tokens", folder / "queries.tokens"

    @property
    def facts(self) -> dict[str, float]:
        facts: dict[str, float] = json.loads((self.folder / "facts.json").read_text())
        return facts


def size(name: str) -> int | None:
    """How many passages the name of a resampled corpus asks for; None for a real collection.

    >>> size("1M"), size("20k"), size("8.8M"), size("wiki")
    (1000000, 20000, 8841823, None)
    """
    if name in QUERIES:
        return None
    if name == "8.8M":
        return MSMARCO_PASSAGES
    unit = {"k": 1_000, "M": 1_000_000}.get(name[-1:], 1)
    try:
        return round(float(name.rstrip("kM")) * unit)
    except ValueError:
        raise SystemExit(f"unknown corpus {name!r}: give {', '.join(QUERIES)}, or a size such as 1M or 8.8M") from None


def prepare(name: str, cache: Path) -> Corpus:
    """The corpus ``name`` in ``cache``, made there if it is not there yet."""
    count = size(name)
    source = DATA / (name if count is None else "wiki")
    corpus = Corpus(name, cache / "corpora" / name)
    if (corpus.folder / "facts.json").exists():
        return corpus
    if not (source / "collection.tsv.gz").exists():
        raise SystemExit(f"{source} has no collection.tsv.gz; set RANKWELL_DATA to the folder of the public data")
    corpus.folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source / QUERIES[source.name], corpus.queries)
    if count is None:
        with gzip.open(source / "collection.tsv.gz") as packed, corpus.passages.open("wb") as plain:
            shutil.copyfileobj(packed, plain, 1 << 20)
        lengths, _ = _words(corpus.passages.read_bytes())
        count, mean = len(lengths), float(lengths.mean())
    else:
        with gzip.open(source / "collection.tsv.gz") as packed:
            text = packed.read()
        mean = _resample(text, count, corpus.passages, MSMARCO_WORDS if count == MSMARCO_PASSAGES else None)
    facts = {"passages": count, "mean_words": round(mean, 1), "bytes": corpus.passages.stat().st_size}
    (corpus.folder / "facts.json").write_text(json.dumps(facts))
    return corpus


def _words(collection: bytes) -> tuple[NDArray[np.int64], bytes]:
    """The words of each passage, counted, and all the text as words separated by single spaces."""
    texts = [b" ".join(line.split(b"\t", 1)[1].split()) for line in collection.splitlines()]
    return np.array([text.count(b" ") + 1 for text in texts], np.int64), b" ".join(texts)


def _resample(collection: bytes, count: int, out: Path, mean_words: float | None) -> float:
    """Write ``count`` new passages; returns their mean length in words."""
    lengths, text = _words(collection)
    starts = np.concatenate([[0], np.flatnonzero(np.frombuffer(text, np.uint8) == ord(" ")) + 1, [len(text) + 1]])
    words = len(starts) - 1
    if mean_words is not None:
        lengths = np.maximum(np.rint(lengths * (mean_words / lengths.mean())).astype(np.int64), 2)
    rng = np.random.default_rng(SEED)
    total = 0
    with out.open("wb") as file:
        for first in range(0, count, BLOCK):
            number = min(BLOCK, count - first)
            length = np.maximum(rng.choice(lengths, number), 2)
            total += int(length.sum())
            bounds: list[list[int]] = []
            for window in (length // 2, length - length // 2):
                begin = rng.integers(0, words - window)
                bounds += [starts[begin].tolist(), (starts[begin + window] - 1).tolist()]
            lines = [
                b"D%d\t%b %b\n" % (first + i, text[a:b], text[c:d])
                for i, (a, b, c, d) in enumerate(zip(*bounds, strict=True))
            ]
            file.write(b"".join(lines))
    return total / count


def read_texts(path: Path, limit: int | None = None) -> Iterator[str]:
    """The second column of a two-column file, line by line."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in islice(file, limit):
            yield line.rstrip("\n").split("\t", 1)[1]


def read_tokens(path: Path, limit: int | None = None) -> Iterator[list[str]]:
    """The tokens of each line of a file that :func:`write_tokens` wrote."""
    with path.open(encoding="utf-8", newline="\n") as file:
        for line in islice(file, limit):
            yield line.split()


def write_tokens(path: Path, batches: Iterator[list[list[str]]]) -> int:
    """Write each text's tokens as one line, separated by spaces; returns the number of tokens."""
    total = 0
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for batch in batches:
            total += sum(map(len, batch))
            file.writelines(" ".join(tokens) + "\n" for tokens in batch)
    return total


class System(Protocol):
    """What is measured of a system, imported when made. ``limit`` takes only the first passages: the warm-up."""

    def index_text(self, corpus: Corpus, folder: Path, limit: int | None = None) -> None: ...

    def index_tokens(self, corpus: Corpus, folder: Path, limit: int | None = None) -> None: ...

    def open(self, folder: Path) -> None: ...

    def load_queries(self, corpus: Corpus) -> None: ...

    def search(self, first: int, last: int, k: int) -> Any: ...

    def hits(self, result: Any) -> Hits: ...


class Rankwell:
    """rankwell: from text to hits."""

    def __init__(self) -> None:
        from rankwell.corpus.formats import read_documents
        from rankwell.retrieve.bm25 import BM25
        from rankwell.retrieve.index import Index

        self.read, self.build, self.load = read_documents, Index.build, Index.open
        self.bm25 = BM25(K1, B)

    def index_text(self, corpus: Corpus, folder: Path, limit: int | None = None) -> None:
        self.build(islice(self.read(corpus.passages), limit), folder, store=False)

    def index_tokens(self, corpus: Corpus, folder: Path, limit: int | None = None) -> None:
        raise NotImplementedError("rankwell indexes text")

    def open(self, folder: Path) -> None:
        self.index = self.load(folder)

    def load_queries(self, corpus: Corpus) -> None:
        self.queries = list(read_texts(corpus.queries))

    def search(self, first: int, last: int, k: int) -> Any:
        terms = self.index.analyzer.terms_batch(self.queries[first:last])
        return self.index.search_terms(terms, self.bm25, k=k)

    def hits(self, result: Any) -> Hits:
        return _pairs(result.numbers, result.scores)


class BM25S:
    """bm25s with its numba backend."""

    def __init__(self) -> None:
        import bm25s

        # The same instance is used for warm-up and measurement: bm25s compiles its builder once per instance.
        self.retriever = bm25s.BM25(method="lucene", k1=K1, b=B, backend="numba")
        self.retriever.compile(activate_numba=True)

    def index_text(self, corpus: Corpus, folder: Path, limit: int | None = None) -> None:
        import bm25s
        import Stemmer

        tokens = bm25s.tokenize(
            read_texts(corpus.passages, limit), stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False
        )
        self._index(tokens, folder)

    def index_tokens(self, corpus: Corpus, folder: Path, limit: int | None = None) -> None:
        vocabulary: dict[str, int] = {}
        number = vocabulary.setdefault
        numbers = [[number(t, len(vocabulary)) for t in tokens] for tokens in read_tokens(corpus.passage_tokens, limit)]
        self._index((numbers, vocabulary), folder)

    def _index(self, tokens: Any, folder: Path) -> None:
        self.retriever.index(tokens, show_progress=False)
        self.retriever.save(folder, show_progress=False)

    def open(self, folder: Path) -> None:
        import bm25s

        self.retriever = bm25s.BM25.load(folder, show_progress=False)

    def load_queries(self, corpus: Corpus) -> None:
        # A query without tokens is the empty token: bm25s looks at the first query to see what it was given.
        self.queries = [tokens or [""] for tokens in read_tokens(corpus.query_tokens)]

    def search(self, first: int, last: int, k: int) -> Any:
        return self.retriever.retrieve(
            self.queries[first:last], k=k, backend_selection="numba", n_threads=1, show_progress=False
        )

    def hits(self, result: Any) -> Hits:
        return _pairs(result.documents, result.scores)


class Tantivy:
    """tantivy through its Python package."""

    def __init__(self) -> None:
        import tantivy  # noqa: F401 - so that importing is not measured

    def index_text(self, corpus: Corpus, folder: Path, limit: int | None = None) -> None:
        self._index(read_texts(corpus.passages, limit), TANTIVY_TEXT, folder)

    def index_tokens(self, corpus: Corpus, folder: Path, limit: int | None = None) -> None:
        with corpus.passage_tokens.open(encoding="utf-8", newline="\n") as file:
            self._index(islice(file, limit), "whitespace", folder)

    def _index(self, texts: Iterator[str], tokenizer: str, folder: Path) -> None:
        import tantivy

        schema = tantivy.SchemaBuilder().add_text_field("text", tokenizer_name=tokenizer, index_option="freq")
        folder.mkdir(parents=True)
        index = tantivy.Index(schema.add_unsigned_field("number", fast=True).build(), str(folder), reuse=False)
        if tokenizer == TANTIVY_TEXT:  # the stock "en_stem" with the stop words that the others leave out too
            builder = tantivy.TextAnalyzerBuilder(tantivy.Tokenizer.simple()).filter(tantivy.Filter.remove_long(40))
            builder = builder.filter(tantivy.Filter.lowercase()).filter(tantivy.Filter.stopword("english"))
            index.register_tokenizer(tokenizer, builder.filter(tantivy.Filter.stemmer("english")).build())
        writer = index.writer(heap_size=TANTIVY_HEAP, num_threads=1)
        for number, text in enumerate(texts):
            document = tantivy.Document()
            document.add_text("text", text)
            document.add_unsigned("number", number)
            writer.add_document(document)
        writer.commit()
        writer.wait_merging_threads()

    def open(self, folder: Path) -> None:
        import tantivy

        index = tantivy.Index.open(str(folder))
        self.schema = index.schema
        self.searcher = index.searcher()

    def load_queries(self, corpus: Corpus) -> None:
        self.queries = list(read_tokens(corpus.query_tokens))

    def _each(self, first: int, last: int, k: int) -> Iterator[list[Any]]:
        from tantivy import Occur, Query

        for tokens in self.queries[first:last]:
            terms = [(Occur.Should, Query.term_query(self.schema, "text", token, "freq")) for token in tokens]
            yield self.searcher.search(Query.boolean_query(terms), k, count=False).hits

    def search(self, first: int, last: int, k: int) -> Any:
        # There is no batch call. Only the last list is kept, so that Python's objects do not count as its memory.
        hits: list[Any] = []
        for hits in self._each(first, last, k):  # noqa: B007
            pass
        return (first, last, k)

    def hits(self, result: Any) -> Hits:
        found: Hits = []
        for hits in self._each(*result):
            numbers: list[Any] = self.searcher.fast_field_values("number", [address for _, address in hits])
            found.append(list(zip(numbers, [score for score, _ in hits], strict=True)))
        return found


def _pairs(numbers: Any, scores: Any) -> Hits:
    """Rows of document numbers and scores as lists, without the padding (which has no score)."""
    return [
        [(n, s) for n, s in zip(row.tolist(), values.tolist(), strict=True) if n >= 0 and s > 0]
        for row, values in zip(numbers, scores, strict=True)
    ]


SYSTEMS: dict[str, Callable[[], System]] = {"rankwell": Rankwell, "bm25s": BM25S, "tantivy": Tantivy}
