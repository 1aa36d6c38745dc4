"""`generate`: its options, and the clauses `as`, `via` and `into`; `draft_clause.py` has `draft`."""

from __future__ import annotations

import json
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.files import FileRefused
from qpdsl.grammar.literals import regex
from qpdsl.grammar.literals.constraint_regex import whole
from qpdsl.planner.check.binder import Binder, Flow
from qpdsl.planner.check.draft_clause import draft_of, is_same_model
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.scope import BoundColumn, word_span
from qpdsl.planner.names.unknown import suggestion
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.ops import Constraint
from qpdsl.planner.plan.options import RANGES, default_of
from qpdsl.planner.plan.reads import names

_OPTIONS = {"n": "int", "temperature": "float", "top_p": "float", "top_k": "int", "min_p": "float", "max_tokens": "int"}
# A `max_tokens` of this many or more is meant to be never reached.
_ENDLESS = 1024


def generate(binder: Binder, stage: ast.Generate, number: int) -> ops.Operator:
    binder.needs_context(stage)
    model = binder.model(stage.model)
    options: dict[str, ast.Expr | None] = {}
    for option, type_ in _OPTIONS.items():
        options[option] = value = getattr(stage, option)
        if value is not None:
            binder.number(stage, option, value, f"`{option}`", type_)
    _check_stop(binder, stage)
    constraint, schema = (None, None) if stage.target is None else _constraint(binder, stage.target)
    via = _via(binder, stage, model)
    draft = draft_of(binder, stage, model)
    _warn_greedy(binder, stage)
    _warn_spent(binder, stage)
    _bind_output(binder, stage, schema)
    span = word_span(stage)
    n = options.pop("n") or ast.Literal(1, span=span)
    temperature = options.pop("temperature") or ast.Literal(1.0, span=span)
    into = stage.into.id if stage.into else None
    clauses = {"stop": stage.stop, "constraint": constraint, "via": via, "draft": draft, "into": into}
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
    binder.expect(stage, "`stop`", stage.stop, "text", "a text")
    stop, declared = default_of(stage.stop, binder.scope.params)
    if isinstance(stop, ast.Template) and not "".join(map(str, stop.parts)):
        binder.scope.error("QP303", "a stop string cannot be empty", declared or stage.stop.span)


def _via(binder: Binder, stage: ast.Generate, model: str) -> ops.Filter | ops.Amortized | None:
    via = stage.via
    if via is None:
        return None
    form = "filter" if isinstance(via, ast.Filter) else "amortized"
    for name, value in via.numbers:
        what = f"the {name}" if name in ("threshold", "margin") else f"`{name}`"
        binder.number(stage, name, value, f"{what} of `{form}`", RANGES[name].type)
    if isinstance(via, ast.Amortized):
        return ops.Amortized(via.margin, via.layer, via.rerank, via.head, via.certify)
    small = binder.model(via.model)
    chooses = isinstance(stage.target, ast.ChoiceTarget)
    if chooses:
        assert stage.target is not None
        message = "`via filter` cannot stand beside `as choice`"
        notes = ("a choice draws no tokens: the probabilities of whole options decide it",)
        why = (Label(stage.target.span, "one of these is chosen"),)
        binder.scope.error("QP401", message, via.span, "leave one of them out", secondary=why, notes=notes)
    if is_same_model(binder, small, model):
        message = f"`{small}` filters for itself: every token is its own"
        binder.warn(Diagnostic("QP402", message, via.model.span, "name a smaller model"))
    return None if chooses else ops.Filter(small, via.threshold, via.by, via.share)


def _bind_output(binder: Binder, stage: ast.Generate, schema: CompiledSchema | None) -> None:
    """Binds the columns that it makes. `text` is held to the schema where all of it was generated here.

    Scores in `score` are outdated now: they are of the text before this stage.
    """
    columns = binder.scope.columns
    if "text" in columns:
        columns["text"] = BoundColumn("text", None, schema if binder.flow.fresh else None)
    if stage.into is not None:
        binder.make(stage, stage.into, "text", schema)
    flow = binder.flow
    if flow.spent is None:
        for name, column in columns.items():
            if isinstance(column.maker, ast.Score) and column.maker.into is None:
                columns[name] = replace(column, outdated=stage)
    ends = stage if stage.stop is None else None
    cut = stage if stage.stop is not None and _is_step_limit(stage.max_tokens) else None
    binder.change(generated=True, fresh=False, spent=flow.spent or ends, cut=flow.cut or cut)


