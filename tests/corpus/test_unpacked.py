"""Files that are small on disk and large unpacked end in a line that names the bound and the setting."""

from __future__ import annotations

import gzip
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.core import files
from rankwell.core.errors import InputError
from rankwell.corpus.formats import read_documents, read_qrels, read_run, write_run
from rankwell.corpus.formats.tables import binary_table
from rankwell.corpus.records import Ranking, Run

pa = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")
feather = pytest.importorskip("pyarrow.feather")

BOUND = r": takes over \d+ MiB unpacked, the bound for a file of [\d,]+ bytes; set RANKWELL_MAX_UNPACKED to more MiB"
TEXT = "x" * 100_000


def blanks(path: Path) -> None:
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(b"[")
        for _ in range(100):
            file.write(b"\n" * 2**20)
        file.write(b'{"id": "a", "text": "b"}]')


def repeated(rows: int = 2_000) -> Any:
    """A text of 100 KB in every row, once in memory."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([TEXT]))
    return pa.table({"id": pa.array(np.arange(rows)).cast(pa.string()), "text": texts})


def plain(path: Path, **options: object) -> None:
    """The same without a schema that says so."""
    fields = pa.schema([("id", pa.string()), ("text", pa.string())])
    with parquet.ParquetWriter(path, fields, compression="zstd", **options) as writer:
        for begin in range(0, 2_000, 1_000):
            writer.write_table(repeated().slice(begin, 1_000).cast(fields))


def within_lists(path: Path) -> None:
    tags = pa.ListArray.from_arrays(pa.array(np.arange(0, 2_001, 10)), repeated()["text"].chunk(0).cast(pa.string()))
    table = pa.table({"id": list(map(str, range(200))), "text": ["tea"] * 200, "tags": tags})
    parquet.write_table(table, path, compression="zstd")


def views(path: Path) -> None:
    """Texts that share one place in memory."""
    view = np.tile(np.frombuffer(np.int32(len(TEXT)).tobytes() + b"xxxx" + bytes(8), np.uint8), 2_000)
    buffers = [None, pa.py_buffer(view), pa.py_buffer(TEXT.encode())]
    texts = pa.Array.from_buffers(pa.string_view(), 2_000, buffers)
    feather.write_feather(pa.table({"text": texts}), path, compression="uncompressed")


def nothing(path: Path) -> None:
    """Rows that take no place."""
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(5_000_000, np.int8)), pa.array(["tea"]))
    parquet.write_table(pa.table({"text": texts}), path)


def zeros(path: Path) -> None:
    arrays: dict[str, Any] = {
        name: np.zeros(10_000_000, kind) for name, kind in (("documents", np.int32), ("scores", np.float32))
    }
    np.savez_compressed(path, ids=np.zeros(9, np.uint8), ends=np.zeros(9, np.int64), **arrays)


BOMBS: dict[str, Callable[[Path], None]] = {
    "blanks.json.gz": blanks,
    "dictionary.parquet": lambda path: parquet.write_table(repeated(), path, compression="zstd"),
    "plain.parquet": plain,
    "delta.parquet": lambda path: plain(
        path, use_dictionary=False, column_encoding={"id": "PLAIN", "text": "DELTA_BYTE_ARRAY"}
    ),
    "lists.parquet": within_lists,
    "nothing.parquet": nothing,
    "dictionary.arrow": lambda path: feather.write_feather(repeated(), path, compression="uncompressed"),
    "views.arrow": views,
    "zeros.npz": zeros,
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_file_that_is_large_unpacked_is_refused_in_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(files, "LEAST_UNPACKED", 2**26)
    BOMBS[name](tmp_path / name)
    assert (tmp_path / name).stat().st_size < 2**19
    read = read_run if name.endswith(".npz") else lambda path: sum(1 for _ in read_documents(path))
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    with pytest.raises(InputError, match=BOUND) as caught:
        read(tmp_path / name)
    assert "\n" not in str(caught.value)
    assert time.process_time() - began < 10  # a second or two where nothing else runs
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 256 << 10


def test_the_setting_allows_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LEAST_UNPACKED", 2**20)
    parquet.write_table(repeated(50), tmp_path / "a.parquet")
    with pytest.raises(InputError, match=BOUND):
        list(read_documents(tmp_path / "a.parquet"))
    monkeypatch.setenv("RANKWELL_MAX_UNPACKED", "10")
    assert [len(document.text) for document in read_documents(tmp_path / "a.parquet")] == [100_000] * 50


def test_ordinary_tables_of_judgments_and_runs_are_far_from_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "LEAST_UNPACKED", 0)
    pairs = [(query, query * 100 + document) for query in range(500) for document in range(100)]
    (tmp_path / "qrels.gz").write_bytes(gzip.compress("".join(f"{q} 0 {d} 1\n" for q, d in pairs).encode()))
    assert len(read_qrels(tmp_path / "qrels.gz")) == 500
    queries, documents = zip(*pairs, strict=True)
    table = pa.table({"query_id": queries, "doc_id": list(map(str, documents)), "score": [1] * len(pairs)})
    parquet.write_table(table, tmp_path / "qrels.parquet", compression="zstd")
    assert len(read_qrels(tmp_path / "qrels.parquet")) == 500


def test_columns_of_every_type_are_counted_and_read(tmp_path: Path) -> None:
    nested = pa.array([[("k", "v")], None], pa.map_(pa.string(), pa.string()))
    columns = {
        "id": ["a", "b"],
        "a.b": ["x", None],
        "map": nested,
        "list": [["a", "b"], []],
        "struct": [{"a": ["b"]}] * 2,
        "dictionary": pa.array(["p", None]).dictionary_encode(),
        "numbers": pa.array([1, 2]).dictionary_encode(),
        "decimal": pa.array([1, 2], pa.decimal128(5)),
        "flag": [True, None],
        "null": pa.nulls(2),
        "pair": pa.array([[1, 2]] * 2, pa.list_(pa.int8(), 2)),
        "bytes": pa.array([b"ab"] * 2, pa.binary(2)),
        "view": pa.array(["v", None], pa.string_view()),
        "large": pa.array(["l", "m"], pa.large_string()),
    }
    table = pa.table(columns)
    parquet.write_table(table, tmp_path / "a.parquet")
    parquet.write_table(
        table, tmp_path / "delta.parquet", use_dictionary=False, column_encoding={"id": "DELTA_BYTE_ARRAY"}
    )
    feather.write_feather(table, tmp_path / "a.arrow")
    for name in ("a.parquet", "delta.parquet", "a.arrow"):
        opened = binary_table(tmp_path / name)
        assert opened is not None
        assert [row for _, row in opened.read(opened.names)] == table.to_pylist()


@pytest.mark.parametrize(
    "changes",
    [
        {"ends": np.array([3, 1], np.int64)},
        {"ends": np.array([1, 3], np.float64)},
        {"documents": np.zeros(10**9, "V0")},
        {"scores": np.zeros(2, np.float32)},
        {"ids": np.frombuffer(b"[" * 100_000, np.uint8)},
        {"ids": np.frombuffer(b'{"qids": 1}', np.uint8)},
        {"ids": np.frombuffer(b"[1]", np.uint8)},
    ],
)
def test_arrays_that_are_no_run_are_one_line(tmp_path: Path, changes: dict[str, np.ndarray]) -> None:
    path = tmp_path / "a.npz"
    write_run(Run({"q": Ranking.of(["a"], [1.0]), "r": Ranking.of(["a", "b"], [2.0, 1.0])}), path)
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, **changes})
    with pytest.raises(InputError, match=r"a\.npz: cannot be read as a run that rankwell stored"):
        read_run(path)
