"""`chat` and `prompt`: they start a context, or go on with the one there is.

MERGED: `generate … as`: what the output is held to, compiled.

MERGED: `generate`: its options, and the clauses `as`, `via`, `draft` and `into`.
"""

from __future__ import annotations

import json
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.files import FileRefused
from qpdsl.planner.names.json_schema import refusal
from qpdsl.planner.names.schemas import Schema
from qpdsl.planner.names.scope import Column, stage_word, word_span
from qpdsl.planner.names.types import Reads, reader
from qpdsl.planner.names.unknown import suggestion
from qpdsl.planner.names.walk import Flow, Walk
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.ops import Constraint
from qpdsl.planner.plan.options import default_of
from qpdsl.planner.plan.reads import names


def set_context(walk: Walk, stage: ast.Prompt | ast.Chat, number: int) -> ops.Operator | None:
    scope, flow = walk.scope, walk.flow
    word = stage_word(stage)
    # Before the first one there are no columns yet.
    reads: Reads = "parameters" if flow.context is None else "row"
    if isinstance(stage, ast.Prompt):
        reader(scope, stage, reads).type(stage.text)
    else:
        for turn in stage.turns:
            reader(scope, stage, reads, f"`{turn.role}`").expect(turn.content, "text", "a text")
    if flow.kind not in (None, word):
        started = flow.context
        message = f"`{word}` cannot go on with a context of {'chat turns' if flow.kind == 'chat' else 'plain text'}"
        label, help = "this context is another kind", f"write `{flow.kind}` here, or `{word}` there"
        if flow.kind == "either":
            message = f"`{word}` cannot go on with a context that is chat turns in some rows and plain text in others"
            help = "let all arms of the `branch` start the same kind"
        first = (Label(word_span(started), "the context starts here"),) if started is not None else ()
        scope.error("QP221", message, word_span(stage), label, secondary=first, help=help)
    context = stage if flow.kind is None else flow.context
    walk.change(context=context, kind=flow.kind or word, fresh=True, spent=None)
    scope.start_context()
    if isinstance(stage, ast.Prompt):
        return ops.SetContext(prompt=stage.text, stage=number, span=stage.span)
    return ops.SetContext(stage.turns, stage=number, span=stage.span) if stage.turns else None


def constraint_of(walk: Walk, target: ast.Target) -> tuple[Constraint | None, Schema | None]:
    """The constraint, and the schema where it is one; None where there is an error, which is reported."""
    match target:
        case ast.SchemaTarget():
            schema = _schema(walk, target)
            return (Constraint("json_schema", schema.source, target.name), schema) if schema else (None, None)
        case ast.Regex(pattern=pattern):
            return _compiled(walk, Constraint("regex", pattern, f"/{pattern}/"), target, "this regex"), None
        case ast.ChoiceTarget(options=options):
            return _choice(walk, target, options), None
        case ast.GrammarTarget():
            return _grammar(walk, target), None


def _schema(walk: Walk, target: ast.SchemaTarget) -> Schema | None:
    schemas = walk.module.schemas
    if target.name in schemas:
        return schemas.get(target.name)
    if "schema" not in walk.module.missing:
        names = schemas.names()
        notes: tuple[str, ...] = (f"schemas: {', '.join(names)}",) if names else ("the file declares no schema",)
        notes += ('other forms: `as /regex/`, `as choice("a", "b")`, `as grammar("file.lark")`',)
        fix = suggestion(target.name, target.span, names)
        fix = fix or {"help": f"declare it above the program: `schema {target.name} {{ … }}`"}
        walk.scope.error("QP222", f"unknown schema `{target.name}`", target.span, "not declared", notes=notes, **fix)
    return None


def _choice(walk: Walk, target: ast.ChoiceTarget, options: tuple[str, ...]) -> Constraint | None:
    if "" in options:
        walk.scope.error("QP308", "a choice cannot be empty", target.span, "one of these is")
        return None
    shown = ", ".join(json.dumps(option, ensure_ascii=False) for option in options)
    constraint = Constraint("choice", json.dumps(options, ensure_ascii=False), f"choice({shown})")
    return _compiled(walk, constraint, target, "these choices")


def _grammar(walk: Walk, target: ast.GrammarTarget) -> Constraint | None:
    try:
        text = walk.module.files.read(target.path)
    except FileRefused as why:
        walk.scope.error("QP228", str(why), target.span, "cannot be read")
        return None
    constraint = Constraint("grammar", text, f'grammar("{target.path}")')
    return _compiled(walk, constraint, target, f"the grammar `{target.path}`")


def _compiled(walk: Walk, constraint: Constraint, target: ast.Target, what: str) -> Constraint | None:
    why_not = refusal(constraint.kind, constraint.source)
    if why_not is None:
        return constraint
    found = Diagnostic("QP307", f"no output can be held to {what}", target.span, "llguidance refuses it")
    walk.scope.report(replace(found, notes=(why_not,)))
    return None


_OPTIONS = {"n": "int", "temperature": "float", "top_p": "float", "top_k": "int", "min_p": "float", "max_tokens": "int"}


def generate(walk: Walk, stage: ast.Generate, number: int) -> ops.Operator:
    walk.needs_context(stage)
    model = walk.model(stage.model)
    given: dict[str, ast.Expr | None] = {}
    for option, type_ in _OPTIONS.items():
        given[option] = value = getattr(stage, option)
        if value is not None:
            walk.number(stage, option, value, f"`{option}`", type_)
    _check_stop(walk, stage)
    constraint, schema = (None, None) if stage.target is None else constraint_of(walk, stage.target)
    via = _via(walk, stage, model)
    draft = _draft(walk, stage, model)
    _warn_greedy(walk, stage)
    _warn_spent(walk, stage)
    _made(walk, stage, schema)
    span = word_span(stage)
    n = given.pop("n") or ast.Literal(1, span=span)
    temperature = given.pop("temperature") or ast.Literal(1.0, span=span)
    into = stage.into.id if stage.into else None
    more = {"stop": stage.stop, "constraint": constraint, "via": via, "draft": draft, "into": into}
    return ops.Generate(model, n, temperature, **given, **more, stage=number, span=stage.span)  # type: ignore[arg-type]


