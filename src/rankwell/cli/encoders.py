"""The bi-encoder of ``--hybrid`` and ``--blend``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rankwell.core.errors import MissingExtraError

if TYPE_CHECKING:
    from rankwell.models.bi_encoder import BiEncoder
    from rankwell.rank.fusion import Shares

EncoderOption = Annotated[
    str | None,
    typer.Option(
        "--encoder",
        help="Bi-encoder: a folder, PACKAGE:FOLDER, or a name on the Hugging Face hub. Default: MiniLM for --blend, "
        "rankwell-mini for --hybrid.",
    ),
]


def shares_of(fuse: float | None, blend: float | None, normalise: str) -> Shares | None:
    """The shares of ``--fuse`` and ``--blend``; ``None`` if neither is given."""
    from rankwell.rank.fusion import Shares

    if fuse is None and blend is None:
        return None
    return Shares.beside_model(first=fuse or 0.0, similarity=blend or 0.0, normalise=normalise)


def open_encoder(name: str, device: str | None, precision: Literal["auto", "fp32", "bf16"] | None = None) -> BiEncoder:
    """Load a bi-encoder; without a precision it is exact on a CPU."""
    try:
        from rankwell.models.bi_encoder import BiEncoder
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "models", "a bi-encoder") from None
    from rankwell.rank.engines.engine import engine_options

    return BiEncoder.from_pretrained(name, **{"device": device, **engine_options("torch", device, precision)})
