"""Rows of a run, run again with their samples kept: each with its place in the program, and what it was drawn from."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from qpdsl.executor.events.events import Event, InstanceDone, Path
from qpdsl.executor.runtime.instance.kept_draws import PlacedSample
from qpdsl.executor.sample_memory.saved_samples import RowSamples, prompt_digest
from qpdsl.runs.compare.divergence import DrawnSample
from qpdsl.runs.data.input_row import InputRow, NumberedRow
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow, Outcome
from qpdsl.runs.runner import LocalRunner

if TYPE_CHECKING:
    from qpdsl.executor.engine.step.margin import Margin
    from qpdsl.session.session import Session


@dataclass(frozen=True)
class RetracedRow:
    """What came of a row, and all samples that its program drew, in the order in which they were asked for.

    `path` is that of the row whose answer it is; greedy decoding to compare with is no part of it.
    """

    outcome: Outcome
    path: Path
    kept: tuple[PlacedSample, ...]
    drawn: tuple[DrawnSample, ...]

    def saved(self, samples: RowSamples) -> list[tuple[DrawnSample, DrawnSample]]:
        """Samples that were saved of the row, each with the one here that is from the same prompt under the same key.

        A saved one has its place from that; one without such another, as a judge's answer is, has none, and is left
        out.
        """
        known = {(one.prompt, one.key, one.max_tokens): one.sample.tokens for one in samples.drawn}
        found = []
        for kept, drawn in zip(self.kept, self.drawn, strict=True):
            request = kept.request
            # Of a greedy sample the key is no part.
            keys = ((drawn.prompt, key, request.max_tokens) for key in (kept.key, 0))
            tokens = next((known[key] for key in keys if key in known), None)
            if tokens is not None:
                found.append((replace(drawn, tokens=tokens), drawn))
        return found

    def of(self, sample: DrawnSample) -> PlacedSample:
        """What is kept of a sample of this row."""
        return next(kept for kept, drawn in zip(self.kept, self.drawn, strict=True) if drawn is sample)


@dataclass(frozen=True)
class Retracing:
    """A session with the models of a job, that runs rows of it again. `drive` runs what it starts to its end."""

    session: Session
    job: Job
    drive: Callable[[Coroutine[Any, Any, None]], object]
    concurrency: int | None = None

    def rows(self, rows: Sequence[tuple[int, InputRow]]) -> dict[int, RetracedRow]:
        """These rows by their numbers."""
        outcomes: dict[int, Outcome] = {}
        paths: dict[str, Path] = {}

        def see(event: Event) -> None:
            if isinstance(event, InstanceDone) and not event.baseline:
                paths[event.instance] = event.path

        def done(finished: Sequence[FinishedRow]) -> None:
            outcomes.update((row.number, row.outcome) for row in finished)

        # Two rows may have one id, and instances are told apart by theirs.
        named = [NumberedRow(number, replace(row, id=str(number))) for number, row in rows]
        unsubscribe = self.session.events.subscribe(see)
        try:
            with self.session.keeping_draws() as kept:
                self.drive(LocalRunner(self.session, [self.job], self.concurrency).run(named, done))
        finally:
            unsubscribe()
        ids = {number: row.id for number, row in rows}
        return {
            number: _row(replace(outcome, id=ids[number]), paths.get(str(number), ()), kept.samples(str(number)))
            for number, outcome in outcomes.items()
        }

    def margins(self, draws: Sequence[tuple[PlacedSample, int]]) -> list[Margin | None]:
        """How near a tie each draw was, by its sample and its place in that: see `Session.margin`."""
        found: list[Margin | None] = []

        async def read() -> None:
            async with self.session.running():
                for sample, place in draws:
                    found.append(await self.session.margin(sample.draw(place)))

        self.drive(read())
        return found

    def piece(self, model: str, tokens: Sequence[int], place: int) -> str:
        """A token of a model's sample as text, with what special tokens are called; nothing where it had ended."""
        return self.session.text_model(model).marked_detokenizer.added(
            tuple(tokens[:place]), tuple(tokens[: place + 1])
        )


def _row(outcome: Outcome, path: Path, kept: Sequence[PlacedSample]) -> RetracedRow:
    drawn = (
        DrawnSample(
            own.place.operator,
            own.place.rounds,
            own.place.path,
            prompt_digest(own.request.prompt),
            own.sample.tokens,
        )
        for own in kept
    )
    return RetracedRow(outcome, path, tuple(kept), tuple(drawn))
