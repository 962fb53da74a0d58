"""Indexes for the tests of retrieval."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from rankwell import sample
from rankwell.corpus.analyser import Analyzer
from rankwell.corpus.datasets import Dataset, open_dataset
from rankwell.corpus.store import DocumentBatch
from rankwell.retrieve.builder import SegmentBuilder
from rankwell.retrieve.index import Index
from rankwell.retrieve.segment import Segment

MakeIndex = Callable[..., Index]


@pytest.fixture(scope="session")
def make_index(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MakeIndex]:
    """A function that indexes ``{docid: text}``, cut into segments, adding ``batch`` documents at a time."""
    made: list[Path] = []

    def make(
        texts: Mapping[str, str],
        *,
        cuts: Sequence[int] = (),
        weights: Mapping[str, Mapping[str, float]] | None = None,
        batch: int = 1000,
        run_postings: int = 100_000,
        analyzer: Analyzer | None = None,
    ) -> Index:
        analyzer = analyzer or Analyzer.plain()
        folder = tmp_path_factory.mktemp("index")
        made.append(folder)
        docids = list(texts)
        segments = []
        for number, (begin, end) in enumerate(pairwise([0, *cuts, len(docids)])):
            builder = SegmentBuilder(folder / str(number), analyzer, run_postings=run_postings)
            for first in range(begin, end, batch):
                names = docids[first : min(first + batch, end)]
                contents = [texts[name] for name in names]
                if weights is None:
                    builder.add_texts(DocumentBatch(names, contents))
                else:
                    builder.add_weighted(DocumentBatch(names, contents), [weights[name] for name in names])
            builder.finish()
            segments.append(Segment.open(folder / str(number)))
        return Index(folder, analyzer, segments, {})

    yield make
    for folder in made:
        shutil.rmtree(folder)


@pytest.fixture(scope="session")
def sample_data() -> Dataset:
    return open_dataset(sample.FOLDER)


@pytest.fixture(scope="session")
def sample_index(sample_data: Dataset, tmp_path_factory: pytest.TempPathFactory) -> Index:
    return Index.build(sample_data.documents(), tmp_path_factory.mktemp("sample") / "index")
