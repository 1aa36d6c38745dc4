"""A measured device as text.

MERGED: The statistics of a program as text.
"""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.grammar.width import cells
from qpdsl.planner.cost.device import Curve, Device, ModelProfile, Table
from qpdsl.planner.cost.statistics import OperatorStatistics, ProgramStatistics
from qpdsl.planner.explain.quantities import byte_count, count, plural, seconds
from qpdsl.planner.plan.evaluate import format_value


def profile_text(device: Device) -> str:
    """Rates of the device, then of each model: steps by their size, and throughput by memory and batch."""
    lines = [
        f"{device.name} ({device.kind}, {device.dtype}, {device.threads} thread{'s' if device.threads != 1 else ''})",
        f"  copies {device.bandwidth / 1e9:.1f} GB/s, multiplies {device.peak / 1e9:,.0f} GFLOP/s",
    ]
    for name, profile in device.models.items():
        lines += ["", name, *_model(profile)]
    return "\n".join(lines)


def _model(profile: ModelProfile) -> Iterator[str]:
    shape = profile.shape
    yield (
        f"  {count(shape.parameters)} parameters, {byte_count(shape.kv_bytes)} of KV a token, "
        f"{seconds(profile.overhead)} a step before any work"
    )
    yield f"  a step that decodes      {_curve(profile.decode, 'sequences')}"
    yield f"  a step of prompts        {_curve(profile.prefill, 'tokens')}"
    for word, table in (("generated", profile.generate), ("scored", profile.score)):
        if table is not None:
            yield f"  tokens/s {word}, by tokens of KV memory (rows) and sequences side by side"
            yield from _table(table)


def _curve(curve: Curve, noun: str) -> str:
    return ", ".join(f"{size:g}: {seconds(time)}" for size, time in curve.points) + f"   ({noun})"


def _table(table: Table) -> Iterator[str]:
    yield " " * 12 + "".join(f"{batch:>9}" for batch in table.batches)
    for tokens, rates in zip(table.kv_tokens, table.rates, strict=True):
        yield f"{count(tokens):>12}" + "".join(f"{rate:>9,.0f}" for rate in rates)


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
