"""What a plan needs of its engines: the requests that its operators will make, model by model."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.executor.requests.request import Feature
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalOp, PhysicalPlan, everything


def required_features(plan: PhysicalPlan) -> dict[str, frozenset[Feature]]:
    """The features (see `Capabilities`) that each model must have, by the models' names in the program.

    A temperature that depends on the arguments counts as above 0, so it needs seeds.
    """
    required: dict[str, frozenset[Feature]] = {}
    for node in everything(plan.ops):
        for model, features in features_of(node):
            required[model] = required.get(model, frozenset()) | features
    return required


def features_of(node: PhysicalOp) -> Iterator[tuple[str, frozenset[Feature]]]:
    """The same of one operator, without those inside it: names of models, and what each must have."""
    match node.op, node.strategy:
        case ops.Generate() as op, GenerateStrategy() as strategy:
            yield op.model.name, _generate_features(op, strategy)
            if isinstance(op.via, ops.Filter):
                yield op.via.model.name, _generate_features(op, strategy) - {"logprobs"} | {"confidence"}
            elif isinstance(op.via, ops.Contrast):
                yield op.via.model.name, frozenset({"contrast"})
            if strategy.decode.draft == "model" and op.draft is not None and op.draft.model is not None:
                yield op.draft.model, frozenset({"sampling"})
        case ops.Judge(reduce="expected") | ops.Prob() | ops.Tournament() as op, _:
            yield op.model.name, frozenset({"logprobs"})
        case ops.Judge() as op, _:
            yield op.model.name, frozenset({"sampling", "regex"})
        case ops.StepScore() as op, _:
            yield op.verifier.name, frozenset({"logits"})


def _generate_features(op: ops.Generate, strategy: GenerateStrategy) -> frozenset[Feature]:
    """What the requests to the operator's own model need."""
    decode = strategy.decode
    if decode.constraint in ("options", "tree"):
        return frozenset({"logprobs"})
    temperature = constant(op.temperature)
    needed: dict[Feature, bool] = {
        "sampling": True,
        "seeds": op.temperature is not None and (temperature is None or evaluate(temperature, {}) != 0),
        "routing": decode.routed,
        "figures": strategy.figures,
        "contrast": isinstance(op.via, ops.Contrast),
        # The large model tells the log-probabilities of what the small one has drawn.
        "logprobs": isinstance(op.via, ops.Filter) and strategy.logprobs,
    }
    if decode.masked and op.constraint is not None:
        needed[op.constraint.kind] = True
    return decode.features | {feature for feature, is_needed in needed.items() if is_needed}
