"""What the instances of a run draw, kept to look at it again: each sample, its place in the program, its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qpdsl.executor.events.events import Path, Rounds
from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.request import GenerateRequest, Request, Sample
from qpdsl.executor.requests.ticket import Ticket


@dataclass(frozen=True, slots=True)
class SamplePlace:
    """Whose sample it is: the instance, the operator by its id, the rounds of the loops around it, the row's path."""

    instance: str
    operator: str
    rounds: Rounds
    path: Path


@dataclass(frozen=True, slots=True)
class PlacedDraw:
    """The draw of one token: what `model` was asked for, under which noise key, and the `before` drawn for that."""

    model: str
    request: GenerateRequest
    key: int
    before: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PlacedSample:
    """A sample that ended, with its noise key. Greedy decoding has one too, which nothing depends on."""

    place: SamplePlace
    model: str
    key: int
    request: GenerateRequest
    sample: Sample

    def draw(self, place: int) -> PlacedDraw:
        """The draw of its token at a place."""
        return PlacedDraw(self.model, self.request, self.key, self.sample.tokens[:place])


class KeptDraws:
    """An `Engine` before another one, which somebody else may drive, that keeps what it was asked for and answered.

    Instances say which of their keys is for which sample. Of what has no place in a program, such as a judge's answer,
    nothing is kept.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._places: dict[tuple[str, int], SamplePlace] = {}
        # By instance, in the order in which they were asked for.
        self._asked: dict[str, list[tuple[str, GenerateRequest, Ticket]]] = {}

    def capabilities(self, model: str) -> Capabilities:
        return self._engine.capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        ticket = self._engine.submit(model, request)
        if (drawn := request.generation) is not None:
            self._asked.setdefault(drawn.client.name, []).append((model, drawn, ticket))
        return ticket

    def busy(self, model: str) -> int:
        return self._engine.busy(model)

    async def drive(self) -> None:
        await self._engine.drive()

    def name(self, instance: str, operator: str, rounds: Rounds, paths: Sequence[Path], keys: Sequence[int]) -> None:
        """Notes whose the samples under these keys are."""
        for path, key in zip(paths, keys, strict=True):
            self._places[instance, key] = SamplePlace(instance, operator, rounds, path)

    def samples(self, instance: str) -> list[PlacedSample]:
        """The samples of an instance that have ended, in the order of their requests."""
        return [
            PlacedSample(place, model, key, request, ticket.ended[number])
            for model, request, ticket in self._asked.get(instance, ())
            for number, key in enumerate(request.keys)
            if number in ticket.ended and (place := self._places.get((instance, key))) is not None
        ]
