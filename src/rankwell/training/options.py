"""Groups of options as recipes and suites write them, and what an option's value stands for beyond itself."""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator

from rankwell.core.registry import Registry

START = "start"
"""Names the recipe's start checkpoint where a stage or a model is expected."""
FIRST_STAGE_ENCODER = "first_stage"
"""Names the bi-encoder that finds the candidates where a bi-encoder is expected."""
RANKER = "ranker"
"""Names the ranker that the stages before have trained where a teacher is expected."""


class Meaning(Enum):
    """Marks an option in its annotation: ``encoder: Annotated[str, Meaning.MODEL]``."""

    MODEL = "a model: a folder, which may be relative to the recipe's, or a name"
    VECTORS = "word vectors: a file or folder, which may be relative to the recipe's, or PACKAGE:FOLDER"
    DATA_FILE = "a file of the data's folder"
    NO_EFFECT = "changes the memory or time a stage needs, not its result"


class Options(BaseModel):
    """A group of options. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _no_word_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML's yes and no are not numbers, though Python treats them as 1 and 0."""
        kind = cls.model_fields[str(info.field_name)].annotation
        if isinstance(value, bool) and {int, float} & {kind, *get_args(kind)} and bool not in {kind, *get_args(kind)}:
            raise ValueError("expected a number")
        return value

    @classmethod
    def marked(cls, *meanings: Meaning) -> Iterator[str]:
        """The names of the options that have one of these meanings."""
        for name, field in cls.model_fields.items():
            if any(mark in meanings for mark in field.metadata):
                yield name


STAGE_OPTIONS: Registry[type[Options]] = Registry("stage options")
"""The options of stage kinds, by the kind's name."""
