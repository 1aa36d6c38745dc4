"""Which rows are better run by one replica: those whose prompts begin with the same long text.

A prefix cache is a replica's own. Beginnings that all rows share (instructions, examples) are soon in every cache, and
so they do not count; what counts is a text of the row itself, such as a document with several questions about it. A
problem that several jobs of a sweep run goes to one replica too, where its prefix, its scores and its samples are.
"""

from __future__ import annotations

from collections.abc import Hashable
from hashlib import blake2b

from qpdsl.inputs.input_row import InputRow
from qpdsl.run_store.run_record import row_key

# A shorter beginning is computed again sooner than a replica would be waited for: about a hundred tokens.
_LEAST = 512


def affinity(row: InputRow, jobs: int = 1) -> Hashable:
    """What rows have in common that are better run by one replica; None for a row that goes anywhere.

    `jobs` is how many jobs the run has, each of which may run the row.
    """
    if jobs > 1:
        return row_key(row)
    texts = [value for value in row.arguments.values() if isinstance(value, str)]
    longest = max(texts, key=len, default="")
    return blake2b(longest[:_LEAST].encode(), digest_size=8).digest() if len(longest) >= _LEAST else None
