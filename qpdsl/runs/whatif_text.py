"""What a saved run answers, for people and as JSON: the table of an evaluation, and what is not answered."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from qpdsl.planner.explain.quantities import exact_plural
from qpdsl.planner.explain.tree_table import laid_out
from qpdsl.runs.evaluation_text import markdown_lines, text_lines, to_json
from qpdsl.runs.whatif import OpenCell, WhatIf

_HEAD = ("program", "parameters", "answered", "needs")


def whatif_lines(made: WhatIf, width: int = 80, *, markdown: bool = False) -> list[str]:
    """The table of the cells that are answered, and that of the others, with what they need."""
    lines = markdown_lines(made.evaluation) if markdown else text_lines(made.evaluation, width)
    if not made.open:
        return lines
    rows = [_HEAD, *map(_cells, made.open)]
    if markdown:
        table = [f"| {' | '.join(row)} |" for row in (_HEAD, ("---",) * len(_HEAD), *rows[1:])]
    else:
        table = [line for entry in laid_out(rows, width=width, right={2}) for line in entry]
    return [*lines, "", "Not answered, as samples were never drawn:", "", *table, "", *_notes(made)]


def _cells(open: OpenCell) -> tuple[str, ...]:
    problems = open.answered + open.open
    needs = f"at least {exact_plural(open.samples, 'sample')} in {exact_plural(open.open, 'problem')}"
    return open.cell.program, open.cell.parameters, f"{open.answered:,} of {problems:,}", needs


def _notes(made: WhatIf) -> Iterator[str]:
    if any(one.answered for one in made.open):
        yield "The problems that are answered are the easy ones, so they have no accuracy of their own."
    yield "`--draw` draws what is missing."


def whatif_json(made: WhatIf) -> dict[str, Any]:
    """All of it: the evaluation, and under `open` the cells that are not answered."""
    return {
        "qpdsl_whatif": 1,
        "run": made.run,
        **{name: value for name, value in to_json(made.evaluation).items() if name != "qpdsl_eval"},
        "open": [
            {
                "program": one.cell.program,
                "parameters": dict(one.cell.settings),
                "choice": one.cell.choice or None,
                "problems": one.answered + one.open,
                "answered": one.answered,
                "samples": one.samples,
            }
            for one in made.open
        ],
        "read": dict(made.read),
        "drawn": dict(made.drawn),
    }


def whatif_json_text(made: WhatIf) -> str:
    """`whatif_json`, written on several lines."""
    return json.dumps(whatif_json(made), ensure_ascii=False, allow_nan=False, indent=2)


def begins_whatif(file: BinaryIO) -> bool:
    """Whether an open file holds what a saved run answers, as far as its beginning tells."""
    start = file.read(4000).decode(errors="replace")
    if start.startswith("{"):
        return start[1:].lstrip().startswith('"qpdsl_whatif"')
    title, *rest = start.split("\n")
    is_titled = " problem" in title and " x 1 seed" in title
    return is_titled and len(rest) > 1 and rest[1].lstrip("| ").startswith("program")
