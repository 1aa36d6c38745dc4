"""A session: loaded models, one engine, and the programs that run on them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from qpdsl.arguments import ArgumentError
from qpdsl.errors import naming_keywords
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.exit.exit_router import ExitRouter, Expected
from qpdsl.executor.engine.memory.kv_cache import KVType
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step.routed_head import HeadRouter
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.events.events import EngineStepped
from qpdsl.executor.events.events import Path as RowPath
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.eagle_checkpoint import load_head
from qpdsl.executor.models.exit_head import ExitHead
from qpdsl.executor.models.exit_record import ExitRecord
from qpdsl.executor.models.load import load, score_with
from qpdsl.executor.models.text_model import PagedTextModel, TextModel
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.engine_group import EngineGroup
from qpdsl.executor.requests.errors import BudgetReached, EngineError
from qpdsl.executor.requests.request import Calls, Owner
from qpdsl.executor.requests.routing import ExitRouting, Routing
from qpdsl.executor.requests.shadow import Shadowing
from qpdsl.executor.routing.route_trace import RouteTrace
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.instance.instance import Services
from qpdsl.executor.runtime.instance.mathematics import Mathematics
from qpdsl.executor.runtime.instance.owned_engine import OwnedEngine
from qpdsl.executor.runtime.instance.request_cache import RequestCache
from qpdsl.executor.runtime.run import InstanceResult, run
from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.executor.sample_memory.sharing_engine import SharingEngine
from qpdsl.executor.verifiers.score_store import ScoreStore
from qpdsl.garbage_collector import collections_paused, collections_seldom
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_digest import location_digest
from qpdsl.model_location import locate, locate_adapter, locate_tokenizer
from qpdsl.plan_models import (
    check_features,
    check_heads,
    check_templates,
    check_vocabularies,
    check_writers,
    named_exit_heads,
    named_heads,
    named_models,
    verifier_kinds,
)
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.values.value import Value
from qpdsl.remote.servers import Servers
from qpdsl.settings import (
    check_device,
    check_exit_heads,
    check_memory,
    check_router,
    check_shadow,
    check_sharing,
    check_spending,
    check_threads,
    check_types,
)
from qpdsl.threads import usual_threads

# So many turns of the event loop a task takes to its first request: one to start it, and one each for the tasks that it
# starts itself, such as the arms of a branch or the samples of a filter.
_TURNS = 4


class Session:
    """Runs plans on `device` ("cpu", "cuda", "cuda:1"…).

    `dtype` None means float32 on a CPU and the checkpoint's own elsewhere. `kv_type` "int8" or "fp8" keeps keys and
    values in eight bits, about half of bfloat16's memory, and "int4" keys in eight and values in four, about two
    fifths of it; tokens are then those of a slightly different model.
    `kv_bytes` is the memory for the KV of all models together, in bytes or as text ("4GiB", "50%" of the device's);
    by default a quarter of what is free, 2 GiB at the most, and on a GPU what is free less what the largest step
    takes. `threads` are torch's: by default what OMP_NUM_THREADS says, else one a core, or a single one if every model
    is small. `functions` are the Python scorers and extractors that programs may name. `events` takes what
    happens; by default the session has a stream of its own. On a GPU `deterministic` gives a sample the same bits in
    any batch, and `compile` has torch.compile make the layers' kernels when they first run; both are added to what
    `config` says (see `EngineConfig`). `router`: what decides at each step of a constrained `generate` how the head is
    computed. "lin_ucb", "thompson" and "exponential" learn it, "fixed:dense", "fixed:rows" and "fixed:union" do not;
    by default, or with "none", a rule decides. No token depends on it. With `record_routes` every way is tried at each
    such step, and `route_traces` has what each took. `exit_heads` are folders that `qpdsl calibrate` wrote, by the
    names of the models in programs that they are for, or by "" for any: where a program permits a loss, its plan may
    leave those models early. Of the draws that an early exit or a filter's small model decides, `shadow` is the share
    that the full model draws too, to know how often it would have drawn another token. That token is not used. By
    default it is 2% where a plan under `within loss(x)` chose the exit or the filter, and else nothing. With
    `allow_code`, `score passes(…)` may run code that a model wrote.

    With `share_samples` no sample is drawn twice: whatever programs, widths and rows ask for a sample with the same
    noise after the same prompt get the one that was drawn first (see `executor/sample_memory`). Results and counted
    tokens are those of a session without. It needs float32 on a CPU, or `deterministic`. Models on servers take no
    part.

    Of models on servers (`docs/engines.md`): `completions` is the file that keeps what they write, so that nothing is
    asked for twice, by default one in the user's cache folder, and "none" for no file. `max_tokens_total` bounds the
    tokens that are sent and written, and `max_cost` what they cost by `prices`, a file with a price table; where one of
    these is reached, runs end with BudgetReached. A server that answers nothing for `server_timeout` seconds, by
    default 600, is given up, and runs end with ServerGone; with `outlive_servers` those alone that wait for it. `tell`
    gets what a user may want to know of servers, in words. Raises ArgumentError.
    """

    @naming_keywords
    def __init__(
        self,
        device: str = "cpu",
        dtype: str | None = None,
        kv_type: KVType | None = None,
        kv_bytes: int | str | None = None,
        config: EngineConfig | None = None,
        threads: int | None = None,
        functions: Iterable[PythonFunction] = (),
        events: EventStream | None = None,
        *,
        deterministic: bool = False,
        compile: bool = False,
        router: str | None = None,
        record_routes: bool = False,
        exit_heads: Mapping[str, str | Path] | None = None,
        shadow: float | None = None,
        allow_code: bool = False,
        share_samples: bool = False,
        completions: str | Path | None = None,
        max_tokens_total: int | None = None,
        max_cost: float | None = None,
        prices: str | Path | None = None,
        server_timeout: float | None = None,
        outlive_servers: bool = False,
        tell: Callable[[str], None] | None = None,
    ) -> None:
        check_device(device)
        check_router(router)
        check_shadow(shadow)
        check_exit_heads(exit_heads)
        check_types(dtype, kv_type)
        check_threads(threads)
        check_memory(kv_bytes, device)
        self._servers = Servers(
            check_spending(completions, max_tokens_total, max_cost, prices, server_timeout),
            locate_tokenizer,
            tell,
            self._note_busy,
            outlives=outlive_servers,
        )
        self.threads = threads
        self.device = device
        self.dtype = dtype
        self.events = events or EventStream()
        self.kv_type = kv_type
        self._functions = {function.name: function for function in functions}
        config = config or EngineConfig()
        config = replace(
            config,
            deterministic=deterministic or config.deterministic,
            compiled=compile or config.compiled,
            record_routes=record_routes or config.record_routes,
        )
        if share_samples:
            check_sharing(device, dtype, deterministic=config.deterministic)
        self.router = router
        self.exit_heads = {name: str(folder) for name, folder in (exit_heads or {}).items()}
        self.shadow = shadow
        self.allow_code = allow_code
        self._exit_routing = None if router is None else ExitRouting.named(router)
        self._routing = (None if router is None else Routing.named(router)) or Routing()
        self._local = PagedEngine(config, self._stepped, kv_bytes)
        self._engine = EngineGroup(self._local)
        self.sample_memory = SampleMemory() if share_samples else None
        memory = self.sample_memory
        self._shared: Engine = self._engine if memory is None else SharingEngine(self._engine, memory, self._repeats)
        self._request_cache = RequestCache(self._engine)
        self._running = False
        self._models: dict[str, TextModel] = {}
        self._heads: dict[str, EagleHead] = {}
        self._exit_heads: set[tuple[str, str, tuple[int | None, ...]]] = set()
        self._mathematics = Mathematics()
        self._scores = ScoreStore()
        self._floors: list[tuple[int, asyncio.Event]] = []

    def __repr__(self) -> str:
        models = ", ".join(f"`{model}`" for model in self._models) or "no model"
        return f"<session on {self.device} with {models} loaded>"

    def load(
        self,
        plan: PhysicalPlan,
        tell: Callable[[TextModel, float], None] | None = None,
        slow: Callable[[str, str], None] | None = None,
    ) -> None:
        """Loads the models of a plan that are not loaded yet. Raises ModelError.

        `tell` is called with each that was loaded, and the seconds that it took; `slow` with the id of a model, and
        what takes long with it for once. A server that is not known yet is asked what it can do, and what the plan
        needs of it and it lacks is refused, before anything is loaded.
        """
        operators = [node.op for node in everything(plan.ops)]
        names = named_models(operators)
        new = [model for model in dict.fromkeys(plan.models[name] for name in names) if model not in self._models]
        kinds = verifier_kinds(plan, operators)
        for model in [model for model in new if is_remote(model)]:
            start = time.monotonic()
            self._models[model] = self._servers.load(model, None if slow is None else partial(slow, model))
            self._engine.place(model, self._servers.engine)
            if tell is not None:
                tell(self._models[model], time.monotonic() - start)
        self._servers.check(plan)
        # All weights come before any KV: the KV may take all that is left.
        loaded: dict[str, PagedTextModel] = {}
        for place in dict.fromkeys(named_heads(operators)):
            if place not in self._heads:
                dtype = None if self.dtype is None else getattr(torch, self.dtype)
                self._heads[place] = load_head(place, Path(place).expanduser(), self.device, dtype)
        for model in [model for model in new if not is_remote(model)]:
            start = time.monotonic()
            kind, adapter = kinds.get(model), locate_adapter(model)
            told = None if slow is None else partial(slow, model)
            with collections_paused():
                loaded[model] = load(model, locate(model), self.device, self.dtype, self.kv_type, kind, adapter, told)
            if tell is not None:
                tell(loaded[model], time.monotonic() - start)
        for model, text_model in loaded.items():
            self._models[model] = text_model
            try:
                self._local.add(model, text_model.paged)
            except EngineError as error:
                raise ModelError(model, str(error)) from error
        for place, head in self._heads.items():
            self._local.add_head(place, head)
        for place, model, layers in named_exit_heads(plan, operators):
            self._load_exit_heads(place, model, layers)
        for model, share in plan.sparse_shares.items():
            if model in self._here:
                self._here[model].paged.prefer_sparse(share)
        self._set_threads()
        check_vocabularies(plan, operators, self._models)
        check_heads(plan, operators, self._here, self._heads)
        for model, kind in kinds.items():
            if is_remote(model):
                self._servers.score_with(model, kind)
            else:
                score_with(self._models[model], locate(model), self.device, self.dtype, kind, locate_adapter(model))
        check_writers(plan, operators, self._models)
        check_templates(plan, operators, self._models)
        check_features(plan, self._engine)

    @property
    def _here(self) -> dict[str, PagedTextModel]:
        """The loaded models of this machine, by id."""
        return {id: model for id, model in self._models.items() if isinstance(model, PagedTextModel)}

    def _load_exit_heads(self, place: str, model: str, layers: tuple[int | None, ...]) -> None:
        """Loads the exit heads of a folder for these layers of a loaded model, for all that it has where none is named.

        Raises ModelError.
        """
        if (place, model, layers) in self._exit_heads:
            return
        folder, paged = Path(place).expanduser(), self._here[model].paged
        digest = location_digest(locate(model), locate_adapter(model))
        record = ExitRecord.read(model, folder)
        # The first of a folder is the one that is meant where a run names no layer.
        asked = layers or tuple(head.layer for head in record.heads)
        for layer in dict.fromkeys((record.usual.layer, *(layer for layer in asked if layer is not None))):
            head = ExitHead.load(model, folder, layer, digest, paged.layout.layers, paged.head_inputs)
            self._local.add_exit_head(place, head, record.head(head.layer))
        self._exit_heads.add((place, model, layers))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the engine stepping while the block runs; `run` needs it. An error of the engine ends the block.

        BudgetReached leaves the block with the total, since what was under way until then is paid for too. Raises
        RuntimeError where such a block runs already.
        """
        try:
            async with self._driven():
                yield
        except BudgetReached as error:
            raise BudgetReached(self._servers.reached or str(error)) from error

    @contextlib.asynccontextmanager
    async def _driven(self) -> AsyncIterator[None]:
        if self._running:
            raise RuntimeError("the session is running already")
        self._running = True
        task = asyncio.current_task()
        driver = asyncio.create_task(self._engine.drive())
        failures: list[BaseException] = []

        def stopped(driver: asyncio.Task[None]) -> None:
            if not driver.cancelled() and task is not None:
                failures.append(driver.exception() or RuntimeError("the engine stopped"))
                task.cancel()

        driver.add_done_callback(stopped)
        try:
            with collections_seldom():
                yield
        except asyncio.CancelledError:
            if failures:
                if task is not None:
                    task.uncancel()
                raise failures[0] from None
            raise
        finally:
            self._running = False
            driver.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await driver

    @property
    def calls(self) -> dict[str, Calls]:
        """What was asked of servers by now, by the ids of their models; those that were loaded are there."""
        return self._servers.calls

    def server_digest(self, model: str) -> str:
        """What tells a loaded model on a server from another: its address, its server, and what that was seen to do."""
        return self._servers.digest(model)

    @property
    def kv_page_bytes(self) -> dict[str, int]:
        """Bytes of a KV page of each model that is loaded here."""
        return {name: model.paged.layout.page_bytes for name, model in self._here.items()}

    @property
    def implementations(self) -> dict[str, str]:
        """How each model that is loaded here holds its weights, and which code runs its layers, for people."""
        return {name: f"{model.weights}, {model.paged.implementation}" for name, model in self._here.items()}

    @property
    def kv_budget(self) -> int:
        """Bytes of KV memory that the models share; 0 while none is loaded."""
        return self._local.kv_bytes

    @property
    def computes_in(self) -> str:
        """The type that the models compute in, by its name in torch."""
        types = {str(model.paged.dtype).removeprefix("torch.") for model in self._here.values()}
        return types.pop() if len(types) == 1 else self.dtype or ("float32" if self.device == "cpu" else "bfloat16")

    @property
    def engine(self) -> Engine:
        """What serves the requests to all models that are loaded, by their ids."""
        return self._engine

    def text_model(self, model: str) -> TextModel:
        """A model that is loaded, by its id. Raises KeyError."""
        return self._models[model]

    @property
    def limits(self) -> EngineConfig:
        return self._local.config

    @property
    def busy(self) -> int:
        """How many sequences the engines have to work at, of all models together."""
        return sum(self._engine.busy(model) for model in self._models)

    def routers(self) -> dict[str, HeadRouter]:
        """What routes the steps of each model, by its id, for models that were asked to route some."""
        heads = {name: self._local.routed(name) for name in self._here}
        return {
            name: head.routers[self._routing]
            for name, head in heads.items()
            if head is not None and self._routing in head.routers
        }

    def restore_router(self, model: str, state: object) -> None:
        """Has a model's steps routed by what an earlier run learned, unless this session has learned something itself.

        Raises ValueError where it is no such state.
        """
        head = self._local.routed(model)
        if head is not None and self._routing not in head.routers:
            head.router(self._routing).restore(state)

    def exit_routers(self) -> dict[str, dict[EarlyExit, ExitRouter]]:
        """What decides which draws of each model try their early exits, by the model's id and the exit."""
        found = {name: self._local.exits(name).routers for name in self._here}
        return {name: own for name, own in found.items() if own}

    def learned_exits(self) -> dict[str, dict[str, Any]]:
        """What these have learned by now, for the next run, by the model's id and what the exit says."""
        learned = {
            model: {
                str(leave): router.learned(self._local.exits(model).costs)
                for leave, router in routers.items()
                if router.routing.fixed is None and any(router.draws.values())
            }
            for model, routers in self.exit_routers().items()
        }
        return {model: states for model, states in learned.items() if states}

    def restore_exits(self, plan: PhysicalPlan, model: str, states: Mapping[str, object]) -> None:
        """Has a model's routers of early exits begin with what earlier runs of a plan learned, by what the exits say.

        Raises ValueError where there is one that is no such state; then nothing has changed.
        """
        routing = self.exit_routing(plan)
        if routing is not None and routing.fixed is None:
            for state in states.values():
                ExitRouter(routing, Expected(1.0, 0.0, 1.0, 0.0)).restore(state)
            self._local.restore_exits(model, states)

    def exit_state(self, model: str) -> str:
        """Names what a model's routers of early exits decide by."""
        return " ".join(router.digest for router in self._local.exits(model).routers.values())

    def exit_routing(self, plan: PhysicalPlan) -> ExitRouting | None:
        """How early exits are routed where a plan says that they are: with its weight of latency, 0.5 by default."""
        latency = 0.5 if plan.prefer is None else plan.prefer
        return None if self._exit_routing is None else replace(self._exit_routing, latency=latency)

    def route_traces(self) -> dict[str, RouteTrace]:
        """What was recorded of the routed steps of each model, by its id."""
        return {model: router.trace() for model, router in self.routers().items() if router.recorded}

    @property
    def routing(self) -> Routing:
        """How steps are routed where a plan says that they are."""
        return self._routing

    async def settled(self) -> None:
        """Waits until tasks that were just started have made their first requests, and notes how busy the engine is."""
        for _ in range(_TURNS):
            await asyncio.sleep(0)
        self._note_busy()

    @contextlib.asynccontextmanager
    async def below(self, floor: int) -> AsyncIterator[asyncio.Event]:
        """An event that is set while the engine has fewer sequences than `floor` to work at; always where that is 0."""
        event = asyncio.Event()
        self._floors.append((floor, event))
        self._note_busy()
        try:
            yield event
        finally:
            self._floors.remove((floor, event))

    async def run(
        self,
        plan: PhysicalPlan,
        arguments: Mapping[str, Value],
        seed: int = 0,
        name: str = "",
        on_token: Callable[[RowPath, int, str], None] | None = None,
        functions: Mapping[str, PythonFunction] | None = None,
        *,
        baseline: bool = False,
        timeout: float | None = None,
        owner: Owner | None = None,
        candidates: bool = False,
    ) -> InstanceResult:
        """Runs one instance of a plan whose models are loaded, inside `running()`. `name` labels it in the events.

        `on_token` is called with each piece of text as it is generated (see `Services`). `functions` are those of the
        program, by the names that it has for them; they go before the session's own. `baseline` marks the instance as
        greedy decoding that is run to compare with. After `timeout` seconds the instance fails. `owner` says who asks,
        by default the instance by its name, for which nothing is urgent. With `candidates`, those of its last choice
        are told (see `last_choice.py`).
        """
        engine = OwnedEngine(self._shared, owner or Owner(name))
        models = {name: self._models[model] for name, model in plan.models.items() if model in self._models}
        verifiers = {name: model.verifier for name, model in models.items() if model.verifier is not None}
        known = {**self._functions, **(functions or {})}
        scores = self._shared_scores()
        shared = (on_token, self._mathematics, scores, self._routing)
        services = Services(
            engine,
            models,
            verifiers,
            self.events,
            known,
            *shared,
            request_cache=self._request_cache.through(engine),
            allow_code=self.allow_code,
            exit_routing=self.exit_routing(plan),
            exit_state=self.exit_state,
            shadowing=Shadowing(self.shadow, frozenset(plan.ways if plan.within.level == "loss" else ())),
            candidates=candidates,
        )
        return await run(plan, arguments, seed, services, name, baseline=baseline, timeout=timeout)

    @contextlib.contextmanager
    def sharing_samples(self) -> Iterator[None]:
        """Runs that begin in the block share samples, as with `share_samples`, where this session can; then none does.

        Nothing changes in a session that shares them anyway.
        """
        if self.sample_memory is not None or not self._can_share():
            yield
            return
        self.sample_memory = SampleMemory()
        self._shared = SharingEngine(self._engine, self.sample_memory, self._repeats)
        try:
            yield
        finally:
            self.sample_memory, self._shared = None, self._engine

    def _can_share(self) -> bool:
        try:
            check_sharing(self.device, self.dtype, deterministic=self.limits.deterministic)
        except ArgumentError:
            return False
        return True

    def forget_samples(self) -> None:
        """Forgets the samples that are remembered where the session shares samples."""
        if self.sample_memory is not None:
            self.sample_memory.forget()

    def _repeats(self, model: str) -> bool:
        """Whether a model's samples are the same whatever is computed beside them, where the session computes so."""
        here = self._models.get(model)
        return isinstance(here, PagedTextModel) and not here.paged.mixes_rows

    def _set_threads(self) -> None:
        largest = max((model.paged.parameters for model in self._here.values()), default=0)
        threads = self.threads or usual_threads(largest)
        if threads is not None:
            torch.set_num_threads(threads)

    def _stepped(self, report: StepReport) -> None:
        self.events.emit(EngineStepped(report=report))
        self._note_busy()

    def _note_busy(self) -> None:
        busy = self.busy if self._floors else 0
        for floor, event in self._floors:
            (event.set if floor == 0 or busy < floor else event.clear)()

    def _shared_scores(self) -> ScoreStore | None:
        """The scores that rows share, where a score is the same whatever row asked for it; else None."""
        exact = self.device == "cpu" and self.dtype in (None, "float32")
        return self._scores if exact else None
