"""A row that a program ended with."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Candidate:
    """One of the rows that a program ended with.

    `transcript` is its conversation, `{"role": …, "content": …}`, what it generated last as the assistant's turn; a
    plain prompt stands alone in it, without a role. `text` was generated since the last turn, `tokens` are its ids in
    the vocabulary of the model that wrote it, without those that end a turn, and `logprob` is the sum of their
    log-probabilities as far as the plan computes them; `thought` is what the model thought before it. `columns` are all
    columns, `path` its place in the fan-outs.
    """

    text: str
    tokens: tuple[int, ...]
    logprob: float
    columns: Mapping[str, Any]
    transcript: tuple[Mapping[str, str], ...]
    path: tuple[int, ...]
    thought: str | None = None
