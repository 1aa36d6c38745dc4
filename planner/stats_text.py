"""The statistics of a program as text."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.grammar.width import cells
from qpdsl.planner.expr import format_value
from qpdsl.planner.quantities import plural
from qpdsl.planner.stats import OperatorStatistics, ProgramStatistics


def statistics_text(found: ProgramStatistics) -> str:
    """Means over problems, a line an operator that does more than pass rows on."""
    values = "".join(f" {name}={format_value(value)}" for name, value in found.values.items())
    models = ", ".join(f"{name} = {id}" for name, id in found.models.items())
    lines = [f"{found.name}{values}   {plural(found.problems, 'problem')}   {models}"]
    table = [
        [id, _number(one.runs), f"{_number(one.rows_in)} → {_number(one.rows_out)}", ", ".join(_facts(one, own))]
        for id, one in sorted(found.operators.items())
        for own in [not any(other.startswith(f"{id}.") for other in found.operators)]
    ]
    table.insert(0, ["operator", "runs", "rows", ""])
    widths = [max(cells(row[column]) for row in table) for column in range(3)]
    for row in table:
        shown = [cell + " " * (width - cells(cell)) for cell, width in zip(row, widths, strict=False)]
        lines.append("  " + "   ".join([*shown, row[3]]).rstrip())
    for device, ratio in found.clock.items():
        lines.append(f"  on {device}: {ratio:.2f} times the seconds that the device's figures give")
    lines.append(f"  the longest problem took {found.longest:.1f} times the steps of the average one")
    return "\n".join(lines)


def _facts(one: OperatorStatistics, own: bool) -> Iterator[str]:
    """Of an operator that contains others, only what is its `own`: theirs stand beside them."""
    if one.count("run_ahead"):
        yield f"{one.count('run_ahead_used') / one.count('run_ahead'):.0%} of samples run ahead used"
    if not own:
        return
    samples, texts, going = one.count("samples"), one.count("texts"), one.count("going")
    if samples and going:
        yield f"{_number(one.sampled_tokens / samples)} tokens a sample"
        yield f"{_number(one.count('longest') / max(one.runs, 1e-9))} in the longest of a run"
        yield f"context {_number(one.count('context') / going)}"
    if texts:
        yield f"{_number(texts)} texts of {_number(one.count('text_tokens') / texts)} tokens"
        yield f"{_number(one.count('new_tokens') / texts)} of them new"
        yield f"{one.count('steps_known') / max(one.count('steps'), 1e-9):.0%} of steps known"
    if one.prompt_tokens and (samples or texts):
        yield f"{one.cached_tokens / one.prompt_tokens:.0%} cached"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
