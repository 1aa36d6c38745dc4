"""The models that a plan runs, and what each of them must be able to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.models.text_model import PagedTextModel, TextModel
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.runtime.requirements import required_features
from qpdsl.executor.verifiers.registry import BY_CONFIGURATION
from qpdsl.grammar.model_id import is_remote
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import PhysicalPlan, models_of
from qpdsl.zoo import builtin


def named_models(operators: Iterable[ops.Operator]) -> list[str]:
    """The models that a plan runs, by their names in the program, those that draft among them."""
    return [name for op in operators for name in models_of(op)]


def named_heads(operators: Iterable[ops.Operator]) -> Iterator[str]:
    """The folders of the EAGLE heads that a plan drafts with."""
    for op in operators:
        if isinstance(op, ops.Generate) and op.draft is not None and op.draft.method == "eagle":
            assert op.draft.model is not None
            yield op.draft.model


def verifier_kinds(plan: PhysicalPlan, operators: Iterable[ops.Operator]) -> dict[str, str]:
    """The kind of verifier of each model that scores: what the program says, else what is known of a built-in model.

    `BY_CONFIGURATION` where neither tells.

    Raises ModelError where the program says two kinds of one model.
    """
    kinds: dict[str, str] = {}
    for op in operators:
        if isinstance(op, ops.StepScore):
            model = plan.models[op.verifier.name]
            known = builtin(model)
            kind = op.kind or (known.kind if known is not None else None) or BY_CONFIGURATION
            before = kinds.get(model, kind)
            if BY_CONFIGURATION not in (before, kind) and before != kind:
                raise ModelError(model, f"it is declared as a verifier of kind {before} and of kind {kind}")
            kinds[model] = kind if before == BY_CONFIGURATION else before
    return kinds


def check_vocabularies(plan: PhysicalPlan, operators: Iterable[ops.Operator], models: Mapping[str, TextModel]) -> None:
    """Raises ModelError unless both models of every `via` with two, and of every `draft`, write with the same tokens.

    A token of one stands in the text of the other, or is proposed for it. `models` are the loaded models by id.
    """
    for op in operators:
        if isinstance(op, ops.Generate) and isinstance(op.via, ops.Paired):
            large, small = models[plan.models[op.model.name]], models[plan.models[op.via.model.name]]
            if large.tokenizer.get_vocab() != small.tokenizer.get_vocab() or large.eos != small.eos:
                what = f"`via {op.via.word}` needs the vocabulary of `{large.name}`, and it has another"
                raise ModelError(small.name, what)
        if isinstance(op, ops.Generate) and op.draft is not None and op.draft.method == "model":
            assert op.draft.model is not None
            large, small = models[plan.models[op.model.name]], models[plan.models[op.draft.model]]
            if large.tokenizer.get_vocab() != small.tokenizer.get_vocab():
                raise ModelError(small.name, f"`draft` needs the vocabulary of `{large.name}`, and it has another")


def check_heads(
    plan: PhysicalPlan,
    operators: Iterable[ops.Operator],
    models: Mapping[str, PagedTextModel],
    heads: Mapping[str, EagleHead],
) -> None:
    """Raises ModelError unless every EAGLE head reads hidden states as wide as those of the model it drafts for.

    `models` are the ones loaded here by id, `heads` those by folder. A model on a server is drafted for by nobody.
    """
    for op in operators:
        for place in named_heads((op,)):
            assert isinstance(op, ops.Generate)
            if plan.models[op.model.name] not in models:
                continue
            model, head = models[plan.models[op.model.name]], heads[place]
            read = model.paged.head
            width, own = head.config.hidden_size, read.in_features if isinstance(read, LogitHead) else 0
            if own and width != own:
                raise ModelError(place, f"its hidden states are {width} wide, and those of `{model.name}` are {own}")


def check_writers(plan: PhysicalPlan, operators: Iterable[ops.Operator], models: Mapping[str, TextModel]) -> None:
    """Raises ModelError where the plan generates with a model that only scores. `models` are the loaded ones by id."""
    for op in operators:
        for name in _writers(op):
            model, known = models[plan.models[name]], builtin(plan.models[name])
            if known is not None and known.kind is not None:
                raise ModelError(model.name, f"it is a verifier of kind {known.kind}: it scores text, and writes none")
            if not model.writes:
                raise ModelError(model.name, f"it is a {model.kind} verifier, which writes no text")


def _writers(op: ops.Operator) -> Iterator[str]:
    """The models that an operator has write, the one that drafts first: whoever named it is to be told of it."""
    if isinstance(op, ops.Generate) and op.draft is not None and op.draft.method == "model":
        assert op.draft.model is not None
        yield op.draft.model
    if isinstance(op, ops.Generate | ops.Judge | ops.Prob | ops.Tournament):
        yield op.model.name


def check_features(plan: PhysicalPlan, engine: Engine) -> None:
    """Raises ModelError where a model of the plan cannot be asked for what the plan will ask for.

    What servers lack is told by `executor/remote/missing_features.py`, stage by stage.
    """
    for name, features in required_features(plan).items():
        model = plan.models[name]
        if is_remote(model):
            continue
        if (inability := engine.capabilities(model).refusal(features)) is not None:
            raise ModelError(model, f"it {inability}")
