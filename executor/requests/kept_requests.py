"""An engine that keeps the requests for samples that go through it, to look at a draw again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from qpdsl.executor.requests.engine import Capabilities, Engine
from qpdsl.executor.requests.request import GenerateRequest, Request
from qpdsl.executor.requests.ticket import Ticket


@dataclass(frozen=True, slots=True)
class PlacedDraw:
    """The draw of one token: what `model` was asked for, under which noise key, and the `before` drawn for that."""

    model: str
    request: GenerateRequest
    key: int
    before: tuple[int, ...]


class KeepingEngine:
    """An `Engine` before another one, which somebody else may drive."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        # By the name of the client and the noise key, in the order in which they came.
        self._kept: dict[tuple[str, int], list[tuple[str, GenerateRequest]]] = {}

    def capabilities(self, model: str) -> Capabilities:
        return self._engine.capabilities(model)

    def submit(self, model: str, request: Request) -> Ticket:
        if (drawn := request.generation) is not None:
            for key in drawn.keys:
                self._kept.setdefault((drawn.client.name, key), []).append((model, drawn))
        return self._engine.submit(model, request)

    def busy(self, model: str) -> int:
        return self._engine.busy(model)

    async def drive(self) -> None:
        await self._engine.drive()

    @property
    def drawn(self) -> list[tuple[str, int]]:
        """The client and the noise key of each sample that was asked for."""
        return list(self._kept)

    def draw_of(self, client: str, key: int, tokens: Sequence[int]) -> PlacedDraw | None:
        """The draw of the token that follows `tokens` of a client's sample; None where no request was for it.

        A sample may come of several requests, such as one for a thought and one for what follows it.
        """
        kept = self._kept.get((client, key), [])
        if not kept:
            return None
        whole = (*kept[0][1].prompt, *tokens)
        fitting = [one for one in kept if one[1].prompt == whole[: len(one[1].prompt)]]
        model, request = max(fitting, key=lambda one: len(one[1].prompt), default=kept[0])
        return PlacedDraw(model, request, key, whole[len(request.prompt) :])
