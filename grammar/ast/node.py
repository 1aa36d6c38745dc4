"""What every node of the syntax tree has."""

from __future__ import annotations

from dataclasses import dataclass, field

from qpdsl.grammar.source import Span


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    span: Span = field(compare=False, repr=False)
