"""The engine itself, its steps carried out by the plan that it is asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.serving import GREEDY, NAME, engine_of, run
from benchmarks.peers.peer import Room, Tokens, Written
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.models.load import load
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest


class _Started:
    """A watch that ends nothing: it tells of the first token."""

    def __init__(self, told: Callable[[], None]) -> None:
        self._told: Callable[[], None] | None = told

    def push(self, token: int) -> bool:
        if self._told is not None:
            self._told()
            self._told = None
        return False


class Ours:
    """An engine for each plan, which keeps what it measures of its drafts. Every run prefills every prompt."""

    def __init__(self, model: str, dtype: str, room: Room) -> None:
        torch.set_num_threads(room.threads)
        self._model = load(NAME, Path(model), "cpu", dtype)
        layout = self._model.paged.layout
        self._bytes = 2 * room.slots * (room.context + layout.page_size) * layout.token_bytes
        self._config = EngineConfig(max_sequences=room.slots)
        self._engines: dict[str, PagedEngine] = {}
        self._steps: list[StepReport] = []

    def write(
        self,
        prompts: Tokens,
        schemas: Sequence[str],
        limit: int,
        plan: Mapping[str, Any],
        on_first: Callable[[], None],
    ) -> Written:
        """A plan has `jump`, `sparse`, `screened`, and `draft`: the method of an adaptive draft, or None."""
        engine = self._engine(str(sorted(plan.items())))
        self._steps.clear()
        draft = None if plan["draft"] is None else Drafting(plan["draft"])
        waiting = len(prompts)

        def started() -> None:
            nonlocal waiting
            waiting -= 1
            if not waiting:
                on_first()

        tickets = [
            engine.submit(
                NAME,
                GenerateRequest(
                    prompt,
                    (0,),
                    GREEDY,
                    limit,
                    self._model.eos,
                    watch=lambda number: _Started(started),
                    mask=self._model.constrainer.masks("json_schema", schema),
                    cached=False,
                    jump=plan["jump"],
                    sparse=plan["sparse"],
                    draft=draft,
                    logprobs=not plan["screened"],
                ),
            )
            for prompt, schema in zip(prompts, schemas, strict=True)
        ]
        run(engine)
        samples = [ticket.result().samples[0] for ticket in tickets]
        counts = [{**asdict(sample.steps), "near_ties": sample.near_ties} for sample in samples]
        parts = {
            "steps": sum(step.seconds for step in self._steps),
            "masks": sum(step.mask_seconds for step in self._steps),
            "head": sum(step.head_seconds for step in self._steps),
            "drafts": sum(step.draft_seconds for step in self._steps),
        }
        return Written([sample.tokens for sample in samples], counts, parts)

    def _engine(self, plan: str) -> PagedEngine:
        if plan not in self._engines:
            models = {NAME: self._model.paged}
            self._engines[plan] = engine_of(models, self._bytes, self._config, self._steps.append)
        return self._engines[plan]
