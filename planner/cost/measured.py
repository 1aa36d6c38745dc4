"""What a run came to, by operator and by model: filled from the events, read by EXPLAIN ANALYZE and the statistics.

MERGED: Who pays for the forwards: one forward serves many operators, so its time is charged by token share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything


@dataclass(frozen=True, slots=True)
class OperatorFigures:
    """Sums over all runs of one operator, of all problems; tokens and `counts` as the runtime's `Usage` has them.

    `runs` counts how often it ran: for what is inside a `repeat` the rounds, over all problems.
    """

    runs: int = 0
    rows_in: int = 0
    rows_out: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through the model: what was drawn, and what was not cached of what was given."""
        return self.prompt_tokens - self.cached_tokens + self.sampled_tokens

    @property
    def cached_share(self) -> float | None:
        """Of the prompts' tokens; None where there were none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Sums over the forwards of one model. The seconds of a forward are parted by its tokens of either kind.

    `peak_pages` of `pages` were held at once, `page_bytes` each (0 where that is not known).
    """

    steps: int = 0
    prefill_tokens: int = 0
    decode_tokens: int = 0
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    preemptions: int = 0
    evictions: int = 0
    thrashed: int = 0
    peak_pages: int = 0
    pages: int = 0
    page_bytes: int = 0

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run of a plan over `problems` rows of input, `in_flight` at once.

    `seconds` is wall time from the first instance's start to the last one's end. `peak_kv` and `kv_budget` are bytes,
    None where not known; `longest` is how many times as many steps the longest problem took as the average one.
    """

    problems: int
    failed: int
    in_flight: int
    seconds: float
    operators: Mapping[str, OperatorFigures]
    models: Mapping[str, ModelFigures]
    peak_kv: int | None = None
    kv_budget: int | None = None
    longest: float = 1.0

    @property
    def forward_seconds(self) -> float:
        """What of the wall time went into forwards; the rest went into the runtime around them."""
        return sum(model.seconds for model in self.models.values())


RULE = (
    "time: that of forwards; one forward serves many operators, and is charged by token share, prompt and drawn "
    "tokens apart"
)
_NOTHING = OperatorFigures()


def charged(plan: PhysicalPlan, figures: RunFigures) -> dict[str, float]:
    """Seconds of forwards by operator, for those that call a model; what contains others has the sum of theirs."""
    seconds: dict[str, float] = {}
    users = {node.id: _models(node.op, plan.models) for node in everything(plan.ops)}
    for model, spent in figures.models.items():
        own = {id: figures.operators.get(id, _NOTHING) for id, models in users.items() if model in models}
        prompt = {id: float(found.prompt_tokens - found.cached_tokens) for id, found in own.items()}
        drawn = {id: float(found.sampled_tokens) for id, found in own.items()}
        for tokens, time in ((prompt, spent.prefill_seconds), (drawn, spent.decode_seconds)):
            whole = sum(tokens.values())
            for id in own:
                # Forwards for what nobody was given in the end are shared out alike.
                share = tokens[id] / whole if whole else 1 / len(own)
                seconds[id] = seconds.get(id, 0.0) + time * share
    for node in reversed(list(everything(plan.ops))):
        inside = [inner.id for chain in (node.body, *node.arms) for inner in chain if inner.id in seconds]
        if inside:
            seconds[node.id] = sum(seconds[id] for id in inside)
    return seconds


def total(chain: tuple[PhysicalOp, ...], figures: RunFigures) -> OperatorFigures:
    """The tokens of a chain of operators; what contains others has told theirs."""
    found = [figures.operators.get(node.id, _NOTHING) for node in chain]
    return OperatorFigures(
        prompt_tokens=sum(each.prompt_tokens for each in found),
        cached_tokens=sum(each.cached_tokens for each in found),
        sampled_tokens=sum(each.sampled_tokens for each in found),
        counts={"near_ties": sum(each.count("near_ties") for each in found)},
    )


def _models(op: ops.Operator, models: Mapping[str, str]) -> tuple[str, ...]:
    match op:
        case ops.Generate(model=model, via=ops.Filter(model=small)):
            names: tuple[str, ...] = (model, small)
        case ops.Generate(model=model) | ops.Judge(model=model) | ops.Score(verifier=model):
            names = (model,)
        case _:
            names = ()
    return tuple(models.get(name, name) for name in names)
