"""A PyTerrier transformer: a data frame of results (qid, query, docno, text) gets the ranker's scores and ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pyterrier as pt

from rankwell.rank.ranker import Ranker


class RankwellTransformer(pt.Transformer):
    """Re-ranks: ``bm25 % 100 >> pt.text.get_text(dataset) >> RankwellTransformer(ranker)``.

    A column ``type`` holds the queries' types, for a template that has a place for one. Scores are the model's own.
    """

    def __init__(self, ranker: Ranker):
        self.ranker = ranker

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> RankwellTransformer:
        """With the ranker of a checkpoint; ``options`` are those of :meth:`Ranker.from_pretrained`."""
        return cls(Ranker.from_pretrained(folder, **options))

    def transform(self, inp: pd.DataFrame) -> pd.DataFrame:
        """The same rows with new scores and ranks; the frame that is given is left as it is."""
        pt.validate.result_frame(inp, extra_columns=["query", "text"], context=self)
        typed = any(field.name == "type" for field in self.ranker.template.fields)
        types = inp["type"].tolist() if typed and "type" in inp.columns else None
        pairs = list(zip(inp["query"], inp["text"], strict=True))
        scores = self.ranker.predict(pairs, types=types).tolist() if pairs else []
        found: pd.DataFrame = pt.model.add_ranks(inp.assign(score=scores))
        return found
