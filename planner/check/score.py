"""`score` and `extract`: the stages that add a column to each row, from a verifier or from its text."""

from __future__ import annotations

from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, Edit, Label
from qpdsl.grammar.format.unparse import format_pattern
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import closest, listed
from qpdsl.grammar.words import COLUMNS, Type
from qpdsl.planner.check.binder import Binder
from qpdsl.planner.names.json_schema import PathFault, type_at
from qpdsl.planner.names.schemas import CompiledSchema
from qpdsl.planner.names.scope import param_type, word_span
from qpdsl.planner.names.types import Typer
from qpdsl.planner.names.unknown import suggestion, unknown_verifier
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.reads import names


def score(binder: Binder, stage: ast.Score, number: int) -> ops.Operator:
    binder.needs_text(stage)
    column = stage.into or ast.Name("score", span=word_span(stage))
    op = _verifier(binder, stage, column.id, number)
    binder.make(stage, column, "float")
    binder.score_column = column.id
    return op


def _verifier(binder: Binder, stage: ast.Score, into: str, number: int) -> ops.Operator:
    verifier, span = stage.verifier, stage.span
    if stage.given is not None:
        Typer(binder.scope, stage, "row", "`given`").expect(stage.given, "text", "a text")
    if isinstance(verifier, ast.Judge):
        model = binder.model(verifier.model)
        Typer(binder.scope, stage, "parameters", "the rubric").type(verifier.rubric)
        _check_no_reduce(binder, stage, "a judge gives one number for a row")
        _check_problem(binder, stage, "the judge")
        low, high = verifier.low, verifier.high
        return ops.Judge(model, verifier.rubric, into, low, high, stage.given, stage=number, span=span)
    name, scorers, models = verifier.name, binder.environment.scorers, binder.module.models
    if verifier.quoted or name in models:
        kind = None if verifier.quoted else binder.module.kinds.get(name)
        raw = binder.program.like is not None
        _check_problem(binder, stage, f"`{name}`")
        model, reduce = binder.model(verifier, scores=True), stage.reduce or "last"
        return ops.Score(model, reduce, into, kind, raw, stage.given, stage=number, span=span)
    if name == "logprob":
        _refuse_given(binder, stage, "`logprob` is a number of the generator's own, and is shown no problem")
        if stage.reduce not in (None, "sum", "mean"):
            message = f"`logprob` has no `{stage.reduce}`: it is one number for the whole text"
            help = "write `reduce=mean` (over the tokens) or `reduce=sum`, which is what it is without `reduce`"
            binder.scope.error("QP225", message, span, "cannot be reduced so", help=help)
        return ops.LogProb("mean" if stage.reduce == "mean" else "sum", into, stage=number, span=span)
    if name in scorers:
        _check_no_reduce(binder, stage, f"`{name}` gives one number for a row")
        if name in binder.environment.problem_readers:
            _check_problem(binder, stage, f"`{name}`")
        else:
            _refuse_given(binder, stage, f"`{name}` asks for no problem: it has no parameter `problem`")
    elif "model" not in binder.module.missing:
        binder.scope.report(unknown_verifier(verifier, models, scorers))
    return ops.PythonScore(name, into, stage.given, stage=number, span=span)


def _check_problem(binder: Binder, stage: ast.Score, who: str) -> None:
    """Warns where the problem that a verifier is shown is a guess. `who` is the verifier, in a sentence."""
    if stage.given is None:
        likely = _likely_problem(binder)
        verifier = stage.verifier.span
        help = f"say which it is: `given {likely}`" if likely else 'say which it is: `given NAME` or `given "…"`'
        edit = Edit(Span(verifier.end, verifier.end), f" given {likely}") if likely else None
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
    texts = [id for id, param in scope.params.items() if param_type(param) == "text"]
    columns = [id for id in named if id in scope.columns and scope.columns[id].type == "text" and id not in COLUMNS]
    return next((id for id in named if id in texts or id in columns), texts[0] if texts else None)


def _refuse_given(binder: Binder, stage: ast.Score, why: str) -> None:
    if stage.given is not None:
        binder.scope.error("QP277", why, stage.given.span, "nobody is shown this", help="leave `given` out")


def _check_no_reduce(binder: Binder, stage: ast.Score, why: str) -> None:
    if stage.reduce is not None:
        binder.scope.error("QP225", f"nothing to reduce: {why}", stage.span, "leave `reduce` out")


def extract(binder: Binder, stage: ast.Extract, number: int) -> ops.Operator:
    binder.needs_text(stage)
    pattern, type_ = stage.pattern, _extracted_type(binder, stage)
    if isinstance(pattern, ast.Name) and pattern.id in binder.environment.problem_readers:
        _warn_guess(binder, pattern.span, f"`{pattern.id}`", "let it ask for `row`, and read a column", None)
    binder.make(stage, stage.column, type_)
    if isinstance(pattern, ast.Name):
        return ops.PythonExtract(stage.column.id, pattern.id, stage=number, span=stage.span)
    return ops.Extract(stage.column.id, pattern, type_, stage=number, span=stage.span)


def _extracted_type(binder: Binder, stage: ast.Extract) -> Type:
    pattern = stage.pattern
    if isinstance(pattern, ast.Name):
        return _extractor_type(binder, pattern)
    text = binder.scope.columns.get("text")
    if isinstance(pattern, ast.Regex) or text is None or text.schema is None:
        return "text"
    match type_at(text.schema.document, pattern.steps):
        case PathFault() as fault:
            _report_path(binder, text.schema, pattern, fault)
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
    notes = (f"extractors: {', '.join(sorted(extractors))}",) if extractors else ("no extractor is registered",)
    forms = listed(("extract NAME = /regex/", "extract NAME = .json.path"))
    help = f"write {forms}, or register a Python extractor of this name (`--python FILE`, or `@qp.extractor`)"
    fix = suggestion(name.id, name.span, extractors) or {"help": help}
    message = f"unknown extractor `{name.id}`"
    binder.scope.error("QP227", message, name.span, "not registered", notes=notes, **fix)
    return "unknown"
