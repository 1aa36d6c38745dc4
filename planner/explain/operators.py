"""Operators in the words of the language."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from qpdsl.grammar import ast
from qpdsl.grammar.format.unparse import format_expr, format_pattern, format_via
from qpdsl.grammar.source import Span
from qpdsl.grammar.width import shorten
from qpdsl.planner.plan import ops

_TABLE_WIDTH = 60

Values = Mapping[str, ast.Expr]


def describe(op: ops.Operator, values: Values) -> str:
    """One operator as a stage, parameters shown as their values where `values` has one."""

    def show(expr: ast.Expr) -> str:
        return format_expr(expr, values)

    match op:
        case ops.SetContext(prompt=prompt) if prompt is not None:
            return f"prompt {format_expr(prompt)}"
        case ops.SetContext(turns=turns):
            return " ".join(["chat", *(f"{turn.role}={format_expr(turn.content)}" for turn in turns)])
        case ops.Say(text=text):
            return f"say {format_expr(text)}"
        case ops.Generate():
            return " ".join(["generate", _model(op.model), *_options(op, values), *_clauses(op, values)])
        case ops.Score(verifier=verifier, reduce=reduce, of=of, given=given, into=into):
            shown = "" if reduce == "last" else f" reduce={reduce}"
            raw = " as search-and-learn" if op.raw else ""
            return f"score {_model(verifier)}{shown}{_of(of)}{_given(given)}{_into(into)}{raw}"
        case ops.Judge(model=model, rubric=rubric, low=low, high=high, of=of, given=given, into=into):
            asked = f"{_model(model)}, {format_expr(rubric)}"
            judge = f"judge({asked}) as int({low}..{high})" if op.whole else f"judge({asked}, {low}..{high})"
            shown = "" if op.reduce == "answer" else f" reduce={op.reduce}"
            return f"score {judge}{shown}{_of(of)}{_given(given)}{_into(into)}"
        case ops.Prob(model=model, question=question, answers=answers, into=into):
            return f"score prob({', '.join([_model(model), *map(format_expr, (question, *answers))])}){_into(into)}"
        case ops.Equal(answer=answer, reference=reference, by=by, into=into):
            compared = "" if by == "text" else f", by={by}"
            return f"score equal({show(answer)}, {show(reference)}{compared}){_into(into)}"
        case ops.ValidJson(name=name, of=of, into=into):
            return f"score json{'' if name is None else f'({name})'}{_of(of)}{_into(into)}"
        case ops.Passes(tests=tests, timeout=timeout, of=of, into=into):
            limit = "" if timeout is None else f", timeout={show(timeout)}"
            return f"score passes({format_expr(tests)}{limit}){_of(of)}{_into(into)}"
        case ops.Tournament(model=model, question=question, both=both, per=per):
            orders = "" if both else ", both=false"
            compare = f"compare({_model(model)}, {format_expr(question)}{orders})"
            return f"best by {compare}" + (f" per {per}" if per is not None else "")
        case ops.LogProb(reduce=reduce, into=into):
            return f"score logprob{'' if reduce == 'sum' else f' reduce={reduce}'}{_into(into)}"
        case ops.DrawScore(kind=kind, reduce=reduce, window=window, into=into):
            wide = "" if window is None else f"(window={show(window)})"
            shown = "" if reduce == ops.usual_reduce(kind) else f" reduce={reduce}"
            return f"score {kind}{wide}{shown}{_into(into)}"
        case ops.PythonScore(function=function, of=of, given=given, into=into):
            return f"score {function}{_of(of)}{_given(given)}{_into(into)}"
        case ops.Extract(column=column, pattern=pattern, which=which):
            word = "" if which == ("last" if pattern == "boxed" else "first") else f"{which} "
            return f"extract {word}{column} = {pattern if isinstance(pattern, str) else format_pattern(pattern)}"
        case ops.PythonExtract(column=column, function=function):
            return f"extract {column} = {function}"
        case ops.Let(column=column, value=value):
            return f"let {column} = {show(value)}"
        case ops.Where(condition=condition):
            return f"where {show(condition)}"
        case ops.TopK(k=ast.Literal(value=1), by=by, per=None):
            return f"best by {show(by)}"
        case ops.TopK(k=k, by=by, per=per):
            return f"keep {show(k)} by {show(by)}{_per(per)}{' as search-and-learn' if op.like else ''}"
        case ops.Distinct(by=by, per=per):
            return f"distinct by {show(by)}{_per(per)}"
        case ops.Order(by=by):
            return f"order by {show(by)}"
        case ops.Join(column=column, value=value, sep=sep, per=per):
            between = "" if sep == ast.Template(("\n",), span=op.span) else f" sep={show(sep)}"
            return f"join {column} = {show(value)}{between}{_per(per)}"
        case ops.Vote(column=column, weight=weight, equal=equal, decided=decided, per=per):
            shown = "" if equal == "text" else f" equal={equal}"
            shown += "" if decided is None else f" decided={show(decided)}"
            return f"vote {column}" + (f" weight={show(weight)}" if weight is not None else "") + shown + _per(per)
        case ops.Split(count=count, by=by, temperature=temperature, per=per):
            soft = "" if temperature is None else f" temperature={show(temperature)}"
            return f"split {show(count)}" + (f" by {show(by)}{soft}{_per(per)}" if by is not None else "")
        case ops.Branch(arms=arms):
            return f"branch of {len(arms)}"
        case ops.Strategy(ways=ways):
            return f"strategy of {len(ways)} way{'' if len(ways) == 1 else 's'}"
        case ops.If(condition=condition):
            return f"if {show(condition)}"
        case ops.Each(column=column, source=source):
            return f"each {column} in {format_pattern(source) if isinstance(source, ast.JsonPath) else show(source)}"
        case ops.Call(program=program, into=into):
            return f"call {program} into {into}"
        case ops.Repeat(limit=limit, until=until):
            return f"repeat ≤{show(limit)}" + (f" until {show(until)}" if until is not None else "")
        case ops.Search(method=method, by=by):
            return " ".join(
                ["search", method, "by", show(by), *(f"{name}={show(value)}" for name, value in op.options)]
            )
        case ops.Peek():
            return "peek"
        case ops.Ask():
            return "ask"
        case ops.Return(value=value, parse=parse):
            return f"return {show(value)}{' as a record' if parse else ''}"
    raise TypeError(f"no words for {type(op).__name__}")


def in_words(op: ops.Operator) -> str:
    """One operator as a stage, for any values of the parameters, short enough for a table."""
    return shorten(describe(op, {}), _TABLE_WIDTH)


def _per(column: str | None) -> str:
    return "" if column is None else f" per {column}"


def _model(name: str) -> str:
    """A declared name as it stands, a model id in quotes."""
    return name if name.isidentifier() else f'"{name}"'


def _of(of: ast.Expr | None) -> str:
    return "" if of is None else f" of {format_expr(of)}"


def _given(given: ast.Expr | None) -> str:
    return "" if given is None else f" given {format_expr(given)}"


def _into(column: str) -> str:
    return "" if column == "score" else f" into {column}"


def _options(op: ops.Generate, values: Values) -> Iterator[str]:
    for name in ("n", "temperature", "top_p", "top_k", "min_p", "stop", "max_tokens"):
        value = getattr(op, name)
        if value is not None:
            yield f"{name}={format_expr(value, values)}"


def _clauses(op: ops.Generate, values: Values) -> Iterator[str]:
    if op.constraint is not None:
        yield f"as {op.constraint.name}"
    if op.via is not None:
        yield f"via {format_via(_via(op.via, op.span), values)}"
    if op.draft is not None:
        yield f"draft {_draft(op.draft)}"
    if op.into is not None:
        yield f"into {op.into}"


def _via(via: ops.Filter | ops.Amortized, span: Span) -> ast.Via:
    """As a clause."""
    if isinstance(via, ops.Filter):
        model = ast.ModelRef(via.model, not via.model.isidentifier(), span=span)
        return ast.Filter(model, via.threshold, via.by, via.share, via.rows, via.wait, span=span)
    return ast.Amortized(via.margin, via.layer, via.rerank, via.head, via.certify, span=span)


def _draft(draft: ops.Draft) -> str:
    name = draft.method if draft.method != "model" or draft.model is None else _model(draft.model)
    parts = [f'"{draft.model}"'] if draft.method != "model" and draft.model is not None else []
    parts += [f"tokens={draft.tokens}"] if draft.tokens != ops.usual_length(draft.branches) else []
    parts += [f"branches={draft.branches}"] if draft.branches > 1 else []
    return f"{name}({', '.join(parts)})" if parts else name
