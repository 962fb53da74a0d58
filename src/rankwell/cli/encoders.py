"""The bi-encoder of ``--hybrid`` and ``--blend``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwell.core.errors import MissingExtraError, RankwellError

if TYPE_CHECKING:
    from rankwell.models.bi_encoder import BiEncoder

EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help="The bi-encoder: a folder, PACKAGE:FOLDER, or a name on the hub; else MiniLM for --blend, rankwell-mini "
        "for --hybrid.",
    ),
]
PrecisionOption = Annotated[
    Literal["auto", "fp32", "bf16"],
    typer.Option("--precision", help="Of --hybrid: auto is bf16 where that is much faster, on a processor with AMX."),
]


def check_encoder(about: Mapping[str, object], shares: Mapping[str, object]) -> None:
    """What is said about a bi-encoder is in vain where no option gives it a share."""
    said = [name for name, value in about.items() if value is not None]
    if said and all(share is None or share is False for share in shares.values()):  # 0 is a share
        raise RankwellError(f"{' and '.join(said)}: of a bi-encoder, which needs {' or '.join(shares)}")


def open_encoder(name: str, device: str | None, precision: Literal["auto", "fp32", "bf16"] | None = None) -> BiEncoder:
    """A bi-encoder; without a precision it is exact on a CPU."""
    try:
        from rankwell.models.bi_encoder import BiEncoder
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "models", "a bi-encoder") from None
    from rankwell.rank.engines.engine import engine_options

    return BiEncoder.from_pretrained(name, **{"device": device, **engine_options("torch", device, precision)})
