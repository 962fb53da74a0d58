"""``rankwell export``: a model that scores without torch, or is small on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

import typer


def export(
    model: Annotated[str, typer.Argument(help="A checkpoint folder, or a name on the hub.")],
    backend: Annotated[
        Literal["onnx", "openvino", "torch"], typer.Option("--backend", help="The runtime that will score.")
    ],
    out: Annotated[Path, typer.Option("--out", help="The folder to make.")],
    precision: Annotated[
        Literal["fp32", "int8", "f16"],
        typer.Option(
            "--precision",
            help="onnx: fp32 or int8; openvino: fp32 or f16; torch: int8. Only fp32 scores as the model does.",
        ),
    ] = "fp32",
    attention: Annotated[
        Literal["full", "strm", "strict", "exact_match"] | None,
        typer.Option("--attention", help="The attention rule, fixed in the graph.", show_default="the model's"),
    ] = None,
    reduced_range: Annotated[
        bool | None,
        typer.Option(
            "--reduced-range/--full-range",
            help="int8 with 7-bit weights, for x86 processors without VNNI.",
            show_default="what this machine needs",
        ),
    ] = None,
) -> None:
    """Export a model for ONNX Runtime or OpenVINO; what is exported scores without torch.

    The folder is used as any model, with the same backend: `rankwell rerank … --model DIR --backend onnx`.
    For torch, int8 is a checkpoint of a quarter of the size: its weights are 8-bit on disk only, and computed as ever.

    **Examples**

        rankwell export my-model --backend onnx --out my-model-onnx

        rankwell export my-model --backend onnx --precision int8 --out my-model-int8

        rankwell export my-model --backend openvino --precision f16 --out my-model-f16

        rankwell export my-model --backend torch --precision int8 --out my-model-small
    """
    from rankwell.core.errors import MissingExtraError, RankwellError

    try:
        from rankwell.models.checkpoints.export import export_model, export_weights
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "models", "exporting a model") from None

    begin = time.monotonic()
    if backend == "torch":
        if precision != "int8":
            raise RankwellError(f"for torch a model is exported in int8, not in {precision}")
        if attention is not None or reduced_range is not None:
            raise RankwellError("--attention and --reduced-range are for graphs, not for the backend torch")
        export_weights(model, out)
        kind = "torch, weights in int8"
    else:
        changes = {} if attention is None else {"attention": attention}
        record = export_model(model, out, backend, precision, reduced_range=reduced_range, **changes)
        kind = f"{record.backend} {record.precision}, attention {record.attention}"
    size = sum(file.stat().st_size for file in out.iterdir())
    seconds = time.monotonic() - begin
    print(f"{out}: {kind}, {size / 1e6:,.1f} MB, {seconds:.1f} s")
