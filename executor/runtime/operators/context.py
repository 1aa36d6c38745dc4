"""The `chat`, `prompt` and `say` operators: they start a row's context, or append to it or to its open turn."""

from __future__ import annotations

import json
from collections.abc import Container, Mapping
from dataclasses import replace
from itertools import chain

from qpdsl.executor.runtime.instance.candidates import FRESH, Candidates, Generated, Row, ToolCall
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.text.context import Context, KeptTurn, Piece, Turn
from qpdsl.executor.text.detokenizer import Detokenizer
from qpdsl.executor.text.tool_format import with_tools
from qpdsl.grammar import ast
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import ROLES, THOUGHT_FIELDS
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import split_template
from qpdsl.planner.values.value import Value, format_value, thawed

_ROLES = (*ROLES, "tool")
# What turns have for tools, by their role.
_CALLS = {"assistant": ("tool_calls",), "tool": ("tool_call_id", "name")}


async def set_context(op: ops.SetContext, rows: Candidates, instance: Instance) -> Candidates:
    """Puts what was generated into the longer context and clears its columns; the other columns stay."""
    keeps = {model.name for model in instance.services.models.values() if model.own_tokens}
    additions = zip(rows, _additions(op, rows, instance), strict=True)
    return tuple(_with_context(op, row, addition, keeps) for row, addition in additions)


async def say(op: ops.Say, rows: Candidates, instance: Instance) -> Candidates:
    """Adds the text to what was generated, as if the model had gone on so; whatever ended the row, it is open again."""
    if isinstance(op.text, ast.Template):
        said = [tuple(split_template(op.text, instance.scope(row))) for row in rows]
    else:
        said = [((format_value(value), False),) for value in instance.values(op.text, rows)]
    detokenizers = {model.name: model.detokenizer for model in instance.services.models.values()}
    return tuple(_going_on(row, pieces, detokenizers) for row, pieces in zip(rows, said, strict=True))


def _going_on(row: Row, pieces: tuple[Piece, ...], detokenizers: Mapping[str, Detokenizer]) -> Row:
    text = "".join(text for text, _ in pieces)
    before = row.generated
    open_ = replace(
        before, finished=False, incomplete=False, invalid=None, closed=False, said=before.said + pieces, call=None
    )
    thought, begun = before.thought, ""
    if before.tokens and not before.finished and not before.said:
        # No call completes this letter any more, and so it is a part of none's step.
        begun = detokenizers[before.model].tail(before.tokens[thought.begins :])
    if thought.open:
        generated = replace(open_, thought=replace(thought, text=(thought.text or "") + text))
    else:
        generated = replace(open_, text=before.text + text)
    own = {"text": generated.text, "step": begun + text, "finish": None, "finished": False}
    return Row(row.context, row.path, {**row.columns, **own, "thought": generated.thought.text}, generated)


def _answers_a_tool(op: ops.Chat) -> bool:
    """Whether a turn says what came of a call, so that nothing before it is rendered anew: templates rewrite it."""
    return any(turn.role == "tool" for turn in op.turns)


def _with_context(op: ops.SetContext, row: Row, addition: Context, keeps: Container[str]) -> Row:
    """`keeps` are the models whose tokens can be gone on from."""
    context = _longer(row, addition)
    if isinstance(op, ops.Chat) and (op.history == "tokens" or (_answers_a_tool(op) and row.generated.model in keeps)):
        context = _kept(row, context)
    # A new turn does not change which copy of a `split` a row is.
    fresh = {**FRESH, "group": row.columns.get("group", FRESH["group"])}
    return Row(context, row.path, {**row.columns, **fresh}, Generated(written=row.generated.written))


def _additions(op: ops.SetContext, rows: Candidates, instance: Instance) -> list[Context]:
    """What is added to the context of each row."""
    if isinstance(op, ops.Prompt):
        prompts = [tuple(split_template(op.text, instance.scope(row))) for row in rows]
        return [Context(prompt=pieces, opening=len(pieces)) for pieces in prompts]
    assert isinstance(op, ops.Chat)
    added = [
        [_said(turn.role, value, row) for row, value in zip(rows, instance.values(turn.content, rows), strict=True)]
        for turn in op.turns
    ]
    return [Context(turns=tuple(chain.from_iterable(turns))) for turns in zip(*added, strict=True)]


