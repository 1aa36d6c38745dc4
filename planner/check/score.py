"""`score`, `extract` and `best by compare(…)`: the stages that ask a verifier, or take a column out of a text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.format.unparse import format_pattern
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, did_you_mean, listed
from qpdsl.grammar.words import (
    COLUMNS,
    COMPARED,
    DRAW_FIGURES,
    DRAW_REDUCES,
    EXTRACTORS,
    FAILURE,
    JUDGE_REDUCES,
    REDUCES,
    Type,
    Which,
)
from qpdsl.planner.check.binder import Binder
from qpdsl.planner.check.call import by_name
from qpdsl.planner.names.json_schema import PathFault, item_type_at, type_at
from qpdsl.planner.names.modules import Inputs
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.scope import word_span
from qpdsl.planner.names.types import Typer
from qpdsl.planner.names.unknown import unknown_verifier
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.reads import names

Names = tuple[str, ...]
_S = TypeVar("_S", bound=ast.Score)
Arguments = ast.Arguments


def score(binder: Binder, stage: ast.Score, number: int) -> ops.Operator:
    column = stage.into or ast.Name("score", span=word_span(stage))
    if stage.of is not None and _is_of_draws(stage) and _is_written(binder, stage.of):
        # Of what type the column is does not matter.
        Typer(binder.scope, stage, "row").type(stage.of)
    else:
        binder.check_part(stage, "of")
    binder.check_part(stage, "given")
    op = _checked(binder, stage)
    reduce = op.reduce or op.usual_reduce
    binder.make(stage, column, "float")
    binder.score_column = column.id
    return replace(op, into=column, reduce=reduce, stage=number)


def reads_text(stage: ast.Score) -> bool:
    """Whether the score is that of the row's text, so that it is outdated once the text goes on."""
    if isinstance(stage, ast.Equal | ast.Prob) or (isinstance(stage, ast.Judge) and stage.whole):
        return False
    parts = isinstance(stage, ast.DrawScore) and isinstance(stage.of, ast.Name) and stage.of.id in ("text", "thought")
    return stage.of is None or parts


def _checked(binder: Binder, stage: ast.Score) -> ast.Score:
    """The verifier as the plan asks it; `reduce` is None where nothing is said of it."""
    match stage:
        case ast.DrawScore():
            binder.check_part(stage, "window")
            return _draw_score(binder, stage)
        case ast.Judge():
            return _judge(binder, stage)
        case ast.Likelihood(question=question, answers=answers):
            reduce = _reduce(binder, stage, ("sum", "mean", "min"), "a likelihood is that of the tokens")
            stage = _asks(binder, stage, (question, *answers))
            return replace(stage, model=binder.asks(stage.model), reduce=reduce)
        case ast.Prob(question=question, answers=answers):
            stage = _asks(binder, stage, (question, *answers), reduce="`prob` gives one number for a row")
            return replace(stage, model=binder.asks(stage.model))
        case ast.Equal(answer=answer, reference=reference):
            return _asks(binder, stage, (answer, reference), reduce="`equal` gives one number for a row")
        case ast.ValidJson(schema=schema):
            return _json(binder, stage, None if schema is None else binder.schema(schema.id, schema.span))
        case ast.Passes():
            _needs_scored_text(binder, stage)
            binder.check_part(stage, "tests")
            binder.check_part(stage, "timeout")
            why = "code passes its tests or does not"
            return _without(binder, stage, reduce=why, given="`passes` runs code, and is shown no problem")
        case ast.StepScore():
            return _named(binder, stage)
    raise TypeError(f"no verifier: {stage!r}")


