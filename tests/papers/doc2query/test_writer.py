"""The query writer: its halves and its whole against transformers, its start, and its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from rankwell.core.errors import InputError
from rankwell.inputs.pieces import Pieces
from rankwell.inputs.reader import Reader
from rankwell.inputs.templates import SpecialTokens
from rankwell.models.batch import Placer
from rankwell.models.checkpoints.export import export_weights
from rankwell.models.checkpoints.folders import load_encoder
from rankwell.papers.doc2query.checkpoints import WriterConfig, load_writer, save_writer
from rankwell.papers.doc2query.writer import Memory, QueryWriter, passage_grid, query_grid
from rankwell.papers.drbert.pretrain import load_pretraining, save_pretraining

TEXTS = ["the bees keep warm in winter", "insouciantly numeric", "", "a bank lends money to people " * 3]
QUERIES = ["how do bees keep warm", "what is it", "", "bank loan"]


@pytest.fixture(scope="module")
def loaded(tiny_checkpoint: Path) -> Any:
    return load_writer(tiny_checkpoint, seed=4)


@pytest.fixture(scope="module")
def shaken(tiny_checkpoint: Path) -> Any:
    """A writer all of whose weights are random, so that a wrong name or a wrong order shows."""
    model, tokenizer, config = load_writer(tiny_checkpoint, seed=4)
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model, tokenizer, config


def read(model: QueryWriter, tokenizer: Any, texts: list[str], max_length: int = 64) -> list[Memory]:
    sequences = Reader.of_texts(tokenizer, max_length).lay_out({"query": tokenizer.encode(texts)}).sequences
    slots, real = map(torch.from_numpy, passage_grid(sequences.ends))
    with torch.no_grad():
        return model.read(*Placer(torch.device("cpu"), "full")(sequences), slots, real)


def padded(tokenizer: Any, texts: list[str]) -> tuple[Any, Any]:
    """[CLS] text [SEP] as transformers takes it: ids and attention mask."""
    rows = [[tokenizer.special.cls, *tokenizer.encode([text]).ids.tolist(), tokenizer.special.sep] for text in texts]
    longest = max(map(len, rows))
    ids = torch.tensor([row + [tokenizer.pad] * (longest - len(row)) for row in rows])
    mask = torch.tensor([[1] * len(row) + [0] * (longest - len(row)) for row in rows])
    return ids, mask


@pytest.fixture(scope="module")
def folder(shaken: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("writer") / "writer"
    model, tokenizer, _ = shaken
    save_writer(path, model, tokenizer, WriterConfig(max_length=64, max_query=12, figures={"perplexity": 3.5}))
    return path


def test_transformers_loads_the_folder_and_computes_the_same(shaken: Any, folder: Path) -> None:
    model, tokenizer, _ = shaken
    reference, report = transformers.EncoderDecoderModel.from_pretrained(folder, output_loading_info=True)
    assert all("pooler" in name for name in report["missing_keys"])
    assert not report["unexpected_keys"]
    ids, mask = padded(tokenizer, TEXTS)
    grid = query_grid(tokenizer.encode(QUERIES), tokenizer.special, 12, tokenizer.pad)
    inputs, rows, _ = map(torch.from_numpy, grid)
    with torch.no_grad():
        expected = reference.eval()(input_ids=ids, attention_mask=mask, decoder_input_ids=inputs).logits
        sequences = Reader.of_texts(tokenizer, 64).lay_out({"query": tokenizer.encode(TEXTS)}).sequences
        slots, real = map(torch.from_numpy, passage_grid(sequences.ends))
        batch = Placer(torch.device("cpu"), "full")(sequences)
        found = model(*batch, slots, real, inputs, rows)
    torch.testing.assert_close(found, expected.flatten(0, 1)[rows], atol=1e-5, rtol=1e-5)
    assert reference.config.decoder_start_token_id == tokenizer.special.cls
    assert reference.config.eos_token_id == tokenizer.special.sep


def test_a_saved_writer_comes_back_whole(shaken: Any, folder: Path) -> None:
    model, _, _ = shaken
    again, tokenizer, config = load_writer(folder)
    assert config == WriterConfig(max_length=64, max_query=12, figures={"perplexity": 3.5})
    before, after = model.state_dict(), again.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)
    assert tokenizer.special.cls == shaken[1].special.cls


def test_a_new_writer_is_the_checkpoint_twice(loaded: Any, tiny_checkpoint: Path) -> None:
    model, _, _ = loaded
    encoder, _, _ = load_encoder(tiny_checkpoint)
    for name, tensor in encoder.state_dict().items():
        assert torch.equal(model.encoder.state_dict()[name], tensor)
        assert torch.equal(model.decoder.state_dict()[name], tensor)
    for layer in model.decoder.writing_layers:
        joined = torch.cat([layer.cross_query.weight, layer.cross_keys_values.weight])
        assert torch.equal(joined, layer.qkv.weight)
        assert torch.equal(layer.cross_mix.bias, layer.mix.bias)
        assert torch.equal(layer.cross_norm.weight, layer.mix_norm.weight)
        assert layer.cross_query.weight.data_ptr() != layer.qkv.weight.data_ptr()


def test_new_weights_are_drawn_by_the_seed(loaded: Any, tiny_checkpoint: Path) -> None:
    same, other = load_writer(tiny_checkpoint, seed=4)[0], load_writer(tiny_checkpoint, seed=5)[0]
    assert torch.equal(same.decoder.transform.weight, loaded[0].decoder.transform.weight)
    assert not torch.equal(other.decoder.transform.weight, loaded[0].decoder.transform.weight)


def test_a_checkpoint_with_an_mlm_head_lends_it_to_the_output(tiny_checkpoint: Path, tmp_path: Path) -> None:
    pretrained, tokenizer = load_pretraining(tiny_checkpoint, seed=9)
    with torch.no_grad():
        pretrained.output_bias.add_(torch.arange(len(pretrained.output_bias)) * 0.01)
    save_pretraining(tmp_path / "mlm", pretrained, tokenizer)
    model = load_writer(tmp_path / "mlm", seed=1)[0]
    assert torch.equal(model.decoder.transform.weight, pretrained.transform.weight)
    assert torch.equal(model.decoder.output_bias, pretrained.output_bias)


def test_what_is_no_writer_is_one_line(folder: Path, tmp_path: Path) -> None:
    import shutil

    broken = Path(shutil.copytree(folder, tmp_path / "broken"))
    (broken / "checksums").unlink()
    config = json.loads((broken / "config.json").read_text())
    (broken / "config.json").write_text(json.dumps({**config, "encoder": {"model_type": "t5"}}))
    with pytest.raises(InputError, match="its encoder is not a BERT"):
        load_writer(broken)
    (broken / "config.json").write_text(json.dumps({**config, "decoder": {**config["decoder"], "is_decoder": False}}))
    with pytest.raises(InputError, match="no cross-attention"):
        load_writer(broken)
    (broken / "config.json").write_text(json.dumps(config))
    (broken / "writer.json").write_text('{"max_length": 2}')
    with pytest.raises(InputError, match="max_length"):
        load_writer(broken)


def test_queries_become_inputs_and_what_follows() -> None:
    ids = np.array([7, 8, 9, 5, 6, 7, 8], np.int32)
    queries = Pieces.plain(ids, np.zeros(7, np.bool_), np.array([3, 3, 7]))
    inputs, rows, targets = query_grid(queries, SpecialTokens(cls=2, sep=3), max_query=4, pad=0)
    assert inputs.tolist() == [[2, 7, 8, 9], [2, 3, 0, 0], [2, 5, 6, 7]]
    assert rows.tolist() == [0, 1, 2, 3, 4, 8, 9, 10, 11]
    # The last query is cut: it does not end here, so [SEP] is not what follows.
    assert targets.tolist() == [7, 8, 9, 3, 3, 5, 6, 7, 8]


def test_its_lengths_are_kept_with_8_bit_weights(loaded: Any, tmp_path: Path) -> None:
    config = WriterConfig(max_length=48, max_query=9)
    save_writer(tmp_path / "writer", *loaded[:2], config)
    export_weights(tmp_path / "writer", tmp_path / "small")
    assert load_writer(tmp_path / "small")[2] == config
