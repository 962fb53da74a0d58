"""Training data where nobody judged: queries written for a collection, each with its own passage as the relevant one.

Two splits are written as the files of any other data set, ``generated`` to learn from and ``generated.dev`` to
validate on, whose passages are others. A written query may have better answers elsewhere: noise reduction is for that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from rankwell.core.errors import RankwellError
from rankwell.corpus.formats import write_qrels, write_queries
from rankwell.corpus.formats.expansions import Expansion
from rankwell.corpus.records import Qrels, Query

SPLIT = "generated"


def generated_queries(expansions: Iterable[Expansion], prefix: str = "g") -> tuple[list[Query], Qrels]:
    """Queries with the passages each was written for; one that was written for several is one query, with all."""
    passages: dict[str, dict[str, int]] = {}
    for expansion in expansions:
        for query in expansion.queries:
            passages.setdefault(query, {})[expansion.docid] = 1
    queries = [Query(f"{prefix}{number}", text) for number, text in enumerate(passages, 1)]
    return queries, Qrels({query.qid: passages[query.text] for query in queries})


def write_generated(expansions: Sequence[Expansion], folder: Path, *, dev: int = 500) -> dict[str, int]:
    """Write both splits; every k-th passage is for ``dev`` queries or a tenth of all, whichever is less.

    Returns how many queries each split has.
    """
    total = sum(len(expansion.queries) for expansion in expansions)
    wanted = min(dev, total // 10)
    if wanted < 1:
        raise RankwellError(f"{total} generated queries are too few to train and to validate with")
    every = max(2, total // wanted)
    spoken = [expansion for expansion in expansions if expansion.queries]
    parts = {
        SPLIT: generated_queries(one for number, one in enumerate(spoken) if number % every),
        f"{SPLIT}.dev": generated_queries((one for number, one in enumerate(spoken) if number % every == 0), "v"),
    }
    learned = {query.text for query in parts[SPLIT][0]}
    counts = {}
    for split, (queries, qrels) in parts.items():
        # What is learned from says nothing about how much was learned.
        kept = queries if split == SPLIT else [query for query in queries if query.text not in learned]
        write_queries(kept, folder / f"queries.{split}.tsv")
        write_qrels(Qrels({query.qid: qrels[query.qid] for query in kept}), folder / f"qrels.{split}.txt")
        counts[split] = len(kept)
    return counts
