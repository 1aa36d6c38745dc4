"""What the samples of a `generate` can still come to while they are drawn, for a vote or `keep` that gives some up.

A sample that goes on only gets more tokens, more of them thoughts, and a lower log-probability; scores of its steps
that are known bound the least of all, and their product. From these ranges comes that of the key or the weight.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from qpdsl.executor.events.events import Path
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Sample, WatchAround
from qpdsl.executor.runtime.generate.continuation import Continuation
from qpdsl.executor.runtime.generate.sampling import SampleWatch, TokenCounter
from qpdsl.executor.runtime.generate.thought import ThoughtWatch
from qpdsl.executor.runtime.instance.instance import Instance
from qpdsl.executor.text.detokenizer import GrowingText
from qpdsl.executor.verifiers.verifier import STEP_SEPARATOR
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp
from qpdsl.planner.plan.ranges import ANY, IN_UNIT, Interval, range_of, range_of_value, ranges_after

# Scores are rounded, and sums of floats too; what is nearer than this to a bound is left open.
SAME = 1e-4
# A place in the order of `keep`: whether the key is a number, the key, and the row's number, negative.
Place = tuple[bool, float, int]
# Scores that are known so far, by the score's operator: what they come to in the end is at most this.
Bounds = dict[str, float]


@dataclass(eq=False, slots=True)
class OpenSample(WatchAround):
    """An engine `Watch` of one sample, which its `own` watch follows too if it has one.

    `slot` is the number of the row that it makes. `steps` is its text up to the end of its last whole step, where
    somebody scores these. `bounds`: see `Bounds`. `thought`: its thought has ended, so that it is known how long it is.
    """

    own: SampleWatch | None
    slot: int
    continuation: Continuation
    samples: OpenSamples
    text: GrowingText | None = None
    steps: str = ""
    bounds: Bounds = field(default_factory=dict)
    pushed: int = 0
    logprob: float = 0.0
    given_up: bool = False
    thought: bool = False
    _parts: list[str] = field(default_factory=list)
    _rest: str = ""

    def push(self, token: int) -> bool:
        self.pushed += 1
        if self.own is not None and self.own.push(token):
            return True
        if self.text is not None:
            self._follow(self.text.push(token))
        if not self.thought and isinstance(self.own, ThoughtWatch) and self.own.place == "answer":
            self.thought = True
            self.samples.rank()
        self.given_up = self.samples.gives_up(self)
        return self.given_up

    def _follow(self, piece: str) -> None:
        self._rest += piece
        *whole, self._rest = self._rest.split(STEP_SEPARATOR)
        if whole:
            self._parts += whole
            self.steps = STEP_SEPARATOR.join(self._parts)
            self.samples.on_step(self)

    def ranges(self) -> dict[str, Interval]:
        """Those of the columns of the row that it will make, as far as they are known."""
        row, watch, before = self.continuation.row, self.own, self.continuation.turn.state.tokens
        thoughts = Interval(before, sure=True)
        if isinstance(watch, ThoughtWatch) and self.thought:
            thoughts = range_of_value(before + watch.thought_tokens)
        elif isinstance(watch, ThoughtWatch):
            # Its last tokens may turn out to be a part of the mark that closes it.
            thoughts = Interval(before + max(0, watch.thought_tokens - self.samples.reach + 1), sure=True)
        known = {name: range_of_value(value) for name, value in row.columns.items()}
        tokens = Interval(row.generated.sampled + self.pushed, sure=True)
        logprob = Interval(high=row.generated.logprob + self.logprob + SAME, sure=True)
        return {**known, "tokens": tokens, "thought_tokens": thoughts, "logprob": logprob}


class OpenSamples(TokenCounter):
    """The open samples of a `generate`, whose last operator `nodes` end in. `limits`: it may give up some of them.

    `place` is where a row must come before to be kept, None while that is not known: that of the last of `kept` rows,
    of those that are `known` and those that are sure to come there. `on_step` is told of a sample that has another
    whole step; `scored`: somebody wants to know.
    """

    def __init__(
        self, model: TextModel, nodes: Sequence[PhysicalOp], instance: Instance, *, limits: bool, scored: bool
    ) -> None:
        super().__init__(model)
        self.limits = limits and model.own_tokens
        self.reach = 1 if model.thought_marks is None else model.thought_marks.reach
        self.place: Place | None = None
        self.known: list[Place] = []
        self.kept = 0
        self.on_step: Callable[[OpenSample], None] = lambda sample: None
        self._detokenizer, self._scored = model.detokenizer, scored
        self._between = tuple(node.op for node in nodes[1:-1])
        self._ids = {id(node.op): node.id for node in nodes[1:-1]}
        self._all_come = not any(isinstance(op, ops.Where) for op in self._between)
        self._key = key_of(nodes[-1].op)
        self._arguments = {name: range_of_value(value) for name, value in instance.arguments.items()}
        self._bounded = {name for name, verifier in instance.services.verifiers.items() if verifier.bounded}
        self._open: dict[Path, OpenSample] = {}

    def add(self, slot: int, path: Path, continuation: Continuation) -> None:
        """A sample that is to be drawn."""
        self._open[path] = OpenSample(None, slot, continuation, self)

    def watch(self, own: SampleWatch | None, path: Path) -> OpenSample:
        slot, continuation = self._open[path].slot, self._open[path].continuation
        turn, begun = continuation.turn, continuation.row.generated.text
        follows = self._scored and not (turn.thinks or turn.earlier or begun)
        stop = continuation.options.stop
        text = self._detokenizer.begin() if follows and not (stop is not None and stop.drop) else None
        sample = self._open[path] = OpenSample(own, slot, continuation, self, text)
        self._watches.append(sample)
        return sample

    def ended(self, sample: Sample) -> bool:
        """Takes one that has ended out; whether it was given up."""
        watch = sample.watch
        if not isinstance(watch, OpenSample):
            return False
        watch.text, watch.thought = None, False
        return watch.given_up

    def rank(self) -> None:
        """Finds the `place` anew."""
        if not self.limits:
            return
        places = list(self.known)
        for sample in self._open.values() if self._all_come else ():
            if sample.thought and not sample.given_up and (key := self.key(sample)).sure and key.low == key.high:
                places.append((True, key.low, -sample.slot))
        places.sort(reverse=True)
        self.place = places[self.kept - 1] if 0 < self.kept <= len(places) else None

    def gives_up(self, sample: OpenSample) -> bool:
        """Whether so many rows are surely before it that it cannot be kept."""
        if self.place is None or not self.limits:
            return False
        return (True, self.key(sample).high, -sample.slot) < self.place

    def most(self, slots: frozenset[int]) -> float:
        """The most that these rows can add to one answer together; infinite where a weight may be below nothing."""
        weights = [self.key(sample) for sample in self._open.values() if sample.slot in slots]
        if any(weight.low < 0 for weight in weights):
            return math.inf
        # A row that is not in question any more, as no sample makes it, counts as much as any.
        return math.fsum(weight.high for weight in weights) if len(weights) == len(slots) else math.inf

    def key(self, sample: OpenSample) -> Interval:
        """What the key or the weight of its row can still come to."""
        if self._key is None:
            return Interval(1, 1, sure=True)
        names = {**self._arguments, **sample.ranges()}

        def of_score(op: ops.StepScore) -> Interval:
            bounded = op.verifier.name in self._bounded
            if op.reduce not in IN_UNIT or (not bounded and op.reduce != "min"):
                return ANY
            low, high = (0.0, 1.0) if bounded else (-math.inf, math.inf)
            return Interval(low, min(high, sample.bounds.get(self._ids[id(op)], math.inf)))

        return range_of(self._key, ranges_after(self._between, names, of_score))


def key_of(op: ops.Operator) -> ast.Expr | None:
    """What a `keep` goes by, and what a vote weighs a row by; None where rows are counted."""
    assert isinstance(op, ops.Vote | ops.Keep)
    return op.by if isinstance(op, ops.Keep) else op.weight