def _said(role: str, value: Value, row: Row) -> tuple[Turn, ...]:
    """A turn of a `chat`, or those of a conversation that is given as a value; a system turn without text is none,
    nor is one of a tool that was not called. Where a message has several calls, there is one for each.

    Raises RowError for what is no conversation.
    """
    if (role == "system" and value in (None, "")) or (role == "tool" and value is None):
        return ()
    if role == "tool" and (call := row.generated.call) is not None and call.several:
        if not isinstance(value, tuple) or len(value) != len(call.functions):
            raise RowError(f"the turn has {len(call.functions)} calls: `chat tool=` takes a list of what each gave")
        return tuple(Turn(role, format_value(one)) for one in value)
    if role != "messages":
        return (Turn(role, format_value(value)),)
    return tuple(_turn(number, message) for number, message in enumerate(value if isinstance(value, tuple) else ()))


def _turn(number: int, message: Value) -> Turn:
    """One turn of `messages`, as chat APIs have it: with the thought of an assistant, and with calls of tools."""
    said = {name: thawed(part) for name, part in message.items()} if isinstance(message, Mapping) else {}
    role, content = said.pop("role", None), said.pop("content", None)
    # What a server that answered left empty.
    given = {name: part for name, part in said.items() if part not in (None, "", [])}
    thoughts = [given.pop(name) for name in THOUGHT_FIELDS if name in given] if role == "assistant" else []
    known = _CALLS.get(str(role), ())
    calls = {name: given.pop(name) for name in known if name in given}
    if content is None and calls and role == "assistant":
        calls["content"], content = None, ""
    if role not in _ROLES or not isinstance(content, str):
        raise RowError(f"turn {number} of `messages` has no `role` of {listed(_ROLES)}, or no text as `content`")
    if any(not isinstance(thought, str) or thought != thoughts[0] for thought in thoughts):
        raise RowError(f"turn {number} of `messages` has a thought that is no text, or two")
    if given:
        raise RowError(f"turn {number} of `messages` has `{next(iter(given))}`, which no turn of the role `{role}` has")
    return Turn(role, content, thoughts[0] if thoughts else "", json.dumps(calls) if calls else "")


def _kept(row: Row, longer: Context) -> Context:
    """A longer context in which the model's turn stays as it was drawn."""
    generated, before = row.generated, row.context
    if before is None or not generated.tokens or not before.turns:
        return longer if before is None else replace(longer, kept=before.kept)
    thought = generated.thought
    before = _showing(before, generated)
    own = generated.model, generated.tokens, generated.said
    return replace(longer, kept=KeptTurn(before, *own, len(before.turns), thought.switch, thought.open))


def _longer(row: Row, addition: Context) -> Context:
    """The row's context, what was generated in it, and the addition to both."""
    generated = row.generated
    context = None if row.context is None else replace(_showing(row.context, generated), kept=None)
    if context is None:
        if not addition.turns and not addition.prompt:
            raise RowError("the conversation has no turn: `messages` is empty")
        return addition
    thought = generated.thought.text or ""
    if not generated.sampled and not generated.text:
        return replace(context, turns=context.turns + addition.turns, prompt=context.prompt + addition.prompt)
    if context.turns:
        own = Turn("assistant", generated.text, thought)
        if (call := generated.call) is not None:
            own, addition = _of_call(call, thought, len(context.turns), addition)
        return replace(context, turns=(*context.turns, own, *addition.turns), grown=True)
    return replace(context, prompt=(*context.prompt, (generated.text, False), *addition.prompt), grown=True)


def _showing(context: Context, generated: Generated) -> Context:
    """A context with the tools that the model was shown for the turn that follows it."""
    return replace(context, tools=with_tools(context.tools, generated.tools)) if generated.tools else context


def _of_call(call: ToolCall, thought: str, number: int, addition: Context) -> tuple[Turn, Context]:
    """The model's turn that ends in calls, and the turns after it, which may say what came of each."""
    functions = call.functions
    ids = [call.id or f"call{number + place:05d}" for place in range(len(functions))]
    listed = [{"id": id, "type": "function", "function": function} for id, function in zip(ids, functions, strict=True)]
    answers = [
        json.dumps({"tool_call_id": id, "name": function["name"]}) for id, function in zip(ids, functions, strict=True)
    ]
    turns, came = [], 0
    for turn in addition.turns:
        turns.append(turn if turn.role != "tool" else turn._replace(calls=answers[min(came, len(answers) - 1)]))
        came += turn.role == "tool"
    own = Turn("assistant", call.before, thought, json.dumps({"tool_calls": listed}))
    return own, replace(addition, turns=tuple(turns))
