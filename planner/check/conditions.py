"""Clauses that decide nothing: `until` that no round can change, `where` that is the same for every row, one group.

MERGED: What a condition can come to, as far as columns that every row has tell: some conditions never hold, some always.

A value is known as a range of numbers, as a set of values, or not at all (None).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.words import FINISHES
from qpdsl.planner.names.scope import Scope, word_span
from qpdsl.planner.names.substitute import walk as nodes
from qpdsl.planner.names.walk import Flow, Walk
from qpdsl.planner.plan.evaluate import Value, evaluate
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.reads import is_fixed, names

EITHER: frozenset[Value] = frozenset({True, False})


@dataclass(frozen=True, slots=True)
class Range:
    """Numbers between two bounds, the bounds included; `absent` says that there may be none."""

    low: float = -inf
    high: float = inf
    absent: bool = False


Known = Range | frozenset[Value] | None


@dataclass(frozen=True, slots=True)
class Relation:
    """What is known of rows: the values of their columns, and whether there may be no row at all."""

    columns: Mapping[str, Known]
    empty: bool


def relation(flow: Flow, scope: Scope) -> Relation:
    """The rows at a point of a program; a column that the program has put in the place of another is not known."""
    finishes: frozenset[Value] = frozenset({*FINISHES, None})
    known: dict[str, Known] = {
        "finish": finishes,
        "finished": EITHER,
        "tokens": Range(low=0),
        "group": Range(low=0),
        "logprob": Range(high=0),
    }
    if flow.fresh:
        known |= {"text": frozenset({""}), "step": frozenset({""}), "finish": frozenset({None})}
        known |= {"finished": frozenset({False}), "tokens": Range(0, 0), "logprob": Range(0, 0)}
    elif flow.spent is not None:
        known |= {"finished": frozenset({True}), "finish": finishes - {"stop", None}}
    own = {name for name, column in scope.columns.items() if column.maker is not None}
    return Relation({name: value for name, value in known.items() if name not in own}, flow.filtered)


def outcomes(condition: ast.Expr, rows: Relation) -> frozenset[Value]:
    """True and False, as far as the condition can come to them."""
    found = _value(condition, rows)
    return found if isinstance(found, frozenset) else EITHER


def _value(expr: ast.Expr, rows: Relation) -> Known:
    match expr:
        case ast.Literal(value=bool(value)) | ast.Literal(value=None as value):
            return frozenset({value})
        case ast.Literal(value=value) if isinstance(value, (int, float)):
            return Range(value, value)
        case ast.Template(parts=parts) if all(isinstance(part, str) for part in parts):
            return frozenset({"".join(map(str, parts))})
        case ast.Name(id=name):
            return rows.columns.get(name)
        case ast.Unary(op="not", operand=operand):
            return frozenset(not value for value in outcomes(operand, rows))
        case ast.Unary(operand=operand):
            inner = _value(operand, rows)
            return Range(-inner.high, -inner.low, inner.absent) if isinstance(inner, Range) else None
        case ast.Binary(op="and", left=left, right=right):
            return frozenset(a and b for a in outcomes(left, rows) for b in outcomes(right, rows))
        case ast.Binary(op="or", left=left, right=right):
            return frozenset(a or b for a in outcomes(left, rows) for b in outcomes(right, rows))
        case ast.Binary(op=op, left=left, right=right):
            return _compared(op, _value(left, rows), _value(right, rows))
        case ast.Apply(function="len"):
            return Range(low=0, absent=True)
        case ast.Apply(function=function, args=(argument,)):
            return _over_rows(function, argument, rows)
    return None


def _over_rows(function: str, argument: ast.Expr, rows: Relation) -> Known:
    if function in ("all", "any"):
        nothing: frozenset[Value] = frozenset({function == "all"}) if rows.empty else frozenset()
        return outcomes(argument, rows) | nothing
    value = _value(argument, rows)
    return Range(value.low, value.high, value.absent or rows.empty) if isinstance(value, Range) else None


def _compared(op: str, left: Known, right: Known) -> Known:
    """A comparison with none is false, and so is one of a number that is absent."""
    if isinstance(left, frozenset) and isinstance(right, frozenset) and op in ("==", "!="):
        equal = frozenset(a == b for a in left for b in right)
        return equal if op == "==" else frozenset(not each for each in equal)
    if not (isinstance(left, Range) and isinstance(right, Range)):
        return None if op in ("+", "-", "*", "/", "%") else EITHER
    absent: frozenset[Value] = frozenset({op == "!="}) if left.absent or right.absent else frozenset()
    match op:
        case "<" | ">=":
            found = _under(left, right)
            return absent | (found if op == "<" else frozenset(not each for each in found))
        case ">" | "<=":
            found = _under(right, left)
            return absent | (found if op == ">" else frozenset(not each for each in found))
        case "==" | "!=":
            meet = left.low <= right.high and right.low <= left.high
            same = left.low == left.high == right.low == right.high
            found = frozenset({True} if same else {True, False} if meet else {False})
            return absent | (found if op == "==" else frozenset(not each for each in found))
    return None


def _under(left: Range, right: Range) -> frozenset[Value]:
    can = frozenset({True}) if left.low < right.high else frozenset()
    return can | (frozenset({False}) if left.high >= right.low else frozenset())


_GENERATED = frozenset({"text", "step", "finish", "finished", "logprob", "tokens"})
_ENDS = frozenset({"finish", "finished"})
_BOUNDS = {
    "finish": f"`finish` is {', '.join(f'`{word}`' for word in FINISHES)}, or none before anything is generated",
    "tokens": "`tokens` is never below 0",
    "group": "`group` is never below 0",
    "logprob": "`logprob` is never over 0",
}
_ALL_RUN = "leave `until` out, to run all rounds"


def warn_until(walk: Walk, stage: ast.Repeat, until: ast.Expr, before: Flow) -> bool:
    """Warns of a condition that holds at once, after one round or never, whatever the body does.

    Says whether it is sure that the first round runs. `before` is what held before the `repeat`.
    """
    if is_fixed(until):
        holds = bool(evaluate(until, {}))
        message = "this holds at once, so that no round runs" if holds else "this never holds"
        help = "leave the `repeat` out" if holds else _ALL_RUN
        walk.warn(Diagnostic("QP305", message, until.span, "always the same", help=help))
        return not holds
    known = (before, walk.flow)
    if walk.rounds:  # what held before the first round of the loop around it may hold no more
        same = walk.flow.fresh == before.fresh and walk.flow.spent is before.spent
        known = (_unknown(before), _unknown(before) if same else replace(walk.flow, filtered=True))
    at_first, later = (outcomes(until, relation(flow, walk.scope)) for flow in known)
    if True not in at_first | later:
        _warn(walk, until, "this never holds", "always false", known[1], _ALL_RUN)
    elif False not in at_first:
        _warn(walk, until, "this holds at once, so that no round runs", "always true", known[0], None)
    elif False not in later and not _is_one(stage.limit):
        mend = "give the `generate` in it a `stop`" if known[1].spent else None
        _warn(walk, until, "this holds after one round, so that no other runs", "then always true", known[1], mend)
    else:
        _warn_unchanged(walk, stage, until)
    return True not in at_first


def warn_where(walk: Walk, condition: ast.Expr) -> None:
    """Warns of a condition that holds for every row, or for none."""
    found: frozenset[Value]
    if is_fixed(condition):
        found = frozenset({bool(evaluate(condition, {}))})
    else:
        found = outcomes(condition, relation(_unknown(walk.flow) if walk.rounds else walk.flow, walk.scope))
    if found == {False}:
        _warn(walk, condition, "this holds for no row, so that none is left", "always false", walk.flow, None)
    elif found == {True}:
        _warn(walk, condition, "this holds for every row, so that all are left", "always true", walk.flow, None)


def warn_per(walk: Walk, per: ast.Name) -> None:
    """Warns of `per group` in a program that makes no groups."""
    column, body = walk.scope.columns.get(per.id), walk.calls[0][1].body
    if per.id != "group" or column is None or column.maker is not None:
        return
    if not any(isinstance(node, ast.Split | ast.Call) for node in nodes(body)) and not walk.scope.gaps:
        help = "make them with `split` after the first `chat` or `prompt`"
        message = "all rows are in one group, as no `split` makes more"
        walk.warn(Diagnostic("QP305", message, per.span, "the same in every row", help=help))


def _unknown(flow: Flow) -> Flow:
    """What stays true of the rows whatever the rounds did."""
    return replace(flow, fresh=False, spent=None, filtered=True)


def _is_one(limit: ast.Expr) -> bool:
    value = constant(limit)
    return isinstance(value, ast.Literal) and value.value == 1


def _warn(walk: Walk, condition: ast.Expr, message: str, label: str, flow: Flow, help: str | None) -> None:
    read = {name.id for name in names(condition)}
    why: tuple[Label, ...] = ()
    notes = tuple(bound for name, bound in _BOUNDS.items() if name in read)
    if read & _ENDS and flow.spent is not None:
        why = (Label(word_span(flow.spent), "this finishes every row, as it has no `stop`"),)
    elif read & _GENERATED and flow.fresh:
        notes = ("a new turn has no text yet, and none of its rows is finished",)
    walk.warn(Diagnostic("QP305", message, condition.span, label, why, notes, help))


def _warn_unchanged(walk: Walk, stage: ast.Repeat, until: ast.Expr) -> None:
    read = {name.id for name in names(until)}
    columns = read & walk.scope.columns.keys()
    changed = _changed(stage.body)
    if not read or changed is None or columns & changed:
        return
    same = ", ".join(f"`{name}`" for name in sorted(columns))
    what = f"no round changes {same}" if same else "it reads parameters only"
    message = f"this holds at once or never: {what}"
    walk.warn(Diagnostic("QP305", message, until.span, "the same in every round"))


def _changed(stages: tuple[ast.Stage, ...]) -> frozenset[str] | None:
    """The columns that stages change; None where the rows themselves become others, and so every aggregate."""
    changed: frozenset[str] = frozenset()
    for stage in stages:
        match stage:
            case ast.Generate(into=into):
                changed |= _GENERATED | ({into.id} if into else set())
            case ast.Prompt() | ast.Chat():
                changed |= _GENERATED
            case ast.Score(into=into):
                changed |= {into.id if into else "score"}
            case ast.Extract(column=column):
                changed |= {column.id}
            case ast.Repeat(body=body):
                inner = _changed(body)
                if inner is None:
                    return None
                changed |= inner
            case _:
                return None
    return changed
