"""A syntax tree as source text: an expression, a pattern, or a whole file.

A file comes out one declaration or stage a line: the formatter then lays it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import groupby

from qpdsl.grammar import ast
from qpdsl.grammar.literals.strings import INSERTED
from qpdsl.grammar.words import AMORTIZED_OPTIONS, AUTO, DRAFT_OPTIONS, FILTER_OPTIONS, STAGES, TEXT_OPTIONS

# How tightly operators bind: an operand that binds looser than its operator stands in parentheses.
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _NEGATION = range(1, 8)
_LEVELS = {"or": _OR, "and": _AND, **dict.fromkeys(("==", "!=", "<", "<=", ">", ">="), _COMPARISON)}
_LEVELS |= {"+": _SUM, "-": _SUM, "*": _PRODUCT, "/": _PRODUCT, "%": _PRODUCT}
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "\r": "\\r"}
# In a regex: an escape, or a slash or control character that needs one.
_BARE = re.compile(r"\\[^\n]|[/\x00-\x08\n\x0b\x0e-\x1f\x7f]")
_INTERPOLATION = re.compile(rf"\{{(?={INSERTED}\}})")


def unparse(file: ast.File) -> str:
    """The whole file: what it uses, models, schemas, programs."""
    items = [f"use {format_text(use.path)}{'' if use.alias is None else f' as {use.alias}'}" for use in file.uses]
    items += [format_model(model) for model in file.models]
    items += [_schema(schema) for schema in file.schemas]
    items += [_program(program) for program in file.programs]
    return "\n".join(items)


def format_expr(expr: ast.Expr, values: Mapping[str, ast.Expr] | None = None) -> str:
    """The expression as source; names in `values` (parameters with a default) are shown as their values."""
    return _expr(expr, 0, values or {})


def format_pattern(pattern: ast.Regex | ast.JsonPath) -> str:
    """A regex with its slashes, or a JSON path with its leading dot."""
    if isinstance(pattern, ast.Regex):
        return f"/{_BARE.sub(_escaped_in_regex, pattern.pattern)}/"
    text = _steps(pattern.steps)
    return text if text.startswith(".") else f".{text}"


def format_text(text: str) -> str:
    """A plain string, quoted."""
    return '"' + _escaped_text(text) + '"'


def _expr(expr: ast.Expr, level: int, values: Mapping[str, ast.Expr]) -> str:
    """The text of `expr`, in parentheses where it binds looser than `level`."""
    match expr:
        case ast.Literal(value=value):
            return "none" if value is None else repr(value).lower()
        case ast.Name(id=id):
            return _expr(values[id], level, {}) if id in values else id
        case ast.Template(parts=parts):
            return '"' + "".join(_pieces(parts)) + '"'
        case ast.Unary(op="not", operand=operand):
            return _wrap(f"not {_expr(operand, _NOT, values)}", _NOT, level)
        case ast.Unary(operand=operand):
            return _wrap(f"-{_expr(operand, _NEGATION, values)}", _NEGATION, level)
        case ast.Binary(op=op, left=left, right=right):
            own = _LEVELS[op]
            # Comparisons do not chain, so a comparison on the left needs parentheses as one on the right does.
            text = f"{_expr(left, own + (own == _COMPARISON), values)} {op} {_expr(right, own + 1, values)}"
            return _wrap(text, own, level)
        case ast.Matches(subject=subject, regex=regex):
            return _wrap(f"{_expr(subject, _SUM, values)} matches {format_pattern(regex)}", _COMPARISON, level)
        case ast.Path(base=base, steps=steps):
            return f"{base.id}{_steps(steps)}"
        case ast.Regex():
            return format_pattern(expr)
        case ast.Apply(function=function, args=args, per=per):
            shown = ", ".join(_expr(arg, 0, values) for arg in args)
            groups = "" if per is None else f"{' ' if shown else ''}per {per.id}"
            return f"{function}({shown}{groups})"
        case ast.ListLiteral(items=items):
            return f"[{', '.join(_expr(item, 0, values) for item in items)}]"
        case ast.RecordLiteral(fields=fields):
            return "{" + ", ".join(f"{field.name}: {_expr(field.value, 0, values)}" for field in fields) + "}"
        case ast.Auto(widths=widths):
            return f"{AUTO}({', '.join(map(str, widths))})" if widths else AUTO


def _steps(steps: tuple[str | int, ...]) -> str:
    return "".join(f".{step}" if isinstance(step, str) else f"[{step}]" for step in steps)


def _wrap(text: str, own: int, level: int) -> str:
    return f"({text})" if own < level else text


def _pieces(parts: tuple[str | ast.Name | ast.Path, ...]) -> Iterator[str]:
    """Texts that stand side by side are one: a brace in the first may close in the second."""
    for is_text, run in groupby(parts, lambda part: isinstance(part, str)):
        if is_text:
            yield _escaped_text("".join(str(part) for part in run))
        else:
            yield from (f"{{{_expr(part, 0, {})}}}" for part in run if not isinstance(part, str))


def _escaped_text(text: str) -> str:
    escaped = "".join(_ESCAPES.get(char, char if char.isprintable() else _escaped(char)) for char in text)
    return _INTERPOLATION.sub(r"\\{", escaped)


def _escaped_in_regex(match: re.Match[str]) -> str:
    """A bare slash or control character; an escape that stands there stays."""
    char = match[0]
    return char if len(char) > 1 else "\\/" if char == "/" else f"\\x{ord(char):02x}"


def _escaped(char: str) -> str:
    """Characters beyond the first plane have no escape and stand for themselves."""
    return f"\\u{ord(char):04x}" if ord(char) <= 0xFFFF else char


def format_model(model: ast.Model) -> str:
    """The declaration of a model."""
    kind = "" if model.kind is None else f" kind={model.kind}"
    adapter = "" if model.adapter is None else f" adapter={format_text(model.adapter)}"
    return f"model {model.name} = {format_text(model.id)}{kind}{adapter}"


def _schema(schema: ast.Schema) -> str:
    if schema.type is None:
        return f"schema {schema.name} from {format_text(schema.path or '')}"
    return f"schema {schema.name} {format_type(schema.type)}"


def format_type(type_: ast.TypeExpr) -> str:
    """A type as source."""
    match type_:
        case ast.TypeRef(name=name):
            return name
        case ast.RangeType(name=name, low=low, high=high):
            return f"{name}({_bound(low)}..{_bound(high)})"
        case ast.TextType():
            options = ((option, getattr(type_, option)) for option in TEXT_OPTIONS)
            return f"text({', '.join(f'{option}={_option(value)}' for option, value in options if value is not None)})"
        case ast.ChoiceType(options=texts):
            return f"choice({', '.join(map(format_text, texts))})"
        case ast.ListType(item=item, low=low, high=high):
            bounds = "" if low is None and high is None else f"({_bound(low)}..{_bound(high)})"
            return f"[{format_type(item)}]{bounds}"
        case ast.RecordType(fields=fields):
            return "{" + ", ".join(f"{f.name}: {format_type(f.type)}{'?' if f.optional else ''}" for f in fields) + "}"


def _bound(value: int | float | None) -> str:
    return "" if value is None else repr(value)


def _option(value: object) -> str:
    if isinstance(value, ast.Regex):
        return format_pattern(value)
    return format_text(value) if isinstance(value, str) else repr(value)


def _program(program: ast.Program) -> str:
    head = f"program {program.name}({', '.join(map(_param, program.params))})"
    if program.returns:
        head += f" -> {format_type(program.returns)}"
    if program.within:
        bound = "" if program.within.bound is None else f"({program.within.bound!r})"
        head += f" within {program.within.level}{bound}"
    if program.budget:
        head += f" within {format_budget(program.budget)}"
    if program.prefer:
        head += f" prefer latency={program.prefer.latency!r}"
    if program.like:
        head += f" like {program.like.system}"
    if program.draft:
        head += f" draft {format_draft(program.draft)}"
    return f"{head} {_block(program.body)}"


def format_budget(budget: ast.Budget) -> str:
    """A budget as it stands after `within`."""
    amount = int(budget.amount) if budget.amount == int(budget.amount) else budget.amount
    return f"budget({budget.unit}={amount!r})"


def _param(param: ast.Param) -> str:
    default = "" if param.default is None else f" = {format_expr(param.default)}"
    return f"{param.name}: {format_param_type(param)}{default}"


def format_param_type(param: ast.Param) -> str:
    """The declared type of a parameter, with the mark of one that may be none."""
    return f"{format_type(param.type)}{'?' if param.optional else ''}"


def _block(stages: tuple[ast.Stage, ...]) -> str:
    return "{\n" + "\n".join(map(_stage, stages)) + "\n}"


def _stage(stage: ast.Stage) -> str:
    match stage:
        case ast.Prompt(text=text):
            return f"prompt {format_expr(text)}"
        case ast.Chat(turns=turns):
            return " ".join(["chat", *(f"{turn.role}={format_expr(turn.content)}" for turn in turns)])
        case ast.Generate():
            return " ".join(["generate", *_generate(stage)])
        case ast.Score(verifier=verifier, reduce=reduce, of=of, given=given, into=into):
            reduced = "" if reduce is None else f" reduce={reduce}"
            scored = "" if of is None else f" of {format_expr(of)}"
            shown = "" if given is None else f" given {format_expr(given)}"
            return f"score {_verifier(verifier)}{reduced}{scored}{shown}{_into(into)}"
        case ast.Extract(column=column, pattern=pattern, which=which):
            word = "" if which == "first" else f"{which} "
            source = pattern.id if isinstance(pattern, ast.Name) else format_pattern(pattern)
            return f"extract {word}{column.id} = {source}"
        case ast.Let(column=column, value=value):
            return f"let {column.id} = {format_expr(value)}"
        case ast.Where(condition=condition):
            return f"where {format_expr(condition)}"
        case ast.Keep(count=count, by=by, per=per):
            return f"keep {format_expr(count)} by {format_expr(by)}{_per(per)}"
        case ast.Best(by=by, per=per):
            return f"best by {format_compare(by) if isinstance(by, ast.Compare) else format_expr(by)}{_per(per)}"
        case ast.Distinct(by=by, per=per):
            return f"distinct by {format_expr(by)}{_per(per)}"
        case ast.Order(by=by):
            return f"order by {format_expr(by)}"
        case ast.Join(column=column, value=value, sep=sep, per=per):
            between = "" if sep is None else f" sep={format_expr(sep)}"
            return f"join {column.id} = {format_expr(value)}{between}{_per(per)}"
        case ast.Vote(column=column, weight=weight, equal=equal, decided=decided, per=per):
            weighed = "" if weight is None else f" weight={format_expr(weight)}"
            alike = "" if equal == "text" else f" equal={equal}"
            sure = "" if decided is None else f" decided={format_expr(decided)}"
            return f"vote {column.id}{weighed}{alike}{sure}{_per(per)}"
        case ast.Split(count=count, by=by, temperature=temperature, per=per):
            soft = "" if temperature is None else f" temperature={format_expr(temperature)}"
            return f"split {format_expr(count)}" + ("" if by is None else f" by {format_expr(by)}{soft}{_per(per)}")
        case ast.Repeat(limit=limit, until=until, body=body):
            ends = "" if until is None else f" until {format_expr(until)}"
            return f"repeat {format_expr(limit)}{ends} {_block(body)}"
        case ast.Search(method=method, by=by, body=body):
            options = ((name, getattr(stage, name)) for name in STAGES["search"].options)
            written = "".join(f" {name}={format_expr(value)}" for name, value in options if value is not None)
            return f"search {method} by {format_expr(by)}{written} {_block(body)}"
        case ast.Branch(arms=arms):
            return "branch {\n" + "\n".join(map(_block, arms)) + "\n}"
        case ast.Strategy(arms=arms):
            return "strategy {\n" + "\nor ".join(map(_block, arms)) + "\n}"
        case ast.If(condition=condition, then=then, otherwise=otherwise):
            return f"if {format_expr(condition)} {_block(then)}{_else(otherwise)}"
        case ast.Each(column=column, source=source, body=body):
            listed = format_pattern(source) if isinstance(source, ast.JsonPath) else format_expr(source)
            return f"each {column.id} in {listed}" + (f" {_block(body)}" if body else "")
        case ast.Peek(body=body):
            return f"peek {_block(body)}"
        case ast.Ask(body=body):
            return f"ask {_block(body)}"
        case ast.Say(text=text):
            return f"say {format_expr(text)}"
        case ast.Call(program=program, arguments=arguments, into=into):
            return f"call {program}({', '.join(map(_argument, arguments))}){_into(into)}"
        case ast.Return(value=value):
            return f"return {format_expr(value)}"


def _else(stages: tuple[ast.Stage, ...]) -> str:
    """What follows the block of an `if`."""
    match stages:
        case ():
            return ""
        case (ast.If() as other,):
            return f" else {_stage(other)}"
    return f" else {_block(stages)}"


def _per(per: ast.Name | None) -> str:
    return "" if per is None else f" per {per.id}"


def _generate(stage: ast.Generate) -> Iterator[str]:
    yield _model(stage.model)
    for option in STAGES["generate"].options:
        value = getattr(stage, option)
        if value is not None:
            yield f"{option}={format_expr(value)}"
    if stage.target:
        yield f"as {_target(stage.target)}"
    if stage.via:
        yield f"via {format_via(stage.via)}"
    if stage.draft:
        yield f"draft {format_draft(stage.draft)}"
    if stage.into:
        yield f"into {stage.into.id}"


def format_via(via: ast.Via, values: Mapping[str, ast.Expr] | None = None) -> str:
    """What follows `via`; names in `values` are shown as their values."""
    options: tuple[str, ...] = AMORTIZED_OPTIONS
    word, parts, usual = "amortized", list[str](), {"by": "probability"}
    if isinstance(via, ast.Filter):
        word, options, first = "filter", FILTER_OPTIONS, via.threshold
        parts.append(_model(via.model))
    else:
        first = via.margin
    parts += [] if first is None else [format_expr(first, values)]
    for option in options:
        value = getattr(via, option)
        if value is None or value == usual.get(option):
            continue
        shown = value if option == "by" else format_text(value) if option == "head" else format_expr(value, values)
        parts.append(f"{option}={shown}")
    return f"{word}({', '.join(parts)})"


def format_draft(draft: ast.Draft) -> str:
    """What follows `draft`."""
    name = draft.method if draft.model is None else _model(draft.model)
    parts = [] if draft.place is None else [format_text(draft.place)]
    for option in DRAFT_OPTIONS:
        value = getattr(draft, option)
        parts += [] if value is None else [f"{option}={value}"]
    return f"{name}({', '.join(parts)})" if parts else name


def _target(target: ast.Target) -> str:
    match target:
        case ast.SchemaTarget(name=name):
            return name
        case ast.ChoiceTarget(options=options):
            return f"choice({', '.join(map(format_text, options))})"
        case ast.OptionsTarget(options=listed):
            return f"choice({format_expr(listed)})"
        case ast.TypeTarget(type=type_):
            return format_type(type_)
        case ast.GrammarTarget(path=path):
            return f"grammar({format_text(path)})"
        case ast.Regex():
            return format_pattern(target)


def _verifier(verifier: ast.Verifier) -> str:
    match verifier:
        case ast.ModelRef():
            return _model(verifier)
        case ast.Judge(model=model, rubric=rubric, low=low, high=high, whole=whole):
            asked = f"{_model(model)}, {format_expr(rubric)}"
            return f"judge({asked}) as int({low}..{high})" if whole else f"judge({asked}, {low}..{high})"
        case ast.Prob(model=model, question=question, answers=answers):
            return f"prob({', '.join([_model(model), *map(format_expr, (question, *answers))])})"
        case ast.Equal(answer=answer, reference=reference, by=by):
            compared = "" if by == "text" else f", by={by}"
            return f"equal({format_expr(answer)}, {format_expr(reference)}{compared})"
        case ast.ValidJson(schema=schema):
            return f"json({schema.id})"
        case ast.WindowConfidence(window=window):
            return f"confidence(window={format_expr(window)})"
        case ast.Passes(tests=tests, timeout=timeout):
            limit = "" if timeout is None else f", timeout={format_expr(timeout)}"
            return f"passes({format_expr(tests)}{limit})"


def format_compare(compare: ast.Compare) -> str:
    """What follows `best by`, where a model compares the rows."""
    orders = "" if compare.both else ", both=false"
    return f"compare({_model(compare.model)}, {format_expr(compare.question)}{orders})"


def _argument(argument: ast.Argument) -> str:
    value = format_expr(argument.value)
    return value if argument.name is None else f"{argument.name}={value}"


def _model(model: ast.ModelRef) -> str:
    return format_text(model.name) if model.quoted else model.name


def _into(into: ast.Name | None) -> str:
    return "" if into is None else f" into {into.id}"
