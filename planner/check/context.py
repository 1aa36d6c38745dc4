"""`chat` and `prompt`: the stages that start a context or continue the existing one."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Label
from qpdsl.planner.check.binder import Binder
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
    binder.change(context=context, kind=flow.kind or stage_word(stage), fresh=True, spent=None)
    binder.scope.start_context()
    if isinstance(stage, ast.Prompt):
        return ops.SetContext(prompt=stage.text, stage=number, span=stage.span)
    return ops.SetContext(stage.turns, stage=number, span=stage.span) if stage.turns else None


def _check_content(binder: Binder, stage: ast.Prompt | ast.Chat) -> None:
    # Before the first context there are no columns yet.
    reads: Reads = "parameters" if binder.flow.context is None else "row"
    if isinstance(stage, ast.Prompt):
        Typer(binder.scope, stage, reads).type(stage.text)
        return
    for turn in stage.turns:
        Typer(binder.scope, stage, reads, f"`{turn.role}`").expect(turn.content, "text", "a text")


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
