"""From a program and its settings to a plan that can run: `bind_program`, then `prepare`.

All faces come this way. A program is loaded, permitted what the user permits, and bound to its values. Then its servers
are asked what they can do, its budget is decided, it is planned, and the plan is checked. Nothing is loaded for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from qpdsl.arguments import parse_settings, settings_files, text_parameter, with_defaults
from qpdsl.errors import UsageError, unknown
from qpdsl.grammar.diagnostic import Diagnostic, QpError
from qpdsl.grammar.model_id import is_remote
from qpdsl.model_location import check_models, check_verifiers, locate_tokenizer
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.optimize.optimizer import Optimized
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import greedy_of
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.planner.values.value import Value
from qpdsl.session.budget_option import budgeted
from qpdsl.session.planning import Planning, check_routed, reads_of
from qpdsl.session.programs import load_program, permitting
from qpdsl.session.settings import Settings
from qpdsl.session.surroundings import Surroundings, read_surroundings
from qpdsl.stage_options import check_code, check_options

if TYPE_CHECKING:
    from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities

# What a program under a budget decides by, from its values; None where it has no budget.
Policies = Callable[[LogicalProgram, Mapping[str, Value]], BudgetPolicy | None]


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A checked program with the values that hold for all its rows."""

    program: LogicalProgram
    values: Mapping[str, Value] = field(default_factory=dict)
    surroundings: Surroundings = field(default_factory=Surroundings)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanUse:
    """What a plan is for.

    `rows` reads all columns of the final rows and `text` the text too. `alone` says that its session runs nothing else:
    then the plan may choose how the KV cache is quantized, where no setting says it. With `confidence` it keeps all
    samples of a vote. `greedy` plans greedy decoding too, to compare with. With `fixed` it depends on no measurement
    where other plans would give other tokens.
    """

    rows: bool = False
    text: bool = False
    alone: bool = False
    confidence: bool = False
    greedy: bool = False
    fixed: bool = False
    load: RunLoad | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """A program that can run: bound to its values, and planned."""

    bound: BoundProgram
    settings: Settings
    planning: Planning
    optimized: Optimized
    greedy: PhysicalPlan | None = None

    @property
    def program(self) -> LogicalProgram:
        return self.bound.program

    @property
    def values(self) -> Mapping[str, Value]:
        return self.bound.values

    @property
    def plan(self) -> PhysicalPlan:
        return self.optimized.plan

    @property
    def plans(self) -> tuple[PhysicalPlan, ...]:
        """All plans that run, that of greedy decoding among them."""
        return (self.plan,) if self.greedy is None else (self.plan, self.greedy)

    @property
    def models(self) -> dict[str, str]:
        """The ids of the models that run, by name."""
        return {name: id for plan in self.plans for name, id in plan.models.items()}

    def check(self, values: Mapping[str, Value] | None = None) -> None:
        """Raises ArgumentError and UsageError for what would fail in every row. `values` are what is known of them."""
        check_options(self.plan, self.plan.values() if values is None else values)
        check_code(self.plan, self.settings.allow_code)


def bind_program(
    settings: Settings,
    surroundings: Surroundings | None = None,
    warn: Callable[[Sequence[Diagnostic]], None] = lambda warnings: None,
) -> BoundProgram:
    """The program that the settings name, with their values for its parameters. `warn` gets what the checker warns of.

    Raises UsageError, QpError and ArgumentError.
    """
    surroundings = surroundings_of(settings) if surroundings is None else surroundings
    program = load_program(settings.target, settings.pipeline, settings.program, surroundings, settings.assigned)
    warn(program.warnings)
    program = permitting(program, settings.within)
    values = parse_settings(program.params, settings.assigned, program.name, program.model_params)
    if settings.text is not None:
        values[text_parameter(program, values, settings.text)] = settings.text
    surroundings.read.update(file.absolute() for file in settings_files(program.params, settings.assigned))
    # The plan depends on the values of the parameters, and so does what they leave to a budget.
    program = budgeted(with_defaults(program, values), settings.budget)
    return BoundProgram(program, values, surroundings)


def prepare(
    bound: BoundProgram,
    settings: Settings,
    use: PlanUse = PlanUse(),
    policy: Policies = lambda program, values: None,
    servers: Mapping[str, ServerCapabilities] | None = None,
) -> Prepared:
    """A bound program, planned and checked. Of a program that leaves something open `policy` says what it decides by.

    `servers` are the answers of `ask_servers`; without them a plan goes by what is known of servers. Raises UsageError,
    QpError, ArgumentError and ModelError.
    """
    if settings.policy is not None and not bound.program.ways:
        lacks = "has no budget" if bound.program.budget is None else "leaves nothing open"
        raise UsageError(f"`--policy`: `{bound.program.name}` {lacks}, so there is nothing to decide", "leave it out")
    prepared = plan_bound(bound, settings, use, policy)
    check_routed(prepared.plan, settings.router)
    refuse_unmet(prepared, servers or {})
    prepared.check()
    check_models(prepared.models.values())
    for plan in prepared.plans:
        check_verifiers((node.op for node in everything(plan.ops)), plan.models)
    return prepared


