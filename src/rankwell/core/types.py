"""Names for the array types that signatures repeat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]
"""Row numbers, or the ends of rows in a ragged array."""
Scores = NDArray[np.float32]
Values = NDArray[np.float64]
