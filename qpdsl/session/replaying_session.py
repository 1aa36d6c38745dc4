"""A session that loads the weights of a model only once something is asked of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.models.unloaded_model import ModelFacts
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.request import Request
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.verifiers.registry import BY_CONFIGURATION
from qpdsl.exit_heads.session_exits import named_exit_heads
from qpdsl.model_location import locate
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.session.session import Session


class ReplayingSession(Session):
    """A `Session` for plans whose requests are answered by what was saved, and that mostly ask nothing of a model.

    `facts` has what is known of models by their ids. Those are loaded without their weights, and whole with the first
    request for them; `loads` is called then, with the id. Others, and those that a plan leaves early, are loaded as
    ever.
    """

    def __init__(
        self, facts: Mapping[str, ModelFacts], loads: Callable[[str], None] = lambda model: None, **given: Any
    ) -> None:
        super().__init__(**given)
        self._facts = facts
        self._loads = loads
        self._whole: set[str] = set()
        self._late = _LateEngine(self._local, facts, self._load_late)

    def load(
        self,
        plan: PhysicalPlan,
        tell: Callable[[TextModel, float], None] | None = None,
        slow: Callable[[str, str], None] | None = None,
    ) -> None:
        operators = [node.op for node in everything(plan.ops)]
        self._whole |= {model for _, model, _ in named_exit_heads(plan, operators)}
        super().load(plan, tell, slow)

    def _made(self, model: str, kind: str | None, slow: Callable[[str], None] | None) -> TextModel:
        facts = self._facts.get(model)
        if facts is None or model in self._whole or kind not in (None, BY_CONFIGURATION, facts.kind):
            return super()._made(model, kind, slow)
        self._engine.place(model, self._late)
        return facts.text_model(model, locate(model))

    def _load_late(self, model: str) -> None:
        self._loads(model)
        self._add(model, super()._made(model, self._facts[model].kind, None))
        self._set_threads()


class _LateEngine:
    """An `Engine` before another one, which a model is put into by `load` with the first request for it."""

    def __init__(self, engine: PagedEngine, facts: Mapping[str, ModelFacts], load: Callable[[str], None]) -> None:
        self._engine = engine
        self._facts = facts
        self._load = load
        self._loaded: set[str] = set()

    def capabilities(self, model: str) -> Capabilities:
        return self._facts[model].capabilities

    def submit(self, model: str, request: Request) -> Ticket:
        if model not in self._loaded:
            self._load(model)
            self._loaded.add(model)
        return self._engine.submit(model, request)

    def busy(self, model: str) -> int:
        return self._engine.busy(model) if model in self._loaded else 0

    async def drive(self) -> None:
        # Whoever has both engines drives the other one by itself.
        await asyncio.Event().wait()
