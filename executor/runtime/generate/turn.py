"""Where a row's turn stands when a `generate` goes on with it: in a thought, in the answer, or before both."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Thought
from qpdsl.executor.runtime.instance.candidates import Generated, Row, ThoughtState
from qpdsl.executor.runtime.instance.instance import RowError
from qpdsl.executor.text.context import Context, encode
from qpdsl.executor.text.context import Turn as ContextTurn
from qpdsl.executor.text.detokenizer import Tokens
from qpdsl.executor.text.thought_marks import Place, ThoughtMarks
from qpdsl.planner.plan import ops
from qpdsl.planner.values.value import Value, format_value


@dataclass(frozen=True, slots=True)
class Think:
    """What `think=` says: a switch of the model's template ("" where nothing is said), and a bound in tokens."""

    switch: str = ""
    limit: int | None = None

    @classmethod
    def of(cls, value: Value) -> Think:
        """Raises RowError where the value does not do."""
        match value:
            case None:
                return cls()
            case bool():
                return cls("on" if value else "off")
            case int() if value >= 0:
                return cls(limit=value) if value else cls("off")
            case str() if value:
                return cls(value)
        what = "a number of tokens, at least 0, `on`, `off` or an effort"
        raise RowError(f"`think` must be {what}, not {format_value(value)}")

    @property
    def said(self) -> bool:
        return self != Think()


@dataclass(frozen=True, slots=True)
class Turn:
    """`earlier` are the turn's tokens before what is drawn, those that are put there among them.

    `place` is where these end. `state` is what is known of the thought, whose context is rendered under its `switch`.
    """

    place: Place
    earlier: Tokens
    state: ThoughtState

    @property
    def text(self) -> Tokens:
        """Those of the turn's tokens whose text goes on in what is drawn: the answer's, or else the thought's."""
        return self.earlier[self.state.begins :]

    @property
    def begins(self) -> bool:
        """Whether what is drawn begins the answer."""
        return not self.thinks and bool(self.earlier) and self.state.begins == len(self.earlier)

    @property
    def thinks(self) -> bool:
        """Whether a thought comes next, or may come."""
        return self.place != "answer"

    def thought(self, op: ops.Generate, marks: ThoughtMarks | None, limit: int | None, room: int) -> Thought | None:
        """What the request says of the thought before the answer; None where none comes, or nothing else does.

        A prompt that takes all of the context by itself is for the engine to refuse.
        """
        if not self.thinks or op.only is not None or room < 1:
            return None
        assert marks is not None
        return thought_of(marks, self.place, limit, room)


def thought_of(marks: ThoughtMarks, place: Place, limit: int | None, room: int) -> Thought:
    """What a request says of a thought of `limit` tokens at most that comes next, with `room` for it and its answer."""
    mark = marks.open_tokens if place == "opening" else 0
    bounded = limit is not None and limit + mark < room
    most = limit if bounded and limit is not None else room
    return Thought(most, bounded, marks.closing, marks.rest, room, mark, ("thought", place))


def turn_of(op: ops.Generate, row: Row, model: TextModel, think: Think) -> Turn:
    """Where the turn of a row stands for a `generate`.

    Raises RowError where the model, or the turn, has nothing that `think=` or `only=` could be about.
    """
    generated, marks = row.generated, model.thought_marks
    chat = row.context is not None and bool(row.context.turns)
    if marks is None or not chat:
        if op.only is not None or think.said:
            what = "think" if think.said else "only"
            why = "is not known to think before it answers" if chat else "is given a plain prompt, which has no turns"
            raise RowError(f"model `{model.name}` {why}: remove `{what}=`")
        return Turn("answer", written(generated, model), ThoughtState())
    if not generated.sampled and not generated.tokens:
        return _begun(op, generated, model, marks, think)
    state, earlier = generated.thought, written(generated, model)
    if generated.model != model.name:
        spoken = 0 if state.open else len(model.encode(generated.text))
        inside = "" in marks.thinking.opened and state.text is not None
        state = replace(state, switch="", inside=inside, begins=max(len(earlier) - spoken, 0) if state.text else 0)
    if state.open and op.only != "answer":
        return Turn("thought", earlier, state)
    if op.only == "thought":
        raise RowError("`only=thought` on a row that has answered: its thought is over")
    if not state.open:
        return Turn("answer", earlier, state)
    closed = earlier + marks.closing
    return Turn("answer", closed, replace(state, open=False, begins=len(closed)))


def _begun(op: ops.Generate, generated: Generated, model: TextModel, marks: ThoughtMarks, think: Think) -> Turn:
    """A turn in which no model has written yet; what the program said in it is a part of the answer."""
    thinking, switch = marks.thinking, think.switch
    if op.only == "answer":
        raise RowError("`only=answer` before a thought: nothing was thought in this turn")
    if not thinking.knows(switch):
        raise RowError(f"model `{model.name}` has no effort `{switch}`: its template knows {thinking.efforts}")
    wanted = thinking.default == "on" or think.limit is not None
    thinks = switch not in ("", "off") or (switch == "" and wanted) or op.only == "thought"
    if switch == "" and ((thinks and thinking.default == "off") or (not thinks and thinking.default == "on")):
        switch = "on" if thinks else "off"
    if thinks and (op.only == "thought" or not generated.text):
        switch = switch if switch in thinking.switches else ""
        inside = switch in thinking.opened
        state = ThoughtState(inside=inside, switch=switch)
        # A model that may leave the thought out is made to begin it where its answer could not begin by itself.
        held = op.constraint is not None or op.holds_text
        if inside or op.only == "thought" or held or isinstance(op.via, ops.Paired):
            start = () if inside else marks.opening
            return Turn("thought", model.encode_said(start, generated.said), state)
        return Turn("opening", (), state)
    return _unthought(generated, model, marks, "off" if thinks else switch)


def _unthought(generated: Generated, model: TextModel, marks: ThoughtMarks, switch: str) -> Turn:
    """A turn that is an answer from its first token: a template that has no switch for it is given an empty thought."""
    thinking = marks.thinking
    start: Tokens = ()
    if switch not in thinking.switches:
        switch = ""
        if thinking.default == "on":
            start = (() if "" in thinking.opened else marks.opening) + marks.closing
    said = model.encode_said((), generated.said)
    return Turn("answer", start + said, ThoughtState(switch=switch, begins=len(start)))


def prompt_of(model: TextModel, question: str) -> Tokens:
    """The prompt for a question whose answer comes at once. Raises ContextError."""
    return answered_at_once(model, Context(turns=(ContextTurn("user", question),)))


def answered_at_once(model: TextModel, context: Context) -> Tokens:
    """The prompt for an answer without a thought: a model whose template has no switch for it is given an empty one.

    Raises ContextError.
    """
    if model.thought_marks is None:
        return encode(model.tokenizer, context)
    turn = _unthought(Generated(), model, model.thought_marks, "off")
    return encode(model.tokenizer, context, model.thinking, turn.state.switch) + turn.earlier


def written(generated: Generated, model: TextModel) -> Tokens:
    """What was generated since the context was set, in the tokens of `model`."""
    if generated.model in (model.name, ""):
        return model.encode_said(generated.tokens, generated.said)
    text, thought, marks = tuple(model.encode(generated.text)), generated.thought, model.thought_marks
    if thought.text is None or marks is None:
        return text
    start = () if "" in marks.thinking.opened else marks.opening
    return start + tuple(model.encode(thought.text)) + (() if thought.open else marks.closing + text)
