"""What a program is checked against besides its own text; apart, since a check needs nothing that runs functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from qpdsl.grammar.files import Files
from qpdsl.planner.environment import Environment

if TYPE_CHECKING:
    from qpdsl.executor.runtime.functions import PythonFunction


def environment(
    files: Files, functions: Mapping[str, PythonFunction], models: Mapping[str, str] | None = None
) -> Environment:
    """What a program that may name these functions is checked against; `models` as `Environment` has them."""
    extractors: dict[str, Any] = {}
    for name, function in functions.items():
        if function.kind == "extractor":
            extractors[name] = function.returns
    return Environment(files, frozenset(functions.keys() - extractors.keys()), extractors, models or {})
