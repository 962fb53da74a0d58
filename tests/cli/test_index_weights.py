"""``rankwell index --weights MODEL`` weighs and indexes in one go."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rankwell import sample
from rankwell.corpus.formats import read_weights
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

COLLECTION = sample.FOLDER / "collection.tsv"
Call = Callable[..., Any]


def test_a_model_weighs_the_collection_and_the_same_file_gives_the_same_index(
    rankwell: Call, tiny_weigher: Path
) -> None:
    done = rankwell(
        *("index", COLLECTION, "--out", "a", "--weights", tiny_weigher),
        *("--weights-out", "weights.jsonl.gz", "--show", "page.html", "--device", "cpu"),
    )
    assert (done.code, done.err) == (0, "")
    assert not Path("a.shards").exists()
    assert rankwell("index", COLLECTION, "--out", "b", "--weights", "weights.jsonl.gz").code == 0
    a, b = Index.open("a"), Index.open("b")
    assert a.manifest["config"]["weighted"] is True
    documents = list(read_weights("weights.jsonl.gz"))
    assert len(documents) == len(a) == len(b)
    word = next(iter(documents[3].weights))
    assert a.rank(word, BM25(k1=10)).docids == b.rank(word, BM25(k1=10)).docids
    assert documents[3].docid in a.rank(word, k=len(a)).docids
    page = Path("page.html").read_text()
    assert page.count("<h2>") == min(20, len(a))
    assert "http" not in page.split("</style>")[0]


def test_the_root_raises_small_weights(rankwell: Call, tiny_weigher: Path) -> None:
    for scaling in ("linear", "root"):
        arguments = (
            "--out",
            scaling,
            "--weights",
            tiny_weigher,
            "--scaling",
            scaling,
            "--weights-out",
            f"{scaling}.jsonl",
        )
        assert rankwell("index", COLLECTION, *arguments).code == 0
    linear, root = next(read_weights("linear.jsonl")).weights, next(read_weights("root.jsonl")).weights
    shared = [word for word in linear if word in root]
    assert shared
    for word in shared:  # both are rounded, so a tf of n came from within half of it
        low, high = ((100 * (linear[word] + d) / 100) ** 0.5 * 10 for d in (-0.5, 0.5))
        assert low - 0.51 <= root[word] <= high + 0.51


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--weights", "MODEL", "--append"], "--append does not go with --weights MODEL"),
        (["--weights", "MODEL", "--stemmer", "none"], "--weights MODEL needs the default --stemmer and --stop-words"),
        (["--weights", "MODEL", "--scaling", "log"], "no scaling of term weights is called 'log'"),
        (["--weights", "RANKER"], "not a model that weighs tokens"),
        (["--show", "page.html"], "--show needs --weights MODEL"),
        (["--weights", "FILE", "--device", "cpu"], "--device needs --weights MODEL"),
        (["--weights", "MODEL", "--device", "cuda:99"], "device cuda:99: torch sees"),
        (["--weights", "nowhere"], "nowhere: no such file"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_built(
    rankwell: Call, tiny_weigher: Path, tiny_checkpoint: Path, arguments: list[str], problem: str
) -> None:
    places = {"MODEL": str(tiny_weigher), "RANKER": str(tiny_checkpoint), "FILE": str(COLLECTION)}
    assert (
        problem
        in rankwell("index", COLLECTION, "--out", "index", *(places.get(part, part) for part in arguments)).complaint
    )
    assert not Path("index").exists()
