"""The parameters of a `-e` pipeline: the names that it reads and no stage makes."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import makers
from qpdsl.grammar.words import COLUMNS

_COUNTS = ("n", "top_k", "max_tokens")
_RATES = ("temperature", "top_p", "min_p")
_Use = tuple[ast.Name, str | None]


def open_parameters(stages: tuple[ast.Stage, ...]) -> tuple[ast.Param, ...]:
    """One parameter per open name in order of first use, of the first type that a use asks for, else text."""
    made = {*COLUMNS, *(name for name, _ in makers(stages))}
    uses: dict[str, list[_Use]] = {}
    for name, wanted in _uses(stages):
        if name.id not in made:
            uses.setdefault(name.id, []).append((name, wanted))
    params = []
    for id, found in uses.items():
        span = found[0][0].span
        type_ = next((wanted for _, wanted in found if wanted), "text")
        params.append(ast.Param(id, ast.TypeRef(type_, span=span), span=span, name_span=span))
    return tuple(params)


def _uses(stages: tuple[ast.Stage, ...]) -> Iterator[_Use]:
    """Names in reading order, each with the type that its place asks for, None where any will do."""
    for stage in stages:
        match stage:
            case ast.Prompt(text=text):
                yield from _in(text, None)
            case ast.Chat(turns=turns):
                for turn in turns:
                    yield from _in(turn.content, "text")
            case ast.Generate():
                for option in (*_COUNTS, *_RATES, "stop"):
                    value = getattr(stage, option)
                    if value is not None:
                        yield from _in(value, "int" if option in _COUNTS else "float" if option in _RATES else "text")
                if isinstance(stage.via, ast.Filter | ast.Amortized):
                    yield from _in(
                        stage.via.threshold if isinstance(stage.via, ast.Filter) else stage.via.margin, "float"
                    )
            case ast.Score(verifier=ast.Judge(rubric=rubric)):
                yield from _in(rubric, None)
            case ast.Where(condition=condition):
                yield from _in(condition, "bool")
            case ast.Split(count=count, by=by, temperature=temperature):
                yield from _in(count, "int")
                for value in (by, temperature):
                    if value is not None:
                        yield from _in(value, "float")
            case ast.Keep(count=count, by=by):
                yield from _in(count, "int")
                yield from _in(by, "float")
            case ast.Best(by=by):
                yield from _in(by, "float")
            case ast.Vote(weight=weight) if weight is not None:
                yield from _in(weight, "float")
            case ast.Repeat(limit=limit, until=until, body=body):
                yield from _in(limit, "int")
                if until is not None:
                    yield from _in(until, "bool")
                yield from _uses(body)
            case ast.Branch(arms=arms):
                for arm in arms:
                    yield from _uses(arm)
            case ast.Peek(body=body):
                yield from _uses(body)
            case ast.Call(arguments=arguments):
                for argument in arguments:
                    yield from _in(argument.value, None)
            case ast.Return(value=value):
                yield from _in(value, None)


def _in(expr: ast.Expr, wanted: str | None) -> Iterator[_Use]:
    match expr:
        case ast.Name():
            yield expr, wanted
        case ast.Template(parts=parts):
            yield from ((part, None) for part in parts if isinstance(part, ast.Name))
        case ast.Unary(op=op, operand=operand):
            yield from _in(operand, "bool" if op == "not" else _number(wanted))
        case ast.Binary(op=op, left=left, right=right):
            inner = _operand_type(op, left, right, wanted)
            yield from _in(left, inner)
            yield from _in(right, inner)
        case ast.Matches(subject=subject):
            yield from _in(subject, "text")
        case ast.Apply(function=function, args=args):
            inner = "text" if function == "len" else "bool" if function in ("all", "any") else _number(wanted)
            for arg in args:
                yield from _in(arg, inner)


def _operand_type(op: str, left: ast.Expr, right: ast.Expr, wanted: str | None) -> str | None:
    if op in ("and", "or"):
        return "bool"
    if op in ("==", "!="):
        numeric = any(isinstance(side, ast.Literal) and type(side.value) in (int, float) for side in (left, right))
        return "float" if numeric else None
    return _number(wanted)


def _number(wanted: str | None) -> str:
    return "int" if wanted == "int" else "float"
