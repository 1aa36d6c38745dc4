"""Whether the models of a plan can be given its chat turns, which is tried before a run pays for the first of them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import Context, Turn, encode
from qpdsl.executor.text.tool_format import with_tools
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan

# A call that ends an answer, and what says that a turn is about it.
_CALLED = json.dumps(
    {"tool_calls": [{"id": "call00001", "type": "function", "function": {"name": "x", "arguments": {"x": "x"}}}]}
)
_CAME = json.dumps({"tool_call_id": "call00001", "name": "x"})


def check_templates(plan: PhysicalPlan, models: Mapping[str, TextModel]) -> None:
    """Raises ModelError where a model that writes cannot be given the turns that the plan will build.

    Answers stand in them where they will be, with a thought where their model thinks. `models` are those by id whose
    tokenizers are there.
    """
    _Walk(plan, models).chain(plan.ops, _Conversation())


@dataclass(frozen=True, slots=True)
class _Conversation:
    """The turns that rows have by now, the answer that was begun after them, or None, and the tools that are shown."""

    turns: tuple[Turn, ...] = ()
    answer: Turn | None = None
    tools: str = ""


class _Walk:
    def __init__(self, plan: PhysicalPlan, models: Mapping[str, TextModel]) -> None:
        self._plan = plan
        self._models = models
        self._tried: set[tuple[str, tuple[Turn, ...], str]] = set()

    def chain(self, chain: tuple[PhysicalOp, ...], now: _Conversation) -> _Conversation:
        """Goes through operators, and returns the conversation of their rows."""
        for node in chain:
            now = self._after(node, now)
        return now

    def _after(self, node: PhysicalOp, now: _Conversation) -> _Conversation:
        match node.op:
            case ops.Chat(turns=more):
                begun = () if now.answer is None else (now.answer,)
                answers = list(_turns(more, self._plan))
                if now.answer is not None and now.answer.calls:
                    answers = [turn._replace(calls=_CAME) if turn.role == "tool" else turn for turn in answers]
                return _Conversation((*now.turns, *begun, *answers), tools=now.tools)
            case ops.Generate(model=name, via=via, constraint=constraint):
                own = "" if constraint is None else constraint.tools
                now = replace(now, tools=with_tools(now.tools, own))
                thinks = self._try(name.name, now.turns, now.tools)
                if isinstance(via, ops.Paired):
                    self._try(via.model.name, now.turns, now.tools)
                thought = "x" if thinks else ""
                answer = Turn("assistant", "", thought, _CALLED) if own else Turn("assistant", "x", thought)
                return replace(now, answer=answer)
            case ops.Say() if now.answer is None:
                return replace(now, answer=Turn("assistant", "x"))
            case ops.Judge(model=name) | ops.Prob(model=name) | ops.Tournament(model=name):
                self._try(name.name, (Turn("user", "x"),))
            case ops.Repeat(gather=None) | ops.Search():
                # Its rounds go on from what the one before has written.
                return self.chain(node.body, self.chain(node.body, now))
            case ops.Each() | ops.Repeat():
                return self.chain(node.body, now)
            case ops.Peek():
                self.chain(node.body, now)
            case ops.Ask() | ops.Call():
                self.chain(node.body, _Conversation())
            case ops.Branch() | ops.If() | ops.Strategy():
                ends = [self.chain(arm, now) for arm in node.arms]
                return max(ends, key=lambda end: len(end.turns), default=now)
        return now

    def _try(self, name: str, turns: tuple[Turn, ...], tools: str = "") -> bool:
        """Encodes turns for a model of the plan, by its name in the program. Returns whether it thinks."""
        model = self._models.get(self._plan.models[name])
        if model is None:
            return False
        if turns and (model.name, turns, tools) not in self._tried:
            self._tried.add((model.name, turns, tools))
            plain = bool(tools) and model.tool_format.is_plain
            try:
                encode(model.tokenizer, Context(turns=turns, tools=tools), model.thinking, plain_tools=plain)
            except ContextError as error:
                raise ModelError(model.name, str(error)) from error
        return model.thinking is not None


def _turns(written: tuple[ops.Turn, ...], plan: PhysicalPlan) -> Iterator[Turn]:
    """Turns as a `chat` has them; a conversation that is given is a question, and an answer where one more follows.

    A system turn without text is none.
    """
    values = plan.values()
    for place, turn in enumerate(written, 1):
        content = turn.content
        if turn.role == "system" and isinstance(content, ast.Name) and not values.get(content.id, True):
            continue
        if turn.role != "messages":
            yield Turn(turn.role, "x")
            continue
        yield Turn("user", "x")
        if place < len(written) and written[place].role == "user":
            yield Turn("assistant", "x")
