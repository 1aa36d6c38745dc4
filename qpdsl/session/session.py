"""A session: loaded models, one engine, and the programs that run on them."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

import torch

from qpdsl.errors import meets_every_row
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.exit.exit_router import ExitRouter
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step.margin import Margin, TokenLogprobs, is_plain, logprobs_of, margin_of
from qpdsl.executor.engine.step.routed_head import HeadRouter
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.events.events import EngineStepped, ServerReported
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.eagle_checkpoint import load_head
from qpdsl.executor.models.quick_load import load, score_with
from qpdsl.executor.models.text_model import PagedTextModel, TextModel
from qpdsl.executor.models.unloaded_model import ModelFacts
from qpdsl.executor.remote.servers import Servers
from qpdsl.executor.requests import engine_loop
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.engine import Engine, EngineGroup
from qpdsl.executor.requests.errors import BudgetReached, EngineError
from qpdsl.executor.requests.request import Calls, Client, LogitsRequest, ReadRequest
from qpdsl.executor.requests.routing import Routing
from qpdsl.executor.requests.shadow import Shadowing
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.instance.instance import OnToken, Services
from qpdsl.executor.runtime.instance.kept_draws import KeptDraws, PlacedDraw, PlacedSample
from qpdsl.executor.runtime.instance.mathematics import Mathematics
from qpdsl.executor.runtime.instance.request_cache import ClientEngine, RequestCache
from qpdsl.executor.runtime.instance.tools import CallStore, ToolCalls
from qpdsl.executor.runtime.run import InstanceResult, run
from qpdsl.executor.sample_memory.sample_memory import SampleMemory
from qpdsl.executor.sample_memory.saved_samples import SampleRecorder
from qpdsl.executor.sample_memory.sharing_engine import SharingEngine
from qpdsl.executor.verifiers.verifier import ScoreStore
from qpdsl.exit_heads.session_exits import SessionExits
from qpdsl.garbage_collector import collections_paused, collections_seldom
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_location import locate, locate_adapter, locate_tokenizer
from qpdsl.plan_models import (
    check_features,
    check_heads,
    check_vocabularies,
    check_writers,
    named_heads,
    named_models,
    verifier_kinds,
)
from qpdsl.plan_templates import check_templates
from qpdsl.plan_thoughts import check_thoughts
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.values.value import Value
from qpdsl.session.setting import method_keywords_of, values_of
from qpdsl.session.settings import SessionSettings
from qpdsl.threads import usual_threads
from qpdsl.zoo import head_path

if TYPE_CHECKING:
    from qpdsl.executor.remote.remote_engine import RemoteCounts

# So many turns of the event loop a task takes to its first request: one to start it, and one each for the tasks that it
# starts itself, such as the arms of a branch or the samples of a filter.
_TURNS = 4
# So many logits are read again in one request.
_LOGITS_AT_ONCE = 1 << 24


@dataclass(frozen=True, kw_only=True)
class SessionArguments(SessionSettings):
    """What `Session` takes: its settings, and what it works with.

    `functions` are the Python scorers and extractors that programs may name. `events` gets what happens, by default a
    stream of the session's own. `config` says how the engine steps. Where a server is gone, with `outlive_servers` only
    those runs end that wait for it. `tell` gets what a user may want to know of servers, in words.
    """

    config: EngineConfig = field(default_factory=EngineConfig)
    functions: Iterable[PythonFunction] = ()
    events: EventStream | None = None
    outlive_servers: bool = False
    tell: Callable[[str], None] | None = None

    def __post_init__(self) -> None:
        if self.config.deterministic:
            object.__setattr__(self, "deterministic", True)
        SessionSettings.__post_init__(self)


class Session:
    """Runs plans on a device. Its keywords are the settings of `SessionSettings`; docs/reference/cli.md has a table.

    By default it computes in float32 on a CPU and elsewhere in 16 bits; with a `kv_type` tokens are those of a slightly
    different model. A `router` decides at each step of a constrained `generate` how the head is computed, which no
    token depends on. `exit_heads` are folders that `qpdsl calibrate` wrote, by the names of the
    models in programs that they are for, or by "" for any: where a program permits a loss, its plan may leave those
    models early. With `share_samples` programs, widths and rows that ask for a sample with the same noise after the
    same prompt get the one that was drawn first (see `executor/sample_memory`).

    Where `max_tokens_total` or `max_cost` is reached, runs end with BudgetReached, and where a server is given up with
    ServerGone. Raises ArgumentError.
    """

    @method_keywords_of(SessionArguments)
    def __init__(self, **given: Any) -> None:
        arguments = SessionArguments(**{name: value for name, value in given.items() if value is not None})
        settings = self.settings = arguments.of_session
        self._servers = Servers(
            settings.spending,
            locate_tokenizer,
            arguments.tell,
            self._note_busy,
            outlives=arguments.outlive_servers,
            on_report=self._reported,
        )
        self.events = arguments.events or EventStream()
        self._functions = {function.name: function for function in arguments.functions}
        config = replace(
            arguments.config,
            deterministic=settings.deterministic,
            max_sequences=settings.max_sequences or arguments.config.max_sequences,
            token_budget=settings.step_tokens or arguments.config.token_budget,
        )
        router = settings.router
        self._routing = (None if router is None else Routing.named(router)) or Routing()
        self._local = PagedEngine(config, self._stepped, settings.kv_bytes)
        self.exits = SessionExits(self._local, router)
        self._engine = EngineGroup(self._local)
        self.sample_memory = SampleMemory() if settings.share_samples else None
        memory = self.sample_memory
        self._shared: Engine = self._engine if memory is None else SharingEngine(self._engine, memory, self._repeats)
        self._request_cache = RequestCache(self._engine)
        self._kept: KeptDraws | None = None
        self._running = False
        self._models: dict[str, TextModel] = {}
        self._heads: dict[str, EagleHead] = {}
        self._mathematics = Mathematics()
        self._tool_calls = ToolCalls()
        self._scores: dict[str, ScoreStore] = {}
        self._floors: list[tuple[int, asyncio.Event]] = []

    @classmethod
    def of(cls, settings: SessionSettings, **parts: Any) -> Self:
        """A session with these settings; `parts` are the other keywords that `Session` takes. Raises ArgumentError."""
        return cls(**values_of(settings, SessionSettings), **parts)

    @property
    def device(self) -> str:
        return self.settings.device

    def __repr__(self) -> str:
        models = ", ".join(f"`{model}`" for model in self._models) or "no model"
        return f"<session on {self.device} with {models} loaded>"

    def load(
        self,
        plan: PhysicalPlan,
        tell: Callable[[TextModel, float], None] | None = None,
        slow: Callable[[str, str], None] | None = None,
    ) -> None:
        """Loads the models of a plan that are not loaded yet. Raises ModelError, and QpError (see `check_thoughts`).

        `tell` is called with each that was loaded, and the seconds that it took; `slow` with the id of a model, and
        what takes long with it for once. A server that is not known yet is asked what it can do, and what the plan
        needs of it and it lacks is refused, before anything is loaded.
        """
        dtype = self.settings.dtype
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
        here = [model for model in new if not is_remote(model)]
        heads = [place for place in dict.fromkeys(named_heads(operators)) if place not in self._heads]
        # All weights come before any KV: the KV may take all that is left.
        with self._local.room_for_weights() if here or heads else contextlib.nullcontext():
            for place in heads:
                own = None if dtype is None else getattr(torch, dtype)
                self._heads[place] = load_head(place, head_path(place), self.device, own)
            loaded: dict[str, TextModel] = {}
            for model in here:
                start = time.monotonic()
                loaded[model] = self._made(model, kinds.get(model), None if slow is None else partial(slow, model))
                if tell is not None:
                    tell(loaded[model], time.monotonic() - start)
            for model, text_model in loaded.items():
                shares = [self.settings.kv_shares.get(name, 1.0) for name, id in plan.models.items() if id == model]
                self._add(model, text_model, max(shares))
        if here:
            self._local.warm_up(_by_quarters(slow or (lambda model, what: None)))
        for place, head in self._heads.items():
            self._local.add_head(place, head)
        self.exits.load(plan, operators, {id: model.paged for id, model in self._here.items()})
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
                score_with(self._models[model], locate(model), dtype, kind, locate_adapter(model))
        check_writers(plan, operators, self._models)
        check_templates(plan, self._models)
        check_thoughts(plan, self._models)
        check_features(plan, self._engine)

    def _made(self, model: str, kind: str | None, slow: Callable[[str], None] | None) -> TextModel:
        """A model of this machine, as a verifier of a kind where there is one. Raises ModelError."""
        dtype, kv_type, adapter = self.settings.dtype, self.settings.kv_type, locate_adapter(model)
        with collections_paused():
            return load(model, locate(model), self.device, dtype, kv_type, kind, adapter, slow)

    def _add(self, model: str, text_model: TextModel, share: float = 1.0) -> None:
        """Makes a model of this machine ready for requests, which takes at most `share` of the memory.

        Raises ModelError.
        """
        self._models[model] = text_model
        if isinstance(text_model, PagedTextModel):
            try:
                self._local.add(model, text_model.paged, share)
            except EngineError as error:
                raise ModelError(model, str(error)) from error

    @property
    def _here(self) -> dict[str, PagedTextModel]:
        """The loaded models of this machine, by id."""
        return {id: model for id, model in self._models.items() if isinstance(model, PagedTextModel)}

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
        try:
            async with engine_loop.driven(self._engine.drive(), "the engine"):
                with collections_seldom():
                    yield
        finally:
            self._running = False

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
    def models_here(self) -> dict[str, PagedModel]:
        """The models that are loaded on this machine, by id."""
        return {name: model.paged for name, model in self._here.items()}

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
        return (
            types.pop()
            if len(types) == 1
            else self.settings.dtype or ("float32" if self.device == "cpu" else "bfloat16")
        )

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
        """See `SessionExits.routers`."""
        return self.exits.routers(self._here)

    def learned_exits(self) -> dict[str, dict[str, Any]]:
        """See `SessionExits.learned`."""
        return self.exits.learned(self._here)

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
        on_token: OnToken | None = None,
        functions: Mapping[str, PythonFunction] | None = None,
        *,
        baseline: bool = False,
        timeout: float | None = None,
        client: Client | None = None,
        priority: int = 0,
        candidates: bool = False,
        through: Callable[[Engine], Engine] | None = None,
        kept: KeptDraws | None = None,
        calls: CallStore | None = None,
    ) -> InstanceResult:
        """Runs one instance of a plan whose models are loaded, inside `running()`. `name` labels it in the events.

        `on_token` is called with each piece of text as it is generated (see `OnToken`). `functions` are those of the
        program, by the names that it has for them; they go before the session's own. `baseline` marks the instance as
        greedy decoding that is run to compare with. After `timeout` seconds the instance fails. `client` says who asks,
        by default the instance by its name and with its `priority`, of which the lower goes first; where it has no
        deadline, that of the program counts from now. With `candidates`, those of its last choice
        are told (see `last_choice.py`). `through` puts an engine before the one that the instance asks; it then asks
        for every score itself, whatever others asked for. `kept`, where it is that engine, keeps its draws. `calls`
        keeps the calls of tools. Raises what other instances would meet too: see `meets_every_row`.
        """
        client = client or Client(name, urgency=-priority)
        if client.deadline is None and plan.deadline is not None and not baseline:
            client = replace(client, deadline=time.monotonic() + plan.deadline)
        engine = ClientEngine(self._shared if through is None else through(self._shared), client)
        models = {name: self._models[model] for name, model in plan.models.items() if model in self._models}
        verifiers = {name: model.verifier for name, model in models.items() if model.verifier is not None}
        known = {**self._functions, **(functions or {})}
        scores = self._shared_scores(client.owner) if through is None else None
        shared = (on_token, self._mathematics, scores, self._routing)
        services = Services(
            engine,
            models,
            verifiers,
            self.events,
            known,
            *shared,
            request_cache=self._request_cache.through(engine),
            allow_code=self.settings.allow_code,
            exit_routing=self.exits.routing(plan),
            exit_state=self.exits.state,
            shadowing=Shadowing(self.settings.shadow, frozenset(plan.ways if plan.within.level == "loss" else ())),
            candidates=candidates,
            kept=kept or self._kept,
            shares_samples=self.sample_memory is not None,
            tool_calls=self._tool_calls,
            call_store=calls,
        )
        result = await run(plan, arguments, seed, services, name, baseline=baseline, timeout=timeout)
        if result.fault is not None and meets_every_row(result.fault):
            raise result.fault
        return result

    def recorder(self, contents: Mapping[str, str]) -> SampleRecorder:
        """What records the samples of one row: its `engine` is for `through` of `run`.

        `contents` has a digest of the files of each model, by the models' ids.
        """
        loaded = [self._models[model] for model in contents if model in self._models]
        facts = {model.name: ModelFacts.of(model, self._engine.capabilities(model.name)) for model in loaded}
        return SampleRecorder(contents, {name: own.to_json() for name, own in facts.items()})

    @contextlib.contextmanager
    def sharing_samples(self) -> Iterator[None]:
        """Runs that begin in the block share samples, as with `share_samples`, where this session can; then none does.

        Nothing changes in a session that shares them anyway.
        """
        if self.sample_memory is not None or not self.settings.shares_samples:
            yield
            return
        self.sample_memory = SampleMemory()
        self._shared = SharingEngine(self._engine, self.sample_memory, self._repeats)
        try:
            yield
        finally:
            self.sample_memory, self._shared = None, self._engine

    @contextlib.contextmanager
    def keeping_draws(self) -> Iterator[KeptDraws]:
        """Keeps what runs that begin in the block draw, by their names, so that `margin` can look at it again."""
        before = self._shared
        self._shared = self._kept = KeptDraws(before)
        try:
            yield self._kept
        finally:
            self._shared, self._kept = before, None

    def keeper(self, through: Callable[[Engine], Engine]) -> KeptDraws:
        """What keeps the draws of one instance, before the engine that `through` puts before the session's."""
        return KeptDraws(through(self._shared))

    async def logprobs(self, sample: PlacedSample) -> TokenLogprobs | None:
        """Those of a sample's tokens, from logits that are read again in one pass inside `running()`.

        None for a model on a server, and where a token may be drawn otherwise than from the whole model's logits.
        """
        model, request, drawn = self._here.get(sample.model), sample.request, sample.sample.tokens
        if model is None or not is_plain(request) or not drawn:
            return None
        found: list[TokenLogprobs] = []
        at_once = max(1, _LOGITS_AT_ONCE // model.width)
        for first in range(0, len(drawn), at_once):
            own = drawn[first : first + at_once]
            tokens = (*request.prompt, *drawn[:first], *own[:-1])
            read = await self._engine.submit(sample.model, LogitsRequest(tokens, len(own)))
            found.append(logprobs_of(read.whole, request, drawn[:first], own))
        return TokenLogprobs(*(tuple(chain.from_iterable(part)) for part in zip(*map(astuple, found), strict=True)))

    async def margin(self, draw: PlacedDraw) -> Margin | None:
        """How near a tie a draw was, from logits that are read again inside `running()`.

        None for a model on a server, and where the token may be drawn otherwise than from the whole model's logits.
        """
        model = self._here.get(draw.model)
        if model is None or not is_plain(draw.request):
            return None
        tokens = (*draw.request.prompt, *draw.before)
        read = ReadRequest(tokens, (len(tokens) - 1,), tuple(range(model.width)))
        (logits,) = (await self._engine.submit(draw.model, read)).logits
        return margin_of(logits, draw.request, draw.key, draw.before)

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
        threads = self.settings.threads or usual_threads(largest)
        if threads is not None:
            torch.set_num_threads(threads)

    def _stepped(self, report: StepReport) -> None:
        self.events.emit(EngineStepped(report=report))
        self._note_busy()

    def _reported(self, model: str, counts: RemoteCounts) -> None:
        calls = counts.calls
        self.events.emit(
            ServerReported(
                model=model,
                in_flight=counts.in_flight,
                limit=counts.limit,
                queued=counts.queued,
                again=counts.again,
                why=counts.why,
                failing=counts.failing,
                resumes=counts.resumes,
                quiet=counts.quiet,
                requests=calls.requests,
                retries=calls.retries,
                replayed=calls.replayed,
                prompt_tokens=calls.prompt_tokens,
                cached_tokens=calls.cached_tokens,
                sampled_tokens=calls.sampled_tokens,
                cost=calls.cost,
            )
        )

    def _note_busy(self) -> None:
        busy = self.busy if self._floors else 0
        for floor, event in self._floors:
            (event.set if floor == 0 or busy < floor else event.clear)()

    def _shared_scores(self, owner: str) -> ScoreStore | None:
        """The scores that an owner's rows share, where a score is the same whatever row asked for it; else None."""
        exact = self.device == "cpu" and self.settings.dtype in (None, "float32")
        return self._scores.setdefault(owner, ScoreStore()) if exact else None


def _by_quarters(slow: Callable[[str, str], None]) -> Callable[[str, str, int, int], None]:
    """Tells `slow` each time another quarter of what takes long is done, and when it begins."""

    def tell(model: str, what: str, done: int, of: int) -> None:
        if 4 * done // of != 4 * (done - 1) // of:
            slow(model, f"{what}: {done} of {of}")

    return tell
