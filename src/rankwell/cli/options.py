"""Options that several verbs share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from rankwell.cli.outputs import output_file
from rankwell.core.parameters import Normalisation

Backend = Literal["torch", "onnx", "openvino"]
Precision = Literal["auto", "fp32", "bf16", "int8"]
Rule = Literal["full", "strm", "strict", "exact_match"]

IndexArgument = Annotated[Path, typer.Argument(metavar="INDEX", help="An index folder made by `rankwell index`.")]
RunOut = Annotated[
    Path | None,
    typer.Option(
        "--out",
        callback=output_file,
        help="Write a run to this file; - is standard output, a name ending in .gz is compressed. Default: print the "
        "answers.",
    ),
]
Format = Annotated[Literal["trec", "msmarco"], typer.Option("--format", help="Output format.")]
Threads = Annotated[int, typer.Option("--threads", help="Number of threads; 0 uses all cores.")]

IdField = Annotated[
    str | None,
    typer.Option("--id", metavar="FIELD", help="Field or column of the ids. Default: recognised by its name."),
]
TextField = Annotated[
    str | None,
    typer.Option("--text", metavar="FIELD", help="Field or column of the texts. Default: recognised by its name."),
]
TitleField = Annotated[
    str | None,
    typer.Option("--title", metavar="FIELD", help="Field or column of the titles. Default: recognised by its name."),
]
IgnoreIdentical = Annotated[
    bool,
    typer.Option(
        "--ignore-identical-ids",
        help="Leave out documents that have the id of the query, as BEIR does.",
    ),
]

Model = Annotated[
    str,
    typer.Option(
        "--model", metavar="MODEL", help="A checkpoint folder, a name on the Hugging Face hub, or an exported model."
    ),
]
Label = Annotated[
    str | None,
    typer.Option(
        "--label",
        metavar="CLASS",
        help="For a classifier of several classes: the one that means relevant. Default: entailment.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with a model. Without it, such models are refused."),
]
BackendOption = Annotated[Backend, typer.Option("--backend", help="Inference backend.")]
Device = Annotated[
    str | None,
    typer.Option(
        "--device", metavar="DEVICE", help="Torch device: cpu, cuda, cuda:1 or mps. Default: a GPU if there is one."
    ),
]
PrecisionOption = Annotated[
    Precision,
    typer.Option(
        "--precision",
        help="Torch precision: fp32 is exact; auto is the fastest that ranks alike: 16 bits on a GPU or a CPU with "
        "AMX, int8 on an Arm CPU.",
    ),
]
Attention = Annotated[Rule | None, typer.Option("--attention", help="Attention rule. Default: the model's.")]
Markers = Annotated[
    bool | None,
    typer.Option(
        "--markers/--no-markers", help="Mark the words that query and document share. Default: as the model does."
    ),
]

EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        metavar="MODEL",
        help="Bi-encoder: a folder, PACKAGE:FOLDER, or a name on the Hugging Face hub. Default: rankwell-mini.",
    ),
]
Hybrid = Annotated[
    float | None,
    typer.Option("--hybrid", metavar="SHARE", help="Add dense search with this share of the score; 1 uses it alone."),
]
VectorsOption = Annotated[
    Literal["auto", "exact", "compressed"],
    typer.Option(
        "--vectors",
        help="How dense search compares vectors: all of them (exact), or codes of one bit per number and then the best "
        "(compressed). auto is exact below 200,000 documents and on a GPU.",
    ),
]
Normalise = Annotated[
    Normalisation,
    typer.Option("--normalise", help="How scores are normalised before --fuse and --blend combine them."),
]