def _named(binder: Binder, stage: ast.StepScore) -> ast.Score:
    """What the verifier is that a bare name stands for."""
    verifier, name = stage.verifier, stage.verifier.name
    scorers, models = binder.environment.scorers, binder.module.models
    if verifier.quoted or binder.names_model(name):
        kind = None if verifier.quoted else binder.kind_of(name)
        _needs_scored_text(binder, stage)
        _check_problem(binder, stage, f"`{name}`")
        model = binder.asks(verifier, scores=True)
        reduce = _reduce(binder, stage, REDUCES, f"`{name}` scores steps")
        return replace(stage, verifier=model, reduce=reduce, kind=kind, raw=binder.program.like is not None)
    shared: dict[str, Any] = {name: getattr(stage, name) for name in ("reduce", "of", "given", "into", "at", "span")}
    if name == "logprob":
        _needs_scored_text(binder, stage)
        why = "`logprob` is a number of the generator's own, and is shown no"
        refused = {"given": f"{why} problem"}
        if not _is_written(binder, stage.of):
            refused["of"] = f"{why} text but a column that `generate … into` wrote in this conversation"
        stage = _without(binder, stage, **refused)
        if stage.reduce not in (None, "sum", "mean", "min"):
            message = f"`logprob` has no `{stage.reduce}`: it is one number for the whole text"
            help = "write `reduce=mean` or `min`, over the tokens, or `reduce=sum`, which it is without `reduce`"
            binder.scope.error("QP225", message, stage.span, "cannot be reduced so", help=help)
        reduced = stage.reduce if stage.reduce in ("mean", "min") else "sum"
        return ast.LogProb(**{**shared, "reduce": reduced, "of": stage.of, "given": None})
    figure = next((figure for figure in DRAW_FIGURES if figure == name), None)
    if figure is not None and name not in scorers:
        return _draw_score(binder, ast.DrawScore(figure, **shared))
    if name == "json" and name not in scorers:
        return _json(binder, ast.ValidJson(**shared), None)
    if name in scorers:
        return _python(binder, stage, ast.PythonScore(name, **shared))
    _needs_scored_text(binder, stage)
    if "model" not in binder.module.missing:
        binder.scope.report(unknown_verifier(verifier, models, scorers))
    return ast.PythonScore(name, **{**shared, "reduce": None})


def _draw_score(binder: Binder, stage: ast.DrawScore) -> ast.Score:
    kind = stage.kind
    binder.needs_text(stage)
    why = f"`{kind}` is of the generator's own draws, and is shown no"
    reduce = _reduce(binder, stage, DRAW_REDUCES, f"`{kind}` is of the tokens")
    made = [inner for inner in walk_stages(binder.program.body) if inner.span.end <= stage.span.start]
    written = next((inner for inner in reversed(made) if isinstance(inner, ast.Generate)), None)
    if written is not None:
        message = f"nothing is known of the draws of this text, so there is no `{kind}`"
        binder.needs_draws(written, message, _at(stage), "`score logprob reduce=mean` tells how probable the text was")
    refused = {"given": f"{why} problem"}
    if not (isinstance(stage.of, ast.Name) and stage.of.id in ("thought", "text")) and not _is_written(
        binder, stage.of
    ):
        others = "the answer, `thought`, and columns that `generate … into` wrote in this conversation"
        refused["of"] = f"{why} text but `text`, {others}"
    return replace(_without(binder, stage, **refused), reduce=reduce)


def _is_of_draws(stage: ast.Score) -> bool:
    """Whether it looks at how a text was drawn, and not at the text."""
    if isinstance(stage, ast.StepScore):
        return stage.verifier.name in ("logprob", *DRAW_FIGURES)
    return isinstance(stage, ast.DrawScore | ast.LogProb)


def _is_written(binder: Binder, of: ast.Expr | None) -> bool:
    """Whether a call wrote the column in the rows' own conversation, and nothing has taken its place."""
    if not isinstance(of, ast.Name) or of.id not in binder.flow.written:
        return False
    column = binder.scope.columns.get(of.id)
    return column is None or column.maker is None or isinstance(column.maker, ast.Generate)


def _at(stage: ast.Score) -> Span:
    """Where the verifier is written."""
    return stage.at or word_span(stage)


def _judge(binder: Binder, stage: ast.Judge) -> ast.Score:
    model = binder.asks(stage.model)
    reduce = _reduce(binder, stage, JUDGE_REDUCES, "a judge gives one number for a row")
    if stage.whole:
        return replace(_asks(binder, stage, (stage.rubric,)), model=model, reduce=reduce)
    Typer(binder.scope, stage, "parameters", "the rubric").type(stage.rubric)
    _needs_scored_text(binder, stage)
    _check_problem(binder, stage, "the judge")
    return replace(stage, model=model, reduce=reduce)


