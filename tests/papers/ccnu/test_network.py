"""SDNet as a whole: masks, odd texts, gradients, learning, checkpoints."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.core.errors import InputError, RankwellError
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.papers.ccnu.network import SdnetConfig, load_sdnet, new_sdnet, save_sdnet
from rankwell.papers.ccnu.word_features import InMemoryFeatures, PairBatch, PairMaker
from rankwell.papers.ccnu.words import WordRows, WordVocabulary

CPU = torch.device("cpu")
SIZE, LAYERS = 8, 2
CONFIG = SdnetConfig(
    encoder="bert", encoder_digest="x", width=SIZE, layers=LAYERS, vector_size=SIZE, hidden=8, attention=12, top=5
)


class Table:
    """Random word vectors."""

    size = SIZE

    def __init__(self, vocabulary: WordVocabulary):
        self._vectors = torch.randn(len(vocabulary) + 400, SIZE, generator=torch.Generator().manual_seed(1))

    def at(self, numbers: np.ndarray) -> torch.Tensor:
        return self._vectors[torch.from_numpy(numbers.astype(np.int64))]


@pytest.fixture
def vocabulary(tiny_tokenizer: Path) -> WordVocabulary:
    return WordVocabulary(Tokenizer.open(tiny_tokenizer))


def source(vocabulary: WordVocabulary, words: WordRows) -> InMemoryFeatures:
    """Features drawn for each form, the same wherever it stands."""
    drawn = np.random.default_rng(2).normal(size=(len(vocabulary) + 400, LAYERS, SIZE)).astype(np.float16)
    return InMemoryFeatures(vocabulary, words, drawn[words.numbers])


def make(vocabulary: WordVocabulary, queries: list[str], passages: list[str]) -> PairMaker:
    asked, found = vocabulary.read(queries), vocabulary.read(passages)
    return PairMaker(source(vocabulary, asked), source(vocabulary, found), Table(vocabulary), CPU)  # type: ignore[arg-type]


QUERIES = ["bee", "how warm is the hive in winter", ""]
PASSAGES = ["bee", "", "the hive is warm and the bees are warm, too, in a long winter", "zzz", "river sea fish"]


@pytest.mark.parametrize("signals", ["softmax", "cosine", "dot"])
def test_padding_never_changes_a_score(vocabulary: WordVocabulary, signals: str) -> None:
    model = new_sdnet(CONFIG.model_copy(update={"signals": signals}), seed=3).eval()
    maker = make(vocabulary, QUERIES, PASSAGES)
    queries, passages = (grid.reshape(-1) for grid in np.meshgrid(np.arange(3), np.arange(5), indexing="ij"))
    with torch.no_grad():
        together = model(*maker(queries, passages))
        alone = torch.cat([model(*maker(queries[[i]], passages[[i]])) for i in range(15)])
    assert torch.isfinite(together).all()
    assert torch.allclose(together, alone, atol=1e-6)
    # Not because all are alike: what is not empty differs by query and by passage. But a softmax over the one word of a
    # passage is 1, whatever the word and the query.
    told_apart = together.view(3, 5)[:2, [0, 2, 3, 4]].flatten().tolist()
    assert len({round(value, 6) for value in told_apart}) == (5 if signals == "softmax" else 8)


@pytest.mark.parametrize("signals", ["softmax", "cosine", "dot"])
def test_one_word_queries_and_empty_and_unknown_passages_have_finite_gradients(
    vocabulary: WordVocabulary, signals: str
) -> None:
    model = new_sdnet(CONFIG.model_copy(update={"signals": signals}), seed=3).train()
    scores = model(*make(vocabulary, QUERIES, ["", "\u2603 \u2603\u2603", "bee"])(np.arange(3), np.arange(3)))
    scores.sum().backward()
    assert torch.isfinite(scores).all()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    with torch.no_grad():  # all passages empty: a grid of no words
        assert torch.isfinite(model(*make(vocabulary, QUERIES, ["", ""])(np.array([0, 2]), np.arange(2)))).all()


@pytest.mark.parametrize("signals", ["softmax", "cosine"])
def test_the_gradient_reaches_every_parameter(vocabulary: WordVocabulary, signals: str) -> None:
    model = new_sdnet(CONFIG.model_copy(update={"signals": signals, "dropout": 0.0}), seed=3).train()
    scores = model(*make(vocabulary, QUERIES[:2], PASSAGES)(np.array([0, 1, 1, 1]), np.array([2, 2, 4, 3])))
    (scores * torch.tensor([1.0, -2.0, 3.0, -4.0])).sum().backward()
    without = [name for name, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0]
    assert without == []


def test_widths_are_those_of_the_paper() -> None:
    config = SdnetConfig(encoder="", encoder_digest="", width=384, layers=7, vector_size=50)
    model = new_sdnet(config)
    lstm = {name: layer for name, layer in model.named_modules() if isinstance(layer, torch.nn.LSTM)}
    assert {name: layer.input_size for name, layer in lstm.items()} == {
        "query_words.layers.0": 434,
        "query_words.layers.1": 250,
        "passage_words.layers.0": 50 + 384 + 50 + 4,
        "passage_words.layers.1": 250,
        "query_top.layers.0": 500,
        "matched.layers.0": 5 * 250,
        "passage_top.layers.0": 500,
    }
    assert {layer.hidden_size for layer in lstm.values()} == {125}
    assert model.inter[0].project.in_features == 50 + 384 + 500
    assert model.score[0].in_features == 10
    assert config.dropout == 0.4


def test_layers_may_be_mixed_beforehand(vocabulary: WordVocabulary) -> None:
    model = new_sdnet(CONFIG, seed=3).eval()
    with torch.no_grad():
        model.mix.alpha.copy_(torch.tensor([0.3, -0.2]))
        batch = make(vocabulary, QUERIES[:2], PASSAGES)(np.array([1, 0]), np.array([2, 4]))
        mixed = batch.passages._replace(layers=model.mix_layers(batch.passages.layers))
        assert torch.allclose(model(*batch), model(*batch._replace(passages=mixed)), atol=1e-6)


def word_task(vocabulary: WordVocabulary, random: np.random.Generator, low: int, high: int, lists: int) -> PairBatch:
    """Queries of two words, each with a passage of six that has one of them and a passage that has none by intent."""
    queries = random.integers(low, high, (lists, 2), np.int32)
    passages = random.integers(low, high, (2 * lists, 6), np.int32)
    passages[np.arange(lists) * 2, random.integers(0, 6, lists)] = queries[:, 0]
    asked = WordRows(queries.reshape(-1), np.arange(1, lists + 1) * 2)
    found = WordRows(passages.reshape(-1), np.arange(1, 2 * lists + 1) * 6)
    maker = PairMaker(source(vocabulary, asked), source(vocabulary, found), Table(vocabulary), CPU)  # type: ignore[arg-type]
    return maker(np.repeat(np.arange(lists), 2), np.arange(2 * lists))


def test_it_learns_to_match_words_it_has_never_seen(vocabulary: WordVocabulary) -> None:
    vocabulary.add([f"{letter}{other}x" for letter in "abcdefghijklmnop" for other in "abcdefghijklmnop"])
    random = np.random.default_rng(0)
    model = new_sdnet(CONFIG.model_copy(update={"dropout": 0.0}), seed=1).train()
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(45):
        better, worse = model(*word_task(vocabulary, random, 0, 128, 32)).view(-1, 2).unbind(1)
        loss = torch.relu(1 - better + worse).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    with torch.no_grad():
        better, worse = model.eval()(*word_task(vocabulary, random, 128, 256, 100)).view(-1, 2).unbind(1)
    assert float((better > worse).float().mean()) > 0.8


def test_a_checkpoint_scores_as_what_was_saved(vocabulary: WordVocabulary, tmp_path: Path) -> None:
    model = new_sdnet(CONFIG, seed=3).eval()
    save_sdnet(tmp_path / "model", model)
    assert {path.name for path in (tmp_path / "model").iterdir()} == {"sdnet.safetensors", "sdnet.json", "checksums"}
    again = load_sdnet(tmp_path / "model")
    batch = make(vocabulary, QUERIES, PASSAGES)(np.array([0, 1]), np.array([4, 2]))
    with torch.no_grad():
        assert torch.equal(model(*batch), again(*batch))
    assert again.config == CONFIG
    with pytest.raises(RankwellError, match="exists already"):
        save_sdnet(tmp_path / "model", model)


def test_broken_checkpoints_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"not an SDNet ranker \(it has no sdnet.json\)"):
        load_sdnet(tmp_path)
    save_sdnet(tmp_path / "model", new_sdnet(CONFIG))
    (tmp_path / "model" / "checksums").unlink()
    path = tmp_path / "model" / "sdnet.json"
    about = json.loads(path.read_text())
    path.write_text(json.dumps({**about, "top": 7}))
    with pytest.raises(InputError, match=r"not the weights sdnet\.json describes") as caught:
        load_sdnet(tmp_path / "model")
    assert "\n" not in str(caught.value)
    path.write_text(json.dumps({**about, "tpo": 7}))
    with pytest.raises(InputError, match="tpo"):
        load_sdnet(tmp_path / "model")
    path.write_text(json.dumps(about))
    (tmp_path / "model" / "sdnet.safetensors").unlink()
    with pytest.raises(InputError, match=r"no sdnet\.safetensors"):
        load_sdnet(tmp_path / "model")


def test_new_networks_are_drawn_by_seed() -> None:
    def first(seed: int) -> torch.Tensor:
        return new_sdnet(CONFIG, seed).match.weight

    assert torch.equal(first(1), first(1))
    assert not torch.equal(first(1), first(2))
