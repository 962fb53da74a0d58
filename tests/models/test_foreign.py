"""Encoders other than BERT: they score as transformers does, under each rule as transformers does with a dense mask."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from rankwell.core.errors import RankwellError
from rankwell.inputs.templates import Template
from rankwell.models.attention import make_layout
from rankwell.models.checkpoints.folders import add_markers, load_checkpoint, save_checkpoint
from rankwell.rank.explain import explain
from rankwell.rank.ranker import Ranker

SIZES = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
# Far wider than usual, so that scores of different texts really differ.
WIDE = {"initializer_range": 0.3}
KINDS: dict[str, dict[str, Any]] = {
    "electra": {**SIZES, **WIDE, "embedding_size": 16},
    "distilbert": {"dim": 32, "n_layers": 3, "n_heads": 4, "hidden_dim": 64, **WIDE},
    "mpnet": {**SIZES, **WIDE, "max_position_embeddings": 514},
    "roberta": {**SIZES, **WIDE, "max_position_embeddings": 514, "type_vocab_size": 1, "pad_token_id": 0},
    "convbert": {**SIZES, **WIDE, "embedding_size": 32},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, **WIDE},
}
CLASSIFIERS = ["electra", "distilbert", "mpnet", "roberta"]
Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path, tiny_tokenizer: Path) -> Make:
    """Saves a random model of a kind as transformers does: a classifier, or without ``labels`` an encoder."""

    def save(kind: str, labels: int | None = 2) -> Path:
        folder = tmp_path / f"{kind}-{labels}"
        size = len((tiny_tokenizer / "vocab.txt").read_text(encoding="utf-8").split())
        torch.manual_seed(5)
        config = transformers.AutoConfig.for_model(kind, vocab_size=size, **KINDS[kind])
        if labels is None:
            model = transformers.AutoModel.from_config(config)
        else:
            config.num_labels = labels
            model = transformers.AutoModelForSequenceClassification.from_config(config)
        model.save_pretrained(folder)
        for file in tiny_tokenizer.iterdir():
            shutil.copy(file, folder)
        return folder

    return save


def our_logits(loaded: Any, sequences: Any) -> Any:
    """All sequences as one padded batch."""
    values = (sequences.tokens, sequences.segments, sequences.positions, sequences.words)
    tokens, segments, positions, words = (torch.from_numpy(v).long() for v in values)
    segments = segments.clamp(max=loaded[0].encoder.config.type_vocab_size - 1)
    layout = make_layout(words, torch.from_numpy(sequences.last), torch.from_numpy(sequences.ends), "full")
    with torch.inference_mode():
        return loaded[0](tokens, segments, positions, layout)


PAIRS = [
    ("what is bogue", "a bogus claim, a bogue"),
    ("insouciantly bogue", "in the bank, insouciantly numeric insouciantly"),
    ("bank", ""),
    ("how many bees are in a hive", "the bees keep warm in winter " * 12),
]


@pytest.mark.parametrize("kind", CLASSIFIERS)
class TestClassifiers:
    def test_are_saved_as_transformers_and_we_load_them(
        self, make: Make, lay_out: Any, tmp_path: Path, kind: str
    ) -> None:
        model, tokenizer, config = load_checkpoint(make(kind))
        save_checkpoint(tmp_path / "saved", model, tokenizer, config.changed({"template": {"max_length": 80}}))
        again = load_checkpoint(tmp_path / "saved")
        assert again[2].template.max_length == 80
        assert again[1].digest == tokenizer.digest
        assert all(torch.equal(a, b) for a, b in zip(again[0].parameters(), model.parameters(), strict=True))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            theirs, report = transformers.AutoModelForSequenceClassification.from_pretrained(
                tmp_path / "saved", output_loading_info=True
            )
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        assert theirs.config.num_labels == 2
        own_tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
        with torch.inference_mode():
            logits = theirs.eval()(**own_tokenizer(*PAIRS[0], return_tensors="pt")).logits
        assert (logits - our_logits(again, lay_out(PAIRS[:1]))).abs().max() < 1e-5
        assert f"{kind}, 3 layers" in (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")

    def test_learn(self, make: Make, lay_out: Any, kind: str) -> None:
        loaded = load_checkpoint(make(kind))
        sequences = lay_out(PAIRS)
        tokens, words = (torch.from_numpy(v).long() for v in (sequences.tokens, sequences.words))
        ends = torch.from_numpy(sequences.ends)
        layout = make_layout(words, torch.from_numpy(sequences.last), ends, "full")
        loaded[0].train()(tokens, torch.zeros_like(tokens), tokens, layout).square().sum().backward()
        gradients = [parameter.grad for parameter in loaded[0].parameters()]
        assert sum(gradient is not None and bool(gradient.abs().sum() > 0) for gradient in gradients) > 40


def test_markers_are_added_and_saved(make: Make, tmp_path: Path) -> None:
    model, tokenizer, config = load_checkpoint(make("electra"))
    size = len(tokenizer)
    add_markers(model, tokenizer)
    assert model.encoder.tokens.weight.shape == (size + 40, 16)
    save_checkpoint(tmp_path / "saved", model, tokenizer, config.changed({"template": {"markers": True}}))
    again = load_checkpoint(tmp_path / "saved")[0]
    assert torch.equal(again.encoder.tokens.weight, model.encoder.tokens.weight)
    assert transformers.AutoConfig.from_pretrained(tmp_path / "saved").vocab_size == size + 40


def test_what_counts_positions_from_2_has_two_less(make: Make) -> None:
    assert load_checkpoint(make("mpnet"))[0].encoder.config.max_position_embeddings == 512
    assert load_checkpoint(make("mpnet"))[2].template == Template(max_length=512)


def test_all_rows_are_given_back_packed(make: Make, lay_out: Any) -> None:
    model, _, _ = load_checkpoint(make("distilbert"))
    sequences = lay_out(PAIRS)
    tokens, words = (torch.from_numpy(v).long() for v in (sequences.tokens, sequences.words))
    layout = make_layout(words, torch.from_numpy(sequences.last), torch.from_numpy(sequences.ends), "full")
    with torch.inference_mode():
        whole = model.encoder(tokens, tokens, tokens, layout, first_only=False)
        first = model.encoder(tokens, tokens, tokens, layout)
    assert whole.shape == (len(tokens), 32)
    assert torch.equal(whole[layout.first], first)


class TestWhatCannotBe:
    @pytest.mark.parametrize("change", [{"attention": "strm"}, {"attention_layers": (1,)}, {"apart": 1}])
    def test_an_attention_rule(self, make: Make, change: dict[str, Any]) -> None:
        with pytest.raises(RankwellError, match=r"type electra; .* needs an encoder with BERT"):
            load_checkpoint(make("electra"), **change)

    def test_a_decoder(self, make: Make) -> None:
        with pytest.raises(RankwellError, match="type gpt2, whose first token sees nothing of those after it"):
            load_checkpoint(make("gpt2", None))

    def test_an_encoder_with_a_decoder(self, make: Make) -> None:
        folder = make("electra")
        transformers.T5Config(num_layers=1).save_pretrained(folder)
        with pytest.raises(RankwellError, match="type t5, which is no encoder that transformers knows"):
            load_checkpoint(folder)

    def test_weights_that_are_missing_or_have_another_shape(self, make: Make) -> None:
        folder = make("distilbert")
        config = transformers.AutoConfig.from_pretrained(folder)
        config.n_layers = 4
        config.save_pretrained(folder)
        with pytest.raises(RankwellError, match=r"the weights lack transformer\.layer\.3\."):
            load_checkpoint(folder)
        config.n_layers, config.hidden_dim = 3, 48
        config.save_pretrained(folder)
        with pytest.raises(RankwellError, match=r"has the shape \(64, 32\), but config.json asks for \(48, 32\)"):
            load_checkpoint(folder)

    @pytest.mark.parametrize("size", ["n_layers", "vocab_size", "hidden_dim", "max_position_embeddings"])
    def test_sizes_that_the_weights_cannot_have(self, make: Make, size: str) -> None:
        folder = make("distilbert")
        path = folder / "config.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), size: 10**9}))
        with pytest.raises(RankwellError, match=r"config\.json: .* is 10+, but the weights have room for"):
            load_checkpoint(folder)


def test_only_bert_is_explainable_and_the_engine_says_so(make: Make, tiny_checkpoint: Path) -> None:
    assert Ranker.from_pretrained(tiny_checkpoint).engine.explainable
    other = Ranker.from_pretrained(make("electra"))
    assert not other.engine.explainable
    with pytest.raises(RankwellError, match="only BERT rankers with the torch backend can be explained"):
        explain(other, "bank", "honey")
