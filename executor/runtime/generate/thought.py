"""Samples of models that think before they answer: the thought is one request, and the answer after it another.

A thought that its model does not end within its bound is ended for it: the close that its template writes is put
behind it, which costs one forward. Both requests draw with the sample's noise, the second with the number of tokens
before it as the counter, so the tokens are those of one request that nobody cut.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from qpdsl.executor.requests.drawing import FORCED
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import (
    Calls,
    Finish,
    GenerateRequest,
    Priority,
    Request,
    Sample,
    StepCounts,
    Thought,
    Watch,
    WatchAround,
    Writer,
)
from qpdsl.executor.requests.ticket import ForwardSeconds, Ticket
from qpdsl.executor.text.detokenizer import Tokens
from qpdsl.executor.text.stop import Cut, StopWatch
from qpdsl.executor.text.thought_marks import Place, ThoughtMarks

# Makes what follows a text that comes behind these tokens of the turn, without the white space that it begins with or
# with it; None where nothing does.
Follow = Callable[[Tokens, bool], StopWatch | None]


class ThoughtWatch:
    """An engine `Watch` of a turn that begins before its thought, or in it (`place`).

    It ends the thought's request where the model closes the thought, or has answered without one; then it follows the
    answer. `earlier` are the turn's tokens before the sample. `thought` and `answer` make what follows their texts;
    `cut` says where a stop ended the sample, `pushed` counts its tokens, `closed` whether the model closed the thought
    itself, and `filled` whether the answer may take all that is left of the context. With `whole`, thought and answer
    are one request, and the watch goes on from the one to the other.
    """

    def __init__(self, marks: ThoughtMarks, place: Place, earlier: Tokens, thought: Follow, answer: Follow) -> None:
        self.place: Place = place
        self.closed = self.filled = self.whole = False
        self.pushed = 0
        self._marks, self._earlier = marks, earlier
        self._follow_thought, self._follow_answer = thought, answer
        self._tokens: list[int] = []
        # The tokens of the sample at which its thought begins and ends.
        self._begins: int | None = 0 if place == "thought" else None
        self._ends: int | None = None
        # Of its tokens: where the text begins that is followed, and up to where it was followed.
        self._start = self._shown = 0
        self._text: StopWatch | None = thought(earlier, not earlier) if place == "thought" else None
        self._has_answer = False

    @property
    def thought_tokens(self) -> int:
        """How many tokens the model drew for the thought, the marks aside."""
        if self._begins is None:
            return 0
        return (self._ends if self._ends is not None else self.pushed) - self._begins

    @property
    def thought(self) -> slice:
        """Where the thought stands in the sample, the marks aside."""
        begins = self.pushed if self._begins is None else self._begins
        return slice(begins, begins + self.thought_tokens)

    @property
    def answer(self) -> int:
        """How many tokens of the sample stand before its answer, which may not have begun."""
        return self._start if self._has_answer else len(self._tokens)

    @property
    def unthought(self) -> bool:
        """Whether the turn has turned out to be an answer from its first token on."""
        return self._has_answer and self._begins is None and not self._start

    @property
    def cut(self) -> Cut | None:
        cut = None if self._text is None else self._text.cut
        return None if cut is None else Cut(cut.tokens + self._start, cut.tail)

    def push(self, token: int) -> bool:
        self.pushed += 1
        self._tokens.append(token)
        if self.place == "answer":
            return self._follow()
        if self.place == "opening":
            return self._open()
        if self._marks.closes(tuple(self._tokens[-self._marks.reach :])):
            self.closed = True
            self.place = "answer"
            found = self._marks.closed(tuple(self._tokens), self._begins or 0)
            self._ends = self.pushed if found is None else found[0]
            return not self.whole or not self.goes_on(())
        return self._follow(held=True)

    def goes_on(self, forced: Tokens) -> bool:
        """The answer begins, behind tokens that are put after the thought. False where it has ended already."""
        closed = self.closed or bool(forced)
        self._end_thought(closed=closed)
        self._tokens += forced
        self._start = self._shown = len(self._tokens) if closed else 0
        # A letter that the thought has only begun is none of the answer's.
        self._text = self._follow_answer(() if closed else self._earlier, closed)
        return not self._follow()

    def flush(self) -> None:
        """See `StopWatch`."""
        if self._text is not None:
            self._text.flush()

    def take_answer(self, watch: Watch | None, before: int) -> None:
        """The answer was followed by another watch, from the token `before` of the sample on."""
        self._end_thought(closed=True)
        self._start = before
        self._text = watch if isinstance(watch, StopWatch) else None

    def _end_thought(self, *, closed: bool) -> None:
        """Shows what is left of the thought, if it was one."""
        if self.place == "thought":
            self._follow()
        if closed and self._text is not None:
            self._text.end()
        self._ends = self.pushed if self._ends is None else self._ends
        self.place, self._has_answer = "answer", True

    def _open(self) -> bool:
        self.place, begins = self._marks.opened(tuple(self._tokens))
        if self.place == "thought":
            self._begins = self._start = self._shown = begins
            self._text = self._follow_thought((), True)
        return self.place == "answer" and (not self.whole or not self.goes_on(()))

    def _follow(self, *, held: bool = False) -> bool:
        """Shows tokens to what follows the text, but for `held` ones that may be a part of the mark that closes it."""
        if self._text is None:
            return False
        while self._shown < len(self._tokens):
            if held and self._marks.begins_mark(tuple(self._tokens[self._shown :])):
                return False
            self._shown += 1
            if self._text.push(self._tokens[self._shown - 1]):
                return True
        return False


def submit(engine: Engine, model: str, request: Request) -> Ticket:
    """Submits a request, in two parts where its samples think first, and the engine knows no thoughts.

    Raises EngineError.
    """
    drawn = request.generation
    if drawn is None or drawn.thought is None:
        return engine.submit(model, request)
    if "thoughts" not in engine.capabilities(model).features:
        return ThoughtTicket(engine, model, drawn, drawn.thought)
    return engine.submit(model, replace(drawn, watch=partial(_whole_watch, drawn, drawn.thought.room)))


@dataclass(slots=True)
class _Parts:
    """The `ForwardSeconds` of a ticket that has several requests made for it."""

    tickets: list[Ticket]

    @property
    def prompt(self) -> float:
        return sum(ticket.forwards.prompt for ticket in self.tickets)

    @property
    def drawn(self) -> float:
        return sum(ticket.forwards.drawn for ticket in self.tickets)


class ThoughtTicket(Ticket):
    """The samples of one request, each a thought and then its answer, which begins as soon as the thought ends."""

    def __init__(self, engine: Engine, model: str, request: GenerateRequest, thought: Thought) -> None:
        super().__init__(request, lambda _: self._each(Ticket.cancel), lambda _: self._urge())
        make = request.watch
        assert make is not None
        self._engine, self._model = engine, model
        self._thinking, self._generation = thought, request
        self._around = [make(index) for index in range(len(request.keys))]
        self._watches = list(map(_own, self._around))
        self._urgent = request.priority == 0
        self._given_up = False
        first = replace(
            request,
            thought=None,
            max_tokens=thought.most,
            watch=self._around.__getitem__,
            mask=None,
            constraint=None,
            jump=False,
            stops=(),
            ended_by=thought.ended_by,
        )
        self._tickets = [engine.submit(model, first)]
        self._tickets[0].on_sample = self._thought_ended
        self._tickets[0].on_failure = self.fail
        self._parts = _Parts(self._tickets)

    @property
    def forwards(self) -> ForwardSeconds:
        return self._parts

    @property
    def shared(self) -> int:
        return self._tickets[0].shared

    @property
    def calls(self) -> Calls | None:
        known = [ticket.calls for ticket in self._tickets if ticket.calls is not None]
        return sum(known[1:], known[0]) if known else None

    @property
    def saved_tokens(self) -> int:
        return sum(ticket.saved_tokens for ticket in self._tickets)

    def fail(self, error: EngineError) -> None:
        if not self.done:
            super().fail(error)
            self._each(Ticket.cancel)

    def _each(self, does: Callable[[Ticket], None]) -> None:
        self._given_up = self._given_up or does is Ticket.cancel
        for ticket in self._tickets:
            does(ticket)

    def _urge(self) -> None:
        self._urgent = True
        self._each(Ticket.promote)

    def _thought_ended(self, index: int, sample: Sample) -> None:
        """Engine side: a thought has ended. Its answer is asked for between two steps."""
        asyncio.get_running_loop().call_soon(self._answer, index, sample)

    def _answer(self, index: int, thought: Sample) -> None:
        if self._given_up or self.done:
            return
        around = self._around[index]
        if isinstance(around, WatchAround) and around.given_up:
            self._ended(index, thought)
            return
        held = self._generation.mask is not None
        forced = between(self._thinking, self._watches[index], thought, held=held)
        if forced is None:
            finish: Finish = "thought" if thought.finish == "length" else thought.finish
            self._ended(index, replace(thought, finish=finish))
            return
        request = answer_request(self._thinking, self._generation, index, self._watches[index], thought, forced)
        if request is None:
            # It has no room, or its first tokens are all of it.
            whole = self._watches[index].cut is not None
            finish = "stop" if whole else "thought" if self._watches[index].closed or forced else "length"
            self._ended(index, joined(thought, forced, None, finish))
            return
        try:
            priority: Priority = 0 if self._urgent else 1
            ticket = self._engine.submit(self._model, replace(request, watch=lambda _: around, priority=priority))
        except EngineError as error:
            self.fail(error)
            return
        self._tickets.append(ticket)
        ticket.on_failure = self.fail
        ticket.on_sample = partial(self._answered, index, thought, forced)

    def _answered(self, index: int, thought: Sample, forced: Tokens, _: int, answer: Sample) -> None:
        """Engine side: an answer has ended."""
        if not (self._given_up or self.done):
            self._ended(index, joined(thought, forced, answer))

    def _ended(self, index: int, sample: Sample) -> None:
        self.finish_sample(index, sample, self._tickets[0].cached)


def _whole_watch(request: GenerateRequest, room: int, index: int) -> Watch:
    """The watch on a sample that the engine writes from its thought to the end of its answer."""
    assert request.watch is not None
    around = request.watch(index)
    watch = _own(around)
    watch.whole, watch.filled = True, request.max_tokens >= room
    return around


def _own(watch: Watch) -> ThoughtWatch:
    """The watch on the thought, where another may be around it."""
    own = watch.own if isinstance(watch, WatchAround) else watch
    assert isinstance(own, ThoughtWatch)
    return own


def between(thought: Thought, watch: ThoughtWatch, sample: Sample, *, held: bool) -> Tokens | None:
    """What is put between a thought and its answer, which may be `held` to a constraint; None where no answer follows.

    A template has white space there, which such an answer could not begin with.
    """
    if sample.finish == "length":
        return thought.close if thought.bounded and watch.place != "answer" else None
    if sample.finish != "stop":
        return None
    return thought.rest if watch.closed and held else ()


def answer_request(
    thought: Thought, request: GenerateRequest, index: int, watch: ThoughtWatch, sample: Sample, forced: Tokens
) -> GenerateRequest | None:
    """The request for the answer to a thought. None where there is none: it is whole already, or has no room."""
    before = len(sample.tokens) + len(forced)
    written = 0 if watch.closed or forced else len(sample.tokens)
    room = thought.room - before
    watch.filled = room <= request.max_tokens - written
    # Such a stop could be found in the white space between a thought and its answer, where none counts.
    stops = request.stops if written else tuple(stop for stop in request.stops if not stop[:1].isspace())
    if not watch.goes_on(forced) or min(room, request.max_tokens - written) < 1:
        return None
    return replace(
        request,
        prompt=request.prompt + sample.tokens + forced,
        keys=(request.keys[index],),
        watch=lambda _: watch,
        max_tokens=min(room, request.max_tokens - written),
        drawn=request.drawn + before,
        floor=None if request.floor is None else request.floor.after(sample.figures),
        thought=None,
        stops=stops,
        lead=False,
    )


def joined(thought: Sample, forced: Tokens, answer: Sample | None, finish: Finish = "stop") -> Sample:
    """One sample of a thought, what was put behind it, and its answer."""
    answer = answer or Sample((), finish, 0.0, 0, thought.watch)
    told = thought.logprobs or answer.logprobs
    figures = bool(thought.figures or answer.figures)
    billed = None if thought.billed is None and answer.billed is None else thought.size + answer.size
    return replace(
        answer,
        tokens=thought.tokens + forced + answer.tokens,
        logprob=thought.logprob + answer.logprob,
        near_ties=thought.near_ties + answer.near_ties,
        logprobs=(*thought.logprobs, *(0.0,) * len(forced), *answer.logprobs) if told else (),
        steps=_sum(thought, answer, len(forced)),
        figures=(*thought.figures, *(FORCED,) * len(forced), *answer.figures) if figures else (),
        billed=billed,
    )


def _sum(thought: Sample, answer: Sample, forced: int) -> StepCounts:
    """The counts of both; ids that were forced are taken without asking the model."""
    first, second, begins = thought.steps, answer.steps, len(thought.tokens)
    both = {name: getattr(first, name) + getattr(second, name) for name in StepCounts.__dataclass_fields__}
    put: list[tuple[int, Writer]] = [(place, "forced") for place in range(begins, begins + forced)]
    put += [(begins + forced + place, writer) for place, writer in second.written]
    return StepCounts(**{**both, "forced": both["forced"] + forced, "written": (*first.written, *put)})
