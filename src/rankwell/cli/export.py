"""``rankwell export``: a model that scores without torch, or is smaller on disk."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rankwell.cli.options import excludes, output_folder
from rankwell.models.spec import AttentionRule


def export(
    context: typer.Context,
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="A checkpoint folder, or a name on the Hugging Face hub.")
    ],
    backend: Annotated[Literal["onnx", "torch"], typer.Option("--backend", help="Backend to export for.")],
    out: Annotated[Path, typer.Option("--out", "-o", callback=output_folder, help="Output folder.")],
    precision: Annotated[
        Literal["fp32", "int8"],
        typer.Option(
            "--precision",
            help="onnx: fp32, which keeps the scores, or int8; torch: int8.",
        ),
    ] = "fp32",
    attention: Annotated[
        AttentionRule | None,
        typer.Option("--attention", help="Attention rule, fixed in the graph. Default: the model's."),
    ] = None,
) -> None:
    """Export a model for ONNX Runtime, to score without torch.

    Use the folder like any model, with the same backend: `rankwell rerank … --model DIR --backend onnx`.
    For torch, int8 makes a checkpoint a quarter of the size: its weights are 8-bit on disk only.

    Examples:

        rankwell export my-model --backend onnx --out my-model-onnx

        rankwell export my-model --backend onnx --precision int8 --out my-model-int8

        rankwell export my-model --backend torch --precision int8 --out my-model-small
    """
    from rankwell.core.files import folder_size
    from rankwell.models.checkpoints.export import export_model, export_weights

    begin = time.monotonic()
    changes: dict[str, Any] = {} if attention is None else {"attention": attention}
    if backend == "torch":
        excludes(context, "--backend torch", "attention")
        export_weights(model, out, precision=precision)
        kind = "torch, weights in int8"
    else:
        record = export_model(model, out, precision, **changes)
        kind = f"{record.backend} {record.precision}, attention {record.attention}"
    print(f"{out}: {kind}, {folder_size(out) / 1e6:,.1f} MB, {time.monotonic() - begin:.1f} s")
    if backend != "torch" and precision != "fp32":  # torch exports checkpoints of any kind, not only rankers
        from rankwell.rank.engines.agreement import EXPORT_DOCUMENTS, rank_agreement
        from rankwell.sample import FOLDER

        each = rank_agreement(model, out, backend, FOLDER, changes)
        correlation = f"Spearman {sum(each) / len(each):.4f} (least {min(each):.4f})"
        where = f"{len(each)} queries of {EXPORT_DOCUMENTS} documents each"
        print(f"agreement with {model} on the sample: {correlation}, {where}")
