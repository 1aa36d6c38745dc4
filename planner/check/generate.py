"""`generate`: its options, and the clauses `as`, `via` and `into`; `draft_clause.py` has `draft`."""

from __future__ import annotations

import json

from qpdsl.grammar import ast
from qpdsl.grammar.ast.expressions import present
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.files import FileRefused
from qpdsl.grammar.format.unparse import format_expr, format_type
from qpdsl.grammar.literals import regex
from qpdsl.grammar.literals.constraint_regex import whole
from qpdsl.grammar.literals.matcher import matcher
from qpdsl.grammar.source import Span
from qpdsl.planner.check.binder import Binder, Flow
from qpdsl.planner.check.context import outdate_scores
from qpdsl.planner.check.draft_clause import draft_of, folder_of, is_same_model
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.json_schema import value_type
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.scope import BoundColumn, word_span
from qpdsl.planner.names.types import Typer
from qpdsl.planner.names.unknown import unknown_schema
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.ops import Constraint
from qpdsl.planner.plan.options import RANGES, default_of
from qpdsl.planner.plan.reads import names

_OPTIONS = {"n": "int", "temperature": "float", "top_p": "float", "top_k": "int", "min_p": "float", "max_tokens": "int"}


def generate(binder: Binder, stage: ast.Generate, number: int) -> ops.Operator:
    binder.needs_context(stage)
    model = binder.model(stage.model)
    options: dict[str, ast.Expr | None] = {}
    for option, type_ in _OPTIONS.items():
        options[option] = value = getattr(stage, option)
        if value is not None:
            binder.number(stage, option, value, f"`{option}`", type_, "option")
    _check_stop(binder, stage)
    constraint, schema = (None, None) if stage.target is None else _constraint(binder, stage, stage.target)
    via = _via(binder, stage, model)
    draft = draft_of(binder, stage, model)
    _warn_greedy(binder, stage)
    _warn_uncut(binder, stage)
    _warn_spent(binder, stage)
    _bind_output(binder, stage, schema)
    span = word_span(stage)
    n = options.pop("n") or ast.Literal(1, span=span)
    temperature = options.pop("temperature") or ast.Literal(1.0, span=span)
    into = stage.into.id if stage.into else None
    like = binder.program.like.system if binder.program.like else None
    clauses: dict[str, object] = {
        "stop": stage.stop,
        "constraint": constraint,
        "via": via,
        "draft": draft,
        "into": into,
    }
    clauses |= {"ordinal": binder.next_ordinal(), "like": like}
    return ops.Generate(model, n, temperature, **options, **clauses, stage=number, span=stage.span)  # type: ignore[arg-type]


def warn_spent_rounds(binder: Binder, stage: ast.Repeat, before: Flow) -> None:
    """Warns where the first round of a `repeat` finishes every row, so that a later one generates nothing."""
    spent, limit = binder.flow.spent, default_of(stage.limit, {})[0]
    first = _first_generate(stage.body)
    if spent is None or spent is before.spent or first is None or getattr(limit, "value", 0) == 1:
        return
    if stage.until is not None and any(name.id in ("finish", "finished") for name in names(stage.until)):
        return  # then the rounds end, and the condition has its own warning
    message = "nothing is left to generate after the first round: every row is finished"
    help = "give it a `stop`, or start a new turn with `chat` in each round"
    _report_spent(binder, first, spent, message, help)


def _check_stop(binder: Binder, stage: ast.Generate) -> None:
    if stage.stop is None:
        return
    entries: list[tuple[ast.Expr, ast.Expr | None, Span | None]]
    if isinstance(stage.stop, ast.ListLiteral):
        entries = [(item, item, None) for item in stage.stop.items]
        if not entries:
            binder.scope.error("QP303", "a list of what stops cannot be empty", stage.stop.span)
    else:
        entries = [(stage.stop, *default_of(stage.stop, binder.scope.params))]
    for item, text, declared in entries:
        if isinstance(item, ast.Regex):
            _check_stop_pattern(binder, item)
            continue
        listed = item is stage.stop and isinstance(item, ast.Name | ast.Path)
        known = frozenset({"text", "[text]"} if listed else {"text"})
        binder.expect(stage, "`stop`", item, known, "a text", "option")
        if isinstance(text, ast.Template) and not "".join(map(str, text.parts)):
            binder.scope.error("QP303", "a stop string cannot be empty", declared or item.span)


