"""The index in Python, as one would guess it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rankwell import Document, Index, Query, RankwellError

TEXTS = ["Bees make honey.", "Tea is hot."]


@pytest.mark.parametrize(
    ("documents", "docid"),
    [
        (TEXTS, "0"),
        (dict(zip("ab", TEXTS, strict=True)), "a"),
        ([{"id": "x", "text": TEXTS[0]}, {"id": "y", "text": TEXTS[1]}], "x"),
        ([Document("d", TEXTS[0]), Document("e", TEXTS[1])], "d"),
    ],
)
def test_build_takes_what_one_has_and_search_takes_text(documents: Any, docid: str) -> None:
    index = Index.build(documents)
    assert index.search("honey of bees").docids == (docid,)
    assert index.text(docid) == TEXTS[0]
    for queries in (["honey"], {"0": "honey"}, [Query("0", "honey")]):
        assert index.search(queries)["0"].docids == (docid,)


def test_a_temporary_index_is_deleted_with_the_index() -> None:
    index = Index.build(TEXTS)
    folder = index.folder
    assert folder.is_dir()
    del index
    assert not folder.exists()


def test_files_of_documents_and_queries(tmp_path: Path) -> None:
    (tmp_path / "docs.csv").write_text("d1,Bees make honey.\nd2,Tea\n")
    (tmp_path / "queries.tsv").write_text("q1\thoney\n")
    index = Index.build(tmp_path / "docs.csv", tmp_path / "index")
    assert index.search(tmp_path / "queries.tsv")["q1"].docids == ("d1",)


def test_wrong_types_are_one_line_that_shows_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(RankwellError, match=r"documents: expected a file name, a list of texts, .*, found '7'"):
        Index.build(7)
    with pytest.raises(RankwellError, match="no such file"):
        Index.build("Bees make honey.")
    index = Index.build(TEXTS)
    with pytest.raises(RankwellError, match=r"queries: expected a file name, a list of texts"):
        index.search(7)
    with pytest.raises(RankwellError, match=r'as in index\.rank\("how do bees keep warm"\), found "\[\'a\'\]"'):
        index.rank(["a"])  # type: ignore[arg-type]
