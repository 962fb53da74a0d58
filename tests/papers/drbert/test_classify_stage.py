"""Training a classifier: the gradient against plain torch, and a task that is learned."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankwell.models.batch import Placer
from rankwell.models.checkpoints.folders import load_classifier, save_classifier
from rankwell.papers.drbert.labelled_texts import LabelledTexts
from rankwell.papers.drbert.query_types import ClassificationTask, Classifier, figures_on
from rankwell.training.loop.task import Step
from rankwell.training.recipe_reader import build_recipe
from rankwell.training.run import run_recipe

NAMES = ("animal", "place", "money")
WORDS = {
    "animal": "bee fish whale bird dog cat".split(),
    "place": "city country london paris germany river".split(),
    "money": "bank interest rate account loan price".split(),
}


def questions(count: int, seed: int) -> LabelledTexts:
    """Questions whose class is told by one word among others."""
    draw = np.random.default_rng(seed)
    classes = draw.integers(0, len(NAMES), count)
    texts = [
        f"what is the {draw.choice(WORDS[NAMES[c]])} {draw.choice(['of the day', 'in winter', ''])}" for c in classes
    ]
    return LabelledTexts(texts, None, classes, NAMES)


@pytest.fixture
def fresh(tiny_checkpoint: Path) -> Any:
    with pytest.warns(UserWarning, match="replaced"):
        return load_classifier(tiny_checkpoint, NAMES, seed=5)


def make_step(budget: int) -> Step:
    return Step(Placer(torch.device("cpu"), "full"), budget, 1, nullcontext, lambda loss: loss)


def gradient(
    model: Any, task: ClassificationTask, items: Any, part: slice, budget: int = 4096
) -> tuple[Any, dict[str, float]]:
    model.zero_grad()
    model.eval()  # without dropout, or chunks would differ
    found = task.backward(model, items, part, make_step(budget))
    flat = [p.grad.reshape(-1) if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()]
    return torch.cat(flat).clone(), {name: float(value) for name, value in found.items()}


def test_loss_and_gradient_are_those_of_transformers(fresh: Any, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    data = questions(7, seed=1)
    save_classifier(tmp_path / "start", fresh)
    theirs = transformers.BertForSequenceClassification.from_pretrained(tmp_path / "start").eval()
    inputs = transformers.AutoTokenizer.from_pretrained(tmp_path / "start")(
        data.texts, padding=True, return_tensors="pt"
    )
    out = theirs(**inputs, labels=torch.from_numpy(data.classes))
    out.loss.backward()

    task = ClassificationTask.of(data, fresh.tokenizer)
    _, figures = gradient(fresh.model, task, np.arange(7), slice(0, 7))
    assert figures["loss"] == pytest.approx(out.loss.item(), abs=1e-5)
    assert figures["accuracy"] == pytest.approx(float((out.logits.argmax(1).numpy() == data.classes).mean()))
    expected = theirs.classifier.weight.grad
    torch.testing.assert_close(fresh.model.head.weight.grad, expected, atol=1e-5, rtol=1e-4)
    words = theirs.bert.embeddings.word_embeddings.weight.grad
    torch.testing.assert_close(fresh.model.encoder.tokens.weight.grad, words, atol=1e-5, rtol=1e-4)


def test_parts_and_chunks_add_up_to_the_whole(fresh: Any) -> None:
    task = ClassificationTask.of(questions(9, seed=2), fresh.tokenizer)
    items = np.array([8, 0, 3, 3, 5, 1])
    whole, figures = gradient(fresh.model, task, items, slice(0, 6))
    chunked, same = gradient(fresh.model, task, items, slice(0, 6), budget=12)
    parts = [gradient(fresh.model, task, items, part) for part in (slice(0, 2), slice(2, 6), slice(6, 6))]
    torch.testing.assert_close(chunked, whole, atol=1e-6, rtol=1e-4)
    torch.testing.assert_close(sum(part for part, _ in parts), whole, atol=1e-6, rtol=1e-4)
    for name, value in figures.items():
        assert same[name] == pytest.approx(value)
        assert sum(found[name] for _, found in parts) == pytest.approx(value)


def test_it_learns_and_loads_again(fresh: Any, tmp_path: Path) -> None:
    model = fresh.model
    task = ClassificationTask.of(questions(96, seed=3), fresh.tokenizer, max_length=32)
    held_out = questions(60, seed=4)
    test = ClassificationTask.of(held_out, fresh.tokenizer, max_length=32)
    before = figures_on(test, model, NAMES)["accuracy"]
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
    assert task.draw(0) == 96
    for number in range(120):
        optimiser.zero_grad()
        model.train()
        items = np.random.default_rng(number).permutation(96)[:16]
        task.backward(model, items, slice(0, 16), make_step(4096))
        optimiser.step()
    figures = figures_on(test, model, NAMES)
    after = figures["accuracy"]
    assert before < 0.6
    assert after > 0.85
    assert all(p.dtype == torch.float32 for p in model.parameters())  # measuring must not round what is trained
    assert figures["texts"] == 60

    save_classifier(tmp_path / "types", fresh, 32)
    labels, _ = Classifier.from_pretrained(tmp_path / "types", engine={"device": "cpu"}).predict(held_out.texts)
    assert np.mean(np.array(labels) == np.array(NAMES)[held_out.classes]) == pytest.approx(after)


@pytest.mark.filterwarnings("ignore:.*its head is replaced")
def test_the_loop_leaves_a_classifier_and_its_figures(tiny_checkpoint: Path, tmp_path: Path) -> None:
    held_out = questions(60, seed=4)
    for name, texts in (("train", questions(96, seed=3)), ("test", held_out)):
        lines = [f"{NAMES[number]}\t{text}\n" for number, text in zip(texts.classes, texts.texts, strict=True)]
        (tmp_path / f"{name}.tsv").write_text("".join(lines), encoding="utf-8")
    stage = {"epochs": 8, "batch": 16, "learning_rate": 3e-3}
    tree = {"data": str(tmp_path), "model": {"start": str(tiny_checkpoint)}, "stages": {"classify": stage}}
    trained = run_recipe(build_recipe(tree, tmp_path / "types.yaml"), tmp_path / "run", device="cpu")
    figures = trained.work.done[0].result.figures
    classifier = Classifier.from_pretrained(tmp_path / "run" / "model", engine={"device": "cpu"})
    labels, _ = classifier.predict(held_out.texts)
    right = np.mean(np.array(labels) == np.array(NAMES)[held_out.classes])
    assert figures["accuracy"] == pytest.approx(right)
    assert figures["confusion"].keys() <= set(NAMES)
    assert sum(n for row in figures["confusion"].values() for n in row.values()) == figures["texts"] == 60
    assert (figures["steps"], figures["texts_cut"]) == (48, 0)
    assert (classifier.labels, classifier.reader.template.max_length) == (tuple(sorted(NAMES)), 64)


def test_texts_and_labels_must_be_as_many(fresh: Any) -> None:
    task = ClassificationTask.of(questions(3, seed=1), fresh.tokenizer)
    with pytest.raises(ValueError, match="3 texts but 2 labels"):
        ClassificationTask(task.sequences, task.classes[:2])
