"""The early exits of a session: the heads that plans name, and what decides which draws try an exit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.engine.exit.exit_router import ExitRouter, ExpectedExits
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.routing import ExitRouting
from qpdsl.exit_heads.exit_head import ExitHead
from qpdsl.exit_heads.exit_record import ExitRecord
from qpdsl.grammar import ast
from qpdsl.model_location import locate, locate_adapter
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import PhysicalPlan

Layers = tuple[int | None, ...]


class SessionExits:
    """`router` names who decides which draws try their exits, None where nobody does."""

    def __init__(self, engine: PagedEngine, router: str | None) -> None:
        self._engine = engine
        self._routing = None if router is None else ExitRouting.named(router)
        self._loaded: set[tuple[str, str, Layers]] = set()

    def load(self, plan: PhysicalPlan, operators: Iterable[ops.Operator], models: Mapping[str, PagedModel]) -> None:
        """Loads the exit heads that a plan names, each folder once; `models` are those of this machine, by their ids.

        Raises ModelError.
        """
        for place, model, layers in named_exit_heads(plan, operators):
            if (place, model, layers) in self._loaded:
                continue
            folder, paged = Path(place).expanduser(), models[model]
            digest = location_digest(locate(model), locate_adapter(model))
            record = ExitRecord.read(model, folder)
            # The first of a folder is the one that is meant where a run names no layer.
            asked = layers or tuple(head.layer for head in record.heads)
            for layer in dict.fromkeys((record.usual.layer, *(layer for layer in asked if layer is not None))):
                head = ExitHead.load(model, folder, layer, digest, paged.layout.layers, paged.head_inputs)
                self._engine.add_exit_head(place, head, record.head(head.layer))
            self._loaded.add((place, model, layers))

    def routers(self, models: Iterable[str]) -> dict[str, dict[EarlyExit, ExitRouter]]:
        """What decides which draws of each model try their early exits, by the model's id and the exit."""
        found = {name: self._engine.exits(name).routers for name in models}
        return {name: own for name, own in found.items() if own}

    def learned(self, models: Iterable[str]) -> dict[str, dict[str, Any]]:
        """What these have learned by now, for the next run, by the model's id and what the exit says."""
        learned = {
            model: {
                str(leave): router.learned(self._engine.exits(model).costs)
                for leave, router in routers.items()
                if router.routing.fixed is None and any(router.draws.values())
            }
            for model, routers in self.routers(models).items()
        }
        return {model: states for model, states in learned.items() if states}

    def restore(self, plan: PhysicalPlan, model: str, states: Mapping[str, object]) -> None:
        """Has a model's routers begin with what earlier runs of a plan learned, by what the exits say.

        Raises ValueError where there is one that is no such state; then nothing has changed.
        """
        routing = self.routing(plan)
        if routing is not None and routing.fixed is None:
            for leave, state in states.items():
                reranks = "rerank=" in leave
                ExitRouter(routing, ExpectedExits(1.0, 0.0, 1.0, 0.0), reranks=reranks).restore(state)
            self._engine.restore_exits(model, states)

    def state(self, model: str) -> str:
        """Names what a model's routers decide by."""
        return " ".join(router.digest for router in self._engine.exits(model).routers.values())

    def routing(self, plan: PhysicalPlan) -> ExitRouting | None:
        """How exits are routed where a plan says that they are: with its weight of latency, 0.5 by default."""
        latency = 0.5 if plan.prefer is None else plan.prefer
        return None if self._routing is None else replace(self._routing, latency=latency)


def named_exit_heads(plan: PhysicalPlan, operators: Iterable[ops.Operator]) -> Iterator[tuple[str, str, Layers]]:
    """The folders of exit heads that a plan names, each with the id of its model and the layers that are asked for.

    None is the folder's usual layer. All of them are asked for, by no layer at all, where only a run says which.
    """
    for op in operators:
        draft = op.draft if isinstance(op, ops.Generate) else None
        if isinstance(op, ops.Generate) and draft is not None and draft.method == "early_exit" and draft.model:
            yield draft.model, plan.models[op.model.name], (None,)
        if isinstance(op, ops.Generate) and isinstance(op.via, ops.Amortized) and op.via.head is not None:
            layers: Layers = (None,) if op.via.layer is None else ()
            literal = constant(op.via.layer)
            if isinstance(literal, ast.Literal) and isinstance(literal.value, int):
                layers = (literal.value,)
            yield op.via.head, plan.models[op.model.name], layers
