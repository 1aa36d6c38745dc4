"""`chat` and `prompt`: the stages that start a context or continue the existing one."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.diagnostic import Label
from qpdsl.grammar.source import Span
from qpdsl.planner.check.binder import Binder, Problem
from qpdsl.planner.names.scope import stage_word, word_span
from qpdsl.planner.names.types import Reads, Typer
from qpdsl.planner.plan import ops


def set_context(binder: Binder, stage: ast.Prompt | ast.Chat, number: int) -> ops.Operator | None:
    """None for a `chat` without turns."""
    flow = binder.flow
    _check_content(binder, stage)
    if flow.kind not in (None, stage_word(stage)):
        _report_other_kind(binder, stage)
    context = stage if flow.kind is None else flow.context
    problem = _problem(flow.problem, stage)
    kind = flow.kind or stage_word(stage)
    binder.change(context=context, kind=kind, problem=problem, fresh=True, spent=None, cut=None)
    binder.scope.start_context()
    if isinstance(stage, ast.Prompt):
        return ops.SetContext(prompt=stage.text, stage=number, span=stage.span)
    return ops.SetContext(stage.turns, stage=number, span=stage.span) if stage.turns else None


def _check_content(binder: Binder, stage: ast.Prompt | ast.Chat) -> None:
    # Before the first context there are no columns but those of calls.
    reads: Reads = "row" if binder.scope.columns else "parameters"
    if isinstance(stage, ast.Prompt):
        Typer(binder.scope, stage, reads).type(stage.text)
        return
    for turn in stage.turns:
        Typer(binder.scope, stage, reads, f"`{turn.role}`").expect(turn.content, "text", "a text")


_LATER_TURN = "this is another user turn"
_LATER_PROMPT = "the prompt goes on here"


def _problem(before: Problem, stage: ast.Prompt | ast.Chat) -> Problem:
    """What the default problem is after a stage, where `before` held before it."""
    if isinstance(stage, ast.Prompt):
        if before.value is not None:
            return before if before.doubt else Problem(before.value, _LATER_PROMPT, stage.span)
        alone = len(stage.text.parts) == 1 and isinstance(stage.text.parts[0], ast.Name)
        return Problem(stage.text, None if alone else "this is the whole prompt", None if alone else stage.text.span)
    users = [turn.content for turn in stage.turns if turn.role == "user"]
    if before.value is not None:
        users.insert(0, before.value)
    if not users:
        return Problem(None, "this conversation has no user turn", word_span(stage))
    if before.doubt is not None and before.value is not None:
        return before
    return Problem(users[0], _LATER_TURN, users[1].span) if len(users) > 1 else Problem(users[0])


def problem_in_rounds(binder: Binder, body: tuple[ast.Stage, ...]) -> Problem:
    """What the default problem is in any round of a loop: a turn in its body comes before the next round's stages."""
    problem, turn = binder.flow.problem, _user_turn(binder, body, frozenset())
    if turn is None or (problem.doubt is not None and problem.value is not None):
        return problem
    first, place = turn
    return Problem(problem.value or first, _LATER_PROMPT if binder.flow.kind == "prompt" else _LATER_TURN, place)


def _user_turn(binder: Binder, stages: tuple[ast.Stage, ...], entered: frozenset[int]) -> tuple[ast.Expr, Span] | None:
    """The first user turn or prompt in stages, and where it is made: for one of a called program, by the call."""
    for stage in walk_stages(stages):
        turn: ast.Expr | None = None
        place = stage.span
        match stage:
            case ast.Prompt(text=text):
                turn = text
            case ast.Chat(turns=turns):
                turn = next((turn.content for turn in turns if turn.role == "user"), None)
                place = turn.span if turn is not None else place
            case ast.Call(program=name, into=None) if name in binder.module.programs:
                _, called = binder.module.programs[name]
                if id(called) not in entered:
                    inside = _user_turn(binder, called.body, entered | {id(called)})
                    turn = None if inside is None else inside[0]
        if turn is not None:
            return turn, place
    return None


def _report_other_kind(binder: Binder, stage: ast.Prompt | ast.Chat) -> None:
    """Reports that a context of one kind cannot be continued by the other."""
    kind, started, word = binder.flow.kind, binder.flow.context, stage_word(stage)
    if kind == "either":
        message = f"`{word}` cannot go on with a context that is chat turns in some rows and plain text in others"
        help = "let all arms of the `branch` start the same kind"
    else:
        message = f"`{word}` cannot go on with a context of {'chat turns' if kind == 'chat' else 'plain text'}"
        help = f"write `{kind}` here, or `{word}` there"
    start = (Label(word_span(started), "the context starts here"),) if started is not None else ()
    label = "this context is another kind"
    binder.scope.error("QP221", message, word_span(stage), label, secondary=start, help=help)