def ask_servers(
    bound: Sequence[BoundProgram], settings: Settings, tell: Callable[[str], None], others: Iterable[str] = ()
) -> dict[str, ServerCapabilities]:
    """What the servers of these programs can do, by the models' ids: those that are not known yet are asked.

    `tell` is told of each probe, and how far it is; `others` are ids of models that run besides. Before that settings
    and prices are held against all models. Raises UsageError and ModelError.
    """
    models = list(dict.fromkeys(id for one in bound for id in one.program.models.values()))
    settings.check_used({*models, *others})
    check_shares(bound, settings)
    for one in bound:
        check_prices(settings, one.program)
    remote = [id for id in models if is_remote(id)]
    if not remote:
        return {}
    check_models(remote)
    from qpdsl.executor.remote.servers import Servers

    servers = Servers(settings.spending, locate_tokenizer)
    return {model: servers.capabilities_of(model, tell) for model in remote}


def check_shares(bound: Sequence[BoundProgram], settings: Settings) -> None:
    """Raises UsageError where a part of the memory is for a model that none of these programs has."""
    named = list(dict.fromkeys(name for one in bound for name in one.program.models))
    for name in settings.kv_shares:
        if name not in named:
            raise UsageError(f"`--kv-share`: {unknown(name, named, 'there is no model')}")


def plan_bound(
    bound: BoundProgram, settings: Settings, use: PlanUse = PlanUse(), policy: Policies = lambda program, values: None
) -> Prepared:
    """A bound program with its plan, which is not checked yet. Raises UsageError."""
    program = bound.program
    planning = Planning.of(settings.plan_kind, settings.disabled)
    if use.fixed and loses(program):
        planning = planning.without_choice()
    decided = policy(program, bound.values) if program.ways else None
    reads = reads_of(program, rows=use.rows, text=use.text)
    more = {"kv_types": use.alone and settings.kv_type is None, "support": use.confidence}
    optimized = planning.optimized(program, reads, settings, use.load, **more, policy=decided)
    baseline = greedy_of(program) if use.greedy else None
    greedy = None
    if baseline is not None:
        greedy = planning.optimized(baseline, reads_of(baseline, text=use.text), settings).plan
    return Prepared(bound, settings, planning, optimized, greedy)


def surroundings_of(settings: Settings) -> Surroundings:
    """What programs may use besides their text. Raises UsageError."""
    return read_surroundings(
        settings.allow_read,
        settings.python,
        settings.models,
        settings.adapters,
        settings.drafts,
        settings.answer,
        settings.tools,
    )


def loses(program: LogicalProgram) -> bool:
    """Whether a program permits plans that give other tokens."""
    return program.within is not None and program.within.level in ("epsilon", "loss")


def check_prices(settings: Settings, program: LogicalProgram) -> None:
    """Reads the table of prices for the models of a program that are on servers, before these are sent anything.

    Raises ModelError where the table cannot be read, and where money is bounded and one of them has no price;
    UsageError where a budget of money would count nothing.
    """
    from qpdsl.executor.checkpoint.errors import ModelError
    from qpdsl.executor.remote.server.address import Address
    from qpdsl.executor.remote.spending import Meter, Prices

    models = program.models.values()
    budget = bool(program.ways) and program.budget is not None and program.budget.unit == "cost"
    if budget and not any(map(is_remote, models)):
        raise UsageError(
            "a budget of `cost` counts what servers take, and no model here is on one",
            "`--budget tokens=…` or `--budget seconds=…` goes before the budget of the program",
        )
    if budget and settings.prices is None:
        raise UsageError("a budget of `cost` needs `--prices`, which says what tokens cost")
    most = 0.0 if budget else settings.max_cost
    prices = settings.spending.prices
    for model in models:
        address = Address.of(model)
        if prices is not None and address is not None:
            try:
                Meter(None, most, Prices.read(prices)).check([address.name])
            except ValueError as error:
                raise ModelError(model, str(error)) from error


def refuse_unmet(prepared: Prepared, servers: Mapping[str, ServerCapabilities]) -> None:
    """Raises QpError where plans need what servers lack."""
    if not servers:
        return
    from qpdsl.executor.remote.missing_features import missing_features

    for plan in prepared.plans:
        if found := missing_features(plan, servers):
            raise QpError([missing.diagnostic(plan.models) for missing in found], plan.source)
