"""A syntax tree as source text: an expression, a pattern, or a whole file.

A file comes out one declaration or stage a line: the formatter then lays it out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from decimal import Decimal
from itertools import groupby
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.literals.strings import INSERTED
from qpdsl.grammar.words import AUTO, DELTA, DRAFT_OPTIONS, SWITCH, TEXT_OPTIONS

Values = Mapping[str, ast.Expr]
_ARGUMENT = ast.Role("part")

# How tightly operators bind: an operand that binds looser than its operator stands in parentheses.
_OR, _AND, _NOT, _COMPARISON, _SUM, _PRODUCT, _NEGATION, _ATOM = range(1, 9)
_LEVELS = {"or": _OR, "and": _AND, **dict.fromkeys(("==", "!=", "<", "<=", ">", ">=", "in"), _COMPARISON)}
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
        case ast.Item(base=base, place=place):
            return f"{_expr(base, _ATOM, values)}[{_expr(place, 0, values)}]"
        case ast.Slice(base=base, start=start, stop=stop):
            shown_places = ["" if place is None else _expr(place, 0, values) for place in (start, stop)]
            return f"{_expr(base, _ATOM, values)}[{':'.join(shown_places)}]"
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
    think = "" if model.think is None else f" think={format_text(model.think)}"
    return f"model {model.name} = {format_text(model.id)}{kind}{adapter}{think}"


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
        case ast.UnionType(members=members):
            return " | ".join(member.name for member in members)
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


def format_head(program: ast.Program) -> str:
    """What a program is called, takes and gives."""
    returns = f" -> {format_type(program.returns)}{'?' if program.optional else ''}" if program.returns else ""
    return f"program {program.name}({', '.join(map(_param, program.params))}){returns}"


def _program(program: ast.Program) -> str:
    head = format_head(program)
    if program.within:
        bound = "" if program.within.bound is None else f"({program.within.bound!r})"
        head += f" within {program.within.level}{bound}"
    if program.budget:
        head += f" within {format_budget(program.budget)}"
    if program.deadline:
        head += f" within deadline({Decimal(_short(program.deadline.seconds)):f}s)"
    if program.prefer:
        head += f" prefer latency={program.prefer.latency!r}"
    if program.like:
        head += f" like {program.like.system}"
    if program.draft:
        head += f" draft {format_draft(program.draft)}"
    return f"{head} {_block(program.body)}"


def format_budget(budget: ast.Budget) -> str:
    """A budget as it stands after `within`."""
    amount = None if budget.amount is None else _short(budget.amount)
    if budget.accuracy is None:
        return f"budget({budget.unit}={amount})"
    delta = "" if budget.delta == DELTA else f", delta={budget.delta!r}"
    instead = "" if amount is None else f" or {budget.unit}({amount})"
    return f"accuracy({budget.accuracy!r}{delta}){instead}"


def _short(amount: float) -> str:
    return repr(int(amount) if amount == int(amount) else amount)


def _param(param: ast.Param) -> str:
    default = "" if param.default is None else f" = {format_expr(param.default)}"
    return f"{param.name}: {format_param_type(param)}{default}"


def format_param_type(param: ast.Param) -> str:
    """The declared type of a parameter, with the mark of one that may be none."""
    return f"{format_type(param.type)}{'?' if param.optional else ''}"


def _block(stages: tuple[ast.Stage, ...]) -> str:
    return "{\n" + "\n".join(map(format_stage, stages)) + "\n}"


def format_stage(stage: ast.Stage, values: Values | None = None) -> str:
    """A stage as source; names in `values` are shown as their values, but for those of texts.

    Of an operator what it does in any case is left out, and its blocks, which are the plan's.
    """
    parts = [(part, text) for part, text in _parts(stage, values or {})]
    if not stage.form:
        return " ".join([stage.word, *(text for _, text in parts)])
    form = stage.kind if isinstance(stage, ast.DrawScore) else stage.form
    inside = [text for part, text in parts if part.is_inside]
    scale = f"{stage.low}..{stage.high}" if isinstance(stage, ast.Judge) else ""
    after = ""
    if isinstance(stage, ast.Judge) and stage.whole:
        after = f" as int({scale})"
    elif scale:
        inside.append(scale)
    head = f"{form}({', '.join(inside)})" if inside else form
    ahead = [text for part, text in parts if part.ahead]
    rest = [text for part, text in parts if not (part.is_inside or part.ahead)]
    return " ".join([stage.word, *ahead, head + after, *rest])


def _parts(node: ast.Node, values: Values) -> Iterator[tuple[ast.Role, str]]:
    """The parts of a node that are there, as they are written."""
    for name, part in ast.parts(type(node)):
        value = _left_out(node, name)
        if value is None or value == ast.usual(type(node), name):
            continue
        shown = _part(part, value, {} if part.reads == "row" and part.type_of(node) == "text" else values)
        if shown:
            lead = "" if part.kind == "arms" else part.lead
            yield part, f"{lead}{'' if part.is_option or not lead else ' '}{shown}"


def _left_out(node: ast.Node, name: str) -> Any:
    """The value of a field, None where an operator does what it says in any case."""
    value = getattr(node, name)
    if isinstance(node, ast.Generate) and name == "drafts":
        return value or node.draft
    if isinstance(node, ast.Call) and name in ("program", "arguments") and node.stage < 0:
        return _call(value, node.arguments) if name == "program" else None
    if isinstance(node, ast.Extract) and name in ("pattern", "arguments") and node.arguments is not None:
        return _call(value.id, node.arguments) if name == "pattern" else None
    if isinstance(node, ast.Tool) and name in ("name", "arguments") and node.arguments is not None:
        return _call(value.id, node.arguments) if name == "name" else None
    if isinstance(node, ast.PythonExtract) and name == "function" and node.columns is not None:
        return _call(value, tuple(ast.Argument(one.name, one.value, span=node.span) for one in node.columns))
    if not isinstance(node, ast.Stage) or node.stage < 0:
        return value
    match node:
        case ast.Score() if value == node.usual_reduce or (name == "into" and node.made == "score"):
            return None
        case ast.Extract(built_in="boxed") if value == "last":
            return None
        case ast.Join() if name == "sep" and value == ast.Template(("\n",), span=node.span):
            return None
    return value


def _call(name: str, arguments: tuple[ast.Argument, ...]) -> str:
    return f"{name}({', '.join(_part(_ARGUMENT, argument, {}) for argument in arguments)})"


def _part(part: ast.Role, value: Any, values: Values) -> str:
    match part.kind, value:
        case "arms", _:
            between = f"\n{part.lead} " if part.lead else "\n"
            return "{\n" + between.join(map(_block, value)) + "\n}"
        case "block", (ast.If() as other,) if part.lead:
            return format_stage(other, values)
        case "block", _:
            return _block(value) if value else ""
        case _, tuple():
            shown = [_part(part, one, values) for one in value]
            return (" " if part.kind == "part" else ", ").join(shown)
        case _, ast.ModelRef():
            return _model(value)
        case _, ast.Name(id=name) if part.kind != "value":
            return name
        case _, ast.Regex() | ast.JsonPath():
            return format_pattern(value)
        case _, ast.Turn(role=role, content=content):
            return f"{role}={format_expr(content)}"
        case _, ast.Argument(name=key, value=given):
            return format_expr(given) if key is None else f"{key}={format_expr(given)}"
        case _, ast.Filter() | ast.Contrast() | ast.Amortized():
            return format_via(value, values)
        case _, ast.DraftClause() | ast.Draft():
            return format_draft(value)
        case _, ast.Until():
            return _until(value, values)
        case "part", _:
            return _target(value)
        case _, bool():
            return repr(value).lower()
        case _, str():
            return format_text(value) if part.lead == "head=" else value
    if part.switch and isinstance(value, ast.Literal) and isinstance(value.value, bool):
        return next(word for word, meant in SWITCH.items() if meant is value.value)
    return format_expr(value, values)


def format_via(via: ast.Via, values: Values | None = None) -> str:
    """What follows `via`; names in `values` are shown as their values."""
    return f"{via.word}({', '.join(text for _, text in _parts(via, values or {}))})"


def _until(until: ast.Until, values: Values) -> str:
    *window, bar = (text for _, text in _parts(until, values))
    return f"confidence{''.join(f'({text})' for text in window)} {bar}"


def format_draft(draft: ast.DraftClause | ast.Draft) -> str:
    """What follows `draft`; of what a clause came to, sizes that are the usual ones are left out."""
    if isinstance(draft, ast.Draft):
        return _format_drafting(draft)
    name = draft.method if draft.model is None else _model(draft.model)
    parts = [] if draft.place is None else [format_text(draft.place)]
    for option in DRAFT_OPTIONS:
        value = getattr(draft, option)
        parts += [] if value is None else [f"{option}={value}"]
    return f"{name}({', '.join(parts)})" if parts else name


def _format_drafting(draft: ast.Draft) -> str:
    named = draft.method == "model" and draft.model is not None
    name = _quoted(draft.model or "") if named else draft.method
    parts = [] if named or draft.model is None else [f'"{draft.model}"']
    parts += [f"tokens={draft.tokens}"] if draft.tokens != ast.usual_length(draft.branches) else []
    parts += [f"branches={draft.branches}"] if draft.branches > 1 else []
    return f"{name}({', '.join(parts)})" if parts else name


def _quoted(name: str) -> str:
    """A declared name as it stands, a model id in quotes."""
    return name if name.isidentifier() else f'"{name}"'


def _target(target: ast.Target) -> str:
    match target:
        case ast.SchemaTarget(name=name):
            return name
        case ast.CallTarget():
            return format_call(target)
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


def format_call(target: ast.CallTarget) -> str:
    most = [] if target.most is None else [f"calls={target.most}"]
    return f"call({', '.join([*(tool.name for tool in target.tools), *['text'][: target.or_text], *most])})"


def _model(model: ast.ModelRef) -> str:
    return format_text(model.name) if model.quoted else model.name
