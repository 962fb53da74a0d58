"""Compressed search: codes of one bit for each number, and exact similarities for the best."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from rankwell.core.checksums import table_beside
from rankwell.core.errors import InputError, Notice, RankwellError
from rankwell.core.shards import Shards, map_shards
from rankwell.corpus.records import Document, Query
from rankwell.corpus.store import DocumentStore
from rankwell.models.bi_encoder import BiEncoder
from rankwell.rank import vector_codes
from rankwell.rank.dense import DenseRanker
from rankwell.rank.passage_vectors import PassageVectors
from rankwell.rank.vector_codes import RECALL, VectorCodes
from rankwell.rank.vector_kernels import PLANES, bit_distances, scan_cells
from rankwell.rank.vector_records import NUMBER_BITS, code_bytes
from rankwell.rank.vector_search import search_vectors
from rankwell.retrieve.index import Index

COUNT, WIDTH = 3000, 72


def vectors_like_real_ones(count: int, seed: int) -> np.ndarray:
    """Vectors of length 1 with a mean, of few dimensions and some noise, which vary more in some numbers."""
    axes, random = np.random.default_rng(99).normal(size=(6, WIDTH)), np.random.default_rng(seed)
    vectors = random.normal(size=(count, 6)) @ axes + 0.3 * random.normal(size=(count, WIDTH))
    vectors = vectors * np.linspace(2, 0.3, WIDTH) + np.linspace(3, -3, WIDTH)
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def stored(folder: Path, vectors: np.ndarray, shard_size: int = 256) -> PassageVectors:
    shards = Shards(folder, len(vectors), shard_size, {}, suffix=".f16")
    half = vectors.astype(np.float16)
    map_shards(shards, lambda items, file: file.write(half[items.start : items.stop].data) and None)
    return PassageVectors(shards, vectors.shape[1])


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let some hundred documents be many."""
    for name, value in {
        "CODES_PER_SHARD": 1000,
        "FEWEST_CANDIDATES": 200,
        "CANDIDATES_PER_HIT": 8,
        "FEWEST_RESCORED": 40,
        "SAMPLE": 700,
        "_RANGE": 300,
        "_QUERIES_AT_A_TIME": 4,
        "_VECTORS_AT_A_TIME": 90,
    }.items():
        monkeypatch.setattr(vector_codes, name, value)
    monkeypatch.setattr(vector_codes, "FEWEST_IN_CELLS", 1000)
    monkeypatch.setattr(vector_codes, "CELL_SIZE", 100)


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_it_finds_what_exact_search_finds(tmp_path: Path) -> None:
    vectors = stored(tmp_path / "v", vectors_like_real_ones(COUNT, 0))
    queries = vectors_like_real_ones(9, 1)
    exact, similarities = search_vectors(queries, vectors.blocks(), 20)
    found, scores = VectorCodes.open(vectors).search(queries, 20)
    shared = [len(set(left) & set(right)) for left, right in zip(exact.tolist(), found.tolist(), strict=True)]
    assert np.mean(shared) >= 0.95 * 20
    half = np.concatenate(list(vectors.blocks())).astype(np.float32)
    np.testing.assert_allclose(scores, np.take_along_axis(queries @ half.T, found, axis=1), rtol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    np.testing.assert_allclose(scores[:, 0], similarities[:, 0], rtol=1e-5)


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_a_query_finds_the_same_alone_and_among_others(tmp_path: Path) -> None:
    codes = VectorCodes.open(stored(tmp_path / "v", vectors_like_real_ones(COUNT, 0)))
    queries = vectors_like_real_ones(6, 1)
    together, _ = codes.search(queries, 10)
    for query, expected in zip(queries, together, strict=True):
        np.testing.assert_array_equal(codes.search(query[None], 10)[0][0], expected)


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_few_documents_are_all_compared(tmp_path: Path) -> None:
    vectors = stored(tmp_path / "v", vectors_like_real_ones(150, 0))
    queries = vectors_like_real_ones(3, 1)
    for left, right in zip(
        VectorCodes.open(vectors).search(queries, 500), search_vectors(queries, vectors.blocks(), 500), strict=True
    ):
        np.testing.assert_array_equal(left, right)


def test_the_recall_is_measured_and_said_once(tmp_path: Path) -> None:
    vectors = stored(tmp_path / "v", vectors_like_real_ones(COUNT, 0))
    with pytest.warns(Notice, match=r"compressed search finds \d+\.\d% of the 100 nearest documents"):
        codes = VectorCodes.open(vectors)
    assert 0.9 < codes.recall <= 1
    queries = vectors.at(vector_codes.spread(COUNT, 64)).astype(np.float32)
    nearest, found = search_vectors(queries, vectors.blocks(), 100)[0], codes.search(queries, 100)[0]
    common = sum(len(set(left) & set(right)) for left, right in zip(nearest.tolist(), found.tolist(), strict=True))
    assert codes.recall == pytest.approx(common / nearest.size, abs=1e-4)
    assert VectorCodes.open(vectors).recall == codes.recall  # without a warning, which would be an error
    path = codes.folder / RECALL
    path.write_text(path.read_text().replace("1", "2", 1))
    with pytest.raises(InputError, match=r"recall.json: damaged"):
        codes.recall  # noqa: B018
    table_beside(path).unlink()  # as in earlier versions
    path.write_text("{}")
    with pytest.raises(InputError, match="not a record of a recall"):
        codes.recall  # noqa: B018


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_codes_are_resumed_and_damage_is_found(tmp_path: Path) -> None:
    vectors = stored(tmp_path / "v", vectors_like_real_ones(COUNT, 0))
    assert not VectorCodes.is_complete(vectors)
    codes = VectorCodes.open(vectors)
    expected = codes.search(vectors_like_real_ones(2, 1), 10)
    assert VectorCodes.is_complete(vectors)
    shards = sorted(codes.folder.glob("shard-*.codes"))
    assert [shard.stat().st_size for shard in shards] == [1000 * (code_bytes(WIDTH) + 12)] * 3
    before = [(shard.read_bytes(), shard.stat().st_mtime_ns) for shard in shards]
    shards[1].unlink()  # as if killed before it was done
    again = VectorCodes.open(vectors).search(vectors_like_real_ones(2, 1), 10)
    np.testing.assert_array_equal(again, expected)
    after = [(shard.read_bytes(), shard.stat().st_mtime_ns) for shard in shards]
    assert after[1][0] == before[1][0]
    assert [after[0], after[2]] == [before[0], before[2]]
    damaged = bytearray(before[2][0])
    damaged[77] ^= 4
    shards[2].write_bytes(damaged)
    with pytest.raises(InputError, match="damaged"):
        VectorCodes.open(vectors).search(vectors_like_real_ones(2, 1), 10)
    shutil.rmtree(codes.folder / "centroids")  # they are trained again, from the same sample
    for shard, (content, _) in zip(shards, before, strict=True):
        shard.unlink()
        VectorCodes.open(vectors)
        assert shard.read_bytes() == content


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_documents_that_a_shard_does_not_have_are_refused(tmp_path: Path) -> None:
    vectors = stored(tmp_path / "v", vectors_like_real_ones(COUNT, 0))
    VectorCodes.open(vectors)
    codes = VectorCodes.open(vectors)
    records = codes._mapped[1].whole().copy()  # as if its checksums had been made for it
    records.view(np.uint32)[5, code_bytes(WIDTH) // 4] |= 1000
    codes._mapped[1].values = records
    with pytest.raises(InputError, match="a document that the shard does not have"):
        codes.search(vectors_like_real_ones(2, 1), 10)


def test_products_of_some_documents(tmp_path: Path) -> None:
    documents, query = vectors_like_real_ones(600, 0), vectors_like_real_ones(1, 1)[0]
    vectors = stored(tmp_path / "v", documents)
    rows = np.array([0, 3, 255, 256, 511, 512, 599])
    expected = documents.astype(np.float16).astype(np.float32)[rows] @ query
    np.testing.assert_allclose(vectors.products(rows, query), expected, rtol=1e-5)
    path = vectors.folder / "shard-000001.f16"
    path.write_bytes(b"\x00" * path.stat().st_size)
    reopened = PassageVectors(Shards(vectors.folder, 600, 256, {}, suffix=".f16"), WIDTH)
    intact = rows[rows // 256 != 1]
    for _ in range(2):
        np.testing.assert_allclose(reopened.products(intact, query), expected[rows // 256 != 1], rtol=1e-5)
        with pytest.raises(InputError, match="damaged"):
            reopened.products(rows, query)
    (vectors.folder / "shard-000002.f16").write_bytes(b"")
    with pytest.raises(InputError, match="was changed while it was open"):
        reopened.products(intact, query)


@pytest.mark.parametrize(("count", "width"), [(1, 16), (8, 16), (21, 48), (2050, 32)])
def test_bits_are_counted(count: int, width: int) -> None:
    random = np.random.default_rng(0)
    codes, query = random.integers(0, 256, (2 * count, width), np.uint8), random.integers(0, 256, width, np.uint8)
    out = np.empty(count, np.uint16)
    bit_distances(codes[::2], query, out)
    expected = np.unpackbits(codes[::2] ^ query, axis=1).sum(axis=1)
    np.testing.assert_array_equal(out, expected)
    # Two cells: the first third, and the rest. The second query leaves out the first cell.
    records = np.concatenate([codes[::2], np.zeros((count, 12), np.uint8)], axis=1)
    tails = records.view(np.uint32)[:, width // 4 :]
    documents, factors = random.permutation(count), random.random((count, 2), np.float32)
    tails[:, 0], tails.view(np.float32)[:, 1:] = documents + (5 << NUMBER_BITS), factors
    ends, third = np.array([count // 3, count]), int(np.sort(expected)[count // 3])
    planes = random.integers(0, 256, (2, PLANES, width), np.uint8)
    weights = random.normal(size=(2, PLANES + 1)).astype(np.float32)
    bases, limits = random.random((2, 2), np.float32), np.array([[third, third], [-1, third]], np.int32)
    rows, scores, counts = np.empty((2, count), np.int64), np.empty((2, count), np.float32), np.zeros(2, np.int64)
    near = limits, np.stack([query, query]), planes, weights, bases, rows, scores, counts
    for span in ((0, count // 2), (count // 2, count)):
        scan_cells(records, tails, tails.view(np.float32), ends, span, 70, *near)
    for q in range(2):
        found = np.flatnonzero(expected <= third)
        found = found[found >= ends[0]] if q else found
        np.testing.assert_array_equal(rows[q, : counts[q]], 70 + documents[found])
        shared = np.unpackbits(codes[::2][found][:, None] & planes[q], axis=2).sum(axis=2)
        estimates = factors[found, 0] * (weights[q, PLANES] + shared @ weights[q, :PLANES]) + factors[found, 1]
        estimates += bases[q][(found >= ends[0]).astype(int)]
        np.testing.assert_allclose(scores[q, : counts[q]], estimates, rtol=1e-4, atol=1e-3)


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_each_document_is_in_the_cell_of_its_nearest_centroid(tmp_path: Path) -> None:
    documents = vectors_like_real_ones(COUNT, 0)
    codes = VectorCodes.open(stored(tmp_path / "v", documents))
    assert len(codes._centroids) == 32
    for number, part in enumerate(codes._parts):
        rows = part.documents()
        assert sorted(rows) == list(range(1000))
        assert (np.diff(part.cells()) >= 0).all()
        distances = np.linalg.norm(documents[1000 * number + rows][:, None] - codes._centroids, axis=2)
        np.testing.assert_allclose(distances[np.arange(1000), part.cells()], distances.min(axis=1), atol=1e-3)


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_cells_are_left_out_only_as_far_as_the_recall_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_codes, "REACHES", (-2.0, 3.0, 40.0))
    vectors = stored(tmp_path / "v", vectors_like_real_ones(COUNT, 0))

    def made(enough: float) -> tuple[float, object]:
        monkeypatch.setattr(vector_codes, "ENOUGH", enough)
        shutil.rmtree(vectors.folder / "codes-in-cells", ignore_errors=True)
        codes = VectorCodes.open(vectors)
        return codes.recall, json.loads((codes.folder / "recall.json").read_text()).get("reach")

    little, reach = made(0.01)
    assert reach == -2.0
    more, reach = made(0.95)
    assert reach == 3.0
    assert little < 0.95 <= more
    assert made(1.01)[1] is None  # every cell is compared if no reach suffices
    path = vectors.folder / "codes-in-cells" / RECALL
    table_beside(path).unlink()
    path.write_text('{"recall@100": 1, "reach": "far"}')
    with pytest.raises(InputError, match="not a record of a recall"):
        VectorCodes.open(vectors)


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
def test_if_the_cells_hold_too_few_documents_all_are_compared(tmp_path: Path) -> None:
    vectors = stored(tmp_path / "v", vectors_like_real_ones(COUNT, 0))
    codes, queries = VectorCodes.open(vectors), vectors_like_real_ones(3, 1)
    codes._reach = -1000
    for left, right in zip(codes.search(queries, 30), search_vectors(queries, vectors.blocks(), 30), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-6)


WORDS = "bee honey hive flower river bridge stone iron coffee tea bread salt".split()
DOCUMENTS = [Document(f"d{i}", f"{WORDS[i % 12]} {WORDS[i // 12 % 12]} {WORDS[i * 7 % 11]}") for i in range(400)]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankwell.rank.dense.DEEP", 10)
    monkeypatch.setattr("rankwell.rank.dense.TIES", 5)


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
@pytest.mark.usefixtures("small")
def test_each_segment_of_an_index_has_its_codes(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=32)
    index = Index.build(DOCUMENTS[:300], tmp_path / "index")
    queries = [Query("q1", "honey market"), Query("q2", "iron bridge")]
    DenseRanker(encoder, vectors="compressed").search(queries, index, 10)
    index = Index.build(DOCUMENTS[300:], tmp_path / "index", append=True)
    dense = DenseRanker(encoder, vectors="compressed")
    found, exact = dense.search(queries, index, 10), DenseRanker(encoder).search(queries, index, 10)
    for qid in ("q1", "q2"):
        assert len(set(found[qid].docids) & set(exact[qid].docids)) >= 9
    # The second segment is so small that all of its vectors are compared.
    assert [path.parent.parent.parent.name for path in tmp_path.rglob("codes-in-cells")] == ["segment-0001"]


@pytest.mark.filterwarnings("ignore::rankwell.core.errors.Notice")
@pytest.mark.usefixtures("small")
def test_codes_are_made_with_the_vectors_where_many_are_searched(
    tiny_bi_encoder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu", max_length=32)
    store = DocumentStore.build(DOCUMENTS, tmp_path / "store")
    DenseRanker(encoder).prepare([store])
    assert not list(tmp_path.rglob("codes*"))
    monkeypatch.setattr("rankwell.rank.dense.CHEAP", 300)
    DenseRanker(encoder, vectors="exact").prepare([store])
    assert not list(tmp_path.rglob("codes*"))
    DenseRanker(encoder).prepare([store])
    (codes,) = tmp_path.rglob("codes*")
    shutil.rmtree(codes)
    monkeypatch.setattr(DocumentStore, "writable", False)
    assert DenseRanker(encoder).codes(store) is None
    assert DenseRanker(encoder).search([Query("q", "honey")], store, 3)["q"].docids  # exactly
    assert not list(tmp_path.rglob("codes*"))


def test_unknown_ways_to_search_are_refused(tiny_bi_encoder: Path) -> None:
    encoder = BiEncoder.from_pretrained(tiny_bi_encoder, device="cpu")
    with pytest.raises(RankwellError, match="'approximate'"):
        DenseRanker(encoder, vectors="approximate")  # type: ignore[arg-type]
