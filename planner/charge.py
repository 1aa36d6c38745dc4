"""Who pays for the forwards: one forward serves many operators, so its time is charged by token share."""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.planner import ops
from qpdsl.planner.measured import OperatorFigures, RunFigures
from qpdsl.planner.physical import PhysicalOp, PhysicalPlan, everything

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