def _json(binder: Binder, stage: ast.ValidJson, schema: CompiledSchema | None) -> ast.Score:
    _needs_scored_text(binder, stage)
    stage = _without(binder, stage, reduce="a text is JSON or is not", given="`json` is shown no problem")
    name = None if schema is None else stage.schema
    return replace(stage, schema=name, source=schema.source if schema else None)


def _python(binder: Binder, stage: ast.StepScore, op: ast.PythonScore) -> ast.Score:
    name = op.function
    refused = {"reduce": f"`{name}` gives one number for a row"}
    usual, asks, arguments = _asked(binder, stage, name, _at(stage))
    if "text" in usual:
        _needs_scored_text(binder, stage)
    else:
        refused["of"] = f"`{name}` asks for no text: it has no parameter `text`"
    if "problem" in usual:
        _check_problem(binder, stage, f"`{name}`")
    else:
        refused["given"] = f"`{name}` asks for no problem: it has no parameter `problem`"
    _without(binder, stage, **refused)
    return replace(op, asks=asks, arguments=arguments, row="row" in usual, reduce=None)


def _asked(binder: Binder, stage: ast.Stage, name: str, span: Span) -> tuple[frozenset[str], Names, Arguments]:
    """What a Python function is given: of text, problem and row, the columns that it asks for, and the parameters."""
    inputs, scope = binder.environment.inputs.get(name, Inputs()), binder.scope
    asks = tuple(wanted for wanted in inputs.wanted if wanted in scope.columns)
    # A called program has the values of its parameters, and nothing of those of its callers.
    known: Mapping[str, ast.Expr] = binder.values
    if len(binder.calls) == 1:
        known = {name: ast.Name(name, span=span) for name in scope.params}
    arguments = tuple((name, known[name]) for name in inputs.wanted if name in known and name not in asks)
    named = {*asks, *(name for name, _ in arguments)}
    for column in asks:
        scope.column(ast.Name(column, span=span), stage)
    first = inputs.first is not None and inputs.first not in named
    usual = inputs.usual | ({"text"} if first else frozenset())
    for wanted, required in inputs.wanted.items():
        if wanted in named or wanted == inputs.first or not required:
            continue
        if scope.gap_before(span.start, "extract", "score", "repeat", "branch", "call", "into", "let", wanted):
            continue
        possible = list(dict.fromkeys(("text", *scope.columns, *known, "problem", "row")))
        near = closest(wanted, possible)
        later = (Label(scope.makers[wanted].span, "made here, too late"),) if wanted in scope.makers else ()
        message = f"`{name}` asks for `{wanted}`, which is no column here and no parameter of the program"
        notes = (f"it can ask for {listed(possible, last='and')}",)
        help = f"did you mean `{near}`?" if near else "give the function's parameter another name, or a default"
        scope.error("QP241", message, span, f"asks for `{wanted}`", secondary=later, notes=notes, help=help)
    return usual, asks, arguments


def _needs_scored_text(binder: Binder, stage: ast.Score) -> None:
    """Reports that there is no text to score, but where `of` names one."""
    if stage.of is None:
        binder.needs_text(stage)


def _asks(binder: Binder, stage: _S, shown: tuple[ast.Expr, ...], **refused: str) -> _S:
    """A question with all that is shown in its brackets. It may show the row's text, which has to be there."""
    if any(name.id in ("text", "step") for expr in shown for name in names(expr)):
        binder.needs_text(stage)
    for expr in shown:
        Typer(binder.scope, stage, "row").type(expr)
    why = "nothing else is shown here than what stands between the brackets"
    return _without(binder, stage, given=why, of=why, **refused)


def _without(binder: Binder, stage: _S, **refused: str) -> _S:
    """The stage without clauses that say nothing to its verifier. One that is there is reported, with why."""
    for clause, why in refused.items():
        value = getattr(stage, clause)
        if value is not None and clause == "reduce":
            binder.scope.error("QP225", f"nothing to reduce: {why}", stage.span, "leave `reduce` out")
        elif value is not None:
            binder.scope.error("QP277", why, value.span, "nobody is shown this", help=f"leave `{clause}` out")
    changes: dict[str, Any] = dict.fromkeys(refused)
    return replace(stage, **changes)


