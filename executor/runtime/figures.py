"""The engine's report of a step as it is read back from a trace, by a process that loads no engine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineFigures:
    """The figures that every report has, and in `others` whatever else the engine counted, by name."""

    model: str
    prefill_tokens: int
    decode_tokens: int
    waiting: int
    pages_held: int
    pages: int
    preemptions: int
    others: Mapping[str, float] = field(default_factory=dict)