def _is_step_limit(limit: ast.Expr | None) -> bool:
    """Whether a `max_tokens` may well end a row that would go on; a large one only guards against endless text."""
    guards = isinstance(limit, ast.Literal) and isinstance(limit.value, int) and limit.value >= _ENDLESS
    return limit is not None and not guards


# The clause `as`


def _constraint(binder: Binder, target: ast.Target) -> tuple[Constraint | None, CompiledSchema | None]:
    """The constraint, and the schema if it is one; None where there is an error, which is reported."""
    match target:
        case ast.SchemaTarget():
            schema = _schema(binder, target)
            if schema is None:
                return None, None
            return Constraint("json_schema", schema.constraint, target.name, schema.source), schema
        case ast.Regex(pattern=pattern):
            if regex.check(pattern, 0) is not None:  # the parser has reported it
                return None, None
            return _accepted(binder, Constraint("regex", whole(pattern), f"/{pattern}/"), target, "this regex"), None
        case ast.ChoiceTarget(options=options):
            return _choice(binder, target, options), None
        case ast.GrammarTarget():
            return _grammar(binder, target), None


def _schema(binder: Binder, target: ast.SchemaTarget) -> CompiledSchema | None:
    schemas = binder.module.schemas
    if target.name in schemas:
        return schemas.get(target.name)
    if "schema" not in binder.module.missing:
        names = schemas.names()
        notes: tuple[str, ...] = (f"schemas: {', '.join(names)}",) if names else ("the file declares no schema",)
        notes += ('other forms: `as /regex/`, `as choice("a", "b")`, `as grammar("file.lark")`',)
        fix = suggestion(target.name, target.span, names)
        fix = fix or {"help": f"declare it above the program: `schema {target.name} {{ … }}`"}
        binder.scope.error("QP222", f"unknown schema `{target.name}`", target.span, "not declared", notes=notes, **fix)
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
    spent, cut = binder.flow.spent, binder.flow.cut
    if spent is not None:
        message = "nothing is left to generate: every row is finished"
        _report_spent(binder, stage, spent, message, "give the stage before a `stop`, or start a new turn with `chat`")
    elif cut is not None and not binder.rounds:
        message = "a row that `max_tokens` has ended is finished, so nothing is generated in it here"
        why = (Label(word_span(cut), "this ends rows by `max_tokens`, where `stop` does not come first"),)
        help = 'leave `max_tokens` out there, drop such rows by `where finish == "stop"`, or start a new turn'
        binder.warn(Diagnostic("QP269", message, word_span(stage), "such rows pass as they are", why, help=help))


def _report_spent(binder: Binder, stage: ast.Generate, spent: ast.Stage, message: str, help: str) -> None:
    """Warns of a `generate` on finished rows, once for each stage that finishes them."""
    if any(spent is other for other in binder.spent_reported):
        return
    binder.spent_reported.append(spent)
    ends = "the end, as it has no `stop`"
    if isinstance(spent, ast.Generate) and spent.max_tokens is not None:
        ends = "the end or to `max_tokens`, which both finish a row"
    why = (Label(word_span(spent), f"this goes on to {ends}"),) if spent is not stage else ()
    binder.warn(Diagnostic("QP229", message, word_span(stage), "all rows pass as they are", why, help=help))


def _first_generate(stages: tuple[ast.Stage, ...]) -> ast.Generate | None:
    """The `generate` that a round begins with, where no new turn comes before it."""
    for stage in stages:
        match stage:
            case ast.Generate():
                return stage
            case ast.Peek() | ast.Call(into=ast.Name()):
                continue
            case ast.Repeat(body=body):
                return _first_generate(body)
            case ast.Prompt() | ast.Chat() | ast.Branch() | ast.Call():
                return None
    return None


def _warn_greedy(binder: Binder, stage: ast.Generate) -> None:
    n, temperature = default_of(stage.n, binder.scope.params)[0], default_of(stage.temperature, {})[0]
    if not (isinstance(n, ast.Literal) and isinstance(temperature, ast.Literal)) or temperature.value != 0:
        return
    if isinstance(n.value, int) and n.value > 1 and stage.n is not None and stage.temperature is not None:
        message = f"{n.value} samples at temperature 0 are {n.value} times the same text"
        where = (Label(stage.temperature.span, "always the likeliest token"),)
        help = "leave `n` out, or raise the temperature"
        binder.warn(Diagnostic("QP302", message, stage.n.span, "", where, help=help))
