"""What a plan was chosen from, as text and as data: every candidate with its cost, and why it is not the plan."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from qpdsl.grammar.width import cells
from qpdsl.planner.explain.quantities import per_cent, plural, seconds
from qpdsl.planner.optimize.plan_candidate import Considered, PlanChoice
from qpdsl.planner.plan.rule import Knob

_LEVELS_SHOWN = 3
_GAP = "   "


def choice_text(choice: PlanChoice) -> str:
    """A summary, a line for each candidate under its knob, and what the memory is good for."""
    faster = 1 - choice.seconds / choice.ruled_seconds if choice.ruled_seconds else 0.0
    gain = f", {per_cent(faster)} less than as the rules left it" if faster >= 0.005 else ""
    lines = [
        f"{plural(choice.tried, 'estimate')} in {seconds(choice.planning_seconds)}; "
        f"{plural(choice.problems, 'problem')} in {seconds(choice.seconds)}{gain}"
    ]
    table = [["", "candidate", "time", "C", ""], *_rows(choice.considered)]
    widths = [max(cells(row[column]) for row in table) for column in range(4)]
    for row in table:
        shown = [row[0] + " " * (widths[0] - cells(row[0])), row[1] + " " * (widths[1] - cells(row[1]))]
        shown += [" " * (widths[column] - cells(row[column])) + row[column] for column in (2, 3)]
        lines.append(_GAP.join([*shown, row[4]]).rstrip())
    lines += _memory(choice)
    lines.append(
        f"C: {choice.weight:g} × time over that of the plan as the rules left it, "
        f"and {1 - choice.weight:g} × the share of draws that change; each line with all else as chosen"
    )
    return "\n".join(lines)


def choice_json(choice: PlanChoice) -> dict[str, Any]:
    """The same as data, with stable keys."""
    return {
        "problems": choice.problems,
        "seconds": choice.seconds,
        "ruled_seconds": choice.ruled_seconds,
        "latency_weight": choice.weight,
        "estimates": choice.tried,
        "planning_seconds": choice.planning_seconds,
        "candidates": [{**asdict(line), "knob": str(line.knob)} for line in choice.considered],
        "memory": [{**asdict(level), "shares": dict(level.shares)} for level in choice.levels],
    }


def _rows(considered: tuple[Considered, ...]) -> Iterator[list[str]]:
    before: Knob | None = None
    for line in considered:
        knob = str(line.knob) if line.knob != before else ""
        said = "; ".join(part for part in (line.verdict, line.measured) if part)
        yield [knob, line.value, seconds(line.seconds), f"{line.cost:#.4g}", said]
        before = line.knob


def _memory(choice: PlanChoice) -> Iterator[str]:
    """The best parts of the memory, where there are models to part it between."""
    if not choice.levels or len(choice.levels[0].shares) < 2:
        return
    yield "min-max over the models: the rate of the slowest, by parts of the KV memory at their best batch"
    for level in choice.levels[:_LEVELS_SHOWN]:
        parts = ", ".join(f"{model} {per_cent(share)}" for model, share in level.shares.items())
        yield (
            f"  {parts}: {plural(level.batch, 'sequence')} side by side, {level.rate:.3g} problems a second "
            f"(the slowest is {level.slowest})"
        )
