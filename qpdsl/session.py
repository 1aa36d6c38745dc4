"""A session: loaded models, one engine, and the programs that run on them."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from qpdsl import zoo
from qpdsl.arguments import DTYPES, KV_TYPES, ArgumentError, check_device, check_whole, shorten
from qpdsl.executor.engine.engine import Engine, EngineConfig
from qpdsl.executor.engine.memory.budget import parse
from qpdsl.executor.engine.memory.kv_cache import KVType
from qpdsl.executor.engine.report import StepReport
from qpdsl.executor.events.events import EngineStepped
from qpdsl.executor.events.events import Path as RowPath
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.load import BY_CONFIGURATION, load, score_with
from qpdsl.executor.models.text_model import ModelError, TextModel
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.instance.instance import Services
from qpdsl.executor.runtime.instance.mathematics import Mathematics
from qpdsl.executor.runtime.run import Result, run
from qpdsl.executor.verifiers.score_store import ScoreStore
from qpdsl.grammar.suggest import listed
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import Value
from qpdsl.planner.plan.physical import PhysicalPlan, everything


@contextmanager
def collector_seldom(objects: int = 20_000) -> Iterator[None]:
    """Has the collector come by only when so many more objects were made than let go.

    Searching keeps most of what it makes, and the collector would walk it every few steps.
    """
    before = gc.get_threshold()
    # Zero means never; whoever asked for fewer visits has them.
    if before[0] == 0 or before[0] >= objects:
        yield
        return
    gc.set_threshold(objects, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


# Parameters up to which a step is too short for many threads to share.
_SMALL_MODEL = 30_000_000
_TURNS = 4


class Session:
    """Runs plans on `device` ("cpu", "cuda", "cuda:1"…).

    `dtype` None means float32 on a CPU and the checkpoint's own elsewhere. `kv_type` "int8" or "fp8" keeps keys and
    values in eight bits, half of bfloat16's memory or less; tokens are then those of a slightly different model.
    `kv_bytes` is the memory for the KV of all models together, in bytes or as text ("4GiB", "50%" of the device's);
    by default a quarter of what is free, 2 GiB at the most, and on a GPU what is free less what the largest step
    takes. `threads` are torch's: by default what OMP_NUM_THREADS says, else one a core, and one in all where every
    model is small. `functions` are the Python scorers and extractors that programs may name. `events` takes what
    happens; by default the session has a stream of its own. On a GPU `deterministic` gives a sample the same bits in
    any batch, and `compile` has torch.compile make the layers' kernels when they first run; both are added to what
    `config` says (see `EngineConfig`). Raises ArgumentError.
    """

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
    ) -> None:
        check_device(device)
        for name, value, known in (("dtype", dtype, DTYPES), ("kv_type", kv_type, KV_TYPES)):
            if value is not None and value not in known:
                raise ArgumentError(f"`{name}` is one of {listed(known)}, not `{shorten(str(value))}`")
        if threads is not None:
            check_whole("threads", threads, 1)
        _check_memory(kv_bytes)
        self.threads = threads
        self.device = device
        self.dtype = dtype
        self.events = events or EventStream()
        self.kv_type = kv_type
        self._functions = {function.name: function for function in functions}
        config = config or EngineConfig()
        config = replace(
            config, deterministic=deterministic or config.deterministic, compiled=compile or config.compiled
        )
        self._engine = Engine(config, self._stepped, kv_bytes)
        self._running = False
        self._models: dict[str, TextModel] = {}
        self._mathematics = Mathematics()
        self._scores = ScoreStore()
        self._floors: list[tuple[int, asyncio.Event]] = []

    def __repr__(self) -> str:
        models = ", ".join(f"`{model}`" for model in self._models) or "no model"
        return f"<session on {self.device} with {models} loaded>"

    def load(self, plan: PhysicalPlan) -> None:
        """Loads the models of a plan that are not loaded yet. Raises ModelError."""
        operators = [node.op for node in everything(plan.ops)]
        names = _named_models(operators)
        new = [model for model in dict.fromkeys(plan.models[name] for name in names) if model not in self._models]
        kinds = _kinds(plan, operators)
        # All weights come before any KV: the KV may take all that is left.
        loaded = {
            model: load(model, locate(model), self.device, self.dtype, self.kv_type, kinds.get(model)) for model in new
        }
        for model, text_model in loaded.items():
            self._models[model] = text_model
            try:
                self._engine.add(model, text_model.paged)
            except EngineError as error:
                raise ModelError(model, str(error)) from error
        self._set_threads()
        for op in operators:
            if isinstance(op, ops.Generate) and isinstance(op.via, ops.Filter):
                self._check_vocabularies(plan.models[op.model], plan.models[op.via.model])
        for model, kind in kinds.items():
            score_with(self._models[model], locate(model), kind)
        for op in operators:
            if isinstance(op, ops.Generate | ops.Judge) and not self._models[plan.models[op.model]].writes:
                model = plan.models[op.model]
                raise ModelError(model, f"it is a {self._models[model].kind} verifier, which writes no text")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Keeps the engine stepping while the block runs; `run` needs it. An error of the engine ends the block.

        Raises RuntimeError where such a block runs already.
        """
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
            with collector_seldom():
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
    def kv_page_bytes(self) -> dict[str, int]:
        """Bytes of a KV page of each model that is loaded."""
        return {name: model.paged.layout.page_bytes for name, model in self._models.items()}

    @property
    def kv_budget(self) -> int:
        """Bytes of KV memory that the models share; 0 while none is loaded."""
        return self._engine.kv_bytes

    @property
    def computes_in(self) -> str:
        """The type of the models' numbers, by its name in torch."""
        types = {str(model.paged.dtype).removeprefix("torch.") for model in self._models.values()}
        return types.pop() if len(types) == 1 else self.dtype or ("float32" if self.device == "cpu" else "bfloat16")

    @property
    def limits(self) -> EngineConfig:
        return self._engine.config

    @property
    def busy(self) -> int:
        """The sequences that the engine has to work at, over all models."""
        return sum(self._engine.busy(model) for model in self._models)

    async def settled(self) -> None:
        """Lets what was started go on to its first request, and notes how busy the engine is."""
        # A turn of the loop starts a task; arms of a branch and the samples of a filter are tasks of that.
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
    ) -> Result:
        """Runs one instance of a plan whose models are loaded, inside `running()`. `name` labels it in the events.

        `on_token` is called with each piece of text as it is generated (see `Services`). `functions` are those of the
        program, by the names that it has for them; they go before the session's own. `baseline` marks the instance as
        greedy decoding that is run to compare with.
        """
        models = {name: self._models[model] for name, model in plan.models.items() if model in self._models}
        verifiers = {name: model.verifier for name, model in models.items() if model.verifier is not None}
        known = {**self._functions, **(functions or {})}
        scores = self._shared_scores()
        services = Services(self._engine, models, verifiers, self.events, known, on_token, self._mathematics, scores)
        return await run(plan, arguments, seed, services, name, baseline=baseline)

    def _check_vocabularies(self, large: str, small: str) -> None:
        """Raises ModelError unless both models write with the same tokens: one's token stands in the other's text."""
        vocabularies = [self._models[model].tokenizer.get_vocab() for model in (large, small)]
        if vocabularies[0] != vocabularies[1] or self._models[large].eos != self._models[small].eos:
            raise ModelError(small, f"`via filter` needs the vocabulary of `{large}`, and it has another")

    def _set_threads(self) -> None:
        largest = max((model.paged.parameters for model in self._models.values()), default=0)
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
        """Scores kept from row to row: where numbers are exact enough that it does not matter which row read them."""
        exact = self.device == "cpu" and self.dtype in (None, "float32")
        return self._scores if exact else None


