"""sentence-transformers over ONNX Runtime and OpenVINO, as their ``backend`` does it, for transformers 5.

    python bench/graph_peers.py FOLDER

It writes MiniLM-L6 with a random head into FOLDER in three forms, which rerank_cpu.py and encode.py measure with
``--work FOLDER``: for ONNX Runtime with layers fused by its optimiser and weights quantised to int8 (activations as
they come), and for OpenVINO in 16 bits and, if nncf is installed, in int8 with activations calibrated on 300 pairs of
InsuranceQA. Optimum, which wraps these runtimes for sentence-transformers, has no version for transformers 5, so the
graph replaces the model's ``forward``; tokenising, sorting by length and batches remain sentence-transformers' own.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from harness import DATA, make_parser, minilm_checkpoint

INPUTS = ("input_ids", "attention_mask", "token_type_ids")
OUTPUTS = ("last_hidden_state", "logits")
CALIBRATION = 300
SUFFIXES = {"onnxruntime": ".onnx", "openvino": ".xml"}


def find_graphs(folder: Path) -> list[Path]:
    """The graphs in ``folder`` whose runtime is installed."""
    suffixes = [suffix for package, suffix in SUFFIXES.items() if find_spec(package)]
    return sorted(path for path in folder.iterdir() if path.suffix in suffixes)


def use_graph(model: Any, path: Path, threads: int) -> None:
    """Let a CrossEncoder or SentenceTransformer compute with a graph."""
    run = (_run_onnx if path.suffix == ".onnx" else _run_openvino)(path, threads)

    def forward(**features: Any) -> dict[str, torch.Tensor]:
        # One sequence has no second segment, and its tokenizer may leave the numbers out.
        segments = features.get("token_type_ids", torch.zeros_like(features["input_ids"]))
        found = run({**{name: features[name].numpy() for name in INPUTS[:2]}, INPUTS[2]: segments.numpy()})
        return {name: torch.from_numpy(value) for name, value in zip(OUTPUTS, found, strict=True)}

    model[0].model.forward = forward


def _run_onnx(path: Path, threads: int) -> Callable[[dict[str, Any]], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return lambda inputs: session.run(list(OUTPUTS), inputs)


def _run_openvino(path: Path, threads: int) -> Callable[[dict[str, Any]], Any]:
    import openvino

    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY"}
    graph = openvino.Core().compile_model(str(path), "CPU", settings)

    def run(inputs: dict[str, Any]) -> list[Any]:
        found = graph(inputs)
        return [found[name] for name in OUTPUTS]

    return run


class BothOutputs(torch.nn.Module):
    """States of all tokens, for vectors, and logits, for scores."""

    def __init__(self, model: Any):
        super().__init__()
        self.model = model

    def forward(self, tokens: Any, real: Any, segments: Any) -> tuple[Any, Any]:
        states, pooled = self.model.bert(tokens, attention_mask=real, token_type_ids=segments, return_dict=False)[:2]
        return states, self.model.classifier(pooled)


def make_graphs(folder: Path) -> None:
    """Write the three forms."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.transformers.optimizer import optimize_model
    from transformers import BertForSequenceClassification

    checkpoint = minilm_checkpoint(folder / "model")
    model: Any = BertForSequenceClassification.from_pretrained(checkpoint, attn_implementation="eager")
    model.eval()
    plain, fused = folder / "plain.fp32", folder / "fused.fp32"
    example = torch.ones(3, 7, dtype=torch.int64)
    axes = {name: {0: "batch", 1: "length"} for name in (*INPUTS, OUTPUTS[0])} | {OUTPUTS[1]: {0: "batch"}}
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            BothOutputs(model),
            (example,) * 3,
            str(plain),
            input_names=list(INPUTS),
            output_names=list(OUTPUTS),
            dynamic_axes=axes,
            opset_version=17,
            dynamo=False,
        )
    config = model.config
    better = optimize_model(str(plain), "bert", config.num_attention_heads, config.hidden_size, opt_level=1)
    better.save_model_to_file(str(fused))
    print("fused:", better.get_fused_operator_statistics())
    # Fused layers have no rule for the type of their output.
    known = {"DefaultTensorType": onnx.TensorProto.FLOAT}
    settings: dict[str, Any] = {"per_channel": True, "weight_type": QuantType.QInt8, "extra_options": known}
    quantize_dynamic(onnx.load(fused), folder / "onnx-int8.onnx", **settings)
    fused.unlink()
    if find_spec("openvino"):
        _make_openvino(folder, plain, checkpoint)
    plain.unlink()


def _make_openvino(folder: Path, plain: Path, checkpoint: Path) -> None:
    import openvino

    graph = openvino.Core().read_model(plain)
    openvino.save_model(graph, folder / "openvino-f16.xml", compress_to_fp16=True)
    if not find_spec("nncf"):
        return
    import nncf
    from transformers import AutoTokenizer

    from rerank_cpu import make_pairs

    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    pairs = make_pairs(DATA, "insuranceqa", CALIBRATION // 10, 10)
    samples = [dict(tokenizer(*pair, truncation=True, max_length=180, return_tensors="np")) for pair in pairs]
    small = nncf.quantize(graph, nncf.Dataset(samples), model_type=nncf.ModelType.TRANSFORMER)
    openvino.save_model(small, folder / "openvino-int8.xml", compress_to_fp16=True)


if __name__ == "__main__":
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=Path)
    make_graphs(parser.parse_args().folder)
