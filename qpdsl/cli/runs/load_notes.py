"""What a run says of the models that it loads, on stderr: which, and how long it took where that was long."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from qpdsl.cli.console import is_terminal, say
from qpdsl.planner.explain.quantities import count, seconds

if TYPE_CHECKING:
    from qpdsl.executor.models.text_model import TextModel

# A model that is there sooner is not spoken of.
_MOMENT = 1.0


class LoadNotes:
    """The notes on `models`, the ids of a run's models by name. `quiet`: none but those that a user must know."""

    def __init__(self, models: Mapping[str, str], *, quiet: bool) -> None:
        self._names: dict[str, list[str]] = {}
        for name, model in models.items():
            self._names.setdefault(model, []).append(name)
        self._quiet = quiet or not is_terminal(sys.stderr)

    def begin(self) -> None:
        """Says on a terminal what is about to be loaded."""
        if not self._quiet:
            say(f"loading {', '.join(self._names)} …")

    def slow(self, model: str, what: str) -> None:
        """Says on a terminal why the model takes longer than it will the next time."""
        if not self._quiet:
            say(f"loading {', '.join(self._names.get(model, ['a model']))}: {_short(model)} ({what})")

    def loaded(self, model: TextModel, took: float) -> None:
        """Says on a terminal that a model was loaded, where that took more than a moment; and what is odd of it."""
        if took >= _MOMENT and not self._quiet:
            names = ", ".join(self._names.get(model.name, ["a model"]))
            say(f"{names}: {_short(model.name)} ({_made_of(model)}) loaded in {seconds(took)}")
        for note in model.notes:
            say(f"note: {note}")


def _made_of(model: TextModel) -> str:
    from qpdsl.executor.models.text_model import PagedTextModel

    if isinstance(model, PagedTextModel):
        return f"{model.weights}, {count(model.paged.parameters)} parameters"
    return "on its server"


def _short(model: str) -> str:
    """The last part of an id, and of its adapter's place."""
    return " with ".join(Path(part).name for part in model.split(" adapter="))
