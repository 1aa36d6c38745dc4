"""The strategies that a program leaves open, from its text: an arm of its `strategy`, and a number for each `auto`.

Each strategy is a program of its own, with the stages of one arm in the place of the `strategy` and numbers in the
place of `auto`. So it is checked, planned and sampled as if it had been written so. A parameter with `auto` as its
default stays one, with a number as its default: the caller may still give another.

What a program leaves open, and the ordinary programs that it may stand for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import product
from math import prod
from typing import Any, TypeVar

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk, walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import AUTO_WIDTHS
from qpdsl.planner.names.substitute import substituted_plan
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.budget_policy import BudgetPolicy, FixedStrategy
from qpdsl.planner.plan.decode_plan import Equivalence
from qpdsl.planner.plan.logical import LogicalProgram, OpenStrategy, OpenWidth
from qpdsl.planner.plan.options import spelt
from qpdsl.planner.plan.physical import (
    BudgetStrategy,
    GenerateStrategy,
    PhysicalOp,
    PhysicalPlan,
    ScoreStrategy,
    StepLimits,
    Strategy,
)
from qpdsl.planner.plan.rule import Chain, map_chain

_NOWHERE = Span(0, 0)
_V = TypeVar("_V")
# The operator that all others are inside of.
_ID = "0"
_LOOSEST: tuple[Equivalence, ...] = ("lossy", "epsilon", "exact")


def strategies_of(program: LogicalProgram) -> tuple[FixedStrategy, ...]:
    """The strategies of a program, in the order of its arms, with ascending widths; none where nothing is left open."""
    return tuple(_way(way) for way in program.ways)


def fixed(program: LogicalProgram, way: FixedStrategy) -> LogicalProgram:
    """The program with the arm and the widths of a strategy, as if it had been written so: without others or a budget.

    Its open parameters are gone, with their numbers in the operators. Raises ValueError where it has no such strategy.
    """
    found = next((one for one in program.ways if _way(one) == way), None)
    if found is None:
        raise ValueError(f"`{program.name}` has no strategy {way.name}")
    numbers = {width.name: spelt(width.number, _NOWHERE) for width in found.widths if width.parameter}
    own, gone = found.program, {width.name for one in program.ways for width in one.widths if width.parameter}
    params = tuple(param for param in own.params if param.name not in gone)
    plan = substituted_plan(own.plan, numbers) if numbers else own.plan
    return replace(_under(program, own), params=params, plan=plan, syntax=None)


def settled(program: LogicalProgram, given: Collection[str]) -> LogicalProgram:
    """The program with parameters that are not open any more, as the caller gives their values.

    Where one strategy is left, it is that strategy's program. Its parameters are still to get the values.
    """
    if not any(width.parameter and width.name in given for way in program.ways for width in way.widths):
        return program
    ways: dict[tuple[object, ...], OpenStrategy] = {}
    for way in program.ways:
        left = tuple(width for width in way.widths if not width.parameter or width.name not in given)
        ways.setdefault((way.arm, left), replace(way, widths=left))
    only, *others = ways.values()
    if not others and not only.widths:
        return replace(_under(program, only.program), syntax=program.syntax, warnings=program.warnings)
    return replace(program, ways=tuple(ways.values()))


def _under(program: LogicalProgram, way: LogicalProgram) -> LogicalProgram:
    """A strategy as a program without a budget, with what its caller has said of the whole one."""
    return replace(way, within=program.within, prefer=program.prefer, text=program.text, budget=None)


def _way(way: OpenStrategy) -> FixedStrategy:
    numbers = tuple(width.number for width in way.widths)
    shown = ", ".join(f"{width.name}={width.number}" for width in way.widths)
    return FixedStrategy(way.arm, numbers, f"{way.head}({shown})" if shown and way.head else shown or way.head.strip())


def reached_strategies(policy: BudgetPolicy) -> tuple[FixedStrategy, ...]:
    """The strategies that a policy can lead to, in its order."""
    reached, pending = set[int](), [policy.first]
    while pending:
        number = pending.pop()
        reached.add(number)
        turn = policy.turns.get(number)
        pending += [] if turn is None else [after for after in turn.next if after is not None]
    return tuple(policy.ways[number] for number in sorted(reached))


def reads_support(policy: BudgetPolicy, way: FixedStrategy) -> bool:
    """Whether what follows a strategy depends on how sure it was of its answer."""
    turn = policy.turns.get(policy.ways.index(way))
    return turn is not None and bool(turn.cuts)


def strategy_plan(
    program: LogicalProgram, plans: Sequence[tuple[FixedStrategy, PhysicalPlan]], policy: BudgetPolicy
) -> PhysicalPlan:
    """The plan that tries a problem by some of the strategies, each by its own plan, as the policy says.

    Each chain is that of its own plan, but for the ids of its operators, which begin with the number of the strategy.
    """
    ways, own = tuple(way for way, _ in plans), [plan for _, plan in plans]
    first = own[0]
    loosest = next(one for one in _LOOSEST if any(plan.equivalence == one for plan in own))
    columns = {name: type_ for plan in own for name, type_ in plan.ops[-1].columns.items()}
    scores = tuple(plan.score_column for plan in own)
    op = ops.BudgetedArms(tuple(() for _ in own), ways, scores, stage=0, span=first.ops[0].op.span)
    arms = tuple(_prefixed(plan.ops, f"{_ID}.{number}.") for number, plan in enumerate(own))
    root = PhysicalOp(_ID, op, loosest, 1.0, columns, arms=arms, strategy=BudgetStrategy(policy))
    loose = next((plan.within for plan in own if plan.within.level == "lossy"), first.within)
    return replace(
        first,
        name=program.name,
        source=program.source,
        models=_joined(plan.models for plan in own),
        ops=(root,),
        returns=program.returns,
        record=program.record,
        score_column=program.score_column,
        equivalence=loosest,
        within=loose,
        budget=program.budget,
        in_flight=max((plan.in_flight for plan in own if plan.in_flight is not None), default=None),
        floor=max(plan.floor for plan in own),
        rules=tuple(dict.fromkeys(rule for plan in own for rule in plan.rules)),
        chosen=any(plan.chosen for plan in own),
        support=any(plan.support for plan in own),
        kv_type=None,
        ways={f"{_ID}.{number}.{id}": words for number, plan in enumerate(own) for id, words in plan.ways.items()},
        sparse_shares=_joined(plan.sparse_shares for plan in own),
        remote=_joined(plan.remote for plan in own),
        limits=StepLimits.largest(plan.limits for plan in own),
    )


def _joined(maps: Iterable[Mapping[str, _V]]) -> dict[str, _V]:
    """All entries, in their order; of equal keys the first one's."""
    joined: dict[str, _V] = {}
    for one in maps:
        joined.update((key, value) for key, value in one.items() if key not in joined)
    return joined


