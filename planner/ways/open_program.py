"""What a program leaves open, and the ordinary programs that it may stand for."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from qpdsl.grammar.source import Span
from qpdsl.planner.budget.budget_policy import Way
from qpdsl.planner.names.substitute import substituted_plan
from qpdsl.planner.plan.logical import LogicalProgram, OpenWay
from qpdsl.planner.plan.options import spelt

_NOWHERE = Span(0, 0)


def ways_of(program: LogicalProgram) -> tuple[Way, ...]:
    """The ways of a program, in the order of its arms, with ascending widths; none where nothing is left open."""
    return tuple(_way(way) for way in program.ways)


def fixed(program: LogicalProgram, way: Way) -> LogicalProgram:
    """The program with the arm and the widths of a way, as if it had been written so: it has no ways, and no budget.

    Its open parameters are gone, with their numbers in the operators. Raises ValueError where it has no such way.
    """
    found = next((one for one in program.ways if _way(one) == way), None)
    if found is None:
        raise ValueError(f"`{program.name}` has no way {way.name}")
    numbers = {width.name: spelt(width.number, _NOWHERE) for width in found.widths if width.parameter}
    own, gone = found.program, {width.name for one in program.ways for width in one.widths if width.parameter}
    params = tuple(param for param in own.params if param.name not in gone)
    plan = substituted_plan(own.plan, numbers) if numbers else own.plan
    return replace(_under(program, own), params=params, plan=plan, syntax=None)


def settled(program: LogicalProgram, given: Collection[str]) -> LogicalProgram:
    """The program with parameters that are not open any more, as the caller gives their values.

    Where one way is left, it is that way's program. Its parameters are still to get the values.
    """
    if not any(width.parameter and width.name in given for way in program.ways for width in way.widths):
        return program
    ways: dict[tuple[object, ...], OpenWay] = {}
    for way in program.ways:
        left = tuple(width for width in way.widths if not width.parameter or width.name not in given)
        ways.setdefault((way.arm, left), replace(way, widths=left))
    only, *others = ways.values()
    if not others and not only.widths:
        return replace(_under(program, only.program), syntax=program.syntax, warnings=program.warnings)
    return replace(program, ways=tuple(ways.values()))


def _under(program: LogicalProgram, way: LogicalProgram) -> LogicalProgram:
    """A way as a program without a budget, with what its caller has said of the whole one."""
    return replace(way, within=program.within, prefer=program.prefer, text=program.text, budget=None)


def _way(way: OpenWay) -> Way:
    numbers = tuple(width.number for width in way.widths)
    shown = ", ".join(f"{width.name}={width.number}" for width in way.widths)
    return Way(way.arm, numbers, f"{way.head}({shown})" if shown else way.head.strip())
