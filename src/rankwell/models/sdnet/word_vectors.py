"""Word vectors from files: the text format of GloVe and word2vec, or an array with a list of words.

=================================  ==========================================================================
``glove.6B.50d.txt`` (``.gz`` too)  a word and its numbers per line, perhaps after a first line ``count size``
``vectors.npy``                    (words, size), with the words in ``vectors.txt`` beside it, one per line
a folder                           one ``.npy`` and one ``.txt`` or ``.parquet`` (its first column)
=================================  ==========================================================================

Arrays are memory-mapped, text files are read whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from rankwell.core.errors import InputError, RankwellError, excerpt
from rankwell.core.files import read_lines
from rankwell.core.manifest import digest, file_digest
from rankwell.core.progress import track
from rankwell.corpus.lexicon import Lexicon

INDEX_SUFFIXES = (".txt", ".txt.gz", ".parquet")


@dataclass(frozen=True, eq=False)
class WordVectors:
    """Words and their vectors; ``digest`` identifies the files."""

    words: Lexicon
    matrix: NDArray[np.floating]
    digest: str

    @property
    def size(self) -> int:
        """The length of a vector."""
        return int(self.matrix.shape[1])

    def at(self, forms: Sequence[str]) -> NDArray[np.float32]:
        """The vectors (n, size) of words: of the word as written, else of its lower-cased form, else zeros."""
        exact = self.words.find(list(forms))
        rows = np.where(exact >= 0, exact, self.words.find([form.lower() for form in forms]))
        vectors = np.zeros((len(rows), self.size), np.float32)
        vectors[rows >= 0] = self.matrix[rows[rows >= 0]]
        return vectors


def open_vectors(path: str | Path) -> WordVectors:
    """Open the vectors of a file or folder."""
    path = Path(path)
    if path.is_dir():
        return _from_array(_only(path, (".npy",)), _only(path, INDEX_SUFFIXES))
    if path.suffix != ".npy":
        return _from_text(path)
    index = next((path.with_suffix(s) for s in INDEX_SUFFIXES if path.with_suffix(s).is_file()), None)
    if index is None:
        raise InputError(path, None, f"its list of words is missing; expected {path.with_suffix('.txt').name}")
    return _from_array(path, index)


def _only(folder: Path, suffixes: tuple[str, ...]) -> Path:
    files = sorted(file for file in folder.iterdir() if file.name.endswith(suffixes) and file.is_file())
    if len(files) != 1:
        raise InputError(folder, None, f"{len(files)} files {' or '.join(f'*{s}' for s in suffixes)}, expected one")
    return files[0]


def _from_array(path: Path, index: Path) -> WordVectors:
    try:
        matrix = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError(path, None, f"not an array of numbers ({error})") from None
    words = Lexicon()
    names = _index_words(index)
    numbers = words.add(names)
    if matrix.ndim != 2 or matrix.dtype.kind != "f" or len(matrix) != len(names):
        shape = f"{matrix.dtype} of the shape {matrix.shape}"
        raise InputError(path, None, f"{shape}, but {index.name} has {len(names):,} words")
    if len(words) != len(names):
        twice = names[int((numbers != np.arange(len(names))).argmax())]
        raise InputError(index, None, f"the word {excerpt(twice)} occurs twice")
    return WordVectors(words, matrix, digest([file_digest(path), file_digest(index)]))


def _index_words(index: Path) -> list[str]:
    if index.suffix != ".parquet":
        return [line for _, line in read_lines(index)]
    try:
        from pyarrow import parquet
    except ImportError:
        raise RankwellError(
            f"{index}: reading it needs the package pyarrow; or write the words to a .txt file, one per line"
        ) from None
    return [str(word) for word in parquet.read_table(index).column(0).to_pylist()]


def _from_text(path: Path) -> WordVectors:
    words = Lexicon()
    rows: list[NDArray[np.float32]] = []
    size = 0
    for number, line in track(read_lines(path), "reading word vectors", unit="words"):
        line = line.rstrip()
        if number == 1 and _is_header(line):
            continue
        size = size or len(line.split(" ")) - 1
        # From the right: some words in GloVe contain spaces.
        word, *values = line.rsplit(" ", size) if size else [""]
        try:
            vector = np.array(values, np.float32)
        except ValueError:
            vector = np.zeros(0, np.float32)
        if not word or not size or len(vector) != size or not np.isfinite(vector).all():
            raise InputError(path, number, f"found {excerpt(line)}, expected a word and {size or 'its'} numbers")
        if words.number(word) < 0:  # of repeated words the first counts: files are sorted by frequency
            words.add([word])
            rows.append(vector)
    if not rows:
        raise InputError(path, None, "has no word vectors")
    return WordVectors(words, np.stack(rows), file_digest(path))


def _is_header(line: str) -> bool:
    fields = line.split(" ")
    return len(fields) == 2 and all(field.isdecimal() for field in fields)
