"""The parameters of a `-e` pipeline: the names that it reads and no stage makes, but for slips of a column's name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from difflib import SequenceMatcher

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import column_makers, walk, walk_stages
from qpdsl.grammar.words import COLUMNS, COMPARED, ROW_NUMBER

_COUNTS = ("n", "top_k", "max_tokens")
_RATES = ("temperature", "top_p", "min_p")
# Arguments of a way to decode that are whole numbers.
_WHOLE = ("layer", "rerank")
_OF_TEXT = ("len", "lower", "upper", "strip", "contains")
_OF_ANY = ("count", "first", "last", "list", "int", "float", "text", "join")
# A name that is so much like a column's, where columns are read, is a slip of it: `scor`, but not `min_score`.
_SLIP = 0.8

# What stands for the type `[text]`.
_TEXTS = "[text]"
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
    keys = {name.id for stage in walk_stages(stages) for name in _keys(stage)}
    for id, id_uses in uses.items():
        if id in keys or (of_rows[id] and _is_slip(id, columns)):
            continue
        span = id_uses[0][0].span
        named = next((type_ for _, type_ in id_uses if type_), "text")
        text = ast.TypeRef("text", span=span)
        listed = named == _TEXTS
        type_of = ast.ListType(text, span=span) if listed else ast.TypeRef(named, span=span)
        params.append(ast.Param(id, type_of, span=span, name_span=span))
    return tuple(params)


def _row_expressions(stage: ast.Stage) -> Iterator[ast.Expr]:
    """The expressions of a stage that are there to read columns."""
    match stage:
        case ast.Let(value=value):
            yield value
        case ast.Where(condition=condition) | ast.If(condition=condition):
            yield condition
        case ast.Distinct(by=by) | ast.Order(by=by):
            yield by
        case ast.Keep(by=by) | ast.Search(by=by):
            yield by
        case ast.Best(by=by) if not isinstance(by, ast.Compare):
            yield by
        case ast.Vote(weight=weight) if weight is not None:
            yield weight
        case ast.Return(value=value):
            yield value


def _keys(stage: ast.Stage) -> Iterator[ast.Name]:
    """The names by which rows are told apart: a parameter is the same for all of them."""
    if isinstance(stage, ast.Keep | ast.Best | ast.Distinct | ast.Order) and isinstance(stage.by, ast.Name):
        yield stage.by
    for node in walk(tuple(_row_expressions(stage))):
        if isinstance(node, ast.Apply) and node.per is not None:
            yield node.per


def _is_slip(id: str, columns: Collection[str]) -> bool:
    return any(SequenceMatcher(None, column, id.lower()).ratio() >= _SLIP for column in columns)


def _stage_uses(stage: ast.Stage) -> Iterator[_Use]:
    """The names that a stage reads, in reading order, without those in its blocks."""
    match stage:
        case ast.Prompt(text=text):
            yield from _uses(text, None)
        case ast.Chat(turns=turns):
            for turn in turns:
                yield from _uses(turn.content, "messages" if turn.role == "messages" else "text")
        case ast.Say(text=text):
            yield from _uses(text, "text")
        case ast.Generate(via=via):
            for option in (*_COUNTS, *_RATES, "stop"):
                value = getattr(stage, option)
                if value is not None:
                    yield from _uses(value, "int" if option in _COUNTS else "float" if option in _RATES else "text")
            if isinstance(stage.target, ast.OptionsTarget):
                yield from _uses(stage.target.options, _TEXTS)
            if via is not None:
                for name, value in via.numbers:
                    yield from _uses(value, "int" if name in _WHOLE else "float")
        case ast.Score(verifier=verifier, of=of, given=given):
            yield from _verifier_uses(verifier)
            for value in (of, given):
                if value is not None:
                    yield from _uses(value, "text")
        case ast.Let(value=value):
            yield from _uses(value, None)
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
        case ast.Best(by=ast.Compare(question=question)):
            yield from (use for use in _uses(question, None) if use[0].id not in COMPARED)
        case ast.Best(by=by) if not isinstance(by, ast.Compare):
            yield from _uses(by, "float")
        case ast.Distinct(by=by):
            yield from _uses(by, None)
        case ast.Order(by=by):
            yield from _uses(by, "float")
        case ast.Join(value=value, sep=sep):
            yield from (use for use in _uses(value, None) if use[0].id != ROW_NUMBER)
            if sep is not None:
                yield from _uses(sep, "text")
        case ast.If(condition=condition):
            yield from _uses(condition, "bool")
        case ast.Each(source=source) if not isinstance(source, ast.JsonPath):
            yield from _uses(source, _TEXTS)
        case ast.Vote(weight=weight, decided=decided):
            for value in (weight, decided):
                if value is not None:
                    yield from _uses(value, "float")
        case ast.Search(by=by, simulations=simulations, c=c, per_round=per_round):
            yield from _uses(by, "float")
            for value, type_ in ((simulations, "int"), (c, "float"), (per_round, "int")):
                if value is not None:
                    yield from _uses(value, type_)
        case ast.Repeat(limit=limit, until=until):
            yield from _uses(limit, "int")
            if until is not None:
                yield from _uses(until, "bool")
        case ast.Call(arguments=arguments):
            for argument in arguments:
                yield from _uses(argument.value, None)
        case ast.Return(value=value):
            yield from _uses(value, None)


def _verifier_uses(verifier: ast.Verifier) -> Iterator[_Use]:
    match verifier:
        case ast.Judge(rubric=asked) | ast.Prob(question=asked):
            yield from _uses(asked, None)
            for answer in verifier.answers if isinstance(verifier, ast.Prob) else ():
                yield from _uses(answer, None)
        case ast.Equal(answer=answer, reference=reference):
            yield from _uses(answer, None)
            yield from _uses(reference, "text")
        case ast.WindowConfidence(window=window):
            yield from _uses(window, "int")
        case ast.Passes(tests=tests, timeout=timeout):
            yield from _uses(tests, "text")
            if timeout is not None:
                yield from _uses(timeout, "float")


def _uses(expr: ast.Expr, type_: str | None) -> Iterator[_Use]:
    """The names in an expression whose value should be of a type."""
    match expr:
        case ast.Name():
            yield expr, type_
        case ast.Path(base=base):
            yield base, None
        case ast.Template(parts=parts):
            yield from ((part, None) for part in parts if isinstance(part, ast.Name))
            yield from ((part.base, None) for part in parts if isinstance(part, ast.Path))
        case ast.Unary(op=op, operand=operand):
            yield from _uses(operand, "bool" if op == "not" else _number(type_))
        case ast.Binary(op=op, left=left, right=right):
            operand_type = _operand_type(op, left, right, type_)
            yield from _uses(left, operand_type)
            yield from _uses(right, operand_type)
        case ast.Matches(subject=subject):
            yield from _uses(subject, "text")
        case ast.Apply(function=function, args=args, per=per):
            for index, arg in enumerate(args):
                yield from _uses(arg, _argument_type(function, index, type_))
            if per is not None:
                yield per, None
        case ast.ListLiteral(items=items):
            for item in items:
                yield from _uses(item, None)
        case ast.RecordLiteral(fields=fields):
            for field in fields:
                yield from _uses(field.value, None)


def _argument_type(function: str, index: int, type_: str | None) -> str | None:
    """The type that an argument of a function should have, where the call should be of `type_`."""
    if function == "if":
        return type_ if index else "bool"
    if function in ("all", "any"):
        return "bool"
    if function in _OF_TEXT:
        return "text"
    return None if function in _OF_ANY else _number(type_)


def _operand_type(op: str, left: ast.Expr, right: ast.Expr, type_: str | None) -> str | None:
    if op in ("and", "or"):
        return "bool"
    if op in ("==", "!="):
        numeric = any(isinstance(side, ast.Literal) and type(side.value) in (int, float) for side in (left, right))
        return "float" if numeric else None
    return _number(type_)


def _number(type_: str | None) -> str:
    return "int" if type_ == "int" else "float"
