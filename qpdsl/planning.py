"""How a command plans: by all rules, by all but some, or by none."""

from __future__ import annotations

from dataclasses import dataclass, replace

from qpdsl.arguments import unknown
from qpdsl.caches import measured_device, read_statistics
from qpdsl.errors import UsageError
from qpdsl.planner.choose import NAME, choose
from qpdsl.planner.logical import LogicalProgram
from qpdsl.planner.optimize import Change, Optimized, optimize
from qpdsl.planner.plan import plan
from qpdsl.planner.rules import RULES

PLANS = ("optimized", "naive")
# What a change that no rule made is called.
BY_COST = "choice_by_cost"


@dataclass(frozen=True, slots=True)
class Planning:
    """`kind` is one of `PLANS`; `disabled` are names of rules."""

    kind: str = "optimized"
    disabled: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, disabled: tuple[str, ...]) -> Planning:
        """Raises UsageError where the two do not go together, or a rule is not there."""
        names = [rule.name for rule in RULES]
        for name in disabled:
            if name not in names:
                raise UsageError(f"`--disable-rule`: {unknown(name, names, 'there is no rule')}")
        if kind == "naive" and disabled:
            raise UsageError("`--plan naive` uses no rule, so that `--disable-rule` has none to switch off")
        return cls(kind, tuple(name for name in names if name in disabled))

    def __str__(self) -> str:
        return self.kind + (f" without {', '.join(self.disabled)}" if self.disabled else "")

    def optimized(self, program: LogicalProgram, reads: tuple[str, ...] | None) -> Optimized:
        """The plan of a program and how it came about. `reads`: see `PhysicalPlan`."""
        naive = plan(program, reads)
        return Optimized(naive, (), {}) if self.kind == "naive" else chosen(optimize(naive, self.disabled))


def chosen(optimized: Optimized) -> Optimized:
    """What the rules left open, chosen by cost, where the device was measured; else the rules' own figures stay."""
    device = measured_device()
    if device is None:
        return optimized
    plan_ = choose(optimized.plan, device, read_statistics())
    return replace(optimized, changes=(*optimized.changes, Change(NAME, plan_)))


def reads_of(program: LogicalProgram, *, rows: bool = False, text: bool = False) -> tuple[str, ...] | None:
    """The columns of a program's last rows that are shown: all of them, or its score, and its text where asked for."""
    if rows:
        return None
    score = () if program.score_column is None else (program.score_column,)
    return (*score, "text") if text else score
