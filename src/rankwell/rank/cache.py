"""The score cache: scores that a model has computed are stored on disk and reused.

A score's key is the XOR of 128-bit hashes of the model (weights, configuration, backend, template, windows), the query,
its type and the document, so the keys of a whole batch are four gathers and three XORs of arrays. One sqlite file
serves several threads and processes. If the cache fails, rankwell warns and computes the scores.
"""

from __future__ import annotations

import hashlib
import os
import sqlite3
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence, Set
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import RLock
from typing import Self

import numpy as np
from numpy.typing import NDArray

from rankwell.core.arrays import Scores
from rankwell.core.errors import InputError
from rankwell.models.checkpoints.names import model_digest, model_files

Keys = NDArray[np.uint8]
"""One row of 16 bytes a pair."""

KEY_BYTES = 16
RECORD_BYTES = 8
"""A stored score: four bytes, and the checksum of key and score."""
# Marks the file as ours (PRAGMA application_id); a new layout of the tables takes a new number.
FORMAT = 0x52570002
LOOKED_UP_AT_ONCE = 500  # below the 999 parameters that any sqlite takes
BUSY_SECONDS = 30.0
_SQLITE = b"SQLite format 3\0"
_SCHEMA = f"""
    PRAGMA application_id = {FORMAT};
    CREATE TABLE IF NOT EXISTS scores (key BLOB PRIMARY KEY, score BLOB NOT NULL) WITHOUT ROWID;
    CREATE TABLE IF NOT EXISTS models (files TEXT PRIMARY KEY, digest TEXT NOT NULL);
"""


def text_hashes(texts: Sequence[str], role: str) -> Keys:
    """A key for each text; the same text as a query, a type and a document has three different ones."""
    person = role.encode()[:16]
    digests = (
        hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=KEY_BYTES, person=person).digest()
        for text in texts
    )
    return np.frombuffer(b"".join(digests), np.uint8).reshape(-1, KEY_BYTES)


def join_hashes(*parts: Keys) -> Keys:
    """The keys of pairs from those of their parts, row by row."""
    keys = parts[0]
    for part in parts[1:]:
        keys = keys ^ part
    return keys


