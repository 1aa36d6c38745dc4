"""How one run of a `generate` asks the engine for its samples, as the plan says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from qpdsl.executor.events.events import Path
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import GenerateRequest, Mask, Priority, Sample, Watch
from qpdsl.executor.runtime.generate.continuation import Going, Options
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError
from qpdsl.executor.text.constraint import ConstraintError
from qpdsl.executor.text.stop import StopWatch
from qpdsl.grammar.literals.early_match import Pattern, followed
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy

OnToken = Callable[[Path, int, str], None]


class Pushes:
    """Counts the tokens of samples that may be given up before they have ended."""

    def __init__(self) -> None:
        self._watches: list[StopWatch | _Count] = []

    def counting(self, watch: StopWatch | None) -> StopWatch | _Count:
        """What follows one more sample: the watch that it has anyway, if it has one."""
        self._watches.append(watch or _Count())
        return self._watches[-1]

    @property
    def total(self) -> int:
        return sum(watch.pushed for watch in self._watches)

    def rest(self, ended: Sequence[Sample]) -> int:
        """Those of the samples that have not ended."""
        done = {id(sample.watch) for sample in ended}
        return sum(watch.pushed for watch in self._watches if id(watch) not in done)


class _Count:
    """An engine `Watch` that only counts."""

    def __init__(self) -> None:
        self.pushed = 0

    def push(self, token: int) -> bool:
        self.pushed += 1
        return False


@dataclass(frozen=True, slots=True)
class Drawing:
    """A `generate` with its model, its options and how it is to run, for rows of one round.

    `until` ends a sample, as `strategy` says; `on_token` is told of its text.
    """

    op: ops.Generate
    model: TextModel
    options: Options
    strategy: GenerateStrategy
    instance: Instance
    mask: Callable[[], Mask] | None
    early: float | None
    until: Pattern | None
    on_token: OnToken | None

    @classmethod
    def of(cls, op: ops.Generate, instance: Instance, strategy: GenerateStrategy) -> Drawing:
        """Raises RowError where an option's value or a constraint does not do."""
        model = instance.services.models[op.model]
        options = Options.of(op, instance)
        early = instance.number("margin", op.via.margin) if isinstance(op.via, ops.Amortized) else None
        until = followed(strategy.until.pattern) if strategy.until is not None else None
        mask = _mask(op, model)
        return cls(op, model, options, strategy, instance, mask, early, until, instance.services.on_token)

    @property
    def distinct(self) -> int:
        """How many samples of a row are drawn; the others are copies."""
        return 1 if self.strategy.collapse and self.options.sampling.greedy else self.options.count

    @property
    def watched(self) -> bool:
        """Whether anything hangs on a sample's text while it grows."""
        return self.options.stop is not None or self.until is not None or self.on_token is not None

    def going(self, row: Row) -> Going | None:
        """What a row goes on from, None for one that does not go on. Raises RowError."""
        return Going.of(self.op, row, self.model, self.options, self.instance)

    def child(self, each: Going, index: int, sample: Sample) -> Row:
        """The row that a sample makes, by its number."""
        return each.child(index, sample, self.op, self.model, self.options.stop)

    def spent(self, each: Going, samples: Sequence[Sample]) -> None:
        """Counts the samples of a row: tokens where they were drawn, near ties as if each copy had been."""
        usage, lengths = self.instance.usage, [len(sample.tokens) for sample in samples[: self.distinct]]
        usage.sampled_tokens += sum(lengths)
        usage.near_ties += sum(sample.near_ties for sample in samples)
        counts = usage.counts
        counts["going"] += 1
        counts["samples"] += len(lengths)
        counts["context"] += len(each.prompt)
        counts["longest"] = max(counts["longest"], *lengths)

    def watch(self, paths: Sequence[Path], index: int) -> StopWatch:
        """Follows the text of the sample of that number, and of its copies."""
        until = self.until.search() if self.until is not None else None
        if self.on_token is None:
            return StopWatch(self.model.spelling, self.options.stop, until=until)
        told = paths if self.distinct < len(paths) else paths[index : index + 1]
        return StopWatch(self.model.spelling, self.options.stop, partial(self._tell, told), until)

    def requests(self, each: Going, priority: Priority = 0, pushes: Pushes | None = None) -> list[GenerateRequest]:
        """The requests for the distinct samples of a row, in their order: one for all, or one a sample.

        `pushes` counts their tokens.
        """
        keys = each.keys[: self.distinct]
        if self.strategy.share:
            return [self._request(each, keys, 0, priority, pushes)]
        return [self._request(each, (key,), index, priority, pushes) for index, key in enumerate(keys)]

    def copied(self, drawn: tuple[Sample, ...]) -> tuple[Sample, ...]:
        """All samples of a row, from the distinct ones."""
        return drawn * (self.options.count // self.distinct)

    def _request(
        self, each: Going, keys: tuple[int, ...], first: int, priority: Priority, pushes: Pushes | None
    ) -> GenerateRequest:
        def watch(index: int) -> Watch:
            own = self.watch(each.paths, first + index)
            if pushes is None:
                return own
            return pushes.counting(own if self.watched else None)

        return GenerateRequest(
            each.prompt,
            keys,
            self.options.sampling,
            each.limit,
            self.model.eos,
            watch if self.watched or pushes is not None else None,
            self.mask,
            early=self.early,
            priority=priority,
            cached=self.strategy.share,
        )

    def _tell(self, paths: Sequence[Path], piece: str) -> None:
        assert self.on_token is not None
        for path in paths:
            self.on_token(path, self.op.stage, piece)


def _mask(op: ops.Generate, model: TextModel) -> Callable[[], Mask] | None:
    if op.constraint is None or op.constraint.kind == "choice":
        return None
    try:
        return model.constrainer.masks(op.constraint.kind, op.constraint.source)
    except ConstraintError as error:
        raise RowError(f"`as {op.constraint.name}` with model `{model.name}`: {error}") from error
