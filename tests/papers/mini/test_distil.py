"""Stages with a teacher: a student comes to rank as its teacher does; candidates are cleaned, weights averaged."""

from __future__ import annotations

import json
import shutil
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from tests.training import toys

from rankwell.core.errors import RankwellError
from rankwell.core.manifest import digest
from rankwell.corpus.formats import read_run
from rankwell.corpus.lexicon import Lexicon
from rankwell.corpus.records import Document
from rankwell.corpus.store import DocumentStore
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.folders import new_cross_encoder, save_checkpoint
from rankwell.models.encoder import Encoder
from rankwell.models.spec import EncoderConfig
from rankwell.papers.mini import distil, filter
from rankwell.papers.mini.distil import TeacherQueries, merge, teacher_lists
from rankwell.papers.mini.filter import keep_below_relevant, standard_scores
from rankwell.papers.mini.options import DistilOptions
from rankwell.rank.ranker import Ranker
from rankwell.training.data.candidates import TrainingCandidates
from rankwell.training.data.teachers import BiEncoderTeacher, load_teachers
from rankwell.training.loop import loop
from rankwell.training.recipe import Recipe
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import Trained, run_recipe

DISTIL: dict[str, Any] = {
    "epochs": 20,
    "batch": 8,
    "list_size": 6,
    "random": 1,
    "depth": 12,
    "dense": 6,
    "synthetic": 12,
    "queries": ["test"],
    "learning_rate": 2e-3,
    "save_every": 20,
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("distil")


@pytest.fixture(scope="module")
def data(place: Path) -> Path:
    return toys.write_data(place / "data")


@pytest.fixture(scope="module")
def teacher(tiny_bi_encoder: Path) -> Path:
    return tiny_bi_encoder


@pytest.fixture(scope="module")
def student(place: Path, tiny_tokenizer: Path) -> Path:
    """A small BERT with weights as BERT's usually are, and no dropout."""
    tokenizer = Tokenizer.open(tiny_tokenizer)
    shape = EncoderConfig(len(tokenizer), 48, 2, 4, 96, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    torch.manual_seed(1)
    model = new_cross_encoder(Encoder(shape), 2, pooler=False, seed=1)
    save_checkpoint(place / "student", model, tokenizer, RankerConfig(pooler=False))
    for name in ("rankwell.json", "checksums"):
        (place / "student" / name).unlink()
    return place / "student"


def recipe_of(data: Path, start: Path, **stages: Any) -> Recipe:
    tree = toys.recipe_tree(data, start, **stages)
    tree["model"] |= {"pooler": False}
    return build_recipe(tree, "r.yaml")


def run(recipe: Recipe, out: Path) -> Trained:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return run_recipe(recipe, out, device="cpu")


@pytest.fixture(scope="module")
def done(data: Path, place: Path, teacher: Path, student: Path) -> Trained:
    stages = {
        "distil": {**DISTIL, "teachers": [str(teacher)]},
        "more": {"kind": "distil", **DISTIL, "teachers": [str(teacher)], "max_steps": 2, "loss": "margin_mse"},
        "average": {"stages": ["distil", "more"], "weights": [3, 1]},
    }
    return run(recipe_of(data, student, **stages), place / "out")


def stage_folder(out: Path, name: str) -> Path:
    (found,) = (out / "stages").glob(f"*-{name}-*")
    return found


def agreement(model: Path, teacher: Path, work: Any) -> float:
    """The mean correlation, over the dev queries, of a ranker's scores with the teacher's cosines."""
    store, dev = work.data.collection.store, work.data.dev
    texts = [document.contents for document in store]
    encoder = BiEncoder.from_pretrained(teacher, device="cpu")
    cosines = encoder.encode_queries([query.text for query in dev.queries]) @ encoder.encode_documents(texts).T
    ranker = Ranker.from_pretrained(model, engine={"device": "cpu"})
    scores = ranker.predict([(query.text, text) for query in dev.queries for text in texts])
    rows = zip(scores.reshape(cosines.shape), cosines, strict=True)
    return float(np.mean([np.corrcoef(own, theirs)[0, 1] for own, theirs in rows]))


def test_the_loss_falls_and_the_student_ranks_more_as_its_teacher_does(
    done: Trained, place: Path, teacher: Path, student: Path
) -> None:
    folder = stage_folder(place / "out", "distil")
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    assert losses[-1] < 0.7 * losses[0]
    before = agreement(student, teacher, done.work)
    assert agreement(folder / "model", teacher, done.work) > max(0.4, before + 0.3)
    record = json.loads((folder / "stage.json").read_text())["produced"]["figures"]
    assert (record["queries"], record["synthetic queries"]) == (48, 240)


def test_a_killed_distillation_goes_on_to_the_same_weights(
    done: Trained, place: Path, data: Path, teacher: Path, student: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipe_of(data, student, distil={**DISTIL, "teachers": [str(teacher)]})
    saved = loop.save_state
    count = 0

    def save_and_die(*arguments: Any) -> None:
        nonlocal count
        saved(*arguments)
        count += 1
        if count == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(loop, "save_state", save_and_die)
    with pytest.raises(KeyboardInterrupt):
        run(recipe, place / "killed")
    monkeypatch.setattr(loop, "save_state", saved)
    run(recipe, place / "killed")
    one, two = (
        load_file(stage_folder(place / out, "distil") / "last" / "model.safetensors") for out in ("out", "killed")
    )
    assert one.keys() == two.keys()
    assert all(np.array_equal(one[name], two[name]) for name in one)


def test_of_several_processes_one_searches_and_encodes(
    data: Path, tmp_path: Path, teacher: Path, student: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {**DISTIL, "teachers": [str(teacher)], "epochs": 1, "max_steps": 1}
    done = run(recipe_of(data, student, distil=stage), tmp_path / "out")
    work, options = done.work, done.work.done[0].stage.options
    queries = distil.gather_queries(work, options)
    store = work.data.collection.store
    before = distil.stored_candidates(
        work, options, queries, load_teachers(store, [str(teacher)], queries.texts, None, "cpu")
    )

    monkeypatch.setenv("RANK", "1")  # the first process has written candidates and vectors; this one must read them
    monkeypatch.setattr(distil, "find_candidates", lambda *given: pytest.fail("searched by a second process"))
    monkeypatch.setattr(BiEncoder, "encode_queries", lambda *given: pytest.fail("encoded by a second process"))
    teachers = load_teachers(store, [str(teacher)], queries.texts, None, "cpu")
    after = distil.stored_candidates(work, options, queries, teachers)
    for name in ("documents", "scores", "ends"):
        np.testing.assert_array_equal(getattr(after, name), getattr(before, name))

    waited: list[float] = []

    def publish(seconds: float) -> None:  # the first process finishes its search while this one waits
        waited.append(seconds)
        for folder in hidden:
            folder.rename(folder.with_name(folder.name.removeprefix("hidden-")))

    hidden = [path.rename(path.with_name(f"hidden-{path.name}")) for path in store.folder.glob("candidates-*")]
    monkeypatch.setattr("rankwell.training.stage.time.sleep", publish)
    again = distil.stored_candidates(work, options, queries, teachers)
    assert len(waited) == 1
    np.testing.assert_array_equal(again.documents, before.documents)


def test_a_teacher_is_asked_with_its_prompt_and_what_is_kept_knows_it(tmp_path: Path, teacher: Path) -> None:
    folder = shutil.copytree(teacher, tmp_path / "teacher")
    store = DocumentStore.build([Document("d1", "the bees keep warm"), Document("d2", "honey")], tmp_path / "store")
    texts, names = ["how do bees keep warm", "honey"], set()
    plain = BiEncoder.from_pretrained(teacher, device="cpu")
    for prompt in ("", "query: ", "what is "):
        (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": {"query": prompt}}))
        for _ in range(2):  # computed, and kept
            (found,) = load_teachers(store, [str(folder)], texts, None, "cpu")
            assert isinstance(found, BiEncoderTeacher)
            expected = plain.encode_queries([prompt + text for text in texts])
            np.testing.assert_allclose(found.queries, expected, atol=1e-6)
        names.add(found.name)
    assert len(names) == len(list(store.folder.glob("asked-*"))) == 3
    assert [path.name for path in store.folder.glob("vectors-*")] == [f"vectors-{plain.name}"]
    assert (store.folder / f"asked-{digest([plain.name, texts])}").is_dir()
    assert f"vectors-{plain.name}" in names


def test_an_average_is_the_mean_of_the_weights(done: Trained, place: Path) -> None:
    first, second, mean = (
        load_file(stage_folder(place / "out", name) / "model" / "model.safetensors")
        for name in ("distil", "more", "average")
    )
    for name, tensor in mean.items():
        np.testing.assert_allclose(tensor, 0.75 * first[name] + 0.25 * second[name], rtol=1e-5, atol=1e-6)
    assert any(not np.array_equal(first[name], second[name]) for name in first)


def test_a_twin_begins_as_its_teacher_and_is_averaged_with_it(data: Path, place: Path, teacher: Path) -> None:
    own = {**DISTIL, "teachers": [str(teacher)], "max_steps": 1, "learning_rate": 1e-3}
    stages = {"distil": own, "average": {"stages": ["start", "distil"], "weights": [1, 3]}}
    start = load_file(teacher / "model.safetensors")
    bare = place / "bare"
    shutil.copytree(teacher, bare)
    save_file({name: tensor for name, tensor in start.items() if "classifier" not in name}, bare / "model.safetensors")
    recipe = recipe_of(data, bare, **stages)
    model = recipe.model.model_copy(update={"template": "twin", "similarity": 20.0, "apart": 1})
    trained = run(recipe.model_copy(update={"model": model}), place / "twin")
    distilled, mean = (
        load_file(stage_folder(place / "twin", name) / "model" / "model.safetensors") for name in ("distil", "average")
    )
    name = "encoder.layer.0.output.dense.weight"
    (before,) = (start[key] for key in start if key.endswith(name))
    assert not np.array_equal(before, distilled[f"bert.{name}"])
    np.testing.assert_allclose(mean[f"bert.{name}"], 0.25 * before + 0.75 * distilled[f"bert.{name}"], atol=1e-6)
    # One step from the teacher itself, and with a head that began at 0.
    assert agreement(stage_folder(place / "twin", "average") / "model", teacher, trained.work) > 0.95


def test_a_filter_drops_what_its_teacher_prefers_to_the_relevant(data: Path, place: Path, teacher: Path) -> None:
    stages = {"filter": {"teachers": [str(teacher)]}, "listwise": {"max_steps": 1, "best": "last"}}
    trained = run(recipe_of(data, teacher, **stages), place / "filtered")
    kept = read_run(stage_folder(place / "filtered", "filter") / "candidates.run.gz")
    whole, encoder = trained.work.data.train, BiEncoder.from_pretrained(teacher, device="cpu")
    store = trained.work.data.collection.store
    for query in whole.queries[:12]:
        docids = list(whole.run[query.qid].docids)
        (gold,) = whole.qrels[query.qid]
        cosines = encoder.encode_documents(store.texts(docids)) @ encoder.encode_queries([query.text])[0]
        scores = dict(zip(docids, cosines, strict=True))
        expected = {docid for docid, score in scores.items() if score <= scores[gold]}
        if expected == {gold}:
            expected.add(min(scores, key=lambda docid: scores[docid]))
        assert set(kept[query.qid].docids) == expected


def test_only_the_first_process_writes_the_filtered_candidates(
    data: Path, teacher: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained = run(recipe_of(data, teacher, filter={"teachers": [str(teacher)]}), tmp_path / "out")
    (done,) = trained.work.done
    path = done.folder / "candidates.run.gz"
    path.write_bytes(b"of the first process")
    monkeypatch.setenv("RANK", "1")
    assert filter.run(done.work, done.stage, done.folder).candidates == path
    assert path.read_bytes() == b"of the first process"


def test_noise_is_told_by_the_best_relevant_document() -> None:
    numbers = np.arange(6)
    candidates = TrainingCandidates(
        ("a", "b"),
        np.array([4, 6]),
        numbers,
        np.array([-1, 1, 0, -1, 2, -1], np.int32),
        np.zeros(6, np.float32),
        Lexicon(),
    )
    scores = np.array([0.9, 0.5, 0.8, 0.4, -1.0, 1.0], np.float32)
    # Above the relevant 0.5 are 0.9, which is dropped, and 0.8, which was judged; "b" would lose its only negative.
    assert keep_below_relevant(candidates, scores, 0.0).documents.tolist() == [1, 2, 3, 4, 5]
    assert keep_below_relevant(candidates, scores, 0.2).documents.tolist() == [1, 2, 4, 5]
    assert keep_below_relevant(candidates, scores, -0.5).documents.tolist() == [0, 1, 2, 3, 4, 5]

    class Squares:
        def scores(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
            return (documents**2 + queries[:, None]).astype(np.float32)

    # 0, 1, 4, 9: mean 3.5, deviation √(49/4)... and 17, 26, whose deviation is half their difference.
    found = standard_scores([Squares()], candidates)
    deviation = np.std([0, 1, 4, 9])
    np.testing.assert_allclose(found, [-3.5 / deviation, -2.5 / deviation, 0.5 / deviation, 5.5 / deviation, -1, 1])


def test_candidates_are_merged_by_their_best_rank(tmp_path: Path) -> None:
    store = DocumentStore.build([Document(f"d{i}", "text") for i in range(9)], tmp_path / "store")
    work: Any = SimpleNamespace(data=SimpleNamespace(collection=SimpleNamespace(store=store)))

    def part(*triples: tuple[int, int, int]) -> tuple[np.ndarray, ...]:
        return tuple(np.array(column, np.int64) for column in zip(*triples, strict=True))

    relevant = part((0, 4, -1), (2, 8, -1))
    found = merge(work, "abc", [relevant, part((0, 7, 0), (0, 4, 1), (2, 0, 0)), part((0, 3, 0), (0, 7, 2), (2, 1, 1))])
    assert found.ends.tolist() == [3, 3, 6]
    assert found.documents.tolist() == [4, 3, 7, 8, 0, 1]
    assert found.relevant.tolist() == [True, False, False, True, False, False]
    assert found.scores.tolist() == [1, 0, 0, 1, 0, -1]
    assert found.docids.strings(found.documents[:2]) == ["d4", "d3"]


def test_lists_have_a_relevant_document_candidates_and_others_with_the_teachers_labels() -> None:
    class Numbers:
        """Scores a document by its number."""

        def scores(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
            return documents.astype(np.float32)

    numbers = np.arange(12)
    candidates = TrainingCandidates(
        ("a", "b", "c"),
        np.array([4, 8, 12]),
        numbers,
        np.tile(np.array([1, -1, -1, -1], np.int32), 3),
        np.zeros(12, np.float32),
        Lexicon(),
    )
    nothing = np.zeros(0, np.int64)
    asked = TeacherQueries(candidates.qids, ("a", "b", "c"), np.array([-1, 0, 1]), nothing, nothing, 1)
    options = DistilOptions(list_size=4, random=1, bonus=1.5, temperature=0.5)
    lists_of = partial(teacher_lists, candidates, asked, [Numbers()], options, 100, 3)
    for epoch in (0, 1):
        lists = lists_of(epoch)
        assert sorted(lists.queries.tolist()) == [0, 1 + epoch]  # of the synthetic ones only this epoch's
        for query, documents, labels in zip(lists.queries, lists.documents, lists.labels, strict=True):
            assert documents[0] == 4 * query
            assert set(documents[1:3]) < set(range(4 * query + 1, 4 * query + 4))
            expected = (documents - documents.mean()) / documents.std()
            expected[0] += 1.5 * (query == 0)  # judged
            np.testing.assert_allclose(labels, expected / 0.5, rtol=1e-5)
        np.testing.assert_array_equal(lists_of(epoch).documents, lists.documents)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"loss": "klll"}, "klll"),
        ({"list_size": 3, "random": 2}, "no room for a candidate"),
        ({"teachers": ["/nowhere"]}, "/nowhere"),
        ({"dense": 0}, "set `dense`"),
        ({"dense": 0, "depth": 0}, "no candidates"),
        ({"queries": ["nothing"]}, "nothing"),
    ],
)
def test_what_cannot_be_distilled_is_said_before_any_work(
    data: Path, place: Path, teacher: Path, options: dict[str, Any], complaint: str
) -> None:
    stage = {**DISTIL, "teachers": [str(teacher)], **options}
    with pytest.raises(RankwellError, match=complaint):
        run(recipe_of(data, teacher, distil=stage), place / f"refused-{len(complaint)}")


def test_only_stages_that_went_before_are_averaged(data: Path, place: Path, teacher: Path) -> None:
    stages = {"listwise": {"max_steps": 1}, "average": {"stages": ["listwise", "pointwise"]}}
    with pytest.raises(RankwellError, match="'pointwise'"):
        run(recipe_of(data, teacher, **stages), place / "refused")


@pytest.mark.parametrize(("kind", "complaint"), [("pointwise", "one score, not two logits"), ("duo", "read together")])
def test_stages_that_have_no_place_for_a_similarity_say_so(
    data: Path, place: Path, student: Path, kind: str, complaint: str
) -> None:
    recipe = recipe_of(data, student, **{kind: {"max_steps": 1}})
    model = recipe.model.model_copy(update={"similarity": 20.0, "adapt": True})
    with pytest.raises(RankwellError, match=complaint):
        run(recipe.model_copy(update={"model": model}), place / f"similar-{kind}")
