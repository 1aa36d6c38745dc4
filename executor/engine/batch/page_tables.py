"""Page tables, and the prefixes that they say are shared, kept from one step to the next."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Listed

import numpy as np

from qpdsl.executor.engine.batch.staging import Numbers
from qpdsl.executor.engine.memory.sequence import Branch, Sequence
from qpdsl.executor.kernels.data.paged_batch import Cascade
from qpdsl.executor.kernels.data.shared_prefixes import of_contexts, plan_pages

# Page tables of captured steps are a power of two wide and at least this; others a multiple of it.
LEAST_WIDTH = 8


class PageTables:
    """Page tables int32 [B, width], kept from step to step; only rows that changed are written."""

    def __init__(self) -> None:
        self._rows: list[list[int]] = []
        self._table = np.zeros((0, LEAST_WIDTH), dtype=np.int32)

    def of(self, sequences: Listed[Sequence | None], width: int) -> Numbers:
        """Those of sequences, one after the other. Of None any row will do: nobody reads it."""
        if width != self._table.shape[1] or len(sequences) > len(self._table):
            rows = max(len(sequences), len(self._table))
            self._table, self._rows = np.zeros((rows, width), dtype=np.int32), []
        missing = len(sequences) - len(self._rows)
        self._rows += [[] for _ in range(missing)]
        for row, sequence in enumerate(sequences):
            if sequence is None:
                continue
            pages = sequence.pages
            if pages != self._rows[row]:
                self._rows[row] = pages[:]
                # A sequence may hold a page for a later token, past the widest context of the step.
                entries = pages[:width]
                self._table[row, : len(entries)] = entries
        return self._table[: len(sequences)]


class SharedPrefixes:
    """The prefixes that decoding sequences share, searched anew only when a sequence joins or leaves.

    A sequence that comes back has the same tokens, so it shares the same prefix, in whatever pages, once it has
    computed that far. `worth`: see `plan_pages`.
    """

    def __init__(self, page_size: int, worth: int) -> None:
        self._page_size = page_size
        self._worth = worth
        self._sequences: list[Sequence] = []
        self._cascade: Cascade | None = None

    def of(
        self,
        sequences: list[Sequence],
        tables: Numbers,
        context: Numbers,
        branches: Mapping[int, Branch] | None = None,
    ) -> Cascade | None:
        """On the host. `tables` int32 [B, P] and `context` [B]: of each sequence, with its new token.

        `branches`: see `StepRows` in `step_rows.py`.
        """
        if branches or sequences != self._sequences or self._is_cut(context):
            counts = (context - 1) // self._page_size
            for number, branch in (branches or {}).items():
                # Paths in a tree share what lies before it.
                counts[number] = min(counts[number], branch.start // self._page_size)
            self._cascade = plan_pages(tables, counts, self._page_size, worth=self._worth)
            self._sequences = [] if branches else sequences
        return None if self._cascade is None else of_contexts(self._cascade, context)

    def _is_cut(self, context: Numbers) -> bool:
        """Whether a sequence ends inside its shared range: it came back, and is computed anew a token at a time."""
        return self._cascade is not None and bool((context <= self._cascade.start.numpy()).any())
