"""`generate`: its options, and the clauses `as`, `via`, `draft` and `into`."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.planner import ops
from qpdsl.planner.options import default_of
from qpdsl.planner.reads import names
from qpdsl.planner.schemas import Schema
from qpdsl.planner.scope import Column, word_span
from qpdsl.planner.targets import constraint_of
from qpdsl.planner.walk import Flow, Walk

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
