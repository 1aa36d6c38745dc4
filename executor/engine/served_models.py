"""The models of an engine: each with what runs its steps, all out of one memory for keys and values.

A model's parts are put together here and nowhere else: pages and cache, scheduler, backend, drafters, early exits. What
can propose tokens is listed in `DRAFTERS`; each drafter says itself how it is made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial

from qpdsl.executor.engine.draft.draft_model import ModelDrafter
from qpdsl.executor.engine.draft.drafters import Drafter, Drafters, DraftHost, EngineModel
from qpdsl.executor.engine.draft.eagle import EagleDrafter
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.draft.ngram import NGramDrafter
from qpdsl.executor.engine.exit.exit_steps import ExitHeads, ExitSteps, LearnedExits
from qpdsl.executor.engine.exit.self_draft import SelfDrafter
from qpdsl.executor.engine.feeding import Feeding
from qpdsl.executor.engine.memory import budget
from qpdsl.executor.engine.memory.kv_cache import Arena, KVCache, PagePool, Pool, SlabShare, slab_bytes
from qpdsl.executor.engine.memory.kv_cache_manager import KVCacheManager
from qpdsl.executor.engine.memory.prefix_tree import Reclaimer
from qpdsl.executor.engine.memory.state_blocks import BlockLayout
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model_runner import ModelRunner
from qpdsl.executor.engine.scheduler import Scheduler, SchedulerGroup
from qpdsl.executor.engine.step.backends import KernelBackend, backend_of, fixed_rows
from qpdsl.executor.engine.step.graphs import MAX_BYTES
from qpdsl.executor.engine.step.mask_filler import MaskFiller
from qpdsl.executor.engine.step.routed_head import HeadRouter
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.routing import Routing

# By the methods that requests name.
DRAFTERS: dict[str, type[Drafter]] = {
    drafter.method: drafter for drafter in (NGramDrafter, ModelDrafter, SelfDrafter, EagleDrafter)
}


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """`max_sequences` bounds a model's decode batch; `token_budget` the tokens of one step.

    On a GPU: `deterministic` gives a sample the same bits in any batch, in steps of a fixed size; `graphs` captures
    steps as CUDA graphs. On a CPU in float32 a sample has the same bits in any batch anyway, where the model's layers
    run without transformers' modules. With `overlap`, the host's part of a step runs while the device computes others;
    it changes no token.
    """

    max_sequences: int = 128
    token_budget: int = 2048
    deterministic: bool = False
    graphs: bool = True
    overlap: bool = True


@dataclass(slots=True)
class Learned:
    """What outlives a memory that is cut anew: heads to draft and to exit by, and the routers of each model."""

    heads: dict[str, EagleHead] = field(default_factory=dict)
    exit_heads: ExitHeads = field(default_factory=ExitHeads)
    head_routers: dict[str, dict[Routing, HeadRouter]] = field(default_factory=dict)
    exits: dict[str, LearnedExits] = field(default_factory=dict)


class ServedModels:
    """Cuts the memory among the models, and makes what runs each.

    `requested_bytes` is the memory for keys and values of all models together, None for as much as is safe; `try_steps`
    runs the largest steps of models, so that what they take can be measured. `clock`: see `PagedEngine`.
    """

    def __init__(
        self,
        config: EngineConfig,
        requested_bytes: int | str | None,
        clock: Callable[[], float],
        try_steps: Callable[[Iterable[PagedModel]], None],
    ) -> None:
        if requested_bytes is not None:
            budget.parse(requested_bytes)
        self._config = config
        self._requested_bytes = requested_bytes
        self._clock = clock
        self._try_steps = try_steps
        self.learned = Learned()
        # The most of the memory that a model may take, by its name, of those that may not take all.
        self._shares: dict[str, float] = {}
        # All that are served, also while their memory is given back.
        self._models: dict[str, PagedModel] = {}
        self.kv_bytes = 0
        self.arena: Arena | None = None
        self.runners: dict[str, ModelRunner] = {}
        self._group = SchedulerGroup(clock)
        self._reclaimer = Reclaimer()

    def add(self, name: str, model: PagedModel, *, idle: bool, share: float = 1.0) -> None:
        """Makes a model ready, which may take at most `share` of the memory.

        Where the engine is `idle` the memory is cut anew, and what was cached is forgotten.
        """
        self._shares[name] = share
        if self._config.deterministic and model.kernels and model.mixes_rows:
            raise EngineError(
                f"{name} is a mixture of experts, whose bits depend on the batch: it is not deterministic"
            )
        models = {**self._models, name: model}
        if self.arena is not None and not idle:
            self._group.free_slab(self._reclaimer)
            self.runners[name] = self._runner(name, model, self.arena)
        else:
            try:
                self._allocate(models)
            except EngineError:
                self._allocate({other: models[other] for other in models if other != name})
                raise
        self._models = models

    def take_back(self) -> None:
        """Makes the memory again that was released, if no model was added since."""
        if self.arena is None:
            self._allocate(self._models)

    def release(self) -> None:
        """Gives the memory of all models back, whoever still holds a ticket and so a scheduler and its pages."""
        for runner in self.runners.values():
            runner.backend.close()
        if self.arena is not None:
            self.arena.close()
        self.arena, self.runners = None, {}
        self._group, self._reclaimer = SchedulerGroup(self._clock), Reclaimer()

    def check_integrity(self) -> None:
        """AssertionError unless the page accounts of every model balance."""
        for runner in self.runners.values():
            scheduler = runner.scheduler
            held = [sequence for other in self.runners.values() for sequence in other.drafters.held(runner.name)]
            scheduler.memory.check_integrity([*scheduler.running, *scheduler.waiting, *held])
        if self.arena is not None:
            self.arena.check_integrity()

    def _allocate(self, models: Mapping[str, PagedModel]) -> None:
        """Makes the arena anew for these models. The old one is freed first: a budget may be all that is free."""
        self.release()
        if not models:
            return
        device = next(iter(models.values())).device
        graphs = MAX_BYTES * sum(model.kernels for model in models.values()) if self._config.graphs else 0
        self.kv_bytes = budget.kv_bytes(self._requested_bytes, device, lambda: self._try_steps(models.values()), graphs)
        layouts = [layout for model in models.values() for layout in (model.layout, _blocks(model)) if layout]
        size = slab_bytes(layouts, self.kv_bytes)
        self.arena = Arena(self.kv_bytes, size, device)
        for name, model in models.items():
            self.runners[name] = self._runner(name, model, self.arena)

    def _runner(self, name: str, model: PagedModel, arena: Arena) -> ModelRunner:
        others = [runner.model for runner in self.runners.values()]
        # Each of the others keeps the slab of its scratch page; no sequence runs with less than a page beside scratch,
        # and a slab for its states.
        least = max(len(others) + _least_slabs(other, arena) for other in (*others, model))
        if arena.slabs < least:
            needs = least * arena.slab_bytes
            besides = "" if model.states is None else f", the states of a sequence {model.states.block_bytes:,}"
            raise EngineError(
                f"the KV budget of {self.kv_bytes:,} bytes is too small for {name}: its pages take "
                f"{model.layout.page_bytes:,} bytes{besides}, and {needs:,} are the least that could do"
            )
        share = SlabShare(int(arena.slabs * self._shares[name]))
        if (share.most - (model.states is not None)) * arena.fewest_pages(model.layout) < 2:
            raise EngineError(
                f"{self._shares[name]:.1%} of the KV budget of {self.kv_bytes:,} bytes are too little for {name}: "
                f"memory goes to models by {arena.slab_bytes:,} bytes, and its pages take {model.layout.page_bytes:,}"
            )
        pool = PagePool(arena, name, model.layout, share)
        cache = KVCache(arena.buffer, model.layout, pool.scratch, model.states)
        blocks = _blocks(model)
        states = None if blocks is None else Pool(arena, f"{name}: states", blocks, share)
        memory = KVCacheManager(pool, cache, 2.0 * model.parameters, self._reclaimer, states)
        config, learned = self._config, self.learned
        rows = fixed_rows(config.max_sequences) if config.deterministic and model.kernels else None
        scheduler = Scheduler(memory, config.max_sequences, rows or config.token_budget, self._group)
        backend = backend_of(model, cache, rows, config.graphs)
        drafters = Drafters(partial(self._drafter, name), model.max_positions)
        scheduler.on_leave = drafters.forget
        if backend.readout.routed is not None:
            backend.readout.routed.routers = learned.head_routers.setdefault(name, {})
        exits = ExitSteps(
            model,
            backend,
            learned.exit_heads,
            scheduler.token_budget,
            memory.residuals,
            learned.exits.setdefault(name, LearnedExits()),
        )
        self._group.borrowers.append(memory.residuals.give_back)
        feeding = None
        if isinstance(backend, KernelBackend) and memory.states is None:
            feeding = Feeding(backend, scheduler, model.max_positions)
        return ModelRunner(name, model, backend, scheduler, MaskFiller(model.vocabulary), drafters, exits, feeding)

    def _drafter(self, name: str, drafting: Drafting) -> Drafter:
        """What drafts for a model. Raises EngineError where nothing can."""
        target = self._served(name)
        assert target is not None
        drafter = DRAFTERS.get(drafting.method)
        if drafter is None:
            raise EngineError(f"{name} has no way to draft `{drafting.method}`")
        learned = self.learned
        lends = self._group.borrowers.append
        return drafter.of(drafting, DraftHost(target, self._served, learned.heads, learned.exit_heads, lends))

    def _served(self, name: str) -> EngineModel | None:
        runner = self.runners.get(name)
        if runner is None:
            return None
        scheduler = runner.scheduler
        return EngineModel(name, runner.model, runner.backend, scheduler.memory, scheduler.token_budget)


def _least_slabs(model: PagedModel, arena: Arena) -> int:
    """What a model cannot do without: a page beside scratch, and where it has states a slab for one.

    By a slab of states a model may lose a page more than others hold (see `KVCacheManager.capacity`).
    """
    slabs, pages = (0, 2) if model.states is None else (1, 3)
    return slabs + -(-pages // max(1, arena.fewest_pages(model.layout)))


def _blocks(model: PagedModel) -> BlockLayout | None:
    """The blocks of the states that a model's layers keep; None where they keep none."""
    return None if model.states is None else BlockLayout(model.states.block_bytes)
