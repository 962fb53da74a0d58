"""``rankwell export``: a model, or the models and settings of a system, for use elsewhere."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from rankwell.cli.options import Result, excludes, output_folder
from rankwell.core.errors import RankwellError
from rankwell.models.spec import AttentionRule


def export(
    context: typer.Context,
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL|SYSTEM", help="A model's folder or its name on the Hugging Face hub, or a system."
        ),
    ],
    target: Annotated[
        Literal["sentence-transformers", "onnx", "rankwell"],
        typer.Option("--to", help="What is to load the model. For rankwell, weights are stored in 8 bits."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", callback=output_folder, help="Output folder.")],
    precision: Annotated[
        Literal["fp32", "int8"], typer.Option("--precision", help="Precision of a graph: fp32 keeps the scores.")
    ] = "fp32",
    attention: Annotated[
        AttentionRule | None,
        typer.Option("--attention", help="Attention rule, fixed in the graph. Default: the model's."),
    ] = None,
) -> Result:
    """Export a re-ranker, a bi-encoder or a system, to use it without rankwell.

    --to sentence-transformers writes folders that SentenceTransformer, CrossEncoder and transformers load. --to onnx
    writes graphs for ONNX Runtime; rankwell uses those of re-rankers, too: `rankwell rerank … --backend onnx`. A
    bi-encoder that maps queries only becomes two models, query and document; the vectors that your engine has stay.
    For a system, search.json has its BM25 settings, its weights and the formula that joins the scores.

    --to rankwell makes a folder a quarter of the size, which only rankwell reads.

    Examples:

        rankwell export my-system --to sentence-transformers --out elsewhere

        rankwell export my-model --to onnx --out my-model-onnx

        rankwell export my-model --to onnx --precision int8 --out my-model-int8

        rankwell export my-model --to rankwell --out my-model-small
    """
    from rankwell.core.files import folder_size
    from rankwell.models.checkpoints.describe import describe
    from rankwell.models.checkpoints.export import export_weights
    from rankwell.models.checkpoints.names import find_model
    from rankwell.models.portable import export_encoder, export_ranker
    from rankwell.rank.exporting import SETTINGS, export_system
    from rankwell.rank.system import System
    from rankwell.rank.texts import is_system

    begin, made = time.monotonic(), dict[str, Any]()
    if target != "onnx":
        excludes(context, f"--to {target}", "precision", "attention")
    changes: dict[str, Any] = {} if attention is None else {"attention": attention}
    if is_system(model):
        excludes(context, "a system", "attention")
        if target == "rankwell":
            raise RankwellError(f"{model} is a system; --to rankwell takes a model, such as {model}/encoder")
        settings = export_system(System.open(model), out, target, precision)
        kind, made = f"{SETTINGS} and models", {"settings": settings}
        if "left_out" in settings.get("rerank", {}):
            warnings.warn(f"the re-ranker is left out: {settings['rerank']['left_out']}", stacklevel=1)
    elif target == "rankwell":
        kind = "weights in 8 bits"
        export_weights(model, out)
    else:
        found = describe(find_model(model))
        twin = target == "sentence-transformers" and found.has_vectors
        if found.scores_pairs and not twin:
            kind = "a re-ranker"
            export_ranker(model, out, target, precision, **changes)
        else:
            excludes(context, "a bi-encoder", "attention")
            sides = export_encoder(model, out, target, precision)
            kind = f"a bi-encoder{' as two models, ' if sides else ''}{' and '.join(sides)}"
    size, seconds = folder_size(out), time.monotonic() - begin
    computed = f" in {precision}" if target == "onnx" else ""
    print(f"{out}: {kind} for {target}{computed}, {size / 1e6:,.1f} MB, {seconds:.1f} s")
    if kind == "a re-ranker" and precision == "int8":
        from rankwell.rank.engines.agreement import EXPORT_DOCUMENTS, rank_agreement
        from rankwell.sample import FOLDER

        each = rank_agreement(model, out, target, FOLDER, changes)
        correlation = f"Spearman {sum(each) / len(each):.4f} (least {min(each):.4f})"
        where = f"{len(each)} queries of {EXPORT_DOCUMENTS} documents each"
        print(f"agreement with {model} on the sample: {correlation}, {where}")
        made["spearman"] = each
    return {"out": str(out), "kind": kind, "to": target, "precision": precision, "bytes": size, **made}
