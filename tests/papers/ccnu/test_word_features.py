"""Features of words by a frozen encoder."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.core.errors import RankwellError
from rankwell.papers.ccnu.word_features import FeatureEncoder, PairMaker, WordTable, open_vectors, pool_words

TEXTS = ["The bogue swims insouciantly.", "", "bee", "honey of the hive in winter is warm"]


@pytest.fixture(scope="module")
def encoder(tiny_checkpoint: Path) -> FeatureEncoder:
    return FeatureEncoder.from_pretrained(tiny_checkpoint, device="cpu")


def test_pieces_are_averaged_to_words_by_hand() -> None:
    # [CLS] a ##b c [SEP] [CLS] [SEP] [CLS] d [SEP]
    states = torch.tensor([9.0, 1.0, 3.0, 5.0, 9.0, 9.0, 9.0, 9.0, 7.0, 9.0])[:, None, None] * torch.tensor(
        [[1.0, 10.0]]
    )
    found = pool_words(states, np.array([2, 1, 1]), np.array([2, 0, 1]))
    assert found.tolist() == [[[2, 20]], [[5, 50]], [[7, 70]]]


def test_features_are_the_means_of_transformers_hidden_states(encoder: FeatureEncoder, tiny_checkpoint: Path) -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.BertModel.from_pretrained(tiny_checkpoint).eval()
    found = encoder.read(TEXTS, 256)
    assert found.features.shape == (len(found.words.numbers), 3, 32)
    assert found.features.dtype == np.float16
    tokenizer, word = encoder.vocabulary.tokenizer, 0
    for text in TEXTS:
        pieces = tokenizer.encode([text])
        ids = [tokenizer.special.cls, *pieces.ids.tolist(), tokenizer.special.sep]
        with torch.no_grad():
            states = model(torch.tensor([ids]), output_hidden_states=True).hidden_states
        starts = [place for place, goes_on in enumerate(pieces.continues.tolist()) if not goes_on]
        for begin, end in pairwise([*starts, len(pieces.ids)]):
            for layer, state in enumerate(states):
                expected = state[0, 1 + begin : 1 + end].mean(dim=0).numpy()
                np.testing.assert_allclose(found.features[word, layer], expected, atol=4e-3)
            word += 1
    assert word == len(found.features)


def test_only_the_last_layers_are_kept(encoder: FeatureEncoder, tiny_checkpoint: Path) -> None:
    last = FeatureEncoder.from_pretrained(tiny_checkpoint, layers=2, device="cpu").read(TEXTS, 256)
    np.testing.assert_array_equal(last.features, encoder.read(TEXTS, 256).features[:, 1:])
    with pytest.raises(RankwellError, match="4 layers of an encoder that has 3"):
        FeatureEncoder.from_pretrained(tiny_checkpoint, layers=4, device="cpu")


def test_a_texts_features_do_not_depend_on_its_neighbours(tiny_checkpoint: Path, encoder: FeatureEncoder) -> None:
    whole = encoder.read(TEXTS, 256)
    small = FeatureEncoder.from_pretrained(tiny_checkpoint, device="cpu", budget=1).read(TEXTS, 256)
    np.testing.assert_allclose(whole.features, small.features, atol=2e-3)
    words, features = whole.at(np.array([3, 1, 0]))
    assert words.lengths().tolist() == [8, 0, 5]
    np.testing.assert_allclose(features, encoder.read([TEXTS[3], TEXTS[1], TEXTS[0]], 256).features, atol=2e-3)


def test_the_encoder_stays_as_it_is(encoder: FeatureEncoder) -> None:
    assert not encoder.encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.encoder.parameters())


def test_own_embeddings_are_means_of_the_pieces_at_one_scale(encoder: FeatureEncoder) -> None:
    words = encoder.vocabulary.read(["bogue bee"]).numbers
    table = WordTable(encoder.vocabulary, encoder.encoder, torch.device("cpu"))
    weights = encoder.encoder.tokens.weight
    scale = weights.square().mean().sqrt()
    tokenizer = encoder.vocabulary.tokenizer
    bog, ue, bee = (weights[tokenizer.token_id(name)] / scale for name in ("bog", "##ue", "bee"))
    assert torch.allclose(table.at(words), torch.stack([(bog + ue) / 2, bee]), atol=1e-6)
    fresh = encoder.vocabulary.read(["hive"]).numbers  # the table follows the vocabulary
    assert torch.allclose(table.at(fresh)[0], weights[tokenizer.token_id("hive")] / scale, atol=1e-6)


def test_vectors_of_a_file_are_zeros_for_unknown_words(encoder: FeatureEncoder, tmp_path: Path) -> None:
    (tmp_path / "v.txt").write_text("bee 1 2\n")
    table = WordTable(encoder.vocabulary, open_vectors(tmp_path / "v.txt"), torch.device("cpu"))
    assert table.at(encoder.vocabulary.read(["Bee hive"]).numbers).tolist() == [[1, 2], [0, 0]]


def test_a_batch_has_each_query_once(encoder: FeatureEncoder) -> None:
    queries, passages = encoder.read(["bee", "the hive"], 8), encoder.read(TEXTS, 8)
    table = WordTable(encoder.vocabulary, encoder.encoder, torch.device("cpu"))
    batch = PairMaker(queries, passages, table, torch.device("cpu"))(np.array([1, 0, 1]), np.array([3, 2, 1]))
    assert batch.queries.lengths.tolist() == [1, 2]
    assert batch.query_of.tolist() == [1, 0, 1]
    assert batch.passages.lengths.tolist() == [8, 1, 0]
    assert batch.passages.mask().sum(dim=1).tolist() == [8, 1, 0]
    padded = batch.passages.pad(batch.matches)
    assert padded[0, :, 0].tolist() == [0, 0, 1, 1, 0, 0, 0, 0]  # of "honey of the hive in …": the, hive
    assert padded[1, :, 0].tolist() == [1] + [0] * 7