def _prefixed(chain: Chain, prefix: str) -> Chain:
    def renamed(node: PhysicalOp) -> PhysicalOp:
        return replace(node, id=f"{prefix}{node.id}", strategy=_referring(node.strategy, prefix))

    return map_chain(chain, renamed)


def _referring(strategy: Strategy | None, prefix: str) -> Strategy | None:
    """A strategy that names operators by their new ids."""
    match strategy:
        case GenerateStrategy(vote=str(vote)):
            return replace(strategy, vote=f"{prefix}{vote}")
        case ScoreStrategy(same_as=str(same)):
            return replace(strategy, same_as=f"{prefix}{same}")
    return strategy


# More strategies than these are too many to learn about.
MAX_STRATEGIES = 64
# The name of a width, the `auto` in its place, and whether it is a parameter.
_Open = tuple[str, ast.Auto, bool]


@dataclass(frozen=True, slots=True)
class WrittenStrategy:
    """One strategy: its arm, what the arm is called, its widths in reading order, and the program that it makes."""

    arm: int
    head: str
    widths: tuple[OpenWidth, ...]
    program: ast.Program


def is_open(program: ast.Program) -> bool:
    """Whether a program leaves anything open."""
    return any(isinstance(node, ast.Strategy | ast.Auto) for node in walk((program.params, program.body)))


def is_whole(param: ast.Param) -> bool:
    """Whether a parameter is a whole number, so that it can be a width."""
    return isinstance(param.type, ast.TypeRef | ast.RangeType) and param.type.name == "int" and not param.optional


def written_strategies(program: ast.Program, called: Callable[[str], ast.Program | None]) -> Iterator[WrittenStrategy]:
    """The strategies of a program, those of the first arm first, widths ascending; without end where there are many.

    `called` gives the program that a `call` names. A `strategy` inside of other stages stays as it is.
    """
    for arm, (head, body) in enumerate(_arms(program)):
        chosen = replace(program, body=body)
        autos = [*_parameters(chosen), *_autos_of(body, called)]
        for numbers in product(*(auto.widths or AUTO_WIDTHS for _, auto, _ in autos)):
            widths = [OpenWidth(name, number, param) for (name, _, param), number in zip(autos, numbers, strict=True)]
            defaults = {width.name: width.number for width in widths if width.parameter}
            inline = {id(auto): number for (_, auto, param), number in zip(autos, numbers, strict=True) if not param}
            params = tuple(_with_default(param, defaults) for param in program.params)
            yield WrittenStrategy(arm, head, tuple(widths), replace(chosen, params=params, body=_filled(body, inline)))


