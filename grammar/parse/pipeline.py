"""The parameters of a `-e` pipeline: the names that it reads and no stage makes, but for slips of a column's name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import SequenceMatcher

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import column_makers, walk, walk_stages
from qpdsl.grammar.words import COLUMNS

_COUNTS = ("n", "top_k", "max_tokens")
_RATES = ("temperature", "top_p", "min_p")
# Arguments of a way to decode that are whole numbers.
_WHOLE = ("layer", "rerank")
# A name that is so much like a column's, where columns are read, is a slip of it: `scor`, but not `min_score`.
_SLIP = 0.8

# A name where it is read, and the type that its place asks for; None where any will do.
_Use = tuple[ast.Name, str | None]


def open_parameters(stages: tuple[ast.Stage, ...]) -> tuple[ast.Param, ...]:
    """One parameter per open name in order of first use, of the first type that a use asks for, else text."""
    columns = {*COLUMNS, *(column for column, _ in column_makers(stages))}
    uses: dict[str, list[_Use]] = {}
    of_rows: dict[str, bool] = {}
    for stage in walk_stages(stages):
        expressions = tuple(_row_expressions(stage))
        for name, type_ in _stage_uses(stage):
            if name.id not in columns:
                uses.setdefault(name.id, []).append((name, type_))
                read_of_row = any(node is name for node in walk(expressions))
                of_rows[name.id] = of_rows.get(name.id, True) and read_of_row
    params = []
    for id, id_uses in uses.items():
        if of_rows[id] and _is_slip(id, columns):
            continue
        span = id_uses[0][0].span
        type_name = next((type_ for _, type_ in id_uses if type_), "text")
        params.append(ast.Param(id, ast.TypeRef(type_name, span=span), span=span, name_span=span))
    return tuple(params)


def _row_expressions(stage: ast.Stage) -> Iterator[ast.Expr]:
    """The expressions of a stage that are there to read columns."""
    match stage:
        case ast.Where(condition=condition):
            yield condition
        case ast.Keep(by=by) | ast.Best(by=by):
            yield by
        case ast.Vote(weight=weight) if weight is not None:
            yield weight
        case ast.Return(value=value):
            yield value


def _is_slip(id: str, columns: Collection[str]) -> bool:
    return any(SequenceMatcher(None, column, id.lower()).ratio() >= _SLIP for column in columns)


def _stage_uses(stage: ast.Stage) -> Iterator[_Use]:
    """The names that a stage reads, in reading order, without those in its blocks."""
    match stage:
        case ast.Prompt(text=text):
            yield from _uses(text, None)
        case ast.Chat(turns=turns):
            for turn in turns:
                yield from _uses(turn.content, "text")
        case ast.Generate(via=via):
            for option in (*_COUNTS, *_RATES, "stop"):
                value = getattr(stage, option)
                if value is not None:
                    yield from _uses(value, "int" if option in _COUNTS else "float" if option in _RATES else "text")
            if via is not None:
                for name, value in via.numbers:
                    yield from _uses(value, "int" if name in _WHOLE else "float")
        case ast.Score(verifier=verifier, given=given):
            if isinstance(verifier, ast.Judge):
                yield from _uses(verifier.rubric, None)
            if given is not None:
                yield from _uses(given, "text")
        case ast.Where(condition=condition):
            yield from _uses(condition, "bool")
        case ast.Split(count=count, by=by, temperature=temperature):
            yield from _uses(count, "int")
            for value in (by, temperature):
                if value is not None:
                    yield from _uses(value, "float")
        case ast.Keep(count=count, by=by):
            yield from _uses(count, "int")
            yield from _uses(by, "float")
        case ast.Best(by=by):
            yield from _uses(by, "float")
        case ast.Vote(weight=weight) if weight is not None:
            yield from _uses(weight, "float")
        case ast.Repeat(limit=limit, until=until):
            yield from _uses(limit, "int")
            if until is not None:
                yield from _uses(until, "bool")
        case ast.Call(arguments=arguments):
            for argument in arguments:
                yield from _uses(argument.value, None)
        case ast.Return(value=value):
            yield from _uses(value, None)


def _uses(expr: ast.Expr, type_: str | None) -> Iterator[_Use]:
    """The names in an expression whose value should be of a type."""
    match expr:
        case ast.Name():
            yield expr, type_
        case ast.Template(parts=parts):
            yield from ((part, None) for part in parts if isinstance(part, ast.Name))
        case ast.Unary(op=op, operand=operand):
            yield from _uses(operand, "bool" if op == "not" else _number(type_))
        case ast.Binary(op=op, left=left, right=right):
            operand_type = _operand_type(op, left, right, type_)
            yield from _uses(left, operand_type)
            yield from _uses(right, operand_type)
        case ast.Matches(subject=subject):
            yield from _uses(subject, "text")
        case ast.Apply(function=function, args=args):
            arg_type = "text" if function == "len" else "bool" if function in ("all", "any") else _number(type_)
            for arg in args:
                yield from _uses(arg, arg_type)


def _operand_type(op: str, left: ast.Expr, right: ast.Expr, type_: str | None) -> str | None:
    if op in ("and", "or"):
        return "bool"
    if op in ("==", "!="):
        numeric = any(isinstance(side, ast.Literal) and type(side.value) in (int, float) for side in (left, right))
        return "float" if numeric else None
    return _number(type_)


def _number(type_: str | None) -> str:
    return "int" if type_ == "int" else "float"
