"""The `chat`, `prompt` and `say` operators: they start a row's context, or append to it or to its open turn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain

from qpdsl.executor.runtime.instance.candidates import FRESH, Candidates, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.text.context import Context, Piece
from qpdsl.grammar import ast
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import ROLES
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import split_template
from qpdsl.planner.values.value import Value, format_value


async def set_context(op: ops.SetContext, rows: Candidates, instance: Instance) -> Candidates:
    """Puts what was generated into the longer context and clears its columns; the other columns stay."""
    return tuple(
        _with_context(row, addition) for row, addition in zip(rows, _additions(op, rows, instance), strict=True)
    )


async def say(op: ops.Say, rows: Candidates, instance: Instance) -> Candidates:
    """Adds the text to what was generated, as if the model had gone on so; whatever ended the row, it is open again."""
    if isinstance(op.text, ast.Template):
        said = [tuple(split_template(op.text, instance.scope(row))) for row in rows]
    else:
        said = [((format_value(value), False),) for value in instance.values(op.text, rows)]
    return tuple(_going_on(row, pieces) for row, pieces in zip(rows, said, strict=True))


def _going_on(row: Row, pieces: tuple[Piece, ...]) -> Row:
    text = "".join(text for text, _ in pieces)
    before = row.generated
    open_ = replace(before, finished=False, incomplete=False, invalid=None, closed=False)
    generated = replace(open_, text=before.text + text, said=before.said + pieces)
    own = {"text": generated.text, "step": text, "finish": None, "finished": False}
    return Row(row.context, row.path, {**row.columns, **own}, generated)


def _with_context(row: Row, addition: Context) -> Row:
    context = _longer(row, addition)
    # A new turn does not change which copy of a `split` a row is.
    fresh = {**FRESH, "group": row.columns.get("group", FRESH["group"])}
    return Row(context, row.path, {**row.columns, **fresh})


def _additions(op: ops.SetContext, rows: Candidates, instance: Instance) -> list[Context]:
    """What is added to the context of each row."""
    if op.prompt is not None:
        prompts = [tuple(split_template(op.prompt, instance.scope(row))) for row in rows]
        return [Context(prompt=pieces, opening=len(pieces)) for pieces in prompts]
    added = [
        [_conversation(value) if turn.role == "messages" else ((turn.role, format_value(value)),) for value in values]
        for turn in op.turns
        for values in [instance.values(turn.content, rows)]
    ]
    return [Context(turns=tuple(chain.from_iterable(turns))) for turns in zip(*added, strict=True)]


def _conversation(value: Value) -> tuple[tuple[str, str], ...]:
    """The turns of a conversation that is given as a value. Raises RowError for what is none."""
    turns: list[tuple[str, str]] = []
    for number, message in enumerate(value if isinstance(value, tuple) else ()):
        role, content = (message.get("role"), message.get("content")) if isinstance(message, Mapping) else (None, None)
        if role not in ROLES or not isinstance(content, str):
            raise RowError(f"turn {number} of `messages` has no `role` of {listed(ROLES)}, or no text as `content`")
        turns.append((str(role), content))
    return tuple(turns)


def _longer(row: Row, addition: Context) -> Context:
    """The row's context, what was generated in it, and the addition to both."""
    context, generated = row.context, row.generated
    if context is None:
        if not addition.turns and not addition.prompt:
            raise RowError("the conversation has no turn: `messages` is empty")
        return addition
    if not generated.sampled and not generated.text:
        return replace(context, turns=context.turns + addition.turns, prompt=context.prompt + addition.prompt)
    if context.turns:
        return replace(context, turns=(*context.turns, ("assistant", generated.text), *addition.turns), grown=True)
    return replace(context, prompt=(*context.prompt, (generated.text, False), *addition.prompt), grown=True)
