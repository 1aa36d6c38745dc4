"""The ways that a program leaves open, from its text: an arm of its `strategy`, and a number for each `auto`.

Each way is a program of its own, with the stages of one arm in the place of the `strategy` and numbers in the place of
`auto`. So it is checked, planned and sampled as if it had been written so. A parameter with `auto` as its default stays
one, with a number as its default: the caller may still give another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, is_dataclass, replace
from itertools import product
from math import prod
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk, walk_stages
from qpdsl.grammar.words import AUTO_WIDTHS
from qpdsl.planner.plan.logical import OpenWidth

# More ways than these are too many to learn about.
MOST_WAYS = 64


@dataclass(frozen=True, slots=True)
class WrittenWay:
    """One way: its arm, what the arm is called, its widths in reading order, and the program that it makes."""

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


def written_ways(program: ast.Program, called: Callable[[str], ast.Program | None]) -> Iterator[WrittenWay]:
    """The ways of a program, those of the first arm first, widths ascending; without end where there are many.

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
            yield WrittenWay(arm, head, tuple(widths), replace(chosen, params=params, body=_filled(body, inline)))


def count_ways(program: ast.Program) -> int:
    """How many ways there are."""
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
        return [(program.name, program.body)]
    before, after = program.body[:place], program.body[place + 1 :]
    return [(_head(arm, number), (*before, *arm, *after)) for number, arm in enumerate(strategy.arms, 1)]


def _head(arm: tuple[ast.Stage, ...], number: int) -> str:
    """An arm that is a call of a program is called as that."""
    match arm:
        case (ast.Call(program=program),):
            return program
    return f"arm {number} "


# The name of a width, the `auto` in its place, and whether it is a parameter.
_Open = tuple[str, ast.Auto, bool]


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
    fields = {name: _filled(getattr(value, name), numbers) for name in value.__dataclass_fields__}
    return type(value)(**fields)
