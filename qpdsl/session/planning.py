"""How a program is planned: by all rules, by all but some, or by none; then by cost, where the device was measured.

A plan may leave something to a router: how the heads of its steps are computed, and which draws try their exits. Of
models on servers the planner gets what was found out about them by now; no server is asked.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from qpdsl import zoo
from qpdsl.errors import UsageError, unknown
from qpdsl.executor.checkpoint.gguf_header import SUFFIX
from qpdsl.executor.engine.memory.budget import main_memory, parse
from qpdsl.executor.foreign.bounded_file import read_bounded
from qpdsl.executor.requests.routing import NO_ROUTER, ExitRouting, Routing
from qpdsl.exit_heads.exit_ways import exit_ways
from qpdsl.grammar.model_id import base_of, is_remote
from qpdsl.planner.cost.cardinality import cardinalities
from qpdsl.planner.cost.demand import demands
from qpdsl.planner.cost.device import Device, nominal
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.optimize.batch_surface import BatchSurface, batch_surface
from qpdsl.planner.optimize.budgeted_plan import budgeted
from qpdsl.planner.optimize.by_cost import NAME, PROBLEMS, choice_of
from qpdsl.planner.optimize.optimizer import Optimized, optimize
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.plan.decode_plan import DecodePlan
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import (
    GenerateStrategy,
    PhysicalPlan,
    RemoteModel,
    StepLimits,
    Strategy,
    everything,
)
from qpdsl.planner.plan.rule import with_strategies
from qpdsl.planner.rules import RULES
from qpdsl.session.settings import SessionSettings
from qpdsl.session.user_cache import measured_device, read_statistics


@dataclass(frozen=True, slots=True)
class Planning:
    """`kind` is "optimized" or "naive"; `disabled` are names of rules, that of the choice by cost among them."""

    kind: str = "optimized"
    disabled: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, disabled: tuple[str, ...]) -> Planning:
        """Raises UsageError where the two do not go together, or there is no such rule."""
        names = [*(rule.name for rule in RULES), NAME]
        for name in disabled:
            if name not in names:
                raise UsageError(f"`--disable-rule`: {unknown(name, names, 'there is no rule')}")
        if kind == "naive" and disabled:
            raise UsageError("`--plan naive` uses no rule, so that `--disable-rule` has none to switch off")
        return cls(kind, tuple(name for name in names if name in disabled))

    def without_choice(self) -> Planning:
        """The same without the choice by cost."""
        return self if self.kind == "naive" or NAME in self.disabled else replace(self, disabled=(*self.disabled, NAME))

    def __str__(self) -> str:
        return self.kind + (f" without {', '.join(self.disabled)}" if self.disabled else "")

    def optimized(
        self,
        program: LogicalProgram,
        reads: tuple[str, ...] | None,
        settings: SessionSettings,
        load: RunLoad | None = None,
        *,
        kv_types: bool = True,
        support: bool = False,
        policy: BudgetPolicy | None = None,
    ) -> Optimized:
        """The plan of a program, with the plans on the way to it.

        `reads` and `support` are explained at `PhysicalPlan`, `load` and `kv_types` at `choice_of`. `policy` is that
        of a program that leaves ways to a budget. Raises UsageError for one without.
        """
        if program.ways:
            if policy is None:
                raise without_budget(program)

            def plan_way(way: LogicalProgram, own: tuple[str, ...] | None, sure: bool) -> Optimized:
                return self.optimized(way, own, settings, load, kv_types=False, support=sure or support)

            return budgeted(program, reads, policy, plan_way)
        naive = with_servers(plan(program, reads, support=support))
        if self.kind == "naive":
            return with_settings(Optimized(naive, (), {}), replace(settings, router=None))
        ruled = optimize(naive, [name for name in self.disabled if name != NAME])
        if NAME in self.disabled:
            return with_settings(replace(ruled, disabled=self.disabled), settings)
        return with_settings(with_choice(ruled, settings, load, kv_types=kv_types), settings)


def without_budget(program: LogicalProgram) -> UsageError:
    """That a program leaves its ways open, and nothing chooses one."""
    return UsageError(
        f"`{program.name}` needs a budget, which decides how it runs",
        "`--budget tokens=2000` gives one, and so does `within budget(tokens=2000)` in the program",
    )


def with_choice(
    optimized: Optimized, settings: SessionSettings, load: RunLoad | None = None, *, kv_types: bool = True
) -> Optimized:
    """The plan with what the rules left open chosen by cost. Unchanged where a model was not measured on the device.

    A server is no part of the device, so nothing is chosen for a plan that asks one.
    """
    if optimized.plan.has_remote():
        return optimized
    device = measured(settings, optimized.plan.models.values())
    if device is None or device.source(optimized.plan.models.values()) == "partial":
        return optimized
    disabled = optimized.disabled
    ways = exit_ways(settings.exit_heads, optimized.plan.within)
    load = within_limits(load or RunLoad(PROBLEMS), settings)
    choice = choice_of(optimized.plan, device, read_statistics(), load, kv_types=kv_types, disabled=disabled, ways=ways)
    shares = {model: device.profile(model).sparse_share for model in dict.fromkeys(choice.plan.models.values())}
    known = {model: share for model, share in shares.items() if share is not None}
    return replace(optimized, choice=replace(choice, plan=replace(choice.plan, sparse_shares=known)))


def reads_of(program: LogicalProgram, *, rows: bool = False, text: bool = False) -> tuple[str, ...] | None:
    """The columns of the final rows that are shown: None for all of them, else the score and, with `text`, the text."""
    if rows:
        return None
    score = () if program.score_column is None else (program.score_column,)
    return (*score, "text") if text else score


def routed(plan: PhysicalPlan, router: str | None) -> PhysicalPlan:
    """The plan with a learned router for each head that may be sparse, and for each early exit, that it is one of.

    `router`: as `Routing.named` and `ExitRouting.named` take it, or None. Itself where there is nothing to route.
    """
    if router is None:
        return plan
    heads, exiting = Routing.named(router) is not None, ExitRouting.named(router)
    strategies: dict[str, Strategy] = {}
    for node in everything(plan.ops):
        strategy = node.strategy
        if isinstance(strategy, GenerateStrategy):
            decode = replace(strategy.decode, router="learned")
            via = node.op.via if isinstance(node.op, ops.Generate) else None
            has_arm = exiting is not None and (exiting.fixed != "rerank" or getattr(via, "rerank", None) is not None)
            if (heads and decode.routes_heads) or (has_arm and decode.routes_exits):
                strategies[node.id] = replace(strategy, decode=decode)
    return with_strategies(plan, strategies)


def with_settings(optimized: Optimized, settings: SessionSettings) -> Optimized:
    """The same with the plan as the settings have it: routed, with the limits of steps and the parts of the memory."""
    plan = routed(optimized.plan, settings.router)
    shares = {name: share for name, share in settings.kv_shares.items() if name in plan.models}
    limits = step_limits(optimized, settings)
    if limits is not None or shares:
        plan = replace(plan, limits=limits, kv_shares=shares)
    return optimized if plan is optimized.plan else replace(optimized, settled=plan)


def step_limits(optimized: Optimized, settings: SessionSettings) -> StepLimits | None:
    """The limits of the steps that a plan runs in: as set, and else the best of the batch surface.

    That is where the slowest model is fastest, but never fewer sequences than the plan keeps at work, and only on a
    device that `qpdsl profile` measured: how far samples came that were given up hangs on the steps, and a run's second
    half is to count as its first did. None where they are not set, and nothing was chosen by cost.
    """
    plan, limits = optimized.plan, StepLimits()
    given = {"sequences": settings.max_sequences, "tokens": settings.step_tokens}
    surface = None
    device = measured(settings, plan.models.values()) if optimized.choice is not None else None
    profiled = device is not None and device.source(plan.models.values()) == "profiled"
    if profiled and plan.in_flight is not None and None in given.values():
        surface = surface_of(plan, settings)
    if surface is not None:
        best = surface[0].optimum
        most = max(best.sequences, min(plan.floor, limits.sequences))
        limits = StepLimits(most, max(best.token_budget, most), "by the measured device")
    elif not any(given.values()):
        return None
    sources = {what: "as set" if value else limits.source for what, value in given.items()}
    equal = len(set(sources.values())) == 1
    source = sources["tokens"] if equal else " and ".join(f"{what} {by}" for what, by in sources.items())
    return StepLimits(given["sequences"] or limits.sequences, given["tokens"] or limits.tokens, source)


def check_routed(plan: PhysicalPlan, router: str | None) -> None:
    """Raises UsageError where a router is asked for, and the plan leaves nothing to one."""
    if router in (None, NO_ROUTER) or is_routed(plan):
        return
    if any(decode.exits_early for decode in _decodes(plan)):
        if any(decode.exits_early and decode.drafts for decode in _decodes(plan)):
            why = "an early exit beside drafts has none, since all layers check what is drafted: write `draft none`"
        else:
            why = "an early exit has `lin_ucb`, `thompson`, `fixed:exit` and `fixed:full`, and with `rerank=` also "
            why += "`fixed:rerank`, in an optimized plan"
    else:
        why = "a `generate … as …` with a schema, a regex or a grammar has one, unless its rule `sparse_logits` is off"
        why += "; so has a `generate … via amortized(…)`, by another router than of heads alone"
    raise UsageError(f"`--router`: no step of `{plan.name}` leaves a choice to a router", why)


def is_routed(plan: PhysicalPlan) -> bool:
    """Whether a router has anything to decide in it."""
    return any(decode.routed for decode in _decodes(plan))


def routes_exits(plan: PhysicalPlan) -> bool:
    """Whether its tokens depend on what a router knows."""
    return any(decode.routes_exits for decode in _decodes(plan))


def _decodes(plan: PhysicalPlan) -> list[DecodePlan]:
    strategies = [node.strategy for node in everything(plan.ops)]
    return [strategy.decode for strategy in strategies if isinstance(strategy, GenerateStrategy)]


def with_servers(naive: PhysicalPlan) -> PhysicalPlan:
    """The plan with what is known of its models on servers; an id that is no address is left to be refused."""
    remote = [model for model in dict.fromkeys(naive.models.values()) if is_remote(model)]
    return replace(naive, remote=_known(remote)) if remote else naive


def _known(models: Iterable[str]) -> dict[str, RemoteModel]:
    from qpdsl.executor.checkpoint.errors import ModelError
    from qpdsl.executor.remote.probe.known_servers import cached_capabilities
    from qpdsl.executor.remote.server.address import Address

    known: dict[str, RemoteModel] = {}
    for id in models:
        try:
            address = Address.of(id)
        except ModelError:
            continue
        capabilities = None if address is None else cached_capabilities(address)
        if capabilities is not None:
            able = capabilities.for_engine
            known[id] = RemoteModel(
                probed=True,
                repeats=able.repeats,
                greedy=capabilities.greedy,
                # Text that is cut into tokens here may not be cut as the server did.
                token_ids=capabilities.endpoint == "ids" and capabilities.token_ids,
                streams=capabilities.streams,
                spare_rows=able.spare_rows,
            )
    return known


def surface_of(plan: PhysicalPlan, settings: SessionSettings) -> tuple[BatchSurface, Device] | None:
    """The batch surface of a plan, and the device that it is estimated for, by the statistics of earlier runs.

    The device is nominal where it was not measured. What servers run is no part of it: None where the plan calls no
    model of this machine.
    """
    device = measured(settings, plan.models.values()) or nominal(settings.device)
    load = within_limits(RunLoad(), settings)
    if settings.kv_bytes is not None:
        load = replace(load, kv_bytes=parse(settings.kv_bytes, main_memory))
    cards = cardinalities(plan, read_statistics())
    here = [demand for demand in demands(plan, cards) if not is_remote(demand.model)]
    surface = batch_surface(here, device, load, cards.source)
    return None if surface is None else (surface, device)


def within_limits(load: RunLoad, settings: SessionSettings) -> RunLoad:
    """The load with the limits of steps that are set."""
    return replace(
        load,
        max_sequences=settings.max_sequences or load.max_sequences,
        token_budget=settings.step_tokens or load.token_budget,
    )


def computes_in(settings: SessionSettings, models: Iterable[str]) -> str | None:
    """The type that all models compute in; None where it is not known or not the same for all."""
    if settings.dtype is not None or settings.device == "cpu":
        return settings.dtype or "float32"
    types = {_own_dtype(model) for model in models}
    return types.pop() if len(types) == 1 else None


def measured(settings: SessionSettings, models: Iterable[str]) -> Device | None:
    """The device that models run on, as it was measured in the type that they compute in; None where it was not."""
    dtype = computes_in(settings, models)
    return None if dtype is None else measured_device(settings.device, dtype, settings.threads)


def _own_dtype(model: str) -> str | None:
    """The type that a checkpoint was saved in, by its configuration; None where that is not on this machine.

    What is in a GGUF file becomes bfloat16 where it does not stay as it is.
    """
    from huggingface_hub import try_to_load_from_cache

    if base_of(model).lower().endswith(SUFFIX):
        return "bfloat16"
    try:
        folder = zoo.path(model) if model.startswith("zoo/") else Path(base_of(model)).expanduser()
        config = folder / "config.json" if folder.is_dir() else try_to_load_from_cache(base_of(model), "config.json")
        data = json.loads(read_bounded(Path(config))) if isinstance(config, str | Path) else {}
        dtype = data.get("dtype") or data.get("torch_dtype")
    except (OSError, RuntimeError, ValueError, AttributeError):
        return None
    return dtype if isinstance(dtype, str) else None