def _check_stop_pattern(binder: Binder, pattern: ast.Regex) -> None:
    """Reports a regex that could not end a sample: one that the empty text matches, or that asks for the text's end."""
    if regex.check(pattern.pattern, 0) is not None:  # the parser has reported it
        return
    found = matcher(pattern.pattern)
    if found.start.matched:
        message = "this regex matches the empty text, so that every sample would end at once"
        binder.scope.error("QP333", message, pattern.span, "matches nothing", help="let it match a character at least")
    elif found.anchored_at_end:
        message = "a stop ends the text where it matches, so `$` has nothing to say in it"
        binder.scope.error("QP333", message, pattern.span, "`$` in a stop", help="leave the `$` out")


def _via(binder: Binder, stage: ast.Generate, model: str) -> ops.Filter | ops.Amortized | None:
    via = stage.via
    if via is None:
        return None
    form = "filter" if isinstance(via, ast.Filter) else "amortized"
    for name, value in via.numbers:
        what = f"the {name}" if name in ("threshold", "margin") else f"`{name}`"
        binder.number(stage, name, value, f"{what} of `{form}`", RANGES[name].type)
    if isinstance(via, ast.Amortized):
        head = None if via.head is None else folder_of(binder, binder.module, via.head, via)
        if via.head is not None and head is None:
            return None
        return ops.Amortized(via.margin, via.layer, via.rerank, head, via.certify)
    small = binder.model(via.model)
    chooses = isinstance(stage.target, ast.ChoiceTarget | ast.OptionsTarget)
    if chooses:
        assert stage.target is not None
        message = "`via filter` cannot stand beside `as choice`"
        notes = ("a choice draws no tokens: the probabilities of whole options decide it",)
        why = (Label(stage.target.span, "one of these is chosen"),)
        binder.scope.error("QP401", message, via.span, "leave one of them out", secondary=why, notes=notes)
    if is_same_model(binder, small, model):
        message = f"`{small}` filters for itself: every token is its own"
        binder.warn(Diagnostic("QP402", message, via.model.span, "name a smaller model"))
    return None if chooses else ops.Filter(small, via.threshold, via.by, via.share, via.rows, via.wait)


def _bind_output(binder: Binder, stage: ast.Generate, schema: CompiledSchema | None) -> None:
    """Binds the columns that it makes. `text` is held to the schema where all of it was generated here.

    Scores in `score` are outdated now: they are of the text before this stage.
    """
    columns = binder.scope.columns
    if "text" in columns:
        columns["text"] = BoundColumn("text", None, schema if binder.flow.fresh else None)
    if stage.into is not None:
        faulty = schema is None and isinstance(stage.target, ast.SchemaTarget | ast.TypeTarget)
        type_ = "unknown" if faulty else "text" if schema is None else value_type(schema.document)
        binder.make(stage, stage.into, type_, schema)
    flow = binder.flow
    if flow.spent is None:
        outdate_scores(binder, stage)
    binder.change(generated=True, fresh=False, spent=flow.spent or (stage if _finishes(binder, stage) else None))


def _finishes(binder: Binder, stage: ast.Generate) -> bool:
    """Whether every row is finished after it: nothing but the model, or the end of its context, ends a row here."""
    bounded = stage.max_tokens is not None and binder.program.like is None
    return stage.stop is None and stage.target is None and not bounded


# The clause `as`


def _constraint(
    binder: Binder, stage: ast.Generate, target: ast.Target
) -> tuple[Constraint | None, CompiledSchema | None]:
    """The constraint, and the schema if it is one; None where there is an error, which is reported."""
    match target:
        case ast.SchemaTarget():
            schema = _schema(binder, target)
            if schema is None:
                return None, None
            return _of_schema(schema, target.name), schema
        case ast.TypeTarget(type=type_):
            schema = binder.module.schemas.compile_type(type_)
            return (None, None) if schema is None else (_of_schema(schema, format_type(type_)), schema)
        case ast.OptionsTarget(options=options):
            Typer(binder.scope, stage, "option", "`choice`").expect(options, "[text]", "a list of texts")
            return Constraint("choice", "", f"choice({format_expr(options)})", options=options), None
        case ast.Regex(pattern=pattern):
            if regex.check(pattern, 0) is not None:  # the parser has reported it
                return None, None
            return _accepted(binder, Constraint("regex", whole(pattern), f"/{pattern}/"), target, "this regex"), None
        case ast.ChoiceTarget(options=options):
            return _choice(binder, target, options), None
        case ast.GrammarTarget():
            return _grammar(binder, target), None


def _of_schema(schema: CompiledSchema, name: str) -> Constraint:
    return Constraint("json_schema", schema.constraint, name, schema.source, value_type(schema.document))


