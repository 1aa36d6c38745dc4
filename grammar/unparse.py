"""A syntax tree as source text, one declaration or stage a line: what the formatter then lays out."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.grammar import ast
from qpdsl.grammar.format import format_expr, format_pattern, format_text
from qpdsl.grammar.words import STAGES, TEXT_OPTIONS


def unparse(file: ast.File) -> str:
    """The whole file: what it uses, models, schemas, programs."""
    items = [f"use {format_text(use.path)}" for use in file.uses]
    items += [f"model {model.name} = {format_text(model.id)}{_kind(model)}" for model in file.models]
    items += [_schema(schema) for schema in file.schemas]
    items += [_program(program) for program in file.programs]
    return "\n".join(items)


def _kind(model: ast.Model) -> str:
    return "" if model.kind is None else f" kind={model.kind}"


def _schema(schema: ast.Schema) -> str:
    if schema.type is None:
        return f"schema {schema.name} from {format_text(schema.path or '')}"
    return f"schema {schema.name} {_type(schema.type)}"


def _type(type_: ast.TypeExpr) -> str:
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
        case ast.ListType(item=item):
            return f"[{_type(item)}]"
        case ast.RecordType(fields=fields):
            return "{" + ", ".join(f"{f.name}: {_type(f.type)}{'?' if f.optional else ''}" for f in fields) + "}"


def _bound(value: int | float | None) -> str:
    return "" if value is None else repr(value)


def _option(value: object) -> str:
    if isinstance(value, ast.Regex):
        return format_pattern(value)
    return format_text(value) if isinstance(value, str) else repr(value)


def _program(program: ast.Program) -> str:
    head = f"program {program.name}({', '.join(map(_param, program.params))})"
    if program.returns:
        head += f" -> {program.returns.name}"
    if program.within:
        bound = "" if program.within.bound is None else f"({program.within.bound!r})"
        head += f" within {program.within.level}{bound}"
    if program.prefer:
        head += f" prefer latency={program.prefer.latency!r}"
    if program.like:
        head += f" like {program.like.system}"
    if program.draft:
        head += f" draft {_model(program.draft)}"
    return f"{head} {_block(program.body)}"


def _param(param: ast.Param) -> str:
    default = "" if param.default is None else f" = {format_expr(param.default)}"
    return f"{param.name}: {param.type.name}{default}"


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
        case ast.Score(verifier=verifier, reduce=reduce, into=into):
            who = _judge(verifier) if isinstance(verifier, ast.Judge) else _model(verifier)
            how = "" if reduce == "last" else f" reduce={reduce}"
            return f"score {who}{how}{_into(into)}"
        case ast.Extract(column=column, pattern=pattern):
            return f"extract {column.id} = {pattern.id if isinstance(pattern, ast.Name) else format_pattern(pattern)}"
        case ast.Where(condition=condition):
            return f"where {format_expr(condition)}"
        case ast.Keep(count=count, by=by, per=per):
            groups = "" if per is None else f" per {per.id}"
            return f"keep {format_expr(count)} by {format_expr(by)}{groups}"
        case ast.Best(by=by):
            return f"best by {format_expr(by)}"
        case ast.Vote(column=column, weight=weight, equal=equal):
            weighed = "" if weight is None else f" weight={format_expr(weight)}"
            return f"vote {column.id}{weighed}{'' if equal == 'text' else f' equal={equal}'}"
        case ast.Split(count=count, by=by, temperature=temperature):
            soft = "" if temperature is None else f" temperature={format_expr(temperature)}"
            return f"split {format_expr(count)}" + ("" if by is None else f" by {format_expr(by)}{soft}")
        case ast.Repeat(limit=limit, until=until, body=body):
            ends = "" if until is None else f" until {format_expr(until)}"
            return f"repeat {format_expr(limit)}{ends} {_block(body)}"
        case ast.Branch(arms=arms):
            return "branch {\n" + "\n".join(map(_block, arms)) + "\n}"
        case ast.Peek(body=body):
            return f"peek {_block(body)}"
        case ast.Call(program=program, arguments=arguments, into=into):
            return f"call {program}({', '.join(map(_argument, arguments))}){_into(into)}"
        case ast.Return(value=value):
            return f"return {format_expr(value)}"


def _generate(stage: ast.Generate) -> Iterator[str]:
    yield _model(stage.model)
    for option in STAGES["generate"].options:
        value = getattr(stage, option)
        if value is not None:
            yield f"{option}={format_expr(value)}"
    if stage.target:
        yield f"as {_target(stage.target)}"
    if isinstance(stage.via, ast.Filter):
        yield f"via filter({_model(stage.via.model)}, {format_expr(stage.via.threshold)})"
    elif stage.via:
        yield f"via amortized({format_expr(stage.via.margin)})"
    if stage.draft:
        yield f"draft {_model(stage.draft)}"
    if stage.into:
        yield f"into {stage.into.id}"


def _target(target: ast.Target) -> str:
    match target:
        case ast.SchemaTarget(name=name):
            return name
        case ast.ChoiceTarget(options=options):
            return f"choice({', '.join(map(format_text, options))})"
        case ast.GrammarTarget(path=path):
            return f"grammar({format_text(path)})"
        case ast.Regex():
            return format_pattern(target)


def _judge(judge: ast.Judge) -> str:
    return f"judge({_model(judge.model)}, {format_expr(judge.rubric)})"


def _argument(argument: ast.Argument) -> str:
    value = format_expr(argument.value)
    return value if argument.name is None else f"{argument.name}={value}"


def _model(model: ast.ModelRef) -> str:
    return format_text(model.name) if model.quoted else model.name


def _into(into: ast.Name | None) -> str:
    return "" if into is None else f" into {into.id}"
