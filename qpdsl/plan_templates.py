"""Whether the models of a plan can be given its chat turns, which is tried before a run pays for the first of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import Context, Turn, encode
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan


def check_templates(plan: PhysicalPlan, models: Mapping[str, TextModel]) -> None:
    """Raises ModelError where a model that writes cannot be given the turns that the plan will build.

    Answers stand in them where they will be, with a thought where their model thinks. `models` are those by id whose
    tokenizers are there.
    """
    _Walk(plan, models).chain(plan.ops, _Conversation())


@dataclass(frozen=True, slots=True)
class _Conversation:
    """The turns that rows have by now, and the answer that was begun after them, or None."""

    turns: tuple[Turn, ...] = ()
    answer: Turn | None = None


class _Walk:
    def __init__(self, plan: PhysicalPlan, models: Mapping[str, TextModel]) -> None:
        self._plan = plan
        self._models = models
        self._tried: set[tuple[str, tuple[Turn, ...]]] = set()

    def chain(self, chain: tuple[PhysicalOp, ...], now: _Conversation) -> _Conversation:
        """Goes through operators, and returns the conversation of their rows."""
        for node in chain:
            now = self._after(node, now)
        return now

    def _after(self, node: PhysicalOp, now: _Conversation) -> _Conversation:
        match node.op:
            case ops.Chat(turns=more):
                begun = () if now.answer is None else (now.answer,)
                return _Conversation((*now.turns, *begun, *_turns(more, self._plan)))
            case ops.Generate(model=name, via=via):
                thinks = self._try(name.name, now.turns)
                if isinstance(via, ops.Paired):
                    self._try(via.model.name, now.turns)
                return replace(now, answer=Turn("assistant", "x", "x" if thinks else ""))
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

    def _try(self, name: str, turns: tuple[Turn, ...]) -> bool:
        """Encodes turns for a model of the plan, by its name in the program. Returns whether it thinks."""
        model = self._models.get(self._plan.models[name])
        if model is None:
            return False
        if turns and (model.name, turns) not in self._tried:
            self._tried.add((model.name, turns))
            try:
                encode(model.tokenizer, Context(turns=turns), model.thinking)
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
