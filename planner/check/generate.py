"""`generate`: its options, its clauses `as`, `via` and `into`, and `draft`, as user, stage or program says."""

from __future__ import annotations

import json
from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.ast.expressions import present
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Label
from qpdsl.grammar.files import FileRefused
from qpdsl.grammar.format.unparse import format_expr, format_type
from qpdsl.grammar.literals import regex
from qpdsl.grammar.literals.constraint_regex import whole
from qpdsl.grammar.literals.matcher import matcher
from qpdsl.grammar.source import Span
from qpdsl.grammar.words import DRAFTS, MAX_DRAFTED
from qpdsl.planner.check.binder import Binder, Flow
from qpdsl.planner.check.context import outdate_scores
from qpdsl.planner.check.tools import call_constraint
from qpdsl.planner.names.constraints import refusal
from qpdsl.planner.names.json_schema import value_type
from qpdsl.planner.names.modules import Module, UserDraft
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.scope import BoundColumn, word_span
from qpdsl.planner.names.tool_calls import CALL, CALLS
from qpdsl.planner.names.types import Typer
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant, default_of
from qpdsl.planner.plan.reads import names
from qpdsl.zoo import HEADS

# The largest file of texts to draft from, in bytes.
MAX_TEXT = 16 << 20


def draft_of(binder: Binder, stage: ast.Generate, model: str) -> ops.Draft | None:
    """The draft of a `generate` with this model; None where nobody says anything of it, or it is faulty.

    What the user asks for goes before the stage's clause, and that before the clause of the innermost program that has
    one. A clause of a program is for those of its stages that can draft.
    """
    asked = binder.environment.drafts
    user = asked.get(stage.model.name) or asked.get("")
    hindrance = _hindrance(stage)
    if user is not None:
        return _of_user(binder, user, model) if hindrance is None else None
    if stage.drafts is not None:
        return _of_stage(binder, stage, stage.drafts, model, hindrance)
    for module, program in reversed(binder.calls):
        if program.draft is not None:
            draft = _lowered(binder, program.draft, module)
            helps_itself = draft is not None and draft.model is not None and is_same_model(binder, draft.model, model)
            return None if helps_itself or hindrance is not None else draft
    return None


def is_same_model(binder: Binder, name: str, other: str) -> bool:
    """Whether two names of the plan stand for one model."""
    return name == other or (bool(binder.models.get(name)) and binder.models[name] == binder.models.get(other))


def check_program_draft(binder: Binder, program: ast.Program) -> None:
    """Reports a clause of a program that none of its stages could follow."""
    if program.draft is None:
        return
    stages = _generates(program.body)
    if not any(_hindrance(stage) is None for stage in stages) and not _calls(program.body):
        message = "no stage of this program can draft"
        help = "leave `draft` out; the tokens are the same without it"
        binder.scope.error("QP267", message, program.draft.span, "nothing would be drafted", help=help)
        return
    if all(stage.drafts is not None for stage in stages):
        _lowered(binder, program.draft, binder.module)


def check_ahead(binder: Binder, program: ast.Program) -> None:
    """Reports each `ahead=` that has no round to run ahead of."""
    loops = (stage for stage in walk_stages(program.body) if isinstance(stage, ast.Repeat))
    inside = {id(stage) for loop in loops for stage in _generates(loop.body)}
    for stage in _generates(program.body):
        if stage.ahead is not None and id(stage) not in inside:
            message = "`ahead=` is for a `generate` in a `repeat`: samples run ahead of its rounds"
            help = "leave `ahead` out; the tokens are the same without it"
            binder.scope.error("QP267", message, stage.ahead.span, "nothing would run ahead", help=help)


def _of_user(binder: Binder, user: UserDraft, model: str) -> ops.Draft | None:
    """What the user asks for. A name that the file does not declare is the id of a model."""
    clause, module = user.clause, binder.calls[0][0]
    name = None if clause.model is None else clause.model.name
    if name is not None:
        id = module.models.get(name, name)
        name = binder.model_key(name, id)
        if is_same_model(binder, name, model):
            return None
    return _draft(clause, name or (None if _reads_text(clause) else clause.place), user.texts)