def _check_stop(walk: Walk, stage: ast.Generate) -> None:
    if stage.stop is None:
        return
    walk.expect(stage, "`stop`", stage.stop, "text", "a text")
    stop, declared = default_of(stage.stop, walk.scope.params)
    if isinstance(stop, ast.Template) and not "".join(map(str, stop.parts)):
        walk.scope.error("QP303", "a stop string cannot be empty", declared or stage.stop.span)


def _via(walk: Walk, stage: ast.Generate, model: str) -> ops.Filter | ops.Amortized | None:
    via = stage.via
    if via is None:
        return None
    if isinstance(via, ast.Amortized):
        walk.number(stage, "margin", via.margin, "the margin of `amortized`", "float")
        return ops.Amortized(via.margin)
    small = walk.model(via.model)
    walk.number(stage, "threshold", via.threshold, "the threshold of `filter`", "float")
    if stage.target is not None:
        message = "`via filter` cannot stand beside `as`"
        notes = ("the small model's confidence says nothing of the tokens that a constraint leaves",)
        what = (Label(stage.target.span, "the output is held to this"),)
        walk.scope.error("QP401", message, via.span, "leave one of them out", secondary=what, notes=notes)
    if _same(walk, small, model):
        message = f"`{small}` filters for itself: every token is its own"
        walk.warn(Diagnostic("QP402", message, via.model.span, "name a smaller model"))
    return ops.Filter(small, via.threshold)


def _draft(walk: Walk, stage: ast.Generate, model: str) -> str | None:
    """The model to draft with: the stage's own, else the program's where nothing stands against it."""
    if stage.draft is None:
        if walk.draft is None or stage.via is not None or walk.draft.name == stage.model.name:
            return None
        return walk.model(walk.draft)
    draft = walk.model(stage.draft)
    if stage.via is not None:
        via = (Label(stage.via.span, "this names the tokens already"),)
        message = "`draft` cannot stand beside `via`"
        walk.scope.error("QP401", message, stage.draft.span, "leave one of them out", secondary=via)
    elif _same(walk, draft, model):
        message = f"`{draft}` drafts for itself, which saves nothing"
        walk.warn(Diagnostic("QP402", message, stage.draft.span, "name a smaller model"))
    return draft


def _same(walk: Walk, one: str, other: str) -> bool:
    return one == other or (one in walk.models and walk.models[one] == walk.models.get(other))


def _made(walk: Walk, stage: ast.Generate, schema: Schema | None) -> None:
    """What the rows are after it: `text` is held to the schema where all of it was generated here."""
    columns = walk.scope.columns
    if "text" in columns:
        columns["text"] = Column("text", None, schema if walk.flow.fresh else None)
    if stage.into is not None:
        walk.make(stage, stage.into, "text", schema)
    walk.change(generated=True, fresh=False, spent=stage if stage.stop is None else None)


def _warn_spent(walk: Walk, stage: ast.Generate) -> None:
    before = walk.flow.spent
    if before is None:
        return
    message = "nothing is left to generate: every row is finished"
    why = (Label(word_span(before), "this goes on to the end, as it has no `stop`"),)
    help = "give the stage before a `stop`, or start a new turn with `chat`"
    walk.warn(Diagnostic("QP229", message, word_span(stage), "all rows pass as they are", why, help=help))


def warn_spent_rounds(walk: Walk, stage: ast.Repeat, before: Flow) -> None:
    """Warns where the first round of a `repeat` finishes every row, so that a later one generates nothing."""
    spent, limit = walk.flow.spent, default_of(stage.limit, {})[0]
    first = _first_generate(stage.body)
    if spent is None or spent is before.spent or first is None or getattr(limit, "value", 0) == 1:
        return
    if stage.until is not None and any(name.id in ("finish", "finished") for name in names(stage.until)):
        return  # then the rounds end, and the condition has its own warning
    message = "nothing is left to generate after the first round: every row is finished"
    why = (Label(word_span(spent), "this goes on to the end, as it has no `stop`"),) if spent is not first else ()
    help = "give it a `stop`, or start a new turn with `chat` in each round"
    walk.warn(Diagnostic("QP229", message, word_span(first), "all rows pass as they are", why, help=help))


def _first_generate(stages: tuple[ast.Stage, ...]) -> ast.Generate | None:
    """The `generate` that a round begins with, where no new turn comes before it."""
    for stage in stages:
        match stage:
            case ast.Generate():
                return stage
            case ast.Peek():
                continue
            case ast.Repeat(body=body):
                return _first_generate(body)
            case ast.Prompt() | ast.Chat() | ast.Branch() | ast.Call():
                return None
    return None


def _warn_greedy(walk: Walk, stage: ast.Generate) -> None:
    n, temperature = default_of(stage.n, walk.scope.params)[0], default_of(stage.temperature, {})[0]
    if not (isinstance(n, ast.Literal) and isinstance(temperature, ast.Literal)) or temperature.value != 0:
        return
    if isinstance(n.value, int) and n.value > 1 and stage.n is not None and stage.temperature is not None:
        message = f"{n.value} samples at temperature 0 are {n.value} times the same text"
        where = (Label(stage.temperature.span, "always the likeliest token"),)
        help = "leave `n` out, or raise the temperature"
        walk.warn(Diagnostic("QP302", message, stage.n.span, "", where, help=help))