class ScoreCache:
    """Scores by key in one sqlite file.

    >>> from tempfile import TemporaryDirectory
    >>> keys = text_hashes(["a", "b"], "query")
    >>> with TemporaryDirectory() as folder, ScoreCache(f"{folder}/scores.db") as cache:
    ...     cache.put(keys[:1], np.float32([0.5]))
    ...     cached, scores = cache.get(keys)
    >>> cached.tolist(), scores.tolist()
    ([True, False], [0.5, 0.0])
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.hits = self.misses = 0
        self._lock = RLock()
        self._warned = False
        self._connection: sqlite3.Connection | None = None
        self._inherited: sqlite3.Connection | None = None
        self._owner = os.getpid()
        self._open()

    def get(self, keys: Keys) -> tuple[NDArray[np.bool_], Scores]:
        """Which keys have a score, and the scores (0 where there is none)."""
        names = _rows(keys)
        known: dict[bytes, bytes] = {}
        with self._trouble("read"), self._lock:
            for begin in range(0, len(names), LOOKED_UP_AT_ONCE):
                some = names[begin : begin + LOOKED_UP_AT_ONCE]
                marks = ",".join("?" * len(some))
                known.update(self._connected().execute(f"SELECT key, score FROM scores WHERE key IN ({marks})", some))
        intact = {name: record for name, record in known.items() if _is_intact(name, record)}
        self._remove(known.keys() - intact.keys())
        cached = np.fromiter((name in intact for name in names), np.bool_, len(names))
        none = bytes(RECORD_BYTES)
        scores = np.frombuffer(b"".join(intact.get(name, none)[:4] for name in names), "<f4").astype(np.float32)
        with self._lock:
            self.hits, self.misses = self.hits + int(cached.sum()), self.misses + int((~cached).sum())
        return cached, scores

    def put(self, keys: Keys, scores: Scores) -> None:
        """Store scores in one transaction; existing ones are not replaced."""
        values = scores.astype("<f4").tobytes()
        # Sorted by key, so that neighbours go to the same page.
        rows = sorted((name, _record(name, values[4 * i : 4 * i + 4])) for i, name in enumerate(_rows(keys)))
        if rows:
            with self._trouble("write"), self._transaction() as connection:
                connection.executemany("INSERT OR IGNORE INTO scores VALUES (?, ?)", rows)

    def _remove(self, names: Set[bytes]) -> None:
        """Delete damaged scores, so that they can be stored again."""
        if names:
            with self._trouble("write"), self._transaction() as connection:
                connection.executemany("DELETE FROM scores WHERE key = ?", [[name] for name in sorted(names)])

    def complete(self, keys: Keys, compute: Callable[[NDArray[np.int64]], Scores]) -> Scores:
        """The scores of all keys; ``compute`` returns those of the rows that are missing, if any."""
        cached, scores = self.get(keys)
        # A repeated key is computed once.
        missing = np.flatnonzero(~cached)
        _, first, which = np.unique(keys[missing], axis=0, return_index=True, return_inverse=True)
        if len(missing):
            ordered = np.sort(first)  # as the rows came, not as the keys sort
            fresh = compute(missing[ordered])
            self.put(keys[missing[ordered]], fresh)
            scores[missing] = fresh[np.searchsorted(ordered, first)[which.reshape(-1)]]
        return scores

    def model_digest(self, folder: str | os.PathLike[str]) -> str:
        """The digest of a model, which takes seconds to compute; cached by the names, sizes and times of its files.

        A time of modification can be copied from another file, that of the last change of any kind cannot.
        """
        files = ((file, file.stat()) for file in model_files(folder))
        stats = [(str(file), s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for file, s in files]
        digest: str | None = None
        with self._trouble("read"), self._lock:
            row = self._connected().execute("SELECT digest FROM models WHERE files = ?", [repr(stats)]).fetchone()
            digest = row[0] if row and isinstance(row[0], str) else None
        if digest is None:
            digest = model_digest(folder)
            with self._trouble("write"), self._transaction() as connection:
                connection.execute("INSERT OR REPLACE INTO models VALUES (?, ?)", [repr(stats), digest])
        return digest

    def __len__(self) -> int:
        with self._lock:
            return int(self._connected().execute("SELECT count(*) FROM scores").fetchone()[0])

    def close(self) -> None:
        """Close the file; it is reopened on the next use."""
        with self._lock:
            if self._connection is not None and self._owner == os.getpid():
                self._connection.close()
            self._connection = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _open(self) -> None:
        """Open or create the file."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            # sqlite would take a file of a few bytes for an empty one and overwrite it.
            if self.path.is_file() and _opening_bytes(self.path) not in (b"", _SQLITE):
                raise InputError(self.path, None, "is not a score cache; name one, or a file that does not exist yet")
            self._connect()
        except (sqlite3.Error, OSError) as error:
            problem = f"cannot be used as a score cache ({error}); if it is one, delete it to begin anew"
            raise InputError(self.path, None, problem) from None

    def _connect(self) -> None:
        connection = sqlite3.connect(self.path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)
        try:
            # In this order: if another process is creating the file, tables and id appear together.
            (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
            (application,) = connection.execute("PRAGMA application_id").fetchone()
            if tables and application != FORMAT:
                raise InputError(self.path, None, "a database, but not a score cache of this version")
            # Fails without waiting if another process is doing the same, which is enough.
            with suppress(sqlite3.OperationalError):
                connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA cell_size_check = ON")
            # A power cut may lose the last scores, but does not damage the file.
            connection.execute("PRAGMA synchronous = NORMAL")
            if not tables:
                connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} COMMIT;")
        except BaseException:
            connection.close()
            raise
        self._connection, self._owner = connection, os.getpid()

    def _connected(self) -> sqlite3.Connection:
        # A connection must not be used (nor closed) by a process forked from the one that made it.
        if self._connection is None or self._owner != os.getpid():
            self._inherited = self._connection
            self._open()
        assert self._connection is not None
        return self._connection

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _trouble(self, action: str) -> Iterator[None]:
        """Turn sqlite's errors into a warning."""
        try:
            yield
        except sqlite3.Error as error:
            if not self._warned:
                self._warned = True
                warnings.warn(f"{self.path}: cannot {action} the score cache ({error}); continuing", stacklevel=3)


def _opening_bytes(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(len(_SQLITE))


def _record(name: bytes, score: bytes) -> bytes:
    """A score as it is stored."""
    return score + zlib.crc32(name + score).to_bytes(4, "little")


def _is_intact(name: bytes, record: object) -> bool:
    return isinstance(record, bytes) and len(record) == RECORD_BYTES and record == _record(name, record[:4])


def _rows(keys: Keys) -> list[bytes]:
    data = np.ascontiguousarray(keys).tobytes()
    return [data[begin : begin + KEY_BYTES] for begin in range(0, len(data), KEY_BYTES)]
