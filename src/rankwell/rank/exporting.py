"""A system in the hands of another engine: its models, and ``search.json``, which says how their scores are joined."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rankwell.core.errors import RankwellError
from rankwell.core.files import atomic_folder
from rankwell.models.checkpoints.config import ExportPrecision
from rankwell.models.portable import export_encoder, export_ranker
from rankwell.rank.dense import DEEP
from rankwell.rank.first_stage import WORDS_DEPTH
from rankwell.rank.system import ENCODER, RANKER, System

SETTINGS = "search.json"
VERSION = 1
_JOINED = (
    "Each part searches {deep} documents deep. z(s) = (s - mean) / standard deviation, over what the part found for "
    "the query; 0 if all scores are equal. A document that a part did not find has the part's lowest z."
)


def export_system(system: System, out: Path, target: str, precision: ExportPrecision = "fp32") -> dict[str, Any]:
    """Write the models of a system and its settings as the folder ``out``; returns the settings.

    A re-ranker that the target cannot compute is left out, and the settings say why.
    """
    if out.exists():
        raise RankwellError(f"{out} exists already")
    settings = search_settings(system)
    with atomic_folder(out, checksums=False) as temporary:  # each model has its own
        if system.finder.encoder is not None:
            sides = export_encoder(system.finder.encoder, temporary / ENCODER, target, precision)
            settings["vectors"]["models"] = {
                side: f"{ENCODER}/{side}" if sides else ENCODER for side in ("query", "document")
            }
        if system.ranker is not None:
            try:
                export_ranker(str(system.ranker), temporary / RANKER, target, precision)
            except RankwellError as error:
                settings["rerank"] |= {"model": None, "left_out": str(error).removeprefix(f"{system.ranker}: ")}
        (temporary / SETTINGS).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    return settings


def search_settings(system: System) -> dict[str, Any]:
    """The settings of a system's search, and in words how the scores of its parts become one."""
    first, analyzer = system.first_stage, system.index.analyzer
    lengths = sum(segment.total_length for segment in system.index.segments)
    words: dict[str, Any] = {**asdict(first.bm25), "weight": round(1 - first.share, 12)}
    words["mean_length"] = lengths / max(len(system.index), 1)
    words["analyzer"] = {**analyzer.model_dump(mode="json"), "stop_words": sorted(analyzer.stop_words)}
    settings: dict[str, Any] = {"format": "rankwell-search", "version": VERSION, "bm25": words}
    formula = "score = BM25"
    if first.encoder is not None:
        dense = first.dense.encoder
        compared = "the dot product" if dense.modules.similarity == "dot" else "the cosine"
        settings["vectors"] = {"weight": first.share, "dimensions": dense.width, "similarity": compared}
        formula = f"score = {words['weight']:g} · z(BM25) + {first.share:g} · z(similarity)"
        formula = "score = similarity" if first.share == 1 else formula if first.share else "score = BM25"
    settings |= {"formula": formula, "depth": DEEP, "normalise": "z-score", "missing": "lowest"}
    settings["in_words"] = _JOINED.format(deep=DEEP)
    if first.words:
        settings["word_vectors"] = {"weight": first.words, "depth": WORDS_DEPTH, "left_out": "needs rankwell"}
    if system.engine:
        settings["engine"] = {"weight": system.engine}
    if system.ranker is not None:
        shares = None if system.shares is None else {**system.shares.as_dict(), "normalise": system.shares.normalise}
        settings["rerank"] = {"model": RANKER, "depth": system.depth, "weights": shares}
    return settings
