"""`chat` and `prompt`, which start a context or continue the existing one, and `say`, which continues its last turn."""

from __future__ import annotations

from dataclasses import replace

from qpdsl.grammar import ast
from qpdsl.grammar.ast.stage import Reads
from qpdsl.grammar.ast.walk import walk_stages
from qpdsl.grammar.diagnostic import Label
from qpdsl.grammar.source import Span
from qpdsl.planner.check.binder import Binder, Problem
from qpdsl.planner.check.score import reads_text
from qpdsl.planner.names.scope import BoundColumn, word_span
from qpdsl.planner.names.types import Typer
from qpdsl.planner.plan import ops


def set_context(binder: Binder, stage: ast.Prompt | ast.Chat, number: int) -> ops.Operator | None:
    """None for a `chat` without turns."""
    flow = binder.flow
    _check_content(binder, stage)
    if isinstance(stage, ast.Chat) and stage.history == "tokens" and flow.context is None:
        message = "`history=tokens` keeps what a model has written, and nothing comes before this `chat`"
        binder.scope.error("QP271", message, word_span(stage), "no history here", help="leave it out")
    tool = next((turn for turn in stage.turns if turn.role == "tool"), None) if isinstance(stage, ast.Chat) else None
    if tool is not None and flow.context is None:
        message = "`tool=` says what came of a call, and nothing comes before this `chat`"
        binder.scope.error("QP271", message, tool.span, "no call here", help="begin with `user=`")
    if flow.kind not in (None, stage.word):
        _report_other_kind(binder, stage)
    context = stage if flow.kind is None else flow.context
    problem = _problem(flow.problem, stage)
    kind = flow.kind or stage.word
    binder.change(context=context, kind=kind, problem=problem, fresh=True, spent=None, thinking=False)
    binder.scope.start_context()
    return None if isinstance(stage, ast.Chat) and not stage.turns else replace(stage, stage=number)


def say(binder: Binder, stage: ast.Say, number: int) -> ops.Operator:
    binder.check_parts(stage)
    binder.scope.columns["text"] = BoundColumn("text")
    outdate_scores(binder, stage)
    binder.change(fresh=False, spent=None)
    return replace(stage, stage=number)


def prefill(stage: ast.Stage) -> tuple[ast.Stage, ...]:
    """The stage, or the two that it stands for: an assistant's turn that ends a `chat` is left open, as `say` is."""
    if not isinstance(stage, ast.Chat) or not stage.turns or stage.turns[-1].role != "assistant":
        return (stage,)
    *turns, last = stage.turns
    said = ast.Say(last.content, span=last.span)
    return (replace(stage, turns=tuple(turns)), said) if turns else (said,)


def outdate_scores(binder: Binder, stage: ast.Stage) -> None:
    """Scores in `score` are those of the text before this stage, which adds to it."""
    columns = binder.scope.columns
    for name, column in columns.items():
        if isinstance(column.maker, ast.Score) and column.maker.into is None and reads_text(column.maker):
            columns[name] = replace(column, outdated=stage)


def _check_content(binder: Binder, stage: ast.Prompt | ast.Chat) -> None:
    # Before the first context there are no columns but those of calls.
    reads: Reads = "row" if binder.scope.columns else "parameters"
    if isinstance(stage, ast.Prompt):
        Typer(binder.scope, stage, reads).type(stage.text)
        return
    for turn in stage.turns:
        typer = Typer(binder.scope, stage, reads, f"`{turn.role}`")
        if turn.role == "messages":
            typer.expect(turn.content, _CONVERSATIONS, "a conversation")
        elif turn.role == "tool":
            typer.type(turn.content)
        else:
            typer.expect(turn.content, "text", "a text")


# What `messages=` takes: a parameter of that type, or a list of records that each have a role and a content.
_CONVERSATIONS = frozenset({"messages", "[record]"})
_LATER_TURN = "this is another user turn"
_LATER_PROMPT = "the prompt goes on here"


def _problem(before: Problem, stage: ast.Prompt | ast.Chat) -> Problem:
    """What the default problem is after a stage, where `before` held before it."""
    if isinstance(stage, ast.Prompt):
        if before.value is not None:
            return before if before.doubt else Problem(before.value, _LATER_PROMPT, stage.span)
        alone = len(stage.text.parts) == 1 and isinstance(stage.text.parts[0], ast.Name | ast.Path)
        return Problem(stage.text, None if alone else "this is the whole prompt", None if alone else stage.text.span)
    given = next((turn for turn in stage.turns if turn.role == "messages"), None)
    if given is not None and before.value is None:
        return Problem(given.content, "its first user turn may be among these", given.span)
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
    asked = [stage for stage in walk_stages(stages) if isinstance(stage, ast.Ask)]
    aside = {id(inner) for stage in asked for inner in walk_stages(stage.body)}
    for stage in walk_stages(stages):
        if id(stage) in aside:
            continue
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
    kind, started, word = binder.flow.kind, binder.flow.context, stage.word
    if kind == "either":
        message = f"`{word}` cannot go on with a context that is chat turns in some rows and plain text in others"
        help = "let all blocks start the same kind"
    else:
        message = f"`{word}` cannot go on with a context of {'chat turns' if kind == 'chat' else 'plain text'}"
        help = f"write `{kind}` here, or `{word}` there"
    start = (Label(word_span(started), "the context starts here"),) if started is not None else ()
    label = "this context is another kind"
    binder.scope.error("QP221", message, word_span(stage), label, secondary=start, help=help)
