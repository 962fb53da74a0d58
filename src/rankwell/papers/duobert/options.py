"""Options of the stage `duo`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from rankwell.training.options import STAGE_OPTIONS
from rankwell.training.stage_options.ranking import ListOptions

if TYPE_CHECKING:
    from rankwell.papers.duobert.ranker import PairwiseOptions


@STAGE_OPTIONS.register("duo")
class DuoOptions(ListOptions):
    """`duo`: learns which of two documents is better (duoBERT), for the top documents of the model before it."""

    learning_rate: float = Field(default=3e-5, gt=0, description="Peak learning rate (paper: 3e-6).")
    compare: int = Field(default=30, ge=2, description="Number of top documents per query that are compared in pairs.")
    max_length: int = Field(
        default=320, ge=16, description="Maximum length in tokens of a sequence of query and two documents."
    )
    aggregate: Literal["sum", "binary", "min", "max", "sample"] = Field(
        default="sum", description="How comparisons become a document's score."
    )

    def comparison(self) -> PairwiseOptions:
        """How documents are compared once the model is trained."""
        from rankwell.papers.duobert.ranker import PairwiseOptions

        return PairwiseOptions(self.compare, self.aggregate)