def count_strategies(program: ast.Program) -> int:
    """How many strategies there are."""
    bodies = [replace(program, body=body) for _, body in _arms(program)]
    autos = ([auto for _, auto, _ in (*_parameters(body), *_autos_of(body.body, _unknown))] for body in bodies)
    return sum(prod(len(auto.widths or AUTO_WIDTHS) for auto in own) for own in autos)


def _unknown(name: str) -> None:
    return None


def _arms(program: ast.Program) -> list[tuple[str, tuple[ast.Stage, ...]]]:
    """For each arm what it is called, and the stages of the whole program with it."""
    place = next((at for at, stage in enumerate(program.body) if isinstance(stage, ast.Strategy)), None)
    strategy = None if place is None else program.body[place]
    if place is None or not isinstance(strategy, ast.Strategy):
        return [("", program.body)]
    before, after = program.body[:place], program.body[place + 1 :]
    return [(_head(arm, number), (*before, *arm, *after)) for number, arm in enumerate(strategy.arms, 1)]


def _head(arm: tuple[ast.Stage, ...], number: int) -> str:
    """An arm that is a call of a program is called as that."""
    match arm:
        case (ast.Call(program=program),):
            return program
    return f"arm {number} "


def _parameters(program: ast.Program) -> Iterator[_Open]:
    """The open parameters that the stages of a program read."""
    read = {node.id for node in walk(program.body) if isinstance(node, ast.Name)}
    for param in program.params:
        if isinstance(param.default, ast.Auto) and param.name in read:
            yield param.name, param.default, True


def _autos_of(stages: tuple[ast.Stage, ...], called: Callable[[str], ast.Program | None]) -> Iterator[_Open]:
    """The open widths of stages, in reading order."""
    for stage in walk_stages(stages):
        match stage:
            case ast.Generate(n=ast.Auto() as auto):
                yield "n", auto, False
            case ast.Keep(count=ast.Auto() as auto):
                yield "keep", auto, False
            case ast.Split(count=ast.Auto() as auto):
                yield "split", auto, False
            case ast.Search(simulations=ast.Auto() as auto):
                yield "simulations", auto, False
            case ast.Call(program=name, arguments=arguments):
                program = called(name)
                names = [] if program is None else [param.name for param in program.params]
                for index, argument in enumerate(arguments):
                    if isinstance(argument.value, ast.Auto):
                        own = names[index] if index < len(names) else "width"
                        yield argument.name or own, argument.value, False


def _with_default(param: ast.Param, numbers: Mapping[str, int]) -> ast.Param:
    """A parameter with a number in the place of `auto`; the least one where nothing reads it."""
    if not isinstance(param.default, ast.Auto):
        return param
    if not is_whole(param):
        return replace(param, default=None)
    auto = param.default
    number = numbers.get(param.name, (auto.widths or AUTO_WIDTHS)[0])
    return replace(param, default=ast.Literal(number, span=auto.span))


def _filled(value: Any, numbers: Mapping[int, int]) -> Any:
    """A node, or nested tuples of them, with numbers in the place of each `auto`, by what Python calls its identity."""
    if isinstance(value, tuple):
        return tuple(_filled(item, numbers) for item in value)
    if isinstance(value, ast.Auto):
        return ast.Literal(numbers[id(value)], span=value.span) if id(value) in numbers else value
    if not isinstance(value, ast.Node) or not is_dataclass(value):
        return value
    if not any(isinstance(node, ast.Auto) for node in walk(value)):
        return value
    return replace(value, **{part.name: _filled(getattr(value, part.name), numbers) for part in fields(value)})


def open_faults(program: ast.Program) -> Iterator[Diagnostic]:
    """A `strategy` where no arm can be chosen, an `auto` that is no width, and more strategies than can be tried."""
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
    count = count_strategies(program)
    if count > MAX_STRATEGIES:
        message = f"`{program.name}` leaves {count:,} strategies open, and at most {MAX_STRATEGIES} can be tried"
        help = "name fewer widths, as in `auto(4, 16)`, or leave fewer open"
        yield Diagnostic("QP301", message, program.name_span, "too many strategies", help=help)


def faults_of_strategies(
    program: ast.Program, checked: Sequence[tuple[int, Iterable[Diagnostic]]]
) -> tuple[Diagnostic, ...]:
    """The faults of the strategies, each once; `checked` has the arm of each strategy, and what was found.

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
