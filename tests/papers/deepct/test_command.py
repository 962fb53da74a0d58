"""``rankwell weigh`` and the index of its file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rankwell import sample
from rankwell.corpus.formats import read_weights
from rankwell.retrieve.index import Index

COLLECTION = sample.FOLDER / "collection.tsv"
Call = Callable[..., Any]


def test_a_model_weighs_the_collection_and_the_index_has_its_weights(rankwell: Call, tiny_weigher: Path) -> None:
    out, device = ("--out", "weights.jsonl.gz"), ("--device", "cpu")
    done = rankwell("weigh", COLLECTION, "--model", tiny_weigher, *out, *device)
    assert (done.code, done.err) == (0, "")
    assert not Path("weights.jsonl.gz.shards").exists()
    assert rankwell("index", COLLECTION, "--out", "a", "--weights", "weights.jsonl.gz").code == 0
    a = Index.open("a")
    assert a.manifest["config"]["weighted"] is True
    documents = list(read_weights("weights.jsonl.gz"))
    assert len(documents) == len(a)
    word = next(iter(documents[3].weights))
    assert documents[3].docid in a.rank(word, k=len(a)).docids


def test_the_root_raises_small_weights(rankwell: Call, tiny_weigher: Path) -> None:
    for scaling in ("linear", "root"):
        arguments = ("--model", tiny_weigher, "--scaling", scaling, "--out", f"{scaling}.jsonl")
        assert rankwell("weigh", COLLECTION, *arguments).code == 0
    linear, root = next(read_weights("linear.jsonl")).weights, next(read_weights("root.jsonl")).weights
    shared = [word for word in linear if word in root]
    assert shared
    for word in shared:  # both are rounded, so a tf of n came from within half of it
        low, high = ((100 * (linear[word] + d) / 100) ** 0.5 * 10 for d in (-0.5, 0.5))
        assert low - 0.51 <= root[word] <= high + 0.51


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--model", "MODEL", "--scaling", "log"], "no scaling of term weights is called 'log'"),
        (["--model", "RANKER"], "not a model that weighs tokens"),
        (["--model", "MODEL", "--device", "cuda:99"], "device cuda:99: torch sees"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_built(
    rankwell: Call, tiny_weigher: Path, tiny_checkpoint: Path, arguments: list[str], problem: str
) -> None:
    places = {"MODEL": str(tiny_weigher), "RANKER": str(tiny_checkpoint)}
    done = rankwell("weigh", COLLECTION, "--out", "weights.jsonl", *(places.get(part, part) for part in arguments))
    assert problem in done.complaint
    assert not Path("weights.jsonl").exists()
