"""Versions of a plan: two plans side by side, and how a plan came about, from the naive plan by each rule
and by the choice between candidates."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from difflib import SequenceMatcher
from typing import Any, Literal

from qpdsl.grammar.printable import printable
from qpdsl.planner.cost.device import SOURCE_WORDS
from qpdsl.planner.explain.plan import Cells, explain, explain_json, notes, summary, table
from qpdsl.planner.explain.quantities import per_cent, plural, seconds
from qpdsl.planner.explain.tree_table import aligned, folded, laid_out
from qpdsl.planner.optimize import by_cost
from qpdsl.planner.optimize.optimizer import Optimized
from qpdsl.planner.optimize.plan_candidate import Considered, PlanChoice
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.plan.rule import Knob
from qpdsl.planner.rules import EFFECTS, RULES

Side = Literal[" ", "-", "+"]


def compare(plan: PhysicalPlan, other: PhysicalPlan, width: int | None = None) -> str:
    """Both plans as one tree: lines of `other` alone begin with `-`, those of `plan` alone with `+`.

    Lines take at most `width` terminal cells.
    """
    sides, cells = zip(*_merged(table(other), table(plan)), strict=True)
    entries = laid_out(list(cells), width=None if width is None else width - 2, right=(1,))
    shown = [*_notes(summary(other), summary(plan), width)]
    shown += [f"{side} {line}".rstrip() for side, entry in zip(sides, entries, strict=True) for line in entry]
    for before, after in zip(notes(other), notes(plan), strict=True):
        shown += _notes(before, after, width)
    return "\n".join(shown)


def compare_json(plan: PhysicalPlan, other: PhysicalPlan) -> dict[str, Any]:
    """Both plans as data; `removed` and `added` are the lines that the one or the other has alone, in order."""
    merged = list(_merged(table(other), table(plan)))
    return {
        "plan": explain_json(plan),
        "against": explain_json(other),
        **{
            word: [
                {"text": _bare(text), "rows": rows, "implementation": strategy}
                for mark, (text, rows, strategy) in merged
                if mark == side
            ]
            for word, side in (("removed", "-"), ("added", "+"))
        },
    }


def _merged(before: list[Cells], after: list[Cells]) -> Iterator[tuple[Side, Cells]]:
    """The lines of both tables. How deep an operator stands does not make it another."""
    keys = [[(_bare(text), rows, strategy) for text, rows, strategy in lines] for lines in (before, after)]
    for tag, a, b, c, d in SequenceMatcher(None, keys[0], keys[1], autojunk=False).get_opcodes():
        if tag == "equal":
            yield from ((" ", cells) for cells in after[c:d])
        else:
            yield from (("-", cells) for cells in before[a:b])
            yield from (("+", cells) for cells in after[c:d])


def _bare(text: str) -> str:
    return text.lstrip(" │├└").removeprefix("from ")


def _notes(before: str, after: str, width: int | None) -> Iterator[str]:
    """A note that is the same in both plans, or each that has it by itself."""
    sides = [(" ", after)] if before == after else [("-", before), ("+", after)]
    for side, note in sides:
        for line in note.split("\n") if note else ():
            yield from folded(line, width, f"{side} ", f"{side}   ")


_DESCRIPTIONS = {**{rule.name: rule.description for rule in RULES}, by_cost.NAME: by_cost.DESCRIPTION}
_NOT_CHOSEN = "nothing was chosen by cost: no run has timed its models on this device yet, nor has `qpdsl profile`"
_NOT_CHOSEN_OF_SERVERS = "nothing was chosen by cost, as the device of a server cannot be measured"


def rule_record(name: str) -> dict[str, str]:
    """What a rule does, in a line, and what runs count of it: `part` of `whole`, in `words`, where that is declared."""
    effect = EFFECTS.get(name)
    counted = {} if effect is None else {"part": effect.part, "whole": effect.whole, "words": effect.words}
    return {"does": _DESCRIPTIONS.get(name, ""), **counted}


def trace(optimized: Optimized, width: int | None = None) -> str:
    """The plans as text, each under what made it, and what was chosen from; at the end what every rule took.

    Lines take at most `width` terminal cells.
    """
    parts = [f"the naive plan\n\n{explain(optimized.naive, width)}"]
    for change in optimized.changes:
        parts.append(f"{_fold(f'{change.rule}: {_DESCRIPTIONS[change.rule]}', width)}\n\n{explain(change.plan, width)}")
    choice = optimized.choice
    if choice is not None:
        lead = _fold(f"{by_cost.NAME}: {by_cost.DESCRIPTION}", width)
        parts.append(f"{lead}\n\n{_fold(choice_text(choice), width)}\n\n{explain(choice.plan, width)}")
    changed = {change.rule for change in optimized.changes}
    idle = [name for name in optimized.seconds if name not in changed]
    ends = [f"changed nothing: {', '.join(idle)}"] if idle else []
    if choice is None and optimized.seconds and by_cost.NAME not in optimized.disabled:
        ends.append(_NOT_CHOSEN_OF_SERVERS if optimized.plan.has_remote() else _NOT_CHOSEN)
    ends += [f"disabled: {', '.join(optimized.disabled)}"] if optimized.disabled else []
    if optimized.seconds:
        ends.append("milliseconds: " + ", ".join(f"{name} {s * 1e3:.2f}" for name, s in optimized.seconds.items()))
    return "\n\n".join([*parts, _fold("\n".join(ends), width)] if ends else parts)


def _fold(text: str, width: int | None) -> str:
    """The lines of a text, folded."""
    return "\n".join(piece for line in printable(text).split("\n") for piece in folded(line, width))


def trace_json(optimized: Optimized) -> dict[str, Any]:
    """The plan as data, with how it came about under `trace`."""
    return {
        **explain_json(optimized.plan),
        "trace": {
            "naive": explain_json(optimized.naive),
            "changes": [
                {"rule": change.rule, "description": _DESCRIPTIONS[change.rule], "plan": explain_json(change.plan)}
                for change in optimized.changes
            ],
            "choice": None if optimized.choice is None else choice_json(optimized.choice),
            "seconds": dict(optimized.seconds),
            "disabled": list(optimized.disabled),
        },
    }


# The choice by cost


_LEVELS_SHOWN = 3


def choice_text(choice: PlanChoice) -> str:
    """A summary, a line for each candidate under its knob, and what the memory is good for."""
    faster = 1 - choice.seconds / choice.ruled_seconds if choice.ruled_seconds else 0.0
    gain = f", {per_cent(faster)} less than as the rules left it" if faster >= 0.005 else ""
    lines = [
        f"{plural(choice.tried, 'estimate')} in {seconds(choice.planning_seconds)}; "
        f"{plural(choice.problems, 'problem')} in {seconds(choice.seconds)}{gain}; {SOURCE_WORDS[choice.device]}"
    ]
    table = [["", "candidate", "time", "C", ""], *_rows(choice.considered)]
    lines += [*aligned(table, right=(2, 3)), *_memory(choice)]
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
        "device": choice.device,
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