def _reduce(binder: Binder, stage: ast.Score, known: tuple[str, ...], why: str) -> Any:
    """What the stage says of reducing, None where it says nothing or what is not `known`, which is reported."""
    if stage.reduce is None or stage.reduce in known:
        return stage.reduce
    help = f"write {listed(f'reduce={word}' for word in known)}, or leave `reduce` out"
    binder.scope.error("QP225", f"nothing to reduce by `{stage.reduce}`: {why}", stage.span, "another way", help=help)
    return None


def _check_problem(binder: Binder, stage: ast.Score, who: str) -> None:
    """Warns where the problem that a verifier is shown is a guess. `who` is the verifier, in a sentence."""
    if stage.given is None:
        likely = _likely_problem(binder)
        verifier = _at(stage)
        help = f"say which it is: `given {likely}`" if likely else 'say which it is: `given NAME` or `given "…"`'
        end = verifier.end if stage.of is None else stage.of.span.end
        edit = Edit(Span(end, end), f" given {likely}") if likely else None
        if binder.flow.context is None:
            message = f"{who} is to be shown a problem, and no conversation has one"
            binder.scope.error("QP215", message, verifier, "which problem?", help=help, edit=edit)
            return
        _warn_guess(binder, verifier, who, help, edit)


def _warn_guess(binder: Binder, span: Span, who: str, help: str | None, edit: Edit | None) -> None:
    problem = binder.flow.problem
    if problem.doubt is None or problem.place is None:
        return
    first = "the first prompt" if binder.flow.kind == "prompt" else "the first user turn"
    shown = "no problem" if problem.value is None else f"{first} as the problem, which is a guess"
    why = (Label(problem.place, problem.doubt),)
    binder.warn(Diagnostic("QP275", f"{who} is shown {shown}", span, "which problem?", why, help=help, edit=edit))


def _likely_problem(binder: Binder) -> str | None:
    """What the problem is likely to be: a text that the first turn names, else the first text among the parameters."""
    scope, value = binder.scope, binder.flow.problem.value
    named = [] if value is None else [name.id for name in names(value)]
    texts = [id for id in scope.params if scope.param_type(id) == "text"]
    columns = [id for id in named if id in scope.columns and scope.columns[id].type == "text" and id not in COLUMNS]
    return next((id for id in named if id in texts or id in columns), texts[0] if texts else None)


def tournament(binder: Binder, stage: ast.Tournament, number: int) -> ops.Operator:
    """`best`, `keep` and `order by compare(…)`, which shows columns of two rows, and parameters."""
    binder.check_part(stage, "per")
    if isinstance(stage, ast.KeepTournament):
        binder.check_part(stage, "count")
    scope, question = binder.scope, stage.question
    shown = [part for part in question.parts if not isinstance(part, str)]
    columns = [part for part in shown if isinstance(part, ast.Path) and part.base.id in COMPARED]
    binder.needs_rows(stage, *(ast.Name(str(part.steps[0]), span=part.span) for part in columns))
    for part in shown:
        base = part.base if isinstance(part, ast.Path) else part
        if part in columns:
            _compared_column(binder, stage, part)
        elif base.id in COMPARED:
            help = f"name a column of it, as in `{{{base.id}.text}}`"
            scope.error("QP240", f"`{base.id}` is a whole row here", part.span, "which column?", help=help)
        elif base.id in scope.columns:
            help = f"write `{{a.{base.id}}}` or `{{b.{base.id}}}`"
            message = f"`compare` shows two rows, and each has its own `{base.id}`"
            scope.error("QP240", message, part.span, "of which row?", help=help)
        else:
            scope.parameter(base, "`compare`")
    missing = [row for row in COMPARED if all(part.base.id != row for part in columns)]
    if missing and not scope.gaps:
        message = f"the question shows no column of {listed(missing)}"
        help = "show both rows, as in `{a.text}` and `{b.text}`"
        scope.error("QP240", message, question.span, "what is to be compared?", help=help)
    return replace(stage, model=binder.asks(stage.model), otherwise=None, stage=number)


def _compared_column(binder: Binder, stage: ast.Tournament, part: ast.Name | ast.Path) -> None:
    assert isinstance(part, ast.Path)
    scope, column = binder.scope, str(part.steps[0])
    start = part.base.span.end + len(".")
    if column in scope.params and column not in scope.columns:
        message = f"`{column}` is a parameter, which is the same for both rows"
        scope.error("QP240", message, part.span, "no column", help=f"write `{{{column}}}`")
    else:
        scope.column(ast.Name(column, span=Span(start, start + len(column))), stage)


