"""Warnings about conditions with a known outcome: `until` that no round changes, `where` that is the same for all rows.

The outcomes of a condition are found by abstract interpretation (Cousot and Cousot, 1977) over the columns that every
row has, and over those that hold one of a few choices. A value is known as an interval of numbers, as a set of values,
or not at all (None).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import column_makers, made_column, walk, walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.format.unparse import format_expr
from qpdsl.grammar.suggest import closest
from qpdsl.grammar.words import FINISHES
from qpdsl.planner.check.binder import Binder, Flow
from qpdsl.planner.names.scope import word_span
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.reads import is_fixed, names
from qpdsl.planner.values.value import Value

_EITHER: frozenset[Value] = frozenset({True, False})
_GENERATED = frozenset({"text", "step", "finish", "finished", "logprob", "tokens", "thought", "thought_tokens"})
_ENDS = frozenset({"finish", "finished"})
_BOUNDS = {
    "finish": f"`finish` is {', '.join(f'`{word}`' for word in FINISHES)}, or none before anything is generated",
    "tokens": "`tokens` is never below 0",
    "thought_tokens": "`thought_tokens` is never below 0",
    "group": "`group` is never below 0",
    "logprob": "`logprob` is never over 0",
}
_OPPOSITE = {">=": "<", "<=": ">", "!=": "=="}
_ALL_ROUNDS = "leave `until` out, to run all rounds"


def warn_until(binder: Binder, stage: ast.Repeat, until: ast.Expr, before: Flow) -> bool:
    """Warns of a condition that holds at once, after one round or never, whatever the body does.

    Returns whether it is sure that the first round runs. `before` is what held before the `repeat`.
    """
    if is_fixed(until):
        holds = bool(evaluate(until, {}))
        message = "this holds at once, so that no round runs" if holds else "this never holds"
        help = "leave the `repeat` out" if holds else _ALL_ROUNDS
        binder.warn(Diagnostic("QP305", message, until.span, "always the same", help=help))
        return not holds
    after = binder.flow
    if binder.rounds:  # what held before the first round of the loop around it may no longer hold
        unchanged = after.fresh == before.fresh and after.spent is before.spent
        before = _after_any_round(before)
        after = before if unchanged else replace(after, filtered=True)
    at_first = _outcomes(until, _rows(before, binder))
    later = _outcomes(until, _rows(after, binder))
    if True not in at_first | later:
        _warn(binder, until, "this never holds", "always false", after, _ALL_ROUNDS)
    elif False not in at_first:
        _warn(binder, until, "this holds at once, so that no round runs", "always true", before, None)
    elif False not in later and not _is_one(stage.limit):
        message = "this holds after one round, so that no other runs"
        add_stop = "give the `generate` in it a `stop`" if after.spent else None
        _warn(binder, until, message, "then always true", after, add_stop)
    else:
        _warn_unchanged(binder, stage, until)
    return True not in at_first


def warn_where(binder: Binder, condition: ast.Expr, none: str = "none is left", every: str = "all are left") -> None:
    """Warns of a condition that holds for every row, or for none; `none` and `every` say what comes of it."""
    outcomes: frozenset[Value]
    if is_fixed(condition):
        outcomes = frozenset({bool(evaluate(condition, {}))})
    else:
        flow = _after_any_round(binder.flow) if binder.rounds else binder.flow
        outcomes = _outcomes(condition, _rows(flow, binder))
    if outcomes == {False}:
        _warn(binder, condition, f"this holds for no row, so that {none}", "always false", binder.flow, None)
    elif outcomes == {True}:
        _warn(binder, condition, f"this holds for every row, so that {every}", "always true", binder.flow, None)


def check_weight(binder: Binder, weight: ast.Expr) -> None:
    """Reports a weight that is never above 0, by which the rarest answer would win a vote."""
    rows = _rows(_after_any_round(binder.flow), binder)
    makers = {name: column.maker for name, column in binder.scope.columns.items()}
    sums = {
        name: _Interval(high=0, absent=True)
        for name, maker in makers.items()
        if isinstance(maker, ast.StepScore)
        and maker.verifier.name == "logprob"
        and "logprob" not in binder.module.models
    }
    value = _value(weight, replace(rows, columns={**rows.columns, **sums}))
    if isinstance(value, _Interval) and value.high <= 0 and value.low < 0:
        read = [name.id for name in names(weight) if name.id in sums or name.id == "logprob"]
        why = tuple(Label(maker.span, "log-probabilities") for name in read if (maker := makers.get(name)) is not None)
        message = "this weight is never above 0, so that the rarest answer would win"
        help = "leave `weight` out, or weigh by a verifier's score; `exp(x)` makes a probability of a logarithm"
        binder.scope.error("QP276", message, weight.span, "weights are 0 or more", secondary=why, help=help)


def _after_any_round(flow: Flow) -> Flow:
    """What stays true of the rows after any number of rounds."""
    return replace(flow, fresh=False, spent=None, filtered=True)


def _is_one(limit: ast.Expr) -> bool:
    value = constant(limit)
    return isinstance(value, ast.Literal) and value.value == 1


def _warn(binder: Binder, condition: ast.Expr, message: str, label: str, flow: Flow, help: str | None) -> None:
    read = {name.id for name in names(condition)}
    why: tuple[Label, ...] = ()
    notes = tuple(bound for name, bound in _BOUNDS.items() if name in read)
    choices = {name: options for name in sorted(read) if (options := _choices(binder, name))}
    notes += tuple(f"`{name}` is {_shown(options)}, or none" for name, options in choices.items())
    edit = None
    if help is None and choices:
        help, edit = _nearest_choice(condition, choices)
    if read & _ENDS and flow.spent is not None:
        why = (Label(word_span(flow.spent), "this finishes every row, as it has no `stop`"),)
    elif read & _GENERATED and flow.fresh:
        notes = ("a new turn has no text yet, and none of its rows is finished",)
    binder.warn(Diagnostic("QP305", message, condition.span, label, why, notes, help, edit))


def _choices(binder: Binder, name: str) -> tuple[str, ...]:
    """The options of which the column holds one, where every stage that makes it is a `generate … as choice(…)`."""
    column = binder.scope.columns.get(name)
    makers = [maker for made, maker in column_makers(binder.program.body) if made == name]
    if column is None or not any(maker is column.maker for maker in makers):
        return ()
    targets = [maker.target if isinstance(maker, ast.Generate) else None for maker in makers]
    options = [target.options if isinstance(target, ast.ChoiceTarget) else () for target in targets]
    return tuple(dict.fromkeys(option for some in options for option in some)) if all(options) else ()


def _shown(options: tuple[str, ...]) -> str:
    return ", ".join(f'`"{option}"`' for option in options)


def _nearest_choice(condition: ast.Expr, choices: Mapping[str, tuple[str, ...]]) -> tuple[str | None, Edit | None]:
    """Help for a text in the condition that is nearly one of the options, and the edit that writes the option there."""
    for node in walk(condition):
        if not (isinstance(node, ast.Binary) and node.op in ("==", "!=")):
            continue
        for column, text in ((node.left, node.right), (node.right, node.left)):
            options = choices.get(column.id, ()) if isinstance(column, ast.Name) else ()
            written = "".join(map(str, text.parts)) if isinstance(text, ast.Template) and is_fixed(text) else None
            near = closest(written, options) if written is not None and written not in options else None
            if near is not None:
                literal = format_expr(ast.Template((near,), span=text.span))
                return f"did you mean `{literal}`?", Edit(text.span, literal)
    return None, None


def _warn_unchanged(binder: Binder, stage: ast.Repeat, until: ast.Expr) -> None:
    read = {name.id for name in names(until)}
    columns = read & binder.scope.columns.keys()
    changed = _changed_columns(stage.body)
    if not read or changed is None or columns & changed:
        return
    same = ", ".join(f"`{name}`" for name in sorted(columns))
    what = f"no round changes {same}" if same else "it reads parameters only"
    message = f"this holds at once or never: {what}"
    binder.warn(Diagnostic("QP305", message, until.span, "the same in every round"))


def _changed_columns(stages: tuple[ast.Stage, ...]) -> set[str] | None:
    """The columns that stages change; None where other rows may come out, and so every aggregate may change."""
    changed: set[str] = set()
    for stage in walk_stages(stages):
        match stage:
            case ast.Generate() | ast.Say() | ast.Prompt() | ast.Chat():
                changed |= _GENERATED
            case ast.Score() | ast.Extract() | ast.Let() | ast.Repeat() | ast.Call(into=ast.Name()):
                pass
            case _:
                return None
        column = made_column(stage)
        changed |= {column} if column else set()
    return changed


# The outcomes of a condition


@dataclass(frozen=True, slots=True)
class _Interval:
    """Numbers between two bounds, the bounds included. `absent` says that there may be no number."""

    low: float = -inf
    high: float = inf
    absent: bool = False


_Known = _Interval | frozenset[Value] | None


@dataclass(frozen=True, slots=True)
class _Rows:
    """What is known of rows: the values of their columns, and whether there may be no row at all."""

    columns: Mapping[str, _Known]
    empty: bool


def _rows(flow: Flow, binder: Binder) -> _Rows:
    """The rows at a point of a program. A column that the program has replaced is not known, but for choices."""
    finishes: frozenset[Value] = frozenset({*FINISHES, None})
    known: dict[str, _Known] = {
        "finish": finishes,
        "finished": _EITHER,
        "tokens": _Interval(low=0),
        "thought_tokens": _Interval(low=0),
        "group": _Interval(low=0),
        "logprob": _Interval(high=0),
    }
    if flow.fresh:
        known |= {"text": frozenset({""}), "step": frozenset({""}), "finish": frozenset({None})}
        known |= {"finished": frozenset({False}), "tokens": _Interval(0, 0), "logprob": _Interval(0, 0)}
        known |= {"thought": frozenset({None}), "thought_tokens": _Interval(0, 0)}
    elif flow.spent is not None:
        ends = {"eos", "context", "thought"} | ({"until"} if getattr(flow.spent, "until", None) is not None else set())
        known |= {"finished": frozenset({True}), "finish": finishes & ends}
    made = {name for name, column in binder.scope.columns.items() if column.maker is not None}
    known = {name: value for name, value in known.items() if name not in made}
    known |= {name: frozenset({*options, None}) for name in made if (options := _choices(binder, name))}
    return _Rows(known, flow.filtered)


def _outcomes(condition: ast.Expr, rows: _Rows) -> frozenset[Value]:
    """The values, True and False, that the condition may have."""
    value = _value(condition, rows)
    return value if isinstance(value, frozenset) else _EITHER


def _value(expr: ast.Expr, rows: _Rows) -> _Known:
    match expr:
        case ast.Literal(value=bool(value)) | ast.Literal(value=None as value):
            return frozenset({value})
        case ast.Literal(value=value) if isinstance(value, (int, float)):
            return _Interval(value, value)
        case ast.Template(parts=parts) if all(isinstance(part, str) for part in parts):
            return frozenset({"".join(map(str, parts))})
        case ast.Name(id=name):
            return rows.columns.get(name)
        case ast.Unary(op="not", operand=operand):
            return _negated(_outcomes(operand, rows))
        case ast.Unary(operand=operand):
            inner = _value(operand, rows)
            return _Interval(-inner.high, -inner.low, inner.absent) if isinstance(inner, _Interval) else None
        case ast.Binary(op="and", left=left, right=right):
            return frozenset(a and b for a in _outcomes(left, rows) for b in _outcomes(right, rows))
        case ast.Binary(op="or", left=left, right=right):
            return frozenset(a or b for a in _outcomes(left, rows) for b in _outcomes(right, rows))
        case ast.Binary(op=op, left=left, right=right):
            return _compared(op, _value(left, rows), _value(right, rows))
        case ast.Apply(function="len" | "std"):
            return _Interval(low=0, absent=True)
        case ast.Apply(function="count"):
            return _Interval(low=0)
        case ast.Apply(
            function="min" | "max" | "mean" | "first" | "last" | "any" | "all" as function, args=(argument,)
        ):
            return _aggregate(function, argument, rows)
    return None


def _aggregate(function: str, argument: ast.Expr, rows: _Rows) -> _Known:
    if function in ("all", "any"):
        of_no_rows: frozenset[Value] = frozenset({function == "all"}) if rows.empty else frozenset()
        return _outcomes(argument, rows) | of_no_rows
    value = _value(argument, rows)
    return _Interval(value.low, value.high, value.absent or rows.empty) if isinstance(value, _Interval) else None


def _compared(op: str, left: _Known, right: _Known) -> _Known:
    """A comparison with none is false, and so is one with an absent number."""
    if isinstance(left, frozenset) and isinstance(right, frozenset) and op in ("==", "!="):
        equal: frozenset[Value] = frozenset(a == b for a in left for b in right)
        return equal if op == "==" else _negated(equal)
    if not (isinstance(left, _Interval) and isinstance(right, _Interval)):
        return None if op in ("+", "-", "*", "/", "%") else _EITHER
    absent: frozenset[Value] = frozenset({op == "!="}) if left.absent or right.absent else frozenset()
    told = {"<": _below(left, right), ">": _below(right, left), "==": _equal(left, right)}
    if op not in told and op not in _OPPOSITE:
        return None
    return absent | (told[op] if op in told else _negated(told[_OPPOSITE[op]]))


def _negated(outcomes: frozenset[Value]) -> frozenset[Value]:
    return frozenset(not outcome for outcome in outcomes)


def _below(left: _Interval, right: _Interval) -> frozenset[Value]:
    outcomes: frozenset[Value] = frozenset({True}) if left.low < right.high else frozenset()
    return outcomes | (frozenset({False}) if left.high >= right.low else frozenset())


def _equal(left: _Interval, right: _Interval) -> frozenset[Value]:
    if left.low == left.high == right.low == right.high:
        return frozenset({True})
    overlap = left.low <= right.high and right.low <= left.high
    return _EITHER if overlap else frozenset({False})
