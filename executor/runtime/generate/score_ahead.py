"""Scores the whole steps of samples that are still drawn, as the `score` between them and their vote or `keep` would.

One pass of the verifier takes what all samples have new at the time; while it runs, they go on. The score of a step is
kept by its content, so it is found when the sample has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace

from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.runtime.generate.open_samples import OpenSample
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Usage
from qpdsl.executor.runtime.scoring.score import score_steps_ahead
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, ScoreStrategy


class StepsAhead:
    """What scores ahead among `nodes`, each with its `usages`. It is `active` where something does.

    `on_known` is called with None when more is known of a sample, and with what went wrong.
    """

    def __init__(self, nodes: Sequence[PhysicalOp], usages: Sequence[Usage], instance: Instance) -> None:
        self.on_known: Callable[[BaseException | None], None] = lambda wrong: None
        self._scorers = [
            (node, replace(instance, usage=usage, operator=node.id))
            for node, usage in zip(nodes, usages, strict=True)
            if isinstance(node.strategy, ScoreStrategy) and node.strategy.ahead
        ]
        self._grown: dict[int, OpenSample] = {}
        self._task: asyncio.Task[None] | None = None

    @property
    def active(self) -> bool:
        return bool(self._scorers)

    def on_step(self, sample: OpenSample) -> None:
        """Engine side: a sample has another whole step, which is scored between two steps of the engine."""
        self._grown[sample.slot] = sample
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._score())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    async def _score(self) -> None:
        try:
            while self._grown:
                samples = [sample for sample in self._grown.values() if sample.text is not None]
                self._grown.clear()
                texts = [(sample.continuation.row, sample.steps) for sample in samples]
                for node, own in self._scorers:
                    assert isinstance(node.op, ops.StepScore) and isinstance(node.strategy, ScoreStrategy)
                    scores = await score_steps_ahead(node.op, texts, own, node.strategy)
                    for sample, score in zip(samples, scores, strict=True):
                        if score is not None:
                            sample.bounds[node.id] = score
                self.on_known(None)
        except (EngineError, RowError) as error:
            self.on_known(error)
        finally:
            self._task = None