def usual_threads(parameters: int) -> int | None:
    """Torch's threads for models of at most so many parameters; None where OMP_NUM_THREADS has said."""
    if "OMP_NUM_THREADS" in os.environ:
        return None
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return 1 if parameters <= _SMALL_MODEL else cores


def _check_memory(kv_bytes: int | str | None) -> None:
    """Raises ArgumentError unless it is an amount of memory, or none."""
    if isinstance(kv_bytes, str):
        try:
            parse(kv_bytes)
        except ValueError as error:
            raise ArgumentError(f"`kv_bytes`: {error}") from error
    elif kv_bytes is not None:
        check_whole("kv_bytes", kv_bytes, 1)


def locate(model: str) -> Path | str:
    """Where a model id points: a built-in or local folder (a Path), or else a hub id (the string itself).

    A path that does not exist comes back as a Path too, for the loader to refuse.
    """
    if model.startswith("zoo/"):
        try:
            return zoo.path(model)
        except ValueError as error:
            raise ModelError(model, str(error)) from error
    path = Path(model).expanduser()
    looks_like_path = path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1
    return path if looks_like_path or path.exists() else model


def _named_models(operators: Iterable[ops.Operator]) -> list[str]:
    """The models that a plan runs, by their names in the program; one that it could draft with is not loaded."""
    names: list[str] = []
    for op in operators:
        match op:
            case ops.Generate(model=model, via=ops.Filter(model=small)):
                names += [model, small]
            case ops.Generate(model=model) | ops.Judge(model=model) | ops.Score(verifier=model):
                names.append(model)
    return names


def _kinds(plan: PhysicalPlan, operators: Iterable[ops.Operator]) -> dict[str, str]:
    """The models that score, each with its kind where the program says it. Raises ModelError where it says two."""
    kinds: dict[str, str] = {}
    for op in operators:
        if isinstance(op, ops.Score):
            model, kind = plan.models[op.verifier], op.kind or BY_CONFIGURATION
            before = kinds.get(model, kind)
            if BY_CONFIGURATION not in (before, kind) and before != kind:
                raise ModelError(model, f"it is declared as a verifier of kind {before} and of kind {kind}")
            kinds[model] = kind if before == BY_CONFIGURATION else before
    return kinds
