"""Checkpoints: what others saved scores the same here, what is saved here scores the same there."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rankwell.core.errors import InputError, RankwellError
from rankwell.inputs.templates import Template
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.rank.ranker import Ranker


def transformers_scores(folder: Path, pairs: list[tuple[str, str]], length: int = 512) -> Any:
    """The logits of plain transformers, with its own tokenizer."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    queries, documents = (list(texts) for texts in zip(*pairs, strict=True))
    batch = tokenizer(
        queries, documents, truncation="only_second", max_length=length, padding=True, return_tensors="pt"
    )
    with torch.inference_mode():
        return model(**batch).logits


def reference(logits: Any) -> Any:
    return logits[:, 0] if logits.shape[1] == 1 else logits.log_softmax(dim=1)[:, 1]


class TestLoading:
    def test_a_folder_that_says_nothing_is_monobert(self, tiny_checkpoint: Path) -> None:
        model, _, config = load_checkpoint(tiny_checkpoint)
        assert config == RankerConfig()
        assert not model.training

    def test_a_bare_encoder_gets_a_new_head_only_on_request(self, tiny_checkpoint: Path, tmp_path: Path) -> None:
        folder = Path(shutil.copytree(tiny_checkpoint, tmp_path / "bare"))
        transformers.BertModel.from_pretrained(tiny_checkpoint).save_pretrained(folder)
        with pytest.raises(InputError, match=r"bare: has no ranking head .no classifier.* rankwell train RECIPE --set"):
            load_checkpoint(folder)
        model, _, config = load_checkpoint(folder, new_head=True)
        assert (config.head, config.pooler) == ("two_logits", True)
        original = load_checkpoint(tiny_checkpoint)[0]
        assert torch.equal(model.encoder.layers[1].qkv.weight, original.encoder.layers[1].qkv.weight)
        assert torch.equal(model.pooler.weight, original.pooler.weight)
        assert load_checkpoint(folder, new_head=True, head="score")[0].head.out_features == 1

    def test_an_encoder_without_a_pooler_has_its_head_on_cls(self, copy: Any) -> None:
        copy.edit_tensors(lambda t: {n: v for n, v in t.items() if "pooler" not in n and "classifier" not in n})
        assert load_checkpoint(copy.folder, new_head=True)[0].pooler is None

    @pytest.mark.parametrize("labels", [2, 1])
    def test_a_crossencoder_folder_scores_as_crossencoder_does(self, copy: Any, tmp_path: Path, labels: int) -> None:
        cross_encoder = pytest.importorskip("sentence_transformers").CrossEncoder
        if labels == 1:
            copy.keep_one_label()
        theirs = cross_encoder(str(copy.folder), max_length=100, device="cpu")
        theirs.save_pretrained(str(tmp_path / "saved"))
        ours = Ranker.from_pretrained(tmp_path / "saved", windows=None)
        assert ours.template.max_length == 100
        documents = ["a bogus claim", "money " * 200, "insouciantly", ""]
        pairs = [("bank", document) for document in documents]
        logits = theirs.predict(pairs, activation_fn=torch.nn.Identity(), convert_to_tensor=True)
        assert np.abs(ours.predict(pairs) - reference(logits.view(4, labels)).numpy()).max() < 1e-5
        if labels == 1:
            order = [entry["corpus_id"] for entry in theirs.rank("bank", documents)]
            assert [entry["corpus_id"] for entry in ours.rank("bank", documents)] == order

    def test_sharded_weights(self, tiny_checkpoint: Path, tmp_path: Path, pairs: Any) -> None:
        folder = tmp_path / "shards"
        model = transformers.BertForSequenceClassification.from_pretrained(tiny_checkpoint)
        model.save_pretrained(folder, max_shard_size="40KB")
        for name in ("tokenizer.json", "tokenizer_config.json"):
            shutil.copy(tiny_checkpoint / name, folder)
        assert len(list(folder.glob("*.safetensors"))) > 1
        whole = Ranker.from_pretrained(tiny_checkpoint, windows=None).predict(pairs)
        assert np.array_equal(Ranker.from_pretrained(folder, windows=None).predict(pairs), whole)

    def test_the_old_names_of_norms_and_halves(self, copy: Any, pairs: Any) -> None:
        whole = Ranker.from_pretrained(copy.folder, windows=None).predict(pairs)

        def old(tensors: dict[str, Any]) -> dict[str, Any]:
            names = {
                name: name.replace("Norm.weight", "Norm.gamma").replace("Norm.bias", "Norm.beta") for name in tensors
            }
            return {names[name]: tensor for name, tensor in tensors.items()}

        copy.edit_tensors(old)
        assert np.array_equal(Ranker.from_pretrained(copy.folder, windows=None).predict(pairs), whole)
        copy.edit_tensors(lambda t: {name: tensor.half() for name, tensor in t.items()})
        assert np.abs(Ranker.from_pretrained(copy.folder, windows=None).predict(pairs) - whole).max() < 0.05

    def test_a_checkpoint_of_few_positions_is_used_within_them(self, copy: Any) -> None:
        name = "bert.embeddings.position_embeddings.weight"
        copy.edit_tensors(lambda t: {**t, name: t[name][:40]})
        copy.configure(max_position_embeddings=40)
        template = load_checkpoint(copy.folder)[2].template
        assert (template.max_length, template.max_query) == (40, 36)
        assert len(Ranker.from_pretrained(copy.folder).predict([("bank", "money " * 100)])) == 1


