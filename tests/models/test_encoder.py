"""The encoder against transformers' BERT, for each attention rule, packed and one by one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rankwell.inputs.batching import take_sequences
from rankwell.models.attention import make_layout
from rankwell.models.encoder import CrossEncoder, Encoder

RULES = ["full", "strm", "strict"]


def tensors(sequences: Any, rule: str) -> tuple[Any, ...]:
    """What a model's forward takes."""
    tokens, segments, positions = (
        torch.from_numpy(getattr(sequences, name)).long() for name in ("tokens", "segments", "positions")
    )
    words, last, ends = (torch.from_numpy(getattr(sequences, name)) for name in ("words", "last", "ends"))
    return tokens, segments, positions, make_layout(words, last, ends, rule)


def padded(sequences: Any, name: str, fill: int) -> Any:
    """An array of the sequences as a padded grid (B, L)."""
    parts = np.split(getattr(sequences, name).astype(np.int64), sequences.ends[:-1])
    rows = [torch.from_numpy(part) for part in parts]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)


@pytest.fixture(scope="module")
def theirs(tiny_checkpoint: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.BertForSequenceClassification.from_pretrained(tiny_checkpoint).eval()


@pytest.fixture(scope="module")
def sequences(lay_out: Any, pairs: list[tuple[str, str]]) -> Any:
    found = lay_out(pairs)
    assert len(set(found.lengths().tolist())) > 3, "the batch must need padding"
    assert found.lengths().max() == 48, "and hold a pair that was cut"
    return found


@torch.inference_mode()
def test_full_attention_gives_transformers_logits(loaded: Any, theirs: Any, sequences: Any) -> None:
    mask = padded(sequences, "positions", -1) >= 0
    expected = theirs(
        input_ids=padded(sequences, "tokens", 0),
        token_type_ids=padded(sequences, "segments", 0),
        attention_mask=mask.long(),
    ).logits
    found = loaded[0](*tensors(sequences, "full"))
    assert float((found - expected).abs().max()) < 1e-5
    assert float(expected.std(dim=0).min()) > 0.1, "scores must differ for this to say anything"


@pytest.mark.parametrize("rule", ["strm", "strict"])
@torch.inference_mode()
def test_a_rule_gives_what_transformers_gives_with_its_dense_mask(
    loaded: Any, theirs: Any, sequences: Any, rule: str
) -> None:
    words, last = padded(sequences, "words", 0), padded(sequences, "last", 1).bool()
    real = padded(sequences, "positions", -1) >= 0
    # The formula itself, not the package's own mask.
    outside = last[:, None, :] & (last[:, :, None] if rule == "strict" else True)
    allowed = real[:, None, :] & ((words[:, :, None] == words[:, None, :]) | outside)
    closed = torch.finfo(torch.float32).min
    mask = torch.where(allowed, 0.0, closed)[:, None]
    expected = theirs(
        input_ids=padded(sequences, "tokens", 0), token_type_ids=padded(sequences, "segments", 0), attention_mask=mask
    ).logits
    found = loaded[0](*tensors(sequences, rule))
    assert float((found - expected).abs().max()) < 1e-5
    full = loaded[0](*tensors(sequences, "full"))
    assert float((found - full).abs().max()) > 1e-2, "the rule must matter for this to say anything"


@pytest.mark.parametrize("rule", RULES)
@torch.inference_mode()
def test_a_packed_batch_gives_what_its_sequences_give_alone(loaded: Any, sequences: Any, rule: str) -> None:
    together = loaded[0](*tensors(sequences, rule))
    for row in range(len(sequences)):
        alone = loaded[0](*tensors(take_sequences(sequences, np.array([row])), rule))
        assert float((alone[0] - together[row]).abs().max()) < 1e-5


@pytest.mark.parametrize("rule", RULES)
@torch.inference_mode()
def test_the_last_layer_for_cls_alone_gives_what_the_whole_one_gives(loaded: Any, sequences: Any, rule: str) -> None:
    tokens, segments, positions, layout = tensors(sequences, rule)
    encoder = loaded[0].encoder
    whole = encoder(tokens, segments, positions, layout, first_only=False)
    assert whole.shape == (len(sequences.tokens), encoder.config.hidden_size)
    first = encoder(tokens, segments, positions, layout)
    assert float((first - whole[layout.first]).abs().max()) < 1e-5


@torch.inference_mode()
def test_all_hidden_states_are_transformers(loaded: Any, theirs: Any, sequences: Any) -> None:
    tokens, segments, positions, layout = tensors(sequences, "full")
    found = loaded[0].encoder(tokens, segments, positions, layout, first_only=False)
    real = padded(sequences, "positions", -1) >= 0
    expected = theirs.bert(
        input_ids=padded(sequences, "tokens", 0),
        token_type_ids=padded(sequences, "segments", 0),
        attention_mask=real.long(),
    ).last_hidden_state[real]
    assert float((found - expected).abs().max()) < 1e-5


@pytest.mark.parametrize("rule", RULES)
def test_gradients_reach_every_parameter_in_training(loaded: Any, sequences: Any, rule: str) -> None:
    config = loaded[0].encoder.config
    torch.manual_seed(3)
    model = CrossEncoder(Encoder(config), 2, pooler=True).train()
    target = torch.arange(len(sequences)) % 2
    torch.nn.functional.cross_entropy(model(*tensors(sequences, rule)), target).backward()
    without = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().sum() > 0]
    assert without == []


def test_dropout_is_on_in_training_and_off_in_scoring(loaded: Any, sequences: Any) -> None:
    model = CrossEncoder(Encoder(loaded[0].encoder.config), 1, pooler=False)
    inputs = tensors(sequences, "strm")
    torch.manual_seed(4)
    with torch.no_grad():
        assert not torch.equal(model.train()(*inputs), model(*inputs))
        assert torch.equal(model.eval()(*inputs), model(*inputs))