def sought_by(stage: ast.Extract) -> ast.SoughtText | None:
    """What messages say that an `extract` looks for; None where a Python function finds it, or many."""
    if stage.which == "all" or not (isinstance(stage.pattern, ast.Regex) or stage.built_in):
        return None
    shown = stage.pattern.id if isinstance(stage.pattern, ast.Name) else format_pattern(stage.pattern)
    return ast.SoughtText(shown, stage.of is None)


def extract(binder: Binder, stage: ast.Extract, number: int) -> ops.Operator:
    binder.check_part(stage, "of")
    answer, extractors = binder.environment.answer, binder.environment.extractors
    if answer is not None and stage.built_in == "final_answer":
        pattern = replace(answer.pattern, span=stage.pattern.span)
        stage = replace(stage, pattern=pattern, which=answer.which, arguments=answer.arguments)
    built_in = stage.built_in if stage.built_in not in extractors else None
    if isinstance(stage.pattern, ast.Name) and built_in is None:
        return _python_extract(binder, stage, stage.pattern, number)
    if stage.of is None:
        binder.needs_text(stage)
    if built_in == "boxed":
        which: Which = "last" if stage.which == "first" else stage.which
        type_: Type = "[text]" if which == "all" else "text"
        binder.make(stage, stage.column, type_)
        return replace(stage, type=type_, which=which, stage=number)
    type_ = "text" if built_in is not None and stage.which == "first" else _extracted_type(binder, stage)
    binder.make(stage, stage.column, type_)
    return replace(
        stage, type=type_, which=stage.which if isinstance(stage.pattern, ast.Regex) else "first", stage=number
    )


def _python_extract(binder: Binder, stage: ast.Extract, function: ast.Name, number: int) -> ops.Operator:
    """What a Python function is shown: by the names of its parameters, or what stands in its brackets."""
    name = function.id
    if name == FAILURE and stage.arguments is not None and name not in binder.environment.extractors:
        return _failure(binder, stage, number)
    type_ = _extracted_type(binder, stage)
    usual, asks, arguments = frozenset({"text"}), Names(), Arguments()
    columns: tuple[ops.GivenColumn, ...] | None = None
    if stage.arguments is not None:
        usual, columns = frozenset(), _given(binder, stage, name, stage.arguments)
    elif name in binder.environment.extractors:
        usual, asks, arguments = _asked(binder, stage, name, function.span)
    if stage.of is not None and "text" not in usual:
        why = "asks for no text: it has no parameter `text`" if columns is None else "is shown its arguments alone"
        help = "leave `of` out"
        binder.scope.error("QP277", f"`{name}` {why}", stage.of.span, "nobody is shown this", help=help)
    elif "text" in usual and stage.of is None:
        binder.needs_text(stage)
    elif "problem" in usual:
        binder.needs_context(stage)
    if "problem" in usual:
        _warn_guess(binder, function.span, f"`{name}`", "let it ask for `row`, and read a column", None)
    binder.make(stage, stage.column, type_)
    given = (stage.of, asks, arguments, "row" in usual, columns)
    return ast.PythonExtract(stage.column, name, *given, stage=number, span=stage.span)


def _failure(binder: Binder, stage: ast.Extract, number: int) -> ops.Operator:
    """`failure(TESTS, timeout=SECONDS)`: what `passes` finds, in words."""
    given = by_name(binder, FAILURE, stage.arguments or (), ("tests", "timeout"))
    if given is not None and "tests" not in given:
        binder.scope.error("QP231", f"`{FAILURE}` needs a value for tests", stage.pattern.span, "not given")
    tests, timeout = (
        None if given is None or name not in given else given[name].value for name in ("tests", "timeout")
    )
    tests = tests or ast.Template((), span=stage.pattern.span)
    op = ast.Passes(tests, timeout, True, of=stage.of, into=stage.column, at=stage.pattern.span, span=stage.span)
    binder.make(stage, stage.column, "text")
    return replace(_checked(binder, op), stage=number)