def _of_stage(
    binder: Binder, stage: ast.Generate, clause: ast.DraftClause, model: str, hindrance: tuple[str, ast.Node] | None
) -> ops.Draft | None:
    draft = _lowered(binder, clause, binder.module)
    if draft is not None and draft.method != "none" and hindrance is not None:
        what, node = hindrance
        message = f"`draft` cannot stand beside {what}"
        help = "leave `draft` out; the tokens are the same without it"
        why = (Label(node.span, "this takes no drafts"),)
        binder.scope.error("QP267", message, clause.span, "nothing would be drafted", secondary=why, help=help)
        return None
    if draft is not None and draft.model is not None and is_same_model(binder, draft.model, model):
        message = f"`{model}` drafts for itself: checking costs as much as drafting"
        help = "name a smaller model, or write `draft early_exit`"
        binder.warn(Diagnostic("QP402", message, clause.span, "name a smaller model", help=help))
    return draft


def _lowered(binder: Binder, clause: ast.DraftClause, module: Module) -> ops.Draft | None:
    """The draft of a clause that stands in a file; None where it is faulty, which is reported."""
    scope = binder.scope
    if clause.method in DRAFTS and (clause.method in module.models or binder.names_model(clause.method)):
        message = f"`{clause.method}` is a way to draft, and a model of this file has that name"
        scope.error("QP267", message, clause.span, "which of them is meant?", help="rename the model")
        return None
    length, branches = _size(clause)
    if ops.drafted(length, branches) > MAX_DRAFTED:
        total = ops.drafted(length, branches)
        message = f"a draft has at most {MAX_DRAFTED} tokens with all its branches, this one {total:,}"
        scope.error("QP301", message, clause.span, "too large", help="lower `tokens` or `branches`")
        return None
    texts, name = "", None
    if clause.place is not None and _reads_text(clause):
        try:
            texts = module.files.read(clause.place, MAX_TEXT)
        except FileRefused as why:
            scope.error("QP228", str(why), clause.span, "cannot be read")
            return None
    elif clause.place is not None:
        name = folder_of(binder, module, clause.place, clause)
        if name is None:
            return None
    if clause.model is not None:
        known = clause.model.quoted or clause.model.name in module.models or binder.names_model(clause.model.name)
        name = binder.model(clause.model, module=module)
        if not known:
            return None
    return _draft(clause, name, texts)


def folder_of(binder: Binder, module: Module, place: str, clause: ast.Node) -> str | None:
    """The folder of a head, by its path from that of the file; None where it may not be read, which is reported.

    One that ships with the package keeps its name.
    """
    if place in HEADS:
        return place
    try:
        return str(module.files.resolve(place))
    except FileRefused as why:
        binder.scope.error("QP228", str(why), clause.span, "cannot be read")
        return None


def _reads_text(clause: ast.DraftClause) -> bool:
    """Whether what stands in its brackets is a file of texts."""
    return clause.method in DRAFTS and DRAFTS[clause.method].reads


def _draft(clause: ast.DraftClause, name: str | None, texts: str) -> ops.Draft:
    length, branches = _size(clause)
    return ops.Draft(clause.method, name, texts, length, branches)


def _size(clause: ast.DraftClause) -> tuple[int, int]:
    """Tokens one after another, and branches."""
    branches = clause.branches or 1
    return clause.tokens or ops.usual_length(branches), branches


def _hindrance(stage: ast.Generate) -> tuple[str, ast.Node] | None:
    """The clause that leaves no room for drafts, in words and as it stands."""
    if isinstance(stage.via, ast.Paired):
        return f"`via {stage.via.word}`", stage.via
    if isinstance(stage.target, ast.ChoiceTarget | ast.OptionsTarget):
        return "`as choice`", stage.target
    return None


def _generates(stages: tuple[ast.Stage, ...]) -> list[ast.Generate]:
    return [stage for stage in walk_stages(stages) if isinstance(stage, ast.Generate)]


def _calls(stages: tuple[ast.Stage, ...]) -> bool:
    return any(isinstance(stage, ast.Call) for stage in walk_stages(stages))


# What stands behind `as` besides the name of a schema.
_OTHER_TARGETS = '`as /regex/`, `as choice("a", "b")`, `as grammar("file.lark")`'