def _schema(binder: Binder, target: ast.SchemaTarget) -> CompiledSchema | None:
    schemas = binder.module.schemas
    if target.name in schemas:
        return schemas.get(target.name)
    if "schema" not in binder.module.missing:
        forms = '`as /regex/`, `as choice("a", "b")`, `as grammar("file.lark")`'
        binder.scope.report(unknown_schema(target.name, target.span, schemas.names(), forms))
    return None


def _choice(binder: Binder, target: ast.ChoiceTarget, options: tuple[str, ...]) -> Constraint | None:
    if "" in options:
        binder.scope.error("QP308", "a choice cannot be empty", target.span, "one of these is")
        return None
    shown = ", ".join(json.dumps(option, ensure_ascii=False) for option in options)
    constraint = Constraint("choice", json.dumps(options, ensure_ascii=False), f"choice({shown})")
    return _accepted(binder, constraint, target, "these choices")


def _grammar(binder: Binder, target: ast.GrammarTarget) -> Constraint | None:
    try:
        text = binder.module.files.read(target.path)
    except FileRefused as why:
        binder.scope.error("QP228", str(why), target.span, "cannot be read")
        return None
    constraint = Constraint("grammar", text, f'grammar("{target.path}")')
    return _accepted(binder, constraint, target, f"the grammar `{target.path}`")


def _accepted(binder: Binder, constraint: Constraint, target: ast.Target, what: str) -> Constraint | None:
    """The constraint if llguidance accepts it; else None, which is reported."""
    why_not = refusal(constraint.kind, constraint.source)
    if why_not is None:
        return constraint
    message = f"no output can be held to {what}"
    binder.scope.error("QP307", message, target.span, "llguidance refuses it", notes=(why_not,))
    return None


# Warnings


def _warn_spent(binder: Binder, stage: ast.Generate) -> None:
    spent = binder.flow.spent
    if spent is not None:
        message = "nothing is left to generate: every row is finished"
        help = "give that stage a `stop` or `max_tokens`, go on with `say`, or start a new turn with `chat`"
        _report_spent(binder, stage, spent, message, help)


def _report_spent(binder: Binder, stage: ast.Generate, spent: ast.Stage, message: str, help: str) -> None:
    """Warns of a `generate` on finished rows, once for each stage that finishes them."""
    if any(spent is other for other in binder.spent_reported):
        return
    binder.spent_reported.append(spent)
    ends = "this goes on to the end, as it has no `stop`"
    if isinstance(spent, ast.Generate) and spent.max_tokens is not None:
        ends = f"this finishes every row, as in {binder.program.like.system}" if binder.program.like else ends
    why = (Label(word_span(spent), ends),) if spent is not stage else ()
    binder.warn(Diagnostic("QP229", message, word_span(stage), "all rows pass as they are", why, help=help))


def _first_generate(stages: tuple[ast.Stage, ...]) -> ast.Generate | None:
    """The `generate` that a round begins with, where no new turn comes before it."""
    for stage in stages:
        match stage:
            case ast.Generate():
                return stage
            case ast.Peek() | ast.Ask() | ast.Call(into=ast.Name()):
                continue
            case ast.Repeat(body=body) | ast.Search(body=body):
                return _first_generate(body)
            case ast.Prompt() | ast.Chat() | ast.Say() | ast.Branch() | ast.Call():
                return None
    return None


def _warn_uncut(binder: Binder, stage: ast.Generate) -> None:
    """Warns of options that cut a text beside a choice, which is drawn whole."""
    if not isinstance(stage.target, ast.ChoiceTarget | ast.OptionsTarget):
        return
    for option, value in present(max_tokens=stage.max_tokens, stop=stage.stop):
        message = f"`{option}` changes nothing beside `as choice(…)`: an option is drawn whole"
        binder.warn(Diagnostic("QP334", message, value.span, "never cut", help=f"leave `{option}` out"))


def _warn_greedy(binder: Binder, stage: ast.Generate) -> None:
    n, temperature = default_of(stage.n, binder.scope.params)[0], default_of(stage.temperature, {})[0]
    if not (isinstance(n, ast.Literal) and isinstance(temperature, ast.Literal)) or temperature.value != 0:
        return
    if isinstance(n.value, int) and n.value > 1 and stage.n is not None and stage.temperature is not None:
        message = f"{n.value} samples at temperature 0 are {n.value} times the same text"
        where = (Label(stage.temperature.span, "always the likeliest token"),)
        help = "leave `n` out, or raise the temperature"
        binder.warn(Diagnostic("QP302", message, stage.n.span, "", where, help=help))
