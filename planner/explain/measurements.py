"""What was measured, as text: a device (`qpdsl profile`), and the statistics of earlier runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qpdsl.grammar.printable import cells, printable
from qpdsl.planner.cost.device import Curve, Device, ModelProfile, Table
from qpdsl.planner.cost.run_figures import THOUGHT_TOKENS
from qpdsl.planner.cost.server_times import ServerTimes
from qpdsl.planner.cost.statistics import OperatorStatistics, ProgramStatistics
from qpdsl.planner.explain.quantities import byte_count, count, plural, seconds, waits_words
from qpdsl.planner.explain.tree_table import folded, laid_out
from qpdsl.planner.rules import EFFECTS
from qpdsl.planner.values.value import format_value


def profile_text(device: Device) -> str:
    """Rates of the device, then of each model: steps by their size, and throughput by memory and batch."""
    lines = [
        f"{device.name} ({device.kind}, {device.dtype}, {device.threads} thread{'s' if device.threads != 1 else ''})",
        f"  copies {device.bandwidth / 1e9:.1f} GB/s, multiplies {device.peak / 1e9:,.0f} GFLOP/s",
    ]
    for name, profile in device.models.items():
        lines += ["", name, *_model(profile)]
    return printable("\n".join(lines))


def _model(profile: ModelProfile) -> Iterator[str]:
    shape = profile.shape
    states = f"{byte_count(shape.state_bytes)} of states a sequence, " if shape.state_bytes else ""
    yield (
        f"  {count(shape.parameters)} parameters, {byte_count(shape.kv_bytes)} of KV a token, {states}"
        f"{seconds(profile.overhead)} a step before any work"
    )
    yield f"  a step that decodes      {_curve(profile.decode, 'sequences')}"
    yield f"  a step of prompts        {_curve(profile.prefill, 'tokens')}"
    if profile.sparse_share is not None:
        yield f"  a list of ids pays up to {profile.sparse_share:.0%} of the head"
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


def statistics_text(statistics: ProgramStatistics, width: int | None = None) -> str:
    """Means over problems, a line an operator, in lines of at most `width` terminal cells."""
    values = "".join(f" {name}={format_value(value)}" for name, value in statistics.values.items())
    models = ", ".join(f"{name} = {id}" for name, id in statistics.models.items())
    lines = [f"{statistics.name}{values}   {plural(statistics.problems, 'problem')}   {models}"]
    table = [["operator", "", "runs", "rows", ""]]
    for id, operator in sorted(statistics.operators.items()):
        contains = any(other.startswith(f"{id}.") for other in statistics.operators)
        rows = f"{_number(operator.rows_in)} → {_number(operator.rows_out)}"
        table.append([id, operator.words, _number(operator.runs), rows, ", ".join(_facts(operator, contains))])
    # Ids and words are one column, since a line that is too wide keeps its first.
    numbered = max(cells(row[0]) for row in table)
    table = [[f"  {row[0]}{' ' * (numbered - cells(row[0]))}   {row[1]}".rstrip(), *row[2:]] for row in table]
    lines += [line for entry in laid_out(table, width=width) for line in entry]
    for device, ratio in statistics.clock.items():
        lines.append(f"  on {device}: {ratio:.2f} times the seconds that the device's figures give")
    lines.append(f"  the longest problem took {statistics.longest:.1f} times the steps of the average one")
    return "\n".join(piece for line in lines for piece in folded(printable(line), width))


def servers_text(servers: Mapping[str, ServerTimes], width: int | None = None) -> str:
    """What was waited for models on servers, a line for each number of problems at once."""
    lines: list[str] = []
    for model, times in servers.items():
        lines.append(model)
        for problems, waits in sorted(times.levels.items()):
            lines.append(f"  {plural(problems, 'problem')} at once or more: {waits_words(waits)}")
    return "\n".join(piece for line in lines for piece in folded(printable(line), width))


def _facts(operator: OperatorStatistics, contains: bool) -> Iterator[str]:
    """Of an operator that `contains` others, only what is not theirs: their facts stand beside them."""
    for effect in EFFECTS.values():
        if effect.around and operator.count(effect.whole):
            yield f"{effect.share(operator.count):.0%} of {effect.words}"
    if contains:
        return
    samples, texts, going = operator.count("samples"), operator.count("texts"), operator.count("going")
    if samples and going:
        yield f"{_number(operator.sampled_tokens / samples)} tokens a sample"
        if thought := operator.count(THOUGHT_TOKENS):
            yield f"{_number(thought / samples)} of them thought"
        yield f"{_number(operator.count('longest') / max(operator.runs, 1e-9))} in the longest of a run"
        yield f"context {_number(operator.count('context') / going)}"
    if texts:
        yield f"{_number(texts)} texts of {_number(operator.count('text_tokens') / texts)} tokens"
        yield f"{_number(operator.count('new_tokens') / texts)} of them new"
        yield f"{operator.count('steps_known') / max(operator.count('steps'), 1e-9):.0%} of steps known"
    if operator.prompt_tokens and (samples or texts):
        yield f"{operator.cached_tokens / operator.prompt_tokens:.0%} cached"


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
