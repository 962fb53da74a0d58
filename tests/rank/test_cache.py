"""The score cache: what is in it is not computed, what breaks it costs only time."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sqlite3
import threading
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rankwell.core.errors import InputError, RankwellError
from rankwell.corpus.records import Query, Run
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.batching import Sequences
from rankwell.inputs.reader import Reader
from rankwell.inputs.windows import Windows
from rankwell.models.checkpoints.names import model_digest
from rankwell.rank.cache import ScoreCache, join_hashes, text_hashes
from rankwell.rank.engines.engine import Engine, Logits
from rankwell.rank.ranker import Ranker


def keys_of(count: int, start: int = 0) -> np.ndarray:
    return text_hashes([str(i) for i in range(start, start + count)], "query")


@pytest.fixture
def cache(tmp_path: Path) -> ScoreCache:
    return ScoreCache(tmp_path / "scores.db")


class Counting(Engine):
    """An engine that computes what another computes, and counts the sequences."""

    def __init__(self, engine: Engine):
        self.engine = engine
        self.count = 0

    def logits(self, sequences: Sequences) -> Logits:
        self.count += len(sequences)
        return self.engine.logits(sequences)


@pytest.fixture
def ranker(tiny_checkpoint: Path, cache: ScoreCache) -> Ranker:
    ranker = Ranker.from_pretrained(tiny_checkpoint, cache=cache)
    ranker.engine = Counting(ranker.engine)
    return ranker


PAIRS = [(q, d) for q in ("how do bees keep warm", "what is a bank") for d in ("the hive is warm", "money", "", "tea")]


def test_what_is_put_is_got_to_the_bit(cache: ScoreCache) -> None:
    scores = np.array([1.5, -0.0, np.inf, np.nan, 1e-45, 0.1], np.float32)
    cache.put(keys_of(6), scores)
    found, again = cache.get(keys_of(8))
    assert found.tolist() == [True] * 6 + [False] * 2
    assert again[:6].tobytes() == scores.tobytes()
    assert (cache.hits, cache.misses, len(cache)) == (6, 2, 6)


def test_more_keys_than_one_statement_takes(cache: ScoreCache) -> None:
    scores = np.arange(3001, dtype=np.float32)
    cache.put(keys_of(3001), scores)
    order = np.random.default_rng(0).permutation(3001)
    found, again = cache.get(keys_of(3001)[order])
    assert found.all()
    assert np.array_equal(again, scores[order])


def test_nothing_is_a_fine_number_of_keys(cache: ScoreCache) -> None:
    none = np.zeros((0, 16), np.uint8)
    cache.put(none, np.zeros(0, np.float32))
    assert [len(part) for part in cache.get(none)] == [0, 0]
    assert len(cache.complete(none, lambda rows: pytest.fail("nothing to compute"))) == 0


def test_the_first_score_stays(cache: ScoreCache) -> None:
    for score in (1.0, 2.0):
        cache.put(keys_of(1), np.float32([score]))
    assert cache.get(keys_of(1))[1].tolist() == [1.0]
    assert len(cache) == 1


def test_only_what_is_missing_is_computed_and_once(cache: ScoreCache) -> None:
    asked: list[list[int]] = []

    def compute(rows: np.ndarray) -> np.ndarray:
        asked.append(rows.tolist())
        return rows.astype(np.float32)

    keys = keys_of(4)[[3, 1, 3, 0, 1]]
    assert cache.complete(keys, compute).tolist() == [0, 1, 0, 3, 1]
    assert cache.complete(keys_of(4), compute).tolist() == [3, 1, 2, 0]
    assert asked == [[0, 1, 3], [2]]


def test_a_second_run_computes_nothing_and_gives_the_same_bits(ranker: Ranker, tiny_checkpoint: Path) -> None:
    counting = ranker.engine
    assert isinstance(counting, Counting)
    first = ranker.predict(PAIRS)
    assert counting.count == len(PAIRS)
    assert np.array_equal(first, Ranker.from_pretrained(tiny_checkpoint).predict(PAIRS))
    assert ranker.predict(PAIRS).tobytes() == first.tobytes()
    assert counting.count == len(PAIRS)
    ranker.predict([*PAIRS, ("what is a bank", "a new one"), PAIRS[0]])
    assert counting.count == len(PAIRS) + 1


def test_a_run_is_reranked_from_what_predict_kept(ranker: Ranker, tiny_checkpoint: Path) -> None:
    queries = [Query("q1", PAIRS[0][0]), Query("q2", PAIRS[4][0])]
    texts = DocumentStore.of_texts({"a": "the hive is warm", "b": "money", "c": "tea"})
    run = Run.from_scores({"q1": {"a": 2.0, "b": 1.0}, "q2": {"c": 2.0, "a": 1.0}})
    ranker.predict(PAIRS)
    counting = ranker.engine
    assert isinstance(counting, Counting)
    before = counting.count
    found = ranker.rerank(run, queries, texts)
    assert counting.count == before
    expected = Ranker.from_pretrained(tiny_checkpoint).rerank(run, queries, texts)
    assert {qid: dict(r) for qid, r in found.items()} == {
        qid: pytest.approx(dict(r), abs=1e-6) for qid, r in expected.items()
    }


def test_scores_are_not_shared_by_what_scores_differently(tiny_checkpoint: Path, cache: ScoreCache) -> None:
    def make(**changes: object) -> Ranker:
        return Ranker.from_pretrained(tiny_checkpoint, cache=cache, **changes)  # type: ignore[arg-type]

    long = [("how do bees keep warm", "the insouciantly bogue bees " * 30)]
    rankers = [
        make(),
        make(attention="strm"),
        make(template={"max_length": 100}),
        make(template={"name": "typed"}),
        make(windows=Windows(20, 10)),
        make(windows=Windows(20, 10, "mean")),
    ]
    types = [["numeric"] if ranker.template.name == "typed" else None for ranker in rankers]
    scores = [float(ranker.predict(long, types=own)[0]) for ranker, own in zip(rankers, types, strict=True)]
    assert len(set(scores)) == len(rankers)
    assert (cache.hits, cache.misses) == (0, len(rankers))
    assert rankers[0].predict(long, activation="probability")[0] != scores[0]
    typed = rankers[3]
    assert typed.predict(long, types=["person"])[0] != typed.predict(long)[0]
    assert cache.hits == 0


def test_another_models_scores_are_not_used(tiny_checkpoint: Path, cache: ScoreCache, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from safetensors.torch import load_file, save_file

    Ranker.from_pretrained(tiny_checkpoint, cache=cache).predict(PAIRS)
    other = tmp_path / "other"
    shutil.copytree(tiny_checkpoint, other)
    Ranker.from_pretrained(other, cache=cache).predict(PAIRS)
    assert cache.hits == len(PAIRS)  # the same model in another folder
    weights = load_file(other / "model.safetensors")
    weights["classifier.bias"] = weights["classifier.bias"] + torch.tensor([0.0, 1.0])
    save_file(weights, other / "model.safetensors", metadata={"format": "pt"})
    changed = Ranker.from_pretrained(other, cache=cache).predict(PAIRS)
    assert cache.hits == len(PAIRS)
    assert np.array_equal(changed, Ranker.from_pretrained(other).predict(PAIRS))


def test_a_models_digest_is_cached_until_its_files_change(
    tiny_checkpoint: Path, cache: ScoreCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_checkpoint, model)
    before = cache.model_digest(model)
    assert before == model_digest(model)
    with monkeypatch.context() as patch:
        patch.setattr("rankwell.rank.cache.model_digest", None)  # not computed a second time
        assert cache.model_digest(model) == before
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.1}))
    assert cache.model_digest(model) == model_digest(model) != before
    times = (model / "config.json").stat()
    (model / "config.json").write_text(json.dumps({**config, "layer_norm_eps": 0.2}))
    os.utime(model / "config.json", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert cache.model_digest(model) == model_digest(model)  # of equal size and time


def test_a_cache_needs_to_know_the_model(ranker: Ranker, cache: ScoreCache) -> None:
    with pytest.raises(RankwellError, match="identity"):
        Ranker.from_engine(ranker.engine, Reader(ranker.tokenizer, ranker.template), cache=cache)


@given(st.lists(st.text(max_size=5), min_size=2, max_size=6, unique=True))
def test_keys_tell_texts_and_their_roles_apart(texts: list[str]) -> None:
    queries, documents = text_hashes(texts, "query"), text_hashes(texts, "document")
    pairs = [join_hashes(queries[[i]], documents[[j]]).tobytes() for i in range(len(texts)) for j in range(len(texts))]
    assert len(set(pairs)) == len(pairs)


def test_a_broken_file_is_refused_and_not_touched(tmp_path: Path) -> None:
    path, content = tmp_path / "scores.db", b"SQLite format 3\0" + b"\xff" * 5000
    path.write_bytes(content)
    with pytest.raises(RankwellError, match=r"scores.db: cannot be used as a score cache .* delete it to begin anew"):
        ScoreCache(path)
    assert path.read_bytes() == content


@pytest.mark.parametrize("content", [b"q1 0 d1 1\n" * 100, b"x"])
def test_another_file_is_refused_and_not_touched(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "qrels.txt"
    path.write_bytes(content)
    with pytest.raises(RankwellError, match=r"qrels.txt: is not a score cache"):
        ScoreCache(path)
    assert [(found.name, found.read_bytes()) for found in tmp_path.iterdir()] == [("qrels.txt", content)]


def test_scoring_goes_on_when_the_file_breaks(ranker: Ranker, cache: ScoreCache) -> None:
    scores = ranker.predict(PAIRS)
    cache.put(keys_of(2000), np.zeros(2000, np.float32))
    cache.close()
    data = bytearray(cache.path.read_bytes())
    data[4096:] = b"\xff" * (len(data) - 4096)  # the first page, with the tables' names, stays whole
    cache.path.write_bytes(data)
    with pytest.warns(UserWarning, match="cannot read the score cache"):
        assert np.array_equal(ranker.predict(PAIRS), scores)


def test_scoring_goes_on_when_the_cache_cannot_be_written(ranker: Ranker, cache: ScoreCache) -> None:
    blocker = sqlite3.connect(cache.path)
    blocker.execute("BEGIN IMMEDIATE")
    cache._connected().execute("PRAGMA busy_timeout = 10")
    with pytest.warns(UserWarning, match="cannot write the score cache"):
        scores = ranker.predict(PAIRS)
    blocker.rollback()
    blocker.close()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.array_equal(ranker.predict(PAIRS), scores)
    assert len(cache) == len(PAIRS)


def test_another_database_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "theirs.db"
    with sqlite3.connect(path) as theirs:
        theirs.execute("CREATE TABLE letters (text)")
    before = path.read_bytes()
    with pytest.raises(RankwellError, match="a database, but not a score cache"):
        ScoreCache(path)
    with pytest.raises(RankwellError, match="cannot be used as a score cache"):
        ScoreCache(tmp_path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("damage", ["score", "checksum", "too short", "other type"])
def test_a_damaged_score_is_computed_again(cache: ScoreCache, damage: str) -> None:
    keys = text_hashes(["a", "b", "c"], "query")
    cache.put(keys, np.float32([1, 2, 3]))
    (record,) = (
        sqlite3.connect(cache.path).execute("SELECT score FROM scores WHERE key = ?", [keys[1].tobytes()]).fetchone()
    )
    changed = {
        "score": bytes([record[0] ^ 1, *record[1:]]),
        "checksum": bytes([*record[:4], record[4] ^ 128, *record[5:]]),
        "too short": record[:4],
        "other type": "text",
    }[damage]
    with sqlite3.connect(cache.path) as connection:
        connection.execute("UPDATE scores SET score = ? WHERE key = ?", [changed, keys[1].tobytes()])
    computed = []

    def compute(rows: NDArray[np.int64]) -> NDArray[np.float32]:
        computed.extend(rows.tolist())
        return np.float32([7.0])

    assert cache.complete(keys, compute).tolist() == [1, 7, 3]
    assert computed == [1]
    assert cache.get(keys)[1].tolist() == [1, 7, 3]
    assert len(cache) == 3


def test_threads_share_a_cache(cache: ScoreCache) -> None:
    def work(start: int) -> None:
        for begin in range(start, start + 200, 20):
            cache.put(keys_of(20, begin), np.arange(begin, begin + 20, dtype=np.float32))
            cache.get(keys_of(20, begin))

    threads = [threading.Thread(target=work, args=(100 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found, scores = cache.get(keys_of(500))
    assert found.all()
    assert scores.tolist() == list(range(500))
    assert len(cache) == 500


def _fill(path: Path, start: int) -> None:
    warnings.simplefilter("error")
    cache = ScoreCache(path)
    for begin in range(start, start + 200, 20):
        cache.put(keys_of(20, begin), np.arange(begin, begin + 20, dtype=np.float32))


def test_processes_share_a_file_they_all_begin(tmp_path: Path) -> None:
    path = tmp_path / "scores.db"
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=_fill, args=(path, 100 * i)) for i in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0] * 4
    found, scores = ScoreCache(path).get(keys_of(500))
    assert found.all()
    assert scores.tolist() == list(range(500))


def _put_in_child(cache: ScoreCache) -> None:
    cache.put(keys_of(1, 7), np.float32([7.0]))


def test_a_forked_process_opens_the_file_anew(cache: ScoreCache) -> None:
    cache.put(keys_of(1), np.zeros(1, np.float32))
    worker = multiprocessing.get_context("fork").Process(target=_put_in_child, args=(cache,))
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert cache.get(keys_of(1, 7))[1].tolist() == [7.0]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("reason", [sqlite3.SQLITE_IOERR, sqlite3.SQLITE_FULL, sqlite3.SQLITE_CORRUPT])
def test_scores_are_right_whatever_statement_of_the_cache_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reason: int
) -> None:
    keys, right = text_hashes([str(number) for number in range(40)], "query"), np.arange(40, dtype=np.float32) / 7
    statements, failing, connect = 0, 0, sqlite3.connect

    class Connection(sqlite3.Connection):
        def count(self) -> None:
            nonlocal statements
            statements += 1
            if statements == failing:
                error = sqlite3.OperationalError("a fault")
                error.sqlite_errorcode = reason
                raise error

        def execute(self, *arguments: Any) -> Any:
            self.count()
            return super().execute(*arguments)

        def executemany(self, *arguments: Any) -> Any:
            self.count()
            return super().executemany(*arguments)

    def scores(path: Path) -> list[float]:
        with ScoreCache(path) as cache:
            cache.complete(keys[:20], lambda rows: right[:20][rows])
            completed: list[float] = cache.complete(keys, lambda rows: right[rows]).tolist()
            return completed

    monkeypatch.setattr(sqlite3, "connect", lambda *given, **named: connect(*given, **named, factory=Connection))
    assert scores(tmp_path / "whole") == right.tolist()
    for failing in range(1, statements + 1):
        statements, path = 0, tmp_path / f"cache-{failing}"
        with suppress(InputError):  # at opening: the user asked for a cache that cannot be used
            assert scores(path) == right.tolist()
        failing = 0
        assert scores(path) == right.tolist()
