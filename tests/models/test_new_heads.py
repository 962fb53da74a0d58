"""Heads for pre-training, token weights and classes: equal to transformers' own, saved as transformers' own."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from rankwell.core.errors import RankwellError
from rankwell.models.attention import make_layout
from rankwell.models.checkpoints.folders import load_checkpoint, load_classifier, save_classifier
from rankwell.models.new_heads import start_listwise_head
from rankwell.papers.deepct.weighing import load_token_weights, save_token_weights
from rankwell.papers.drbert.pretrain import load_pretraining, save_pretraining

TYPES = ("location", "numeric", "person", "description", "entity")


@pytest.fixture
def saved(tiny_checkpoint: Path, tmp_path: Path) -> Any:
    """A folder with a random model of some architecture, its heads random as well."""

    def save(architecture: str, **settings: Any) -> Path:
        config = transformers.BertConfig.from_pretrained(tiny_checkpoint, **settings)
        torch.manual_seed(8)
        model = getattr(transformers, architecture)(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if "bias" in name or "LayerNorm" in name:
                    parameter.add_(torch.randn_like(parameter) * 0.3)
        folder = tmp_path / architecture
        model.save_pretrained(folder)
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_checkpoint / name, folder)
        return folder

    return save


def batch_of(sequences: Any) -> tuple[Any, ...]:
    values = (sequences.tokens, sequences.segments, sequences.positions, sequences.words)
    tokens, segments, positions, words = (torch.from_numpy(v).long() for v in values)
    layout = make_layout(words, torch.from_numpy(sequences.last), torch.from_numpy(sequences.ends), "full")
    return tokens, segments, positions, layout


def one_by_one(model: Any, sequences: Any) -> list[Any]:
    """What transformers gives for each sequence alone."""
    out, begin = [], 0
    for end in sequences.ends.tolist():
        tokens, segments = (torch.from_numpy(v[begin:end]).long()[None] for v in (sequences.tokens, sequences.segments))
        with torch.inference_mode():
            out.append(model(tokens, token_type_ids=segments))
        begin = end
    return out


def same(one: Any, two: Any) -> bool:
    return all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


class TestPretraining:
    def logits(self, model: Any, sequences: Any, rows: Any) -> Any:
        with torch.inference_mode():
            return model(*batch_of(sequences), rows)

    @pytest.mark.parametrize("again", [False, True])
    def test_equals_transformers_at_the_chosen_rows(
        self, saved: Any, lay_out: Any, pairs: Any, tmp_path: Path, again: bool
    ) -> None:
        folder, sequences = saved("BertForPreTraining"), lay_out(pairs)
        model, tokenizer = load_pretraining(folder)
        if again:
            folder = tmp_path / "again"
            save_pretraining(folder, model, tokenizer, 180)
            model, _ = load_pretraining(folder)
        theirs = one_by_one(transformers.BertForPreTraining.from_pretrained(folder).eval(), sequences)
        rows = torch.tensor([1, 2, len(sequences.tokens) - 1])
        words, following = self.logits(model, sequences, rows)
        expected = torch.cat([out.prediction_logits[0] for out in theirs])[rows]
        assert (words - expected).abs().max() < 1e-5
        assert (following - torch.cat([out.seq_relationship_logits for out in theirs])).abs().max() < 1e-5
        assert words.shape == (3, len(tokenizer))
        assert words.std() > 0.1

    def test_what_is_saved_has_all_transformers_asks_for(self, saved: Any, tmp_path: Path) -> None:
        model, tokenizer = load_pretraining(saved("BertForPreTraining"))
        save_pretraining(tmp_path / "again", model, tokenizer)
        _, report = transformers.BertForPreTraining.from_pretrained(tmp_path / "again", output_loading_info=True)
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]

    def test_the_head_of_a_masked_language_model_is_used_and_nsp_is_new(
        self, saved: Any, lay_out: Any, pairs: Any
    ) -> None:
        folder, sequences = saved("BertForMaskedLM"), lay_out(pairs)
        model, _ = load_pretraining(folder)
        rows = torch.arange(len(sequences.tokens))
        theirs = one_by_one(transformers.BertForMaskedLM.from_pretrained(folder).eval(), sequences)
        words, following = self.logits(model, sequences, rows)
        assert (words - torch.cat([out.logits[0] for out in theirs])).abs().max() < 1e-5
        assert following.shape == (len(pairs), 2)

    def test_a_backbone_without_heads_gets_them_with_a_seed(self, tiny_checkpoint: Path) -> None:
        one = load_pretraining(tiny_checkpoint, seed=4)[0]
        two, other = load_pretraining(tiny_checkpoint, seed=4)[0], load_pretraining(tiny_checkpoint, seed=5)[0]
        assert same(one, two)
        assert not torch.equal(one.transform.weight, other.transform.weight)
        assert torch.equal(one.pooler.weight, load_checkpoint(tiny_checkpoint)[0].pooler.weight)
        assert one.transform_norm.weight.tolist() == [1.0] * 32

    def test_its_gradient_reaches_the_embeddings_through_the_decoder(
        self, tiny_checkpoint: Path, lay_out: Any, pairs: Any
    ) -> None:
        model, tokenizer = load_pretraining(tiny_checkpoint)
        words, _ = model(*batch_of(lay_out(pairs)), torch.tensor([1]))
        words[0, tokenizer.token_id("whale")].backward()
        assert model.encoder.tokens.weight.grad[tokenizer.token_id("whale")].abs().sum() > 0

    def test_the_encoder_loads_as_a_ranker(self, saved: Any, tmp_path: Path) -> None:
        model, tokenizer = load_pretraining(saved("BertForPreTraining"))
        save_pretraining(tmp_path / "again", model, tokenizer, 180)
        ranker, _, config = load_checkpoint(tmp_path / "again", new_head=True)
        assert same(ranker.encoder, model.encoder)
        assert config.template.max_length == 180

    def test_a_decoder_of_its_own_is_an_error(self, saved: Any) -> None:
        from safetensors.torch import load_file, save_file

        folder = saved("BertForMaskedLM")
        tensors = load_file(folder / "model.safetensors")
        tensors["cls.predictions.decoder.weight"] = torch.zeros(len(tensors["cls.predictions.bias"]), 32)
        save_file(tensors, folder / "model.safetensors")
        with pytest.raises(RankwellError, match="differs from the token embeddings"):
            load_pretraining(folder)


class TestTokenWeights:
    def test_equal_transformers_token_classifier_and_are_saved_as_one(
        self, saved: Any, lay_out: Any, pairs: Any, tmp_path: Path
    ) -> None:
        sequences = lay_out(pairs)
        model, tokenizer = load_token_weights(saved("BertForTokenClassification", num_labels=1))
        save_token_weights(tmp_path / "again", model, tokenizer, 128)
        theirs, report = transformers.BertForTokenClassification.from_pretrained(
            tmp_path / "again", output_loading_info=True
        )
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        expected = torch.cat([out.logits[0, :, 0] for out in one_by_one(theirs.eval(), sequences)])
        with torch.inference_mode():
            found = model(*batch_of(sequences))
        assert found.shape == (len(sequences.tokens),)
        assert (found - expected).abs().max() < 1e-5
        assert found.min() < 0, "no sigmoid"
        assert same(load_token_weights(tmp_path / "again")[0], model)

    def test_the_head_is_not_taken_for_a_rankers(self, saved: Any) -> None:
        folder = saved("BertForTokenClassification", num_labels=1)
        with pytest.raises(RankwellError, match="has no ranking head"):
            load_checkpoint(folder)
        model, _, config = load_checkpoint(folder, new_head=True)
        assert (config.head, config.pooler) == ("two_logits", False)
        assert same(model.encoder, load_token_weights(folder)[0].encoder)

    def test_a_rankers_head_is_not_taken_for_weights(self, tiny_checkpoint: Path) -> None:
        one, two = load_token_weights(tiny_checkpoint)[0], load_token_weights(tiny_checkpoint)[0]
        assert one.head.out_features == 1
        assert same(one, two)

    def test_more_than_one_output_is_an_error(self, saved: Any) -> None:
        with pytest.raises(RankwellError, match="3 outputs per token, expected one"):
            load_token_weights(saved("BertForTokenClassification", num_labels=3))


class TestClassifiers:
    def test_are_saved_with_their_labels(self, tiny_checkpoint: Path, tmp_path: Path, lay_out: Any, pairs: Any) -> None:
        with pytest.warns(UserWarning, match="has the classes LABEL_0, LABEL_1: its head is replaced"):
            classifier = load_classifier(tiny_checkpoint, TYPES)
        save_classifier(tmp_path / "types", classifier, 64)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = load_classifier(tmp_path / "types")
            kept = load_classifier(tmp_path / "types", TYPES, seed=9)
        assert again.labels == TYPES
        assert same(again.model, classifier.model)
        assert same(kept.model, classifier.model)
        theirs = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "types").eval()
        assert theirs.config.id2label == dict(enumerate(TYPES))
        sequences = lay_out(pairs)
        expected = torch.cat([out.logits for out in one_by_one(theirs, sequences)])
        with torch.inference_mode():
            assert (again.model(*batch_of(sequences)) - expected).abs().max() < 1e-5
        assert expected.shape == (len(pairs), 5)

    def test_of_three_classes_are_no_rankers(self, saved: Any) -> None:
        folder = saved("BertForSequenceClassification", num_labels=3)
        assert load_classifier(folder).labels == ("LABEL_0", "LABEL_1", "LABEL_2")
        with pytest.raises(RankwellError, match="a classifier of 3 classes; a ranker has 1 or 2"):
            load_checkpoint(folder)

    def test_new_ones_need_labels(self, saved: Any) -> None:
        folder = saved("BertModel")
        with pytest.raises(RankwellError, match="not a classifier, and there are no labels"):
            load_classifier(folder)
        with pytest.raises(RankwellError, match="labels of a classifier must differ: a, a"):
            load_classifier(folder, ["a", "a"])
        one, two = load_classifier(folder, TYPES, seed=3), load_classifier(folder, TYPES, seed=3)
        assert same(one.model, two.model)


class TestTheListwiseHead:
    def test_from_the_difference_ranks_as_before(self, tiny_checkpoint: Path, lay_out: Any, pairs: Any) -> None:
        model = load_checkpoint(tiny_checkpoint)[0]
        batch = batch_of(lay_out(pairs))
        with torch.inference_mode():
            before = model(*batch)
            start_listwise_head(model)
            after = model(*batch)
        assert after.shape == (len(pairs), 1)
        assert (after[:, 0] - (before[:, 1] - before[:, 0])).abs().max() < 1e-6
        assert after[:, 0].argsort().tolist() == before.log_softmax(dim=1)[:, 1].argsort().tolist()

    def test_new_weights_are_drawn_with_a_seed(self, tiny_checkpoint: Path) -> None:
        heads = []
        for seed in (1, 1, 2):
            model = load_checkpoint(tiny_checkpoint)[0]
            start_listwise_head(model, "normal", seed=seed)
            heads.append(model.head.weight)
        assert torch.equal(heads[0], heads[1])
        assert not torch.equal(heads[0], heads[2])
        assert 0.005 < float(heads[0].detach().std()) < 0.05
        assert heads[0].requires_grad

    def test_zero_scores_all_alike(self, tiny_checkpoint: Path, lay_out: Any, pairs: Any) -> None:
        model = load_checkpoint(tiny_checkpoint)[0]
        start_listwise_head(model, "zero")
        with torch.inference_mode():
            assert model(*batch_of(lay_out(pairs))).tolist() == [[0.0]] * len(pairs)
        with pytest.raises(RankwellError, match="a head of 1 outputs has no difference"):
            start_listwise_head(model)
