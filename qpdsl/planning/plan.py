"""How a command plans: by all rules, by all but some, or by none.

MERGED: What a plan is to run on, as far as it is known before a model is loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from qpdsl import zoo
from qpdsl.arguments import unknown
from qpdsl.errors import UsageError
from qpdsl.planner.cost.timing import Load
from qpdsl.planner.optimize.by_cost import NAME, choice_of
from qpdsl.planner.optimize.optimizer import Optimized, optimize
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.rules import RULES
from qpdsl.planning.store import measured_device, read_statistics


@dataclass(frozen=True, slots=True)
class Target:
    """A device by its kind ("cpu", "cuda", "cuda:1"…). `dtype` and `threads` None: not said, see `Session`."""

    kind: str = "cpu"
    dtype: str | None = None
    threads: int | None = None

    def computes_in(self, models: Iterable[str]) -> str | None:
        """What the models compute in here, None where that is not known or not the same for all."""
        if self.dtype is not None or self.kind == "cpu":
            return self.dtype or "float32"
        types = {_own_dtype(model) for model in models}
        return types.pop() if len(types) == 1 else None


def _own_dtype(model: str) -> str | None:
    """What a checkpoint was saved in, by its configuration; None where that does not lie on this machine."""
    from huggingface_hub import try_to_load_from_cache

    try:
        folder = zoo.path(model) if model.startswith("zoo/") else Path(model).expanduser()
        config = folder / "config.json" if folder.is_dir() else try_to_load_from_cache(model, "config.json")
        data = json.loads(Path(config).read_text("utf-8")) if isinstance(config, str | Path) else {}
        found = data.get("dtype") or data.get("torch_dtype")
    except (OSError, RuntimeError, ValueError, AttributeError):
        return None
    return found if isinstance(found, str) else None


PLANS = ("optimized", "naive")


@dataclass(frozen=True, slots=True)
class Planning:
    """`kind` is one of `PLANS`; `disabled` are names of rules, that of the choice by cost among them."""

    kind: str = "optimized"
    disabled: tuple[str, ...] = ()

    @classmethod
    def of(cls, kind: str, disabled: tuple[str, ...]) -> Planning:
        """Raises UsageError where the two do not go together, or a rule is not there."""
        names = [*(rule.name for rule in RULES), NAME]
        for name in disabled:
            if name not in names:
                raise UsageError(f"`--disable-rule`: {unknown(name, names, 'there is no rule')}")
        if kind == "naive" and disabled:
            raise UsageError("`--plan naive` uses no rule, so that `--disable-rule` has none to switch off")
        return cls(kind, tuple(name for name in names if name in disabled))

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
    ) -> Optimized:
        """The plan of a program and how it came about. `reads`: see `PhysicalPlan`; `load` and `kv_types`: `choice_of`.

        What the rules left open is chosen by cost where the target was measured; else the rules' own figures stay.
        """
        naive = plan(program, reads)
        if self.kind == "naive":
            return Optimized(naive, (), {})
        ruled = optimize(naive, [name for name in self.disabled if name != NAME])
        if NAME in self.disabled:
            return replace(ruled, disabled=self.disabled)
        return chosen(ruled, target, load, kv_types=kv_types)


def chosen(optimized: Optimized, target: Target, load: Load | None = None, *, kv_types: bool = True) -> Optimized:
    """What the rules left open, chosen by cost, where the target was measured; else the rules' own figures stay."""
    dtype = target.computes_in(optimized.plan.models.values())
    device = None if dtype is None else measured_device(target.kind, dtype, target.threads)
    if device is None:
        return optimized
    return replace(optimized, choice=choice_of(optimized.plan, device, read_statistics(), load, kv_types=kv_types))


def reads_of(program: LogicalProgram, *, rows: bool = False, text: bool = False) -> tuple[str, ...] | None:
    """The columns of a program's last rows that are shown: all of them, or its score, and its text where asked for."""
    if rows:
        return None
    score = () if program.score_column is None else (program.score_column,)
    return (*score, "text") if text else score