def generate(binder: Binder, stage: ast.Generate, number: int) -> ops.Operator:
    binder.needs_context(stage)
    model = binder.asks(stage.model)
    for name, part in ast.parts(ast.Generate):
        if part.range is not None or part.accepts is not None:
            binder.check_part(stage, name)
    _check_thought(binder, stage)
    _check_stop(binder, stage)
    _check_texts(binder, stage, "without", stage.without)
    stage = _check_processors(binder, stage)
    constraint, schema = (None, None) if stage.target is None else _constraint(binder, stage, stage.target)
    via = _via(binder, stage, model.name)
    until = _until(binder, stage)
    draft = draft_of(binder, stage, model.name)
    _warn_greedy(binder, stage)
    _warn_uncut(binder, stage)
    _warn_spent(binder, stage)
    _bind_output(binder, stage, schema)
    span, like = word_span(stage), binder.program.like
    return replace(
        stage,
        model=model,
        n=stage.n or ast.Literal(1, span=span),
        temperature=stage.temperature or ast.Literal(1.0, span=span),
        constraint=constraint,
        via=via,
        until=until,
        drafts=None,
        draft=draft,
        ordinal=next(binder.ordinals),
        like=like.system if like else None,
        stage=number,
    )


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


def _check_thought(binder: Binder, stage: ast.Generate) -> None:
    """Reports `think=` and `only=` where a turn has no thought that they could be about."""
    value, scope = constant(stage.think), binder.scope
    given = [(name, place) for name, place in (("think", stage.think), ("only", stage.only)) if place is not None]
    if given and binder.flow.kind == "prompt":
        name = given[0][0]
        help = "write `chat user=…` in the place of `prompt`"
        message = f"`{name}=` is for the turns of a chat: a plain prompt has no thought and no answer"
        scope.error("QP271", message, word_span(stage), "no turn here", help=help)
    if isinstance(value, ast.Literal) and type(value.value) is int and value.value < 0 and stage.think is not None:
        scope.error("QP301", f"`think` is at least 0, found {value.value}", stage.think.span, "out of range")
    if stage.only == "thought":
        if isinstance(value, ast.Literal) and value.value in (False, 0):
            message = "`only=thought` with `think=off` leaves nothing to write"
            scope.error("QP271", message, word_span(stage), "neither thought nor answer")
        if stage.target is not None:
            message, help = "`as` holds an answer, and `only=thought` writes none", "write it at the call that answers"
            scope.error("QP271", message, stage.target.span, "no answer to hold", help=help)
    elif stage.only == "answer" and not (binder.flow.thinking or binder.rounds):
        message = "`only=answer` ends a thought, but no stage before it has left one open in this turn"
        help = "`generate … only=thought` writes a thought; `think=off` answers without one"
        scope.error("QP271", message, word_span(stage), "no thought to end", help=help)


def _check_stop(binder: Binder, stage: ast.Generate) -> None:
    _check_texts(binder, stage, "stop", stage.stop)
    if stage.stop is None and stage.stop_text == "drop":
        message = "`stop_text=drop` leaves out what stopped, but nothing stops this"
        binder.scope.error("QP401", message, word_span(stage), "no `stop` here", help="give it a `stop`")


def _check_texts(binder: Binder, stage: ast.Generate, name: str, value: ast.Expr | None) -> None:
    """Checks an option that takes a text or a list of texts, and `stop` regexes too."""
    if value is None:
        return
    entries: list[tuple[ast.Expr, ast.Expr | None, Span | None]]
    if isinstance(value, ast.Binary) and value.op == "or":
        message, help = f"`{name}` takes several texts in a list", f'write `{name}=["a", "b"]`'
        binder.scope.error("QP209", message, value.span, "`or` joins conditions", help=help)
        return
    if isinstance(value, ast.ListLiteral):
        entries = [(item, item, None) for item in value.items]
        if not entries:
            what = "a list of what stops" if name == "stop" else f"the list of `{name}`"
            binder.scope.error("QP303", f"{what} cannot be empty", value.span)
    else:
        entries = [(value, *default_of(value, binder.scope.params))]
    for item, text, declared in entries:
        if isinstance(item, ast.Regex) and name == "stop":
            _check_stop_pattern(binder, item)
            continue
        listed = item is value and isinstance(item, ast.Name | ast.Path)
        known = frozenset({"text", "[text]"} if listed else {"text"})
        Typer(binder.scope, stage, "option", f"`{name}`").expect(item, known, "a text")
        if isinstance(text, ast.Template) and not "".join(map(str, text.parts)):
            what = "a stop string" if name == "stop" else f"a text of `{name}`"
            binder.scope.error("QP303", f"{what} cannot be empty", declared or item.span)
        written = "".join(map(str, text.parts)) if isinstance(text, ast.Template) else ""
        if name == "stop" and len(written) > 2 and written[0] == written[-1] == "/":
            message = "this stops at the slashes too: it is a text, and no regex"
            help = "a regex has no quotes: `stop=/…/`"
            binder.warn(Diagnostic("QP333", message, declared or item.span, "looks like a regex", help=help))


