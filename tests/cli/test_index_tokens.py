"""``rankwell index --set tokens=MODEL`` prepares the documents for a model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

from rankwell import sample
from rankwell.inputs.stored import StoredTokens
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.folders import add_markers, load_checkpoint, save_checkpoint
from rankwell.models.checkpoints.names import find_model
from rankwell.retrieve.index import Index

COLLECTION = sample.FOLDER / "collection.tsv"
Call = Callable[..., Any]


def test_tokens_are_made_with_the_index(rankwell: Call, tiny_checkpoint: Path) -> None:
    done = rankwell("index", COLLECTION, "--out", "index", "--set", f"tokens={tiny_checkpoint}")
    assert (done.code, done.err) == (0, "")
    index, tokenizer = Index.open("index"), Tokenizer.open(tiny_checkpoint)
    source = StoredTokens.find(index.documents, tokenizer)
    assert source is not None
    docid = index.docids(range(7, 8))[0]  # type: ignore[arg-type]
    assert source.at(source.numbers([docid])).ids.tolist() == tokenizer.encode([index.text(docid)]).ids.tolist()


def test_a_model_may_be_named(rankwell: Call) -> None:
    done = rankwell("index", COLLECTION, "--out", "index", "--set", "tokens=rankwell-mini")
    assert (done.code, done.err) == (0, "")
    assert StoredTokens.find(Index.open("index").documents, Tokenizer.open(find_model("rankwell-mini"))) is not None


def test_a_model_with_markers_has_stems_too(rankwell: Call, tiny_checkpoint: Path) -> None:
    model, tokenizer, config = load_checkpoint(tiny_checkpoint)
    add_markers(model, tokenizer)
    save_checkpoint(Path("marked"), model, tokenizer, config.changed({"template": {"markers": True}}))
    assert rankwell("index", COLLECTION, "--out", "index", "--set", "tokens=marked").code == 0
    assert StoredTokens.find(Index.open("index").documents, tokenizer, stems=True) is not None


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--set", "tokens=nowhere"], "nowhere: no tokenizer here"),
        (["--set", "tokens=MODEL", "--no-store"], "--set tokens needs --store"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_built(
    rankwell: Call, tiny_checkpoint: Path, arguments: list[str], problem: str
) -> None:
    given = [str(tiny_checkpoint) if part == "MODEL" else part for part in arguments]
    assert problem in rankwell("index", COLLECTION, "--out", "index", *given).complaint
    assert not Path("index").exists()
