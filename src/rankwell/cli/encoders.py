"""The bi-encoder of ``--hybrid`` and ``--blend``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from rankwell.core.errors import MissingExtraError, RankwellError

if TYPE_CHECKING:
    from rankwell.models.bi_encoder import BiEncoder

EncoderOption = Annotated[
    str | None,
    typer.Option("--encoder", help="The bi-encoder: a folder, PACKAGE:FOLDER, or a name on the hub; else MiniLM."),
]


def check_encoder(about: Mapping[str, object], shares: Mapping[str, object]) -> None:
    """What is said about a bi-encoder is in vain where no option gives it a share."""
    said = [name for name, value in about.items() if value is not None]
    if said and not any(value not in (None, False) for value in shares.values()):
        raise RankwellError(f"{' and '.join(said)}: of a bi-encoder, which needs {' or '.join(shares)}")


def open_encoder(encoder: str | None, device: str | None) -> BiEncoder:
    """The bi-encoder that was named, or MiniLM."""
    try:
        from rankwell.models.bi_encoder import BiEncoder
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "torch", "models", "a bi-encoder") from None
    from rankwell.models.checkpoints.names import BACKBONE

    return BiEncoder.from_pretrained(encoder or BACKBONE, device=device)