def _check_processors(binder: Binder, stage: ast.Generate) -> ast.Generate:
    """The stage without what masks its logits where that has no meaning, which is reported."""
    if stage.logit_bias is not None:
        actual = Typer(binder.scope, stage, "option", "`logit_bias`").type(stage.logit_bias)
        if actual != "unknown" and not actual.startswith("[{"):
            message = f"`logit_bias` takes a list of records, found {actual}"
            help = 'write it as `[{token: " Yes", bias: 2.0}]`'
            binder.scope.error("QP209", message, stage.logit_bias.span, f"this is {actual}", help=help)
    match stage.min_tokens, stage.max_tokens:
        case ast.Literal(value=int(least)) as ahead, ast.Literal(value=int(most)) if least > most:
            message = f"`min_tokens` is at most `max_tokens`, which is {most}, found {least}"
            binder.scope.error("QP301", message, ahead.span, "it ends before")
    target = stage.target
    if stage.first_tokens != "drawn" and (other := target or stage.via) is not None:
        why = (Label(other.span, "this says what is written too"),)
        message = f"`first_tokens=likeliest` cannot stand beside `{'as' if target else 'via'}`"
        binder.scope.error("QP401", message, word_span(stage), "leave one of them out", secondary=why)
        stage = replace(stage, first_tokens="drawn")
    if target is None:
        return stage
    chooses = isinstance(target, ast.ChoiceTarget | ast.OptionsTarget)
    held = present(without=stage.without, min_tokens=stage.min_tokens)
    for name, value in (*held, *(stage.penalties if chooses else ())):
        message = f"`{name}` cannot stand beside `as choice`" if chooses else f"`{name}` cannot stand beside `as`"
        note = "a choice draws no tokens" if chooses else "a form says by itself what is written, and where it ends"
        why = (Label(target.span, "one of these is chosen" if chooses else "what is written"),)
        binder.scope.error("QP401", message, value.span, "leave one of them out", secondary=why, notes=(note,))
    return replace(stage, without=None, min_tokens=None) if held else stage


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


def _via(binder: Binder, stage: ast.Generate, model: str) -> ast.Via | None:
    via = stage.via
    if via is None:
        return None
    for value, part, _ in ast.values(via):
        binder.check_value(stage, part, value)
    if isinstance(via, ast.Amortized):
        head = None if via.head is None else folder_of(binder, binder.module, via.head, via)
        return None if via.head is not None and head is None else replace(via, head=head)
    small = binder.asks(via.model)
    chooses = isinstance(stage.target, ast.ChoiceTarget | ast.OptionsTarget)
    if chooses:
        assert stage.target is not None
        message = f"`via {via.word}` cannot stand beside `as choice`"
        notes = ("a choice draws no tokens: the probabilities of whole options decide it",)
        why = (Label(stage.target.span, "one of these is chosen"),)
        binder.scope.error("QP401", message, via.span, "leave one of them out", secondary=why, notes=notes)
    if is_same_model(binder, small.name, model):
        nothing = "filters for itself: every token is its own"
        if isinstance(via, ast.Contrast):
            nothing = "is contrasted with itself: nothing sets it apart, and only `min_p` would be left"
        message = f"`{small.name}` {nothing}"
        binder.warn(Diagnostic("QP402", message, via.model.span, "name a smaller model"))
    return None if chooses else replace(via, model=small)


def _until(binder: Binder, stage: ast.Generate) -> ast.Until | None:
    """What ends rows by their confidence; None where nothing does, or nothing is known of their draws."""
    until = stage.until
    if until is None:
        return None
    for value, part, _ in ast.values(until):
        binder.check_value(stage, part, value)
    message = "nothing is known of the draws of this text, so `until confidence` cannot end it"
    return until if binder.needs_draws(stage, message, until.span, "leave one of them out") else None


