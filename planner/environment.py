"""What a program is checked against besides its own text: the files it may read, the Python functions registered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpdsl.grammar.files import Files
from qpdsl.planner.scope import Type


@dataclass(frozen=True)
class Environment:
    """`scorers` are the names of registered Python scorers; `extractors` gives the column type of each extractor.

    `models` puts other model ids in the place of declared ones, by name, in the files that the program uses too.
    """

    files: Files = field(default_factory=Files)
    scorers: frozenset[str] = frozenset()
    extractors: Mapping[str, Type] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)