class TestChanges:
    def test_replace_parts(self, tiny_checkpoint: Path) -> None:
        config = load_checkpoint(tiny_checkpoint, attention="strm", template={"name": "typed", "max_length": 180})[2]
        assert config.attention == "strm"
        assert config.template == Template(name="typed", max_length=180, max_query=64)

    def test_a_change_of_one_setting_keeps_the_others(self, loaded: Any, tmp_path: Path) -> None:
        model, tokenizer, _ = loaded
        saved = RankerConfig(template=Template(name="typed", max_query=32), attention="strm")
        save_checkpoint(tmp_path / "saved", model, tokenizer, saved)
        config = load_checkpoint(tmp_path / "saved", template={"max_length": 180})[2]
        assert config.template == Template(name="typed", max_query=32, max_length=180)
        assert config.attention == "strm"

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"attention": "sparse"}, "attention: Input should be 'full', 'strm', 'strict' or 'exact_match'"),
            ({"atention": "strm"}, "atention: Extra inputs are not permitted"),
            ({"template": {"length": 3}}, "template.length: Unexpected keyword argument"),
        ],
    )
    def test_a_wrong_one_is_named(self, tiny_checkpoint: Path, changes: dict[str, Any], problem: str) -> None:
        with pytest.raises(RankwellError, match=problem) as error:
            load_checkpoint(tiny_checkpoint, **changes)
        assert "\n" not in str(error.value)


class TestSaving:
    @pytest.mark.parametrize(
        "config",
        [
            RankerConfig(),
            RankerConfig(
                template=Template(name="typed", max_length=180),
                attention="strm",
                history=[{"stage": "pointwise"}],
                figures={"RR@10": 0.42},
            ),
        ],
    )
    def test_and_loading_gives_the_same(self, loaded: Any, tmp_path: Path, config: RankerConfig) -> None:
        model, tokenizer, _ = loaded
        save_checkpoint(tmp_path / "saved", model, tokenizer, config)
        again, again_tokenizer, again_config = load_checkpoint(tmp_path / "saved")
        modes = {file.stat().st_mode for file in (tmp_path / "saved").iterdir()}
        assert len(modes) == 1, "who may read one file may read all"
        assert again_config == config
        assert again_tokenizer.digest == tokenizer.digest
        state = model.state_dict()
        assert again.state_dict().keys() == state.keys()
        assert all(torch.equal(tensor, state[name]) for name, tensor in again.state_dict().items())

    @pytest.mark.parametrize("head", ["two_logits", "score"])
    def test_gives_plain_transformers_the_same_scores(
        self, tiny_checkpoint: Path, tmp_path: Path, pairs: Any, head: str
    ) -> None:
        model, tokenizer, config = load_checkpoint(tiny_checkpoint)
        if head == "score":
            model.head = torch.nn.Linear(32, 1)
        save_checkpoint(tmp_path / "saved", model, tokenizer, config.changed({"head": head}))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            logits = transformers_scores(tmp_path / "saved", pairs)
        assert logits.shape[1] == (2 if head == "two_logits" else 1)
        found = Ranker.from_pretrained(tmp_path / "saved", windows=None).predict(pairs)
        assert np.abs(found - reference(logits).numpy()).max() < 1e-5

    def test_gives_transformers_the_same_tokenizer(self, loaded: Any, tmp_path: Path, pairs: Any) -> None:
        model, tokenizer, config = loaded
        save_checkpoint(tmp_path / "saved", model, tokenizer, config)
        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
        assert theirs.model_max_length == 512
        assert (theirs.pad_token, theirs.unk_token, theirs.mask_token) == ("[PAD]", "[UNK]", "[MASK]")
        for query, document in pairs:
            batch = theirs(query, document)
            assert set(batch) == {"input_ids", "token_type_ids", "attention_mask"}
            text = tokenizer.encode([query]).ids.tolist()
            assert batch["input_ids"][1 : 1 + len(text)] == text
            assert batch["token_type_ids"][len(text) + 2 :] == [1] * (len(batch["input_ids"]) - len(text) - 2)

    def test_never_writes_over_a_folder(self, loaded: Any, tmp_path: Path) -> None:
        (tmp_path / "saved").mkdir()
        with pytest.raises(RankwellError, match="exists already"):
            save_checkpoint(tmp_path / "saved", *loaded)

    def test_leaves_nothing_half_written(self, loaded: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def full_disk(*_: Any) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(loaded[1], "save", full_disk)
        with pytest.raises(RankwellError, match="no space left"):
            save_checkpoint(tmp_path / "saved", *loaded)
        assert list(tmp_path.iterdir()) == []
