"""Layers that read query and document apart, layers that follow the rule and others, and scores with a similarity."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from numpy.typing import NDArray

from rankwell.core.errors import InputError, RankwellError
from rankwell.inputs.batching import Sequences, slice_sequences, take_sequences
from rankwell.inputs.templates import Template, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.batch import Placer
from rankwell.models.bi_encoder import BiEncoder
from rankwell.models.checkpoints.config import RankerConfig
from rankwell.models.checkpoints.export import export_model
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.models.spec import AttentionRule
from rankwell.rank.engines.engine import load
from rankwell.rank.engines.torch_engine import TorchEngine
from rankwell.rank.explain import dense_pass
from rankwell.rank.ranker import Ranker

QUERIES = ["how do bees keep warm", "bogue", "the bees of london", "bees bees bees"]
DOCUMENTS = ["the cluster shivers insouciantly", "a bogue is no bogus fish of london", "", "bees keep bees"]


@pytest.fixture(scope="module")
def sequences(tiny_checkpoint: Path) -> Sequences:
    tokenizer = Tokenizer.open(tiny_checkpoint)
    fields = {"query": tokenizer.encode(QUERIES), "document": tokenizer.encode(DOCUMENTS)}
    found = lay_out_pairs(Template(max_length=64, max_query=16), tokenizer.special, fields)
    assert not found.last.all()  # there are split words
    return found


def reference(
    folder: Path, sequences: Sequences, rule: AttentionRule, apart: int, ruled: tuple[int, ...] | None, head: Any
) -> NDArray[np.float32]:
    """The scores by transformers' own layers, one sequence at a time, with a mask written out for each layer."""
    model = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    scores, begin = [], 0
    for end in sequences.ends.tolist():
        own = slice(begin, end)
        begin = end
        tokens, kinds = (
            torch.from_numpy(values[own].astype(np.int64))[None] for values in (sequences.tokens, sequences.segments)
        )
        words, last = sequences.words[own], sequences.last[own]

        def read(apart: int, tokens: Any = tokens, kinds: Any = kinds, words: Any = words, last: Any = last) -> Any:
            length = len(words)
            x = model.embeddings(input_ids=tokens, token_type_ids=kinds)
            for number, layer in enumerate(model.encoder.layer):
                mask = np.full((length, length), -1e9, np.float32)
                for a in range(length):
                    for b in range(length):
                        follows = rule != "full" and (ruled is None or number in {at % 2 for at in ruled})
                        seen = words[a] == words[b] or last[b] if follows else True
                        if number < apart and kinds[0, a] != kinds[0, b]:
                            seen = False
                        mask[a, b] = 0 if seen else -1e9
                out = layer(x, attention_mask=torch.from_numpy(mask)[None, None])
                x = out[0] if isinstance(out, tuple) else out
            return x[0]

        with torch.no_grad():
            alone, together = read(len(model.encoder.layer)), read(apart)
            query, document = (alone[kinds[0] == part].mean(dim=0) for part in (0, 1))
            alike = float(torch.cosine_similarity(query, document, dim=0))
            scores.append(7.0 * (alike - 0.5) + float(head(together[0])))
    return np.array(scores, np.float32)


CASES = [
    ("full", 0, None),
    ("full", 1, None),
    ("full", 2, None),
    ("strm", 0, (1,)),
    ("strm", 0, ()),
    ("strm", 1, (0,)),
    ("strm", 0, (-1,)),
    ("strm", 1, (-2,)),
    ("strm", 2, None),
]


def similar(folder: Path, **changes: Any) -> Any:
    """The checkpoint as a ranker that begins with its similarity alone."""
    return load_checkpoint(folder, head="score", similarity=7.0, **changes)


