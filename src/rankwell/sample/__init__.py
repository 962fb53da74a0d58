"""The bundled sample: an original collection, queries, graded judgments and types, as a data-set folder."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).parent
"""A folder that ``rankwell.corpus.datasets.open_dataset`` opens."""
