"""How a command plans: by all rules, by all but some, or by none; and the choice by cost after the rules."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qpdsl.errors import UsageError, unknown
from qpdsl.planner.budget.budget_policy import BudgetPolicy
from qpdsl.planner.cost.timing import Load
from qpdsl.planner.optimize.budgeted_plan import budgeted
from qpdsl.planner.optimize.by_cost import NAME, choice_of
from qpdsl.planner.optimize.optimizer import Optimized, optimize
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.rules import RULES
from qpdsl.planning.exit_heads import exit_ways
from qpdsl.planning.remote_models import with_servers
from qpdsl.planning.routed import with_router
from qpdsl.planning.target import Target
from qpdsl.planning.user_cache import measured_device, read_statistics


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
        target: Target,
        load: Load | None = None,
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
                return self.optimized(way, own, target, load, kv_types=False, support=sure or support)

            return budgeted(program, reads, policy, plan_way)
        naive = with_servers(plan(program, reads, support=support))
        if self.kind == "naive":
            return Optimized(naive, (), {})
        ruled = optimize(naive, [name for name in self.disabled if name != NAME])
        if NAME in self.disabled:
            return with_router(replace(ruled, disabled=self.disabled), target.router)
        return with_router(with_choice(ruled, target, load, kv_types=kv_types), target.router)


def without_budget(program: LogicalProgram) -> UsageError:
    """That a program leaves its ways open, and nothing chooses one."""
    return UsageError(
        f"`{program.name}` leaves it to a budget how it runs, and has none",
        "`--budget tokens=2000` gives one, and so does `within budget(tokens=2000)` in the program",
    )


def with_choice(optimized: Optimized, target: Target, load: Load | None = None, *, kv_types: bool = True) -> Optimized:
    """The plan with what the rules left open chosen by cost. Unchanged where the target was not measured.

    A server is no part of the target, so nothing is chosen for a plan that asks one.
    """
    if optimized.plan.has_remote():
        return optimized
    dtype = target.computes_in(optimized.plan.models.values())
    device = None if dtype is None else measured_device(target.kind, dtype, target.threads)
    if device is None:
        return optimized
    disabled = optimized.disabled
    ways = exit_ways(dict(target.exit_heads), optimized.plan.within)
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