@pytest.fixture(scope="module")
def bare(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder without a head, as a bi-encoder comes."""
    folder = tmp_path_factory.mktemp("bare") / "encoder"
    transformers.BertModel.from_pretrained(tiny_checkpoint).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        if (tiny_checkpoint / name).is_file():
            (folder / name).write_bytes((tiny_checkpoint / name).read_bytes())
    return folder


@pytest.mark.parametrize(("rule", "apart", "ruled"), CASES)
def test_scores_are_those_of_transformers_layers_under_written_out_masks(
    bare: Path, sequences: Sequences, rule: AttentionRule, apart: int, ruled: tuple[int, ...] | None
) -> None:
    model, _, config = similar(bare, attention=rule, apart=apart, attention_layers=ruled, pooler=False)
    with torch.no_grad():
        model.head.weight.normal_(std=0.5, generator=torch.Generator().manual_seed(1))
    found = TorchEngine(model, config.attention, device="cpu", lanes=1).logits(sequences)[:, 0]
    segments_equal = transformers.BertModel.from_pretrained(bare)
    with torch.no_grad():
        segments_equal.embeddings.token_type_embeddings.weight[1] = (
            segments_equal.embeddings.token_type_embeddings.weight[0]
        )
    start = bare.parent / "start"
    if not start.exists():
        segments_equal.save_pretrained(start)
    np.testing.assert_allclose(found, reference(start, sequences, rule, apart, ruled, model.head), rtol=1e-4, atol=1e-4)


def test_all_layers_apart_is_the_bi_encoder_of_the_two_texts(bare: Path, sequences: Sequences) -> None:
    """What the query's states are does not depend on the document, and the other way round."""
    model, tokenizer, _ = similar(bare, apart=2)
    place = Placer(torch.device("cpu"), "full", parts=True)
    fields = {"query": tokenizer.encode([QUERIES[0]] * 2), "document": tokenizer.encode(["bees", "a bogus hive 12"])}
    two = lay_out_pairs(Template(max_length=64, max_query=16), tokenizer.special, fields)
    query = int((two.segments[: two.ends[0]] == 0).sum())
    with torch.no_grad():
        states = model.encoder(*place(two), first_only=False)
    first, second = states[:query], states[two.ends[0] : two.ends[0] + query]
    torch.testing.assert_close(first, second, rtol=0, atol=1e-6)
    model.encoder.apart = 1
    with torch.no_grad():
        states = model.encoder(*place(two), first_only=False)
    assert float((states[:query] - states[two.ends[0] : two.ends[0] + query]).abs().max()) > 1e-3


@pytest.mark.parametrize("apart", [0, 1, 2])
def test_twins_begin_as_the_bi_encoder(bare: Path, apart: int) -> None:
    encoder = BiEncoder.from_pretrained(bare, device="cpu")
    queries, documents = encoder.encode_queries(QUERIES), encoder.encode_documents(DOCUMENTS)
    ranker = Ranker.from_pretrained(
        bare, head="score", similarity=3.0, apart=apart, template={"name": "twin"}, engine={"device": "cpu"}
    )
    for number, query in enumerate(QUERIES):
        found = {row["corpus_id"]: row["score"] for row in ranker.rank(query, DOCUMENTS)}
        scores = [found[i] for i in range(len(DOCUMENTS))]
        np.testing.assert_allclose(scores, 3.0 * (documents @ queries[number] - 0.5), rtol=1e-4, atol=1e-4)


def test_equally_long_sequences_score_as_alone(bare: Path, sequences: Sequences) -> None:
    model, _, config = similar(bare, apart=1, attention="strm")
    engine = TorchEngine(model, config.attention, device="cpu", lanes=1)
    twice = take_sequences(sequences, np.array([1, 1, 1]))
    np.testing.assert_allclose(engine.logits(twice)[:, 0], [engine.logits(sequences)[1, 0]] * 3, rtol=1e-5)


def test_training_moves_it_and_a_saved_model_scores_the_same(bare: Path, sequences: Sequences, tmp_path: Path) -> None:
    model, tokenizer, config = similar(bare, apart=1, pooler=False)
    batch = Placer(torch.device("cpu"), "full", parts=True)(sequences)
    before = model(*batch).detach()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    for _ in range(3):
        optimiser.zero_grad()
        loss = (model(*batch)[:, 0] - torch.tensor([1.0, 2.0, 3.0, 4.0])).square().mean()
        loss.backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
        optimiser.step()
    after = model(*batch).detach()
    assert float((after - before).abs().max()) > 0.01
    assert float(model.head.weight.detach().abs().max()) > 0  # the head learns beside the similarity
    save_checkpoint(tmp_path / "saved", model, tokenizer, config)
    again, _, read = load_checkpoint(tmp_path / "saved")
    assert (read.apart, read.similarity, read.head) == (1, 7.0, "score")
    torch.testing.assert_close(again(*batch).detach(), after, rtol=1e-5, atol=1e-5)


def test_a_new_pooler_leaves_a_trained_head_as_it_is(bare: Path, tmp_path: Path) -> None:
    model, tokenizer, config = similar(bare, pooler=False)
    with torch.no_grad():
        model.head.weight.fill_(0.5)
    save_checkpoint(tmp_path / "trained", model, tokenizer, config)
    with pytest.raises(InputError, match=r"has no ranking head .no pooler.dense"):
        load_checkpoint(tmp_path / "trained", pooler=True)
    again, _, _ = load_checkpoint(tmp_path / "trained", new_head=True, pooler=True)
    assert float(again.head.weight.detach().min()) == 0.5


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_exports_score_the_same(bare: Path, tmp_path: Path, precision: str) -> None:
    template = {"name": "twin", "max_length": 64, "max_query": 16}
    model, tokenizer, config = similar(bare, apart=1, attention="strm", attention_layers=(1,), template=template)
    fields = {"query": tokenizer.encode(QUERIES), "document": tokenizer.encode(DOCUMENTS)}
    sequences = lay_out_pairs(config.template, tokenizer.special, fields)
    with torch.no_grad():
        model.head.weight.normal_(std=0.5, generator=torch.Generator().manual_seed(1))
    save_checkpoint(tmp_path / "saved", model, tokenizer, config)
    export_model(tmp_path / "saved", tmp_path / "exported", precision)  # type: ignore[arg-type]
    expected = load(tmp_path / "saved", "torch", {}, {"device": "cpu"}).engine.logits(sequences)
    found = load(tmp_path / "exported", "onnx", {}, {"threads": 1}).engine.logits(sequences)
    near = {"fp32": 1e-3, "int8": 0.5}[precision]
    np.testing.assert_allclose(found, expected, rtol=near, atol=near)
    with pytest.raises(RankwellError, match="apart 1, not 0"):
        load(tmp_path / "exported", "onnx", {"apart": 0}, {})
    with pytest.raises(RankwellError, match="count a document's positions from 0"):
        load(tmp_path / "exported", "onnx", {"template": {"name": "mono"}}, {})
    assert load_checkpoint(tmp_path / "saved")[2] == config


def test_an_explanation_has_the_same_score_and_nothing_across_in_layers_apart(bare: Path, sequences: Sequences) -> None:
    model, _, config = similar(bare, apart=1)
    one = slice_sequences(sequences, 0, 1)
    logits, attention, _ = dense_pass(model, one, config.attention)
    expected = TorchEngine(model, config.attention, device="cpu").logits(one)
    np.testing.assert_allclose(logits, expected, rtol=1e-4)
    across = one.segments[:, None] != one.segments[None, :]
    assert attention[0][:, across].max() == 0
    assert attention[1][:, across].min() > 0


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"similarity": 5.0}, "a similarity is added to a score"),
        ({"apart": 2}, "apart is 2, but at most 1 of 2 layers can read the texts apart"),
        ({"attention_layers": (2,)}, "there is no layer 2"),
        ({"attention_layers": (-3,)}, "there is no layer -3"),
    ],
)
def test_what_cannot_be_is_refused(tiny_checkpoint: Path, changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(RankwellError, match=problem):
        load_checkpoint(tiny_checkpoint, **changes)


def test_a_configuration_of_before_reads_as_before() -> None:
    config = RankerConfig.model_validate({"version": 1, "attention": "strm"})
    assert (config.apart, config.similarity, config.attention_layers) == (0, 0.0, None)
