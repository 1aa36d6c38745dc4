"""`chat` and `prompt`: they start a context, or go on with the one there is."""

from __future__ import annotations

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Label
from qpdsl.planner import ops
from qpdsl.planner.infer import Reads, reader
from qpdsl.planner.scope import stage_word, word_span
from qpdsl.planner.walk import Walk


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
