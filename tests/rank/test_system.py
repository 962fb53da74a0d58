"""Systems: saved, moved, searched, added to, damaged."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rankwell.core import files
from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.records import Document, Query, Run
from rankwell.rank.first_stage import FirstStage
from rankwell.rank.fusion import Shares, before_rest, fuse
from rankwell.rank.ranker import Ranker
from rankwell.rank.system import System, open_searchable
from rankwell.rank.texts import is_system, open_texts
from rankwell.retrieve.bm25 import BM25
from rankwell.retrieve.index import Index

from ..conftest import flip

WORDS = "bank money interest bee honey hive winter river fish whale city country king queen year music book".split()
QUERIES = [Query("1", "bee honey in winter"), Query("2", "the king of the river"), Query("3", "whale music")]
TUNED = BM25(k1=1.2, b=0.7)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Index:
    random = np.random.default_rng(0)
    documents = [Document(f"d{i}", " ".join(random.choice(WORDS, 6))) for i in range(60)]
    return Index.build(documents, tmp_path_factory.mktemp("system") / "index")


@pytest.fixture
def hybrid(index: Index, tiny_bi_encoder: Path) -> FirstStage:
    return FirstStage(index, TUNED, tiny_bi_encoder, 0.6)


def test_bm25_alone_is_a_system(index: Index, tmp_path: Path) -> None:
    system = System(FirstStage(index, TUNED)).save(tmp_path / "system")
    for queries in (QUERIES, ["bee honey", "river"], {"a": "bee honey"}):
        assert system.search(queries, k=5) == index.search(queries, TUNED, k=5)
    assert not (tmp_path / "system" / "encoder").exists()
    assert not (tmp_path / "system" / "ranker").exists()
    assert repr(system).endswith("60 documents: BM25 (k1 1.2, b 0.7))")
    assert is_system(tmp_path / "system")
    assert system.check().without == 0


def test_answers_have_ids_scores_and_texts(index: Index, tmp_path: Path) -> None:
    answers = System(FirstStage(index)).save(tmp_path / "system").search("bee honey", k=3)
    ranking = index.rank("bee honey", k=3)
    assert [(answer.docid, answer.score) for answer in answers] == list(ranking)
    assert [answer.text for answer in answers] == index.texts(ranking.docids)


def test_a_moved_system_finds_the_same(hybrid: FirstStage, tiny_checkpoint: Path, tmp_path: Path) -> None:
    shares = Shares(model=0.5, similarity=0.3, first=0.2, normalise="z-score")
    folder = tmp_path / "made" / "system"
    before = System(hybrid, ranker=tiny_checkpoint, depth=10, shares=shares).save(folder).search(QUERIES, k=20)
    (tmp_path / "elsewhere").mkdir()
    moved = shutil.copytree(folder, tmp_path / "elsewhere" / "renamed")
    shutil.rmtree(tmp_path / "made")
    system = System.open(moved)
    assert system.search(QUERIES, k=20) == before
    assert str(tmp_path) not in "".join(path.read_text() for path in moved.glob("*.json"))
    assert "the best 10 re-ranked (model 0.5, similarity 0.3, first 0.2 (z-score))" in repr(system)


def test_the_best_are_re_ranked_and_fused_and_the_rest_follow(
    hybrid: FirstStage, tiny_checkpoint: Path, tmp_path: Path
) -> None:
    shares = Shares(model=0.7, first=0.3)
    system = System(hybrid, ranker=tiny_checkpoint, depth=10, shares=shares).save(tmp_path / "system")
    first = hybrid.search(QUERIES, 20)
    model = Ranker(tiny_checkpoint).rerank(first, QUERIES, hybrid.index, depth=10)
    expected = fuse({"first": first.head(10), "model": model}, shares)
    run = system.search(QUERIES, k=20)
    for query in QUERIES:
        assert run[query.qid].docids[:10] == expected[query.qid].docids
        assert run[query.qid].docids[10:] == first[query.qid].docids[10:]
    assert system.search(QUERIES, k=4) == run.head(4)


def test_the_rest_of_a_run_stays_in_its_order() -> None:
    first = Run.from_scores({"q": {"a": 4.0, "b": 3.0, "c": 2.0, "d": 1.0}, "other": {"a": 1.0}})
    top = Run.from_scores({"q": {"b": -7.0, "a": -8.0}})
    assert list(before_rest(top, first)["q"]) == [("b", -7.0), ("a", -8.0), ("c", -9.0), ("d", -10.0)]
    assert before_rest(top, first)["other"] == first["other"]


def test_a_wrong_number_of_results_is_refused(index: Index, tiny_checkpoint: Path) -> None:
    for ranker in (None, tiny_checkpoint):
        for k in (0, -1):
            with pytest.raises(RankwellError, match=f"k must lie between 1 and 1,000,000, not {k}"):
                System(FirstStage(index), ranker=ranker).search(QUERIES, k)


def test_an_index_is_searched_as_a_system_without_models(index: Index, tmp_path: Path) -> None:
    system = open_searchable(index.folder, bm25=TUNED)
    assert (system.first_stage.encoder, system.ranker) == (None, None)
    run = system.search(QUERIES, 5)
    assert (run, run.name) == (index.search(QUERIES, TUNED, k=5), "BM25")
    system.save(tmp_path / "system")
    saved = open_searchable(tmp_path / "system").search(QUERIES, 5)
    assert (saved, saved.name) == (run, "system")


def test_added_documents_are_found_and_only_their_vectors_are_computed(hybrid: FirstStage, tmp_path: Path) -> None:
    system = System(hybrid).save(tmp_path / "system")
    old = {path: path.stat().st_ino for path in (tmp_path / "system" / "index" / "segment-0001").rglob("*.f16")}
    assert old
    system.add([Document("new", "bee honey hive winter winter"), Document("other", "a king and a queen")])
    opened = System.open(tmp_path / "system")
    assert opened.search(QUERIES[:1], k=60) == system.search(QUERIES[:1], k=60)
    assert "new" in opened.search(QUERIES[:1], k=60)["1"].docids
    assert len(opened) == 62
    assert {path: path.stat().st_ino for path in old} == old
    assert list((tmp_path / "system" / "index" / "segment-0002").rglob("*.f16"))
    assert opened.check().without == 0
    assert len(hybrid.index) == len(Index.open(hybrid.index.folder)) == 60  # the index it came from is unchanged


@pytest.mark.parametrize("words", [0.0, 0.5])
def test_a_system_that_was_open_before_a_change_by_another_answers(
    hybrid: FirstStage, tmp_path: Path, words: float
) -> None:
    folder = System(replace(hybrid, words=words)).save(tmp_path / "system").folder
    assert folder is not None
    opened, searched = System.open(folder), System.open(folder)
    before = searched.search(QUERIES, k=5)
    other = System.open(folder)
    other.add([Document("new", "bee honey in winter")])
    other.delete([f"d{number}" for number in range(30)])
    other.merge()
    assert not (folder / "index" / "segment-0001").exists()
    assert opened.search(QUERIES, k=5) == System.open(folder).search(QUERIES, k=5)  # its vectors were not open yet
    assert "new" in [answer.docid for answer in opened.search("bee honey in winter", k=5)]
    assert searched.search(QUERIES, k=5) == before
    shutil.rmtree(folder)
    with pytest.raises((OSError, RankwellError)):
        opened.search(QUERIES, k=5)


def test_a_repeated_document_is_refused_and_changes_nothing(index: Index, tmp_path: Path) -> None:
    system = System(FirstStage(index)).save(tmp_path / "system")
    with pytest.raises(RankwellError, match="'d1' is in the index already"):
        system.add([Document("fresh", "text"), Document("d1", "text")])
    assert len(System.open(tmp_path / "system")) == 60


def test_vectors_of_other_encoders_are_left_behind(
    hybrid: FirstStage, index: Index, tmp_path: Path, tiny_twin: Path
) -> None:
    FirstStage(index, encoder=tiny_twin, share=1.0).search(QUERIES, 5)
    System(hybrid).save(tmp_path / "system")
    System(FirstStage(index)).save(tmp_path / "bm25")
    assert len(list((tmp_path / "system").rglob("vectors-*"))) == 1
    assert not list((tmp_path / "bm25").rglob("vectors-*"))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "system.json").unlink(), "not a system (it has no system.json)"),
        (lambda folder: (folder / "system.json").write_text("[]"), "expected an object"),
        (lambda folder: (folder / "system.json").write_text("{}"), "not the description of a system"),
        (lambda folder: edit(folder, version=4), "a system of version 4; this rankwell reads version 3"),
        (lambda folder: edit(folder, depth="deep"), "its depth is missing or wrong"),
        (lambda folder: edit(folder, shares={"model": 3.0}), "expected numbers of at least 0 that sum to 1"),
        (lambda folder: edit(folder, shares={"love": 1.0}), "not the description of a system"),
        (lambda folder: edit(folder, parts={"../x": {"bytes": 1}}), "its part '../x'"),
        (lambda folder: shutil.rmtree(folder / "encoder"), "the part encoder/checksums is missing"),
        (lambda folder: (folder / "encoder" / "config.json").write_text("{"), "has 1 bytes, expected"),
        (lambda folder: (folder / "first-stage.json").unlink(), "the part first-stage.json is missing"),
    ],
)
def test_a_damaged_system_is_one_clear_line(hybrid: FirstStage, tmp_path: Path, damage: object, message: str) -> None:
    System(hybrid).save(tmp_path / "system")
    unlinked = shutil.copytree(tmp_path / "system", tmp_path / "copy")  # damage would reach the linked originals
    damage(unlinked)  # type: ignore[operator]
    with pytest.raises(RankwellError) as error:
        System.open(unlinked)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_each_missing_part_is_named(hybrid: FirstStage, tiny_checkpoint: Path, tmp_path: Path) -> None:
    System(hybrid, ranker=tiny_checkpoint, depth=5).save(tmp_path / "system", files={"report.html": "page"})
    folder = shutil.copytree(tmp_path / "system", tmp_path / "copy")
    parts = json.loads((folder / "system.json").read_text())["parts"]
    assert {"first-stage.json", "report.html", "ranker/config.json", "encoder/model.safetensors"} <= parts.keys()
    for name in parts:
        (folder / name).rename(tmp_path / "away")
        with pytest.raises(RankwellError, match=re.escape(name)):
            System.open(folder)
        (tmp_path / "away").rename(folder / name)
    assert System.open(folder).check().without == 0


def edit(folder: Path, **changes: object) -> None:
    record = json.loads((folder / "system.json").read_text())
    del record["checksum"]
    (folder / "system.json").write_text(json.dumps({**record, **changes}))


def test_a_system_that_is_saved_again_keeps_its_card_and_report(hybrid: FirstStage, tmp_path: Path) -> None:
    texts = {"README.md": "# A card\n", "report.html": "<p>naïve</p>\n", "queries.tsv": "query\tbm25\n"}
    System(hybrid).save(tmp_path / "system", card={"seed": 7}, files=texts)
    again = System.open(tmp_path / "system").save(tmp_path / "again")
    assert again.card == {"seed": 7}
    assert {name: (tmp_path / "again" / name).read_text() for name in texts} == texts
    assert again.check().without == 0
    System.open(tmp_path / "again").save(tmp_path / "bare", card={}, files={})
    assert System.open(tmp_path / "bare").card == {}
    assert not any((tmp_path / "bare" / name).exists() for name in texts)


def test_a_card_may_be_edited_or_removed(index: Index, tmp_path: Path) -> None:
    System(FirstStage(index)).save(tmp_path / "system", files={"README.md": "# A card\n"})
    (tmp_path / "system" / "README.md").write_text("# A card\n\nAsk Ann before changing it.\n")
    again = System.open(tmp_path / "system").save(tmp_path / "again")
    assert "Ann" in (tmp_path / "again" / "README.md").read_text()
    (tmp_path / "again" / "README.md").unlink()
    assert again.check().without == 0
    System.open(tmp_path / "again").save(tmp_path / "third")


@pytest.mark.parametrize("name", ["encoder/model.safetensors", "report.html"])
def test_damage_is_found_by_a_check_and_by_saving(name: str, hybrid: FirstStage, tmp_path: Path) -> None:
    System(hybrid).save(tmp_path / "system", files={"report.html": "<p>a report</p>"})
    copy = shutil.copytree(tmp_path / "system", tmp_path / "copy")
    flip(copy / name, -1)
    for use in (lambda: System.open(copy).check(), lambda: System.open(copy).save(tmp_path / "again")):
        with pytest.raises(InputError, match=f"{name}: damaged: block "):
            use()
    assert not (tmp_path / "again").exists()


@pytest.mark.parametrize("name", ["first-stage.json", "encoder/config.json"])
def test_a_changed_setting_of_the_same_size_is_found_when_a_system_is_opened(
    name: str, hybrid: FirstStage, tmp_path: Path
) -> None:
    System(hybrid).save(tmp_path / "system")
    path = shutil.copytree(tmp_path / "system", tmp_path / "copy") / name
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(InputError, match=rf"{name}: damaged: block 1 of 1"):
        System.open(tmp_path / "copy")


def test_nothing_is_left_of_a_system_that_did_not_fit_on_the_disk(
    hybrid: FirstStage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(files.os, "link", full)
    monkeypatch.setattr(files.shutil, "copyfile", full)
    with pytest.raises(RankwellError, match=r"cannot write .*system: no space left on device"):
        System(hybrid).save(tmp_path / "system")
    assert list(tmp_path.iterdir()) == []


def test_what_stands_in_its_place_is_not_touched(index: Index, tmp_path: Path) -> None:
    System(FirstStage(index)).save(tmp_path / "system")
    with pytest.raises(RankwellError, match="holds a system already"):
        System(FirstStage(index)).save(tmp_path / "system")
    (tmp_path / "mine").mkdir()
    with pytest.raises(RankwellError, match="exists and is not a system"):
        System(FirstStage(index)).save(tmp_path / "mine")


def test_shares_need_their_parts(index: Index, tiny_checkpoint: Path) -> None:
    shares = Shares(model=0.5, similarity=0.5)
    with pytest.raises(RankwellError, match="the system has no ranker"):
        System(FirstStage(index), shares=shares)
    with pytest.raises(RankwellError, match="the system has no bi-encoder"):
        System(FirstStage(index), ranker=tiny_checkpoint, shares=shares)


def test_a_system_is_a_collection(
    index: Index, tiny_checkpoint: Path, tmp_path: Path, rankwell: Callable[..., Any]
) -> None:
    System(FirstStage(index)).save(tmp_path / "system")
    docid = index.rank("bee honey", k=1).docids[0]
    for folder in (tmp_path / "system", index.folder):
        run = Run.from_scores({"1": {docid: 1.0}})
        assert open_texts(folder, run).texts([docid]) == [index.text(docid)]
    (tmp_path / "queries.tsv").write_text("1\tbee honey\n2\thoney bee\n")
    (tmp_path / "qrels.txt").write_text(f"1 0 {docid} 1\n2 0 {docid} 1\n")
    assert rankwell("tune", "system", "queries.tsv", "qrels.txt", "--folds", "2", "--k1", "0.9").code == 0
    reranked = rankwell("rerank", "bee honey", "--collection", "system", "--model", tiny_checkpoint, "--json")
    assert '"results": [{"rank": 1' in reranked.out


def test_a_name_too_long_for_a_folder_is_no_index(index: Index) -> None:
    with pytest.raises(RankwellError):
        open_texts("x" * 300, index.search(QUERIES[:1], k=1))
