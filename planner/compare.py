"""Two plans side by side: what the one does that the other does not."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any
from typing import Literal as OneOf

from qpdsl.planner.explain import Cells, explain_json, laid_out, notes, summary, table
from qpdsl.planner.physical import PhysicalPlan

Side = OneOf[" ", "-", "+"]


def compare(plan: PhysicalPlan, other: PhysicalPlan) -> str:
    """Both plans as one tree: lines of `other` alone begin with `-`, those of `plan` alone with `+`."""
    sides, cells = zip(*_merged(table(other), table(plan)), strict=True)
    shown = [*_notes(summary(other), summary(plan))]
    shown += [f"{side} {line}".rstrip() for side, line in zip(sides, laid_out(list(cells)), strict=True)]
    for before, after in zip(notes(other), notes(plan), strict=True):
        shown += _notes(before, after)
    return "\n".join(shown)


def compare_json(plan: PhysicalPlan, other: PhysicalPlan) -> dict[str, Any]:
    """Both plans as data; `removed` and `added` are the lines that the one or the other has alone, in order."""
    merged = list(_merged(table(other), table(plan)))
    return {
        "plan": explain_json(plan),
        "against": explain_json(other),
        **{
            word: [
                {"text": _bare(text), "rows": rows, "implementation": how}
                for mark, (text, rows, how) in merged
                if mark == side
            ]
            for word, side in (("removed", "-"), ("added", "+"))
        },
    }


def _merged(before: list[Cells], after: list[Cells]) -> Iterator[tuple[Side, Cells]]:
    """The lines of both tables. How deep an operator stands does not make it another."""
    keys = [[(_bare(text), rows, how) for text, rows, how in lines] for lines in (before, after)]
    for tag, a, b, c, d in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if tag == "equal":
            yield from ((" ", cells) for cells in after[c:d])
        else:
            yield from (("-", cells) for cells in before[a:b])
            yield from (("+", cells) for cells in after[c:d])


def _bare(text: str) -> str:
    return text.lstrip(" │├└").removeprefix("from ")


def _notes(before: str, after: str) -> list[str]:
    """A note that is the same in both plans, or one line for each that has it."""
    if before == after:
        return [f"  {after}"] if after else []
    return [f"{side} {note}" for side, note in (("-", before), ("+", after)) if note]