def _bind_output(binder: Binder, stage: ast.Generate, schema: CompiledSchema | None) -> None:
    """Binds the columns that it makes. `text` is held to the schema where all of it was generated here.

    Scores in `score` are outdated now: they are of the text before this stage.
    """
    columns = binder.scope.columns
    if "text" in columns:
        # A call is written as the model writes calls.
        spelt = binder.flow.fresh and not isinstance(stage.target, ast.CallTarget)
        columns["text"] = BoundColumn("text", None, schema if spelt else None)
    if stage.into is not None:
        faulty = schema is None and isinstance(stage.target, ast.SchemaTarget | ast.TypeTarget | ast.CallTarget)
        type_ = "unknown" if faulty else "text" if schema is None else value_type(schema.document)
        if isinstance(stage.target, ast.CallTarget):
            type_ = CALL if stage.target.most is None else CALLS
        binder.make(stage, stage.into, type_, schema)
    flow = binder.flow
    if flow.spent is None:
        outdate_scores(binder, stage)
    spent = flow.spent or (stage if _finishes(binder, stage) else None)
    written = flow.written | ({stage.into.id} if stage.into is not None else set())
    binder.change(generated=True, fresh=False, spent=spent, thinking=stage.only == "thought", written=written)


def _finishes(binder: Binder, stage: ast.Generate) -> bool:
    """Whether every row is finished after it: nothing but the model, or the end of its context, ends a row here."""
    bounded = stage.max_tokens is not None and binder.program.like is None
    return stage.stop is None and stage.target is None and not bounded and stage.only != "thought"


# The clause `as`
def _constraint(
    binder: Binder, stage: ast.Generate, target: ast.Target
) -> tuple[ast.Constraint | None, CompiledSchema | None]:
    """The constraint, and the schema if it is one; None where there is an error, which is reported."""
    match target:
        case ast.SchemaTarget():
            schema = binder.schema(target.name, target.span, _OTHER_TARGETS)
            if schema is None:
                return None, None
            return _of_schema(schema, target.name), schema
        case ast.TypeTarget(type=type_):
            schema = binder.module.schemas.compile_type(type_)
            return (None, None) if schema is None else (_of_schema(schema, format_type(type_)), schema)
        case ast.OptionsTarget(options=options):
            Typer(binder.scope, stage, "option", "`choice`").expect(options, "[text]", "a list of texts")
            return ast.Constraint("choice", "", f"choice({format_expr(options)})", options=options), None
        case ast.Regex(pattern=pattern):
            if regex.check(pattern, 0) is not None:  # the parser has reported it
                return None, None
            return _accepted(
                binder, ast.Constraint("regex", whole(pattern), f"/{pattern}/"), target, "this regex"
            ), None
        case ast.ChoiceTarget(options=options):
            return _choice(binder, target, options), None
        case ast.GrammarTarget():
            return _grammar(binder, target), None
        case ast.CallTarget():
            return call_constraint(binder, target)


def _of_schema(schema: CompiledSchema, name: str) -> ast.Constraint:
    return ast.Constraint("json_schema", schema.constraint, name, schema.source, value_type(schema.document))


def _choice(binder: Binder, target: ast.ChoiceTarget, options: tuple[str, ...]) -> ast.Constraint | None:
    if "" in options:
        binder.scope.error("QP308", "a choice cannot be empty", target.span, "one of these is")
        return None
    shown = ", ".join(json.dumps(option, ensure_ascii=False) for option in options)
    constraint = ast.Constraint("choice", json.dumps(options, ensure_ascii=False), f"choice({shown})")
    return _accepted(binder, constraint, target, "these choices")


def _grammar(binder: Binder, target: ast.GrammarTarget) -> ast.Constraint | None:
    try:
        text = binder.module.files.read(target.path)
    except FileRefused as why:
        binder.scope.error("QP228", str(why), target.span, "cannot be read")
        return None
    constraint = ast.Constraint("grammar", text, f'grammar("{target.path}")')
    return _accepted(binder, constraint, target, f"the grammar `{target.path}`")


def _accepted(binder: Binder, constraint: ast.Constraint, target: ast.Target, what: str) -> ast.Constraint | None:
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
    if stage.first_tokens != "drawn":
        return
    if isinstance(n.value, int) and n.value > 1 and stage.n is not None and stage.temperature is not None:
        message = f"{n.value} samples at temperature 0 are {n.value} times the same text"
        where = (Label(stage.temperature.span, "always the likeliest token"),)
        help = "leave `n` out, or raise the temperature"
        binder.warn(Diagnostic("QP302", message, stage.n.span, "", where, help=help))
