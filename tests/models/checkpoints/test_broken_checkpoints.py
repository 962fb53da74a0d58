"""Broken checkpoints: each is an error of one line that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rankwell.core.errors import InputError, RankwellError
from rankwell.models.checkpoints.folders import load_checkpoint

Edit = Callable[[Any], None]


def drop_tensor(name: str) -> Edit:
    return lambda copy: copy.edit_tensors(lambda t: {n: v for n, v in t.items() if n != name})


def rename(old: str, new: str) -> Edit:
    return lambda copy: (copy.folder / old).rename(copy.folder / new) and None


def write(name: str, content: str) -> Edit:
    return lambda copy: (copy.folder / name).write_text(content) and None


def configure(**changes: Any) -> Edit:
    return lambda copy: copy.configure(**changes)


def no_tokenizer(copy: Any) -> None:
    for name in ("tokenizer.json", "vocab.txt"):
        (copy.folder / name).unlink()


def fewer_embeddings(copy: Any) -> None:
    copy.edit_tensors(lambda t: {n: v[:200] if "word_embeddings" in n else v for n, v in t.items()})
    copy.configure(vocab_size=200)


BROKEN: dict[str, tuple[Edit, str]] = {
    "pickle only": (rename("model.safetensors", "pytorch_model.bin"), "only safetensors are read, never pickle"),
    "no weights": (lambda copy: (copy.folder / "model.safetensors").unlink(), "no model.safetensors"),
    "no config": (lambda copy: (copy.folder / "config.json").unlink(), "not a checkpoint (it has no config.json)"),
    "no tokenizer": (no_tokenizer, "no tokenizer here"),
    "a missing tensor": (
        drop_tensor("bert.encoder.layer.1.output.dense.bias"),
        "the weights lack encoder.layer.1.output.dense.bias",
    ),
    "half a head": (drop_tensor("classifier.bias"), "the weights lack classifier.bias"),
    "a head of three classes": (
        lambda copy: copy.edit_tensors(lambda t: {**t, "classifier.weight": torch.zeros(3, 32)}),
        "a classifier of 3 classes; a ranker has 1 or 2",
    ),
    "fewer layers than announced": (configure(num_hidden_layers=3), "the weights lack encoder.layer.2"),
    "another width than announced": (configure(intermediate_size=128), "layers.0.inner.weight has the shape (64, 32)"),
    "a width that has no heads": (configure(num_attention_heads=5), "cannot be split into 5 heads"),
    "a width in words": (configure(hidden_size="wide"), "hidden_size is 'wide', expected a whole number"),
    "another kind of model": (
        configure(model_type="snake"),
        "a model of the type snake, which transformers cannot build",
    ),
    "relative positions": (configure(position_embedding_type="relative_key"), "relative_key; expected absolute"),
    "an unknown activation": (configure(hidden_act="snake"), "no activation is called 'snake'"),
    "more layers than memory": (configure(num_hidden_layers=10**7), "the weights lack encoder.layer.2."),
    "more tokens than memory": (configure(vocab_size=10**12), "but config.json asks for (1000000000000, 32)"),
    "more positions than memory": (configure(max_position_embeddings=10**12), "asks for (1000000000000, 32)"),
    "wider than memory": (configure(hidden_size=10**12), "asks for (292, 1000000000000)"),
    "wider within than memory": (configure(intermediate_size=10**12), "asks for (1000000000000, 32)"),
    "a yes in place of a number": (configure(num_hidden_layers=True), "num_hidden_layers is 'True', expected a whole"),
    "a dropout above 1": (
        configure(hidden_dropout_prob=7),
        "hidden_dropout_prob is '7', expected a number from 0",
    ),
    "a dropout in words": (configure(hidden_dropout_prob="x"), "hidden_dropout_prob is 'x', expected a number"),
    "config.json nested deeply": (write("config.json", '{"a": ' + "[" * 10**5), "nested more than 64 deep"),
    "rankwell.json nested deeply": (
        write("rankwell.json", '{"history": ' + "[" * 300 + "]" * 300 + "}"),
        "rankwell.json: lists and objects nested more than 64 deep",
    ),
    "tokenizer_config.json nested deeply": (
        write("tokenizer_config.json", "[" * 10**5),
        "tokenizer_config.json: lists and objects nested more than 64 deep",
    ),
    "config.json is not JSON": (write("config.json", "{"), "config.json: not JSON"),
    "config.json is a list": (write("config.json", "[]"), "config.json: holds a JSON list, expected an object"),
    "config.json lacks the shape": (write("config.json", "{}"), "not the configuration of a BERT encoder"),
    "rankwell.json is not JSON": (write("rankwell.json", "{"), "rankwell.json: not JSON"),
    "rankwell.json has a wrong value": (write("rankwell.json", '{"head": "three"}'), "rankwell.json: not a ranker's"),
    "rankwell.json of a later version": (write("rankwell.json", '{"version": 2}'), "version: Input should be 1"),
    "rankwell.json with another head": (
        write("rankwell.json", '{"head": "score"}'),
        "a head of 2 outputs, but the model is to have 1",
    ),
    "longer than the positions": (
        write("rankwell.json", '{"template": {"max_length": 600}}'),
        "a length of 600, but the encoder has 512 positions",
    ),
    "weights that are none": (write("model.safetensors", "no"), "not a safetensors file"),
    "an index that leads out": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "../model.safetensors"}}'),
        "names a file outside the folder: '../model.safetensors'",
    ),
    "an index of an absolute path": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "/etc/passwd"}}'),
        "names a file outside the folder: '/etc/passwd'",
    ),
    "an index without a map": (write("model.safetensors.index.json", "{}"), "it has no weight_map"),
    "an index that is not JSON": (write("model.safetensors.index.json", "{"), "index.json: not JSON"),
    "a shard that is missing": (
        write("model.safetensors.index.json", '{"weight_map": {"a": "model-00001.safetensors"}}'),
        "no model-00001.safetensors",
    ),
    "more tokens than embeddings": (fewer_embeddings, "but 200 embeddings"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_checkpoint_is_an_error_of_one_line(copy: Any, case: str) -> None:
    change, problem = BROKEN[case]
    change(copy)
    with pytest.raises(RankwellError) as error:
        load_checkpoint(copy.folder)
    assert problem in str(error.value)
    assert "\n" not in str(error.value)


def test_our_own_checkpoint_without_its_head_is_an_error(copy: Any) -> None:
    drop_tensor("classifier.weight")(copy)
    load_checkpoint(copy.folder, new_head=True)
    write("rankwell.json", "{}")(copy)
    with pytest.raises(InputError, match=r"the weights lack classifier\.weight"):
        load_checkpoint(copy.folder)


def test_a_file_is_not_a_checkpoint(copy: Any) -> None:
    with pytest.raises(InputError, match="is a file, expected a folder"):
        load_checkpoint(copy.folder / "model.safetensors")
