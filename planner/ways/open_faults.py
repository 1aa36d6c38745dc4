"""What is wrong with a program that leaves something open: with what it leaves open, and with each of its ways."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.source import Span
from qpdsl.planner.ways.written_ways import MOST_WAYS, count_ways, is_whole


def open_faults(program: ast.Program) -> Iterator[Diagnostic]:
    """A `strategy` where no arm can be chosen, an `auto` that is no width, and more ways than can be tried."""
    strategies = [stage for stage in walk_stages(program.body) if isinstance(stage, ast.Strategy)]
    top = [stage for stage in program.body if isinstance(stage, ast.Strategy)]
    for stage in strategies:
        if stage not in top:
            message = "`strategy` stands among the stages of a program, and this one stands inside another stage"
            yield Diagnostic("QP254", message, _word(stage), help="move it out of the block")
    for stage in top[1:]:
        message = "a program has one `strategy`: a problem is tried by one arm at a time"
        yield Diagnostic("QP254", message, _word(stage), "a second one", (Label(_word(top[0]), "the first"),))
    for param in program.params:
        if isinstance(param.default, ast.Auto) and not is_whole(param):
            message = f"`auto` is a width, which is an `int`, and `{param.name}` is none"
            yield Diagnostic("QP143", message, param.default.span, "no width")
    count = count_ways(program)
    if count > MOST_WAYS:
        message = f"`{program.name}` leaves {count:,} ways open, and at most {MOST_WAYS} can be tried"
        help = "name fewer widths, as in `auto(4, 16)`, or leave fewer open"
        yield Diagnostic("QP301", message, program.name_span, "too many ways", help=help)


def faults_of_ways(program: ast.Program, checked: Sequence[tuple[int, Iterable[Diagnostic]]]) -> tuple[Diagnostic, ...]:
    """The faults of the ways, each once; `checked` has the arm of each way, and what was found.

    Of one that not all arms have, and that lies outside of them, it is told which arm leads to it.
    """
    arms: dict[Diagnostic, set[int]] = {}
    for arm, diagnostics in checked:
        for diagnostic in diagnostics:
            arms.setdefault(diagnostic, set()).add(arm)
    strategy = next((stage for stage in program.body if isinstance(stage, ast.Strategy)), None)
    if strategy is None:
        return tuple(arms)
    return tuple(
        diagnostic if len(own) == len(strategy.arms) else _led_to(diagnostic, strategy, min(own))
        for diagnostic, own in arms.items()
    )


def _led_to(diagnostic: Diagnostic, strategy: ast.Strategy, arm: int) -> Diagnostic:
    if strategy.span.start <= diagnostic.span.start < strategy.span.end or not strategy.arms[arm]:
        return diagnostic
    stages = strategy.arms[arm]
    label = Label(Span(stages[0].span.start, stages[-1].span.end), "with this arm")
    return replace(diagnostic, secondary=(*diagnostic.secondary, label))


def _word(stage: ast.Strategy) -> Span:
    return Span(stage.span.start, stage.span.start + len("strategy"))