def _given(
    binder: Binder, stage: ast.Extract, name: str, written: tuple[ast.Argument, ...]
) -> tuple[ops.GivenColumn, ...]:
    """The arguments in the brackets of a Python function, by the names of its parameters."""
    types = {id(one): Typer(binder.scope, stage, "row", f"`{name}`").type(one.value) for one in written}
    inputs = binder.environment.inputs.get(name)
    if inputs is None or (arguments := by_name(binder, name, written, list(inputs.parameters))) is None:
        return ()
    missing = [key for key, required in inputs.parameters.items() if required and key not in arguments]
    if missing:
        message = f"`{name}` needs a value for {listed(missing, last='and')}"
        binder.scope.error("QP231", message, stage.pattern.span, "not given")
    return tuple(ops.GivenColumn(key, types[id(one)], one.value) for key, one in arguments.items())


def _extracted_type(binder: Binder, stage: ast.Extract) -> Type:
    pattern = stage.pattern
    if stage.which != "first" and not isinstance(pattern, ast.Regex):
        what = "a path leads to one value" if isinstance(pattern, ast.JsonPath) else "an extractor gives one value"
        help = "leave it out" + (", and read the list with the path to it" if isinstance(pattern, ast.JsonPath) else "")
        message = f"`{stage.which}` is said of matches, and {what}"
        binder.scope.error("QP250", message, pattern.span, "nothing to choose from", help=help)
    if stage.which == "all" and isinstance(pattern, ast.Regex):
        return "[text]"
    if isinstance(pattern, ast.Name):
        return _extractor_type(binder, pattern)
    text = binder.scope.columns.get("text") if stage.of is None else None
    if isinstance(pattern, ast.Regex) or text is None or text.schema is None:
        return "text"
    match type_at(text.schema.document, pattern.steps):
        case PathFault() as fault:
            _report_path(binder, text.schema, pattern, fault)
            return "unknown"
        case type_:
            return type_


def item_type(binder: Binder, path: ast.JsonPath) -> Type:
    """The type of what the list at a path of the text holds; a path that leads to no list is reported."""
    text = binder.scope.columns.get("text")
    if text is None or text.schema is None:
        return "unknown"
    match item_type_at(text.schema.document, path.steps):
        case PathFault(step=step, reason=reason) as fault:
            if step == len(path.steps):
                fault = PathFault(step - 1, reason.replace("`[0]` reads a list", "`each` goes through a list"))
            _report_path(binder, text.schema, path, fault)
            return "unknown"
        case type_:
            return type_


def _report_path(binder: Binder, schema: CompiledSchema, pattern: ast.JsonPath, fault: PathFault) -> None:
    notes: tuple[str, ...] = (f"`text` is held to `{schema.name}`",)
    notes += (f"fields: {', '.join(fault.fields)}",) if fault.fields else ()
    message = f"`{schema.name}` has nothing at this path: {fault.reason}"
    fix = _path_fix(pattern, fault)
    binder.scope.error("QP226", message, pattern.span, "cannot be there", notes=notes, **fix)


def _path_fix(pattern: ast.JsonPath, fault: PathFault) -> dict[str, Any]:
    """`help` and `edit` of a diagnostic: the path with the unknown field replaced by a near one."""
    near = closest(str(pattern.steps[fault.step]), fault.fields)
    if near is None:
        return {}
    steps = (*pattern.steps[: fault.step], near, *pattern.steps[fault.step + 1 :])
    path = format_pattern(ast.JsonPath(steps, span=pattern.span))
    return {"help": f"did you mean `{near}`?", "edit": Edit(pattern.span, path)}


def _extractor_type(binder: Binder, name: ast.Name) -> Type:
    extractors = binder.environment.extractors
    if name.id in extractors:
        return extractors[name.id]
    if name.id in EXTRACTORS:
        return "text"
    notes = (f"extractors: {', '.join(sorted(extractors))}",) if extractors else ("no extractor is registered",)
    forms = listed(f"extract NAME = {form}" for form in ("/regex/", ".json.path", *EXTRACTORS, "failure(TESTS)"))
    help = f"write {forms}, or register a Python extractor of this name (`--python FILE`, or `@qp.extractor`)"
    fix = did_you_mean(name.id, extractors, name.span) or {"help": help}
    message = f"unknown extractor `{name.id}`"
    binder.scope.error("QP227", message, name.span, "not registered", notes=notes, **fix)
    return "unknown"
