"""The context of a step: what is known before it that may decide which arm is cheapest."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from qpdsl.executor.routing.policy import Floats

FEATURES = ("one", "share", "log_share", "batch", "margin", "length")
"""The features that a context has unless others are asked for."""
ALL_FEATURES = (*FEATURES, "total", "union")


class Contexts:
    """Makes contexts from the numbers of a step. Every feature is in 0..1, and is divided by √d, so that ‖x‖ ≤ 1.

    `vocabulary`: the number of ids |V|; `most_rows`, `most_tokens`: the largest batch and the longest row; larger ones
    count as these. `names`, of `ALL_FEATURES`:

    - `one`: 1;
    - `share`: K/|V|, where K is the mean number of ids that are allowed to a row. What a sparse head costs is linear in
      it (LLM-QP, section 2), not in `log_share`: log K / log |V|;
    - `total`: ΣK/(|V|·most_rows) over the rows; `union`: the ids allowed to any of them, over |V|. They are what a
      batch costs, by lists of its own for each row and by one list;
    - `batch`: rows over most_rows;
    - `margin`: p₁ − p₂ of the step before; the one of this step is known only after an exit was paid for;
    - `length`: the tokens of the longest row over most_tokens.
    """

    def __init__(
        self, vocabulary: int, most_rows: int = 1, most_tokens: int = 1, names: Sequence[str] = FEATURES
    ) -> None:
        unknown = [name for name in names if name not in ALL_FEATURES]
        if unknown or not names:
            raise ValueError(f"there are no features {unknown}; there are {', '.join(ALL_FEATURES)}")
        if min(vocabulary, most_rows, most_tokens) < 1:
            raise ValueError(f"sizes must be at least 1, not {vocabulary}, {most_rows}, {most_tokens}")
        self.names = tuple(names)
        self._vocabulary, self._rows, self._tokens = vocabulary, most_rows, most_tokens
        self._log = math.log(vocabulary) or 1.0
        self._places = [ALL_FEATURES.index(name) for name in names]
        self._scale = 1.0 / math.sqrt(len(names))

    def of(self, allowed: int, rows: int = 1, margin: float = 0.0, length: int = 0, union: int = 0) -> Floats:
        """The context [d] of a step of `rows` rows.

        `allowed`: ΣK, the ids allowed to each row, summed over the rows; `union`: those allowed to any row.
        """
        share = allowed / (self._vocabulary * max(rows, 1))
        log_share = 1.0 + math.log(share) / self._log if share * self._vocabulary > 1 else 0.0
        total = allowed / (self._vocabulary * self._rows)
        long, shared = length / self._tokens, union / self._vocabulary
        values = 1.0, share, log_share, rows / self._rows, margin, long, total, shared
        return np.array([self._scale * min(max(values[place], 0.0), 1.0) for place in self._places])
