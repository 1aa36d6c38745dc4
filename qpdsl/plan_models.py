"""The models that a plan runs, and what each of them must be able to do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.models.load import BY_CONFIGURATION
from qpdsl.executor.models.text_model import PagedTextModel, TextModel
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.runtime.requirements import required_features
from qpdsl.executor.text.context import Context, ContextError, encode
from qpdsl.grammar import ast
from qpdsl.grammar.model_id import is_remote
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.options import constant
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.zoo import builtin


def named_models(operators: Iterable[ops.Operator]) -> list[str]:
    """The models that a plan runs, by their names in the program, those that draft among them."""
    names: list[str] = []
    for op in operators:
        if isinstance(op, ops.Generate) and op.draft is not None and op.draft.method == "model":
            assert op.draft.model is not None
            names.append(op.draft.model)
        match op:
            case ops.Generate(model=model, via=ops.Filter(model=small)):
                names += [model, small]
            case ops.Generate(model=model) | ops.Score(verifier=model):
                names.append(model)
            case ops.Judge(model=model) | ops.Prob(model=model) | ops.Tournament(model=model):
                names.append(model)
    return names


def named_heads(operators: Iterable[ops.Operator]) -> Iterator[str]:
    """The folders of the EAGLE heads that a plan drafts with."""
    for op in operators:
        if isinstance(op, ops.Generate) and op.draft is not None and op.draft.method == "eagle":
            assert op.draft.model is not None
            yield op.draft.model


def named_exit_heads(
    plan: PhysicalPlan, operators: Iterable[ops.Operator]
) -> Iterator[tuple[str, str, tuple[int | None, ...]]]:
    """The folders of exit heads that a plan names, each with the id of its model and the layers that are asked for.

    None is the folder's usual layer. All of them are asked for, by no layer at all, where only a run says which.
    """
    for op in operators:
        draft = op.draft if isinstance(op, ops.Generate) else None
        if isinstance(op, ops.Generate) and draft is not None and draft.method == "early_exit" and draft.model:
            yield draft.model, plan.models[op.model], (None,)
        if isinstance(op, ops.Generate) and isinstance(op.via, ops.Amortized) and op.via.head is not None:
            layers: tuple[int | None, ...] = (None,) if op.via.layer is None else ()
            literal = constant(op.via.layer)
            if isinstance(literal, ast.Literal) and isinstance(literal.value, int):
                layers = (literal.value,)
            yield op.via.head, plan.models[op.model], layers


def verifier_kinds(plan: PhysicalPlan, operators: Iterable[ops.Operator]) -> dict[str, str]:
    """The kind of verifier of each model that scores: what the program says, else what is known of a built-in model.

    `BY_CONFIGURATION` where neither tells.

    Raises ModelError where the program says two kinds of one model.
    """
    kinds: dict[str, str] = {}
    for op in operators:
        if isinstance(op, ops.Score):
            model = plan.models[op.verifier]
            known = builtin(model)
            kind = op.kind or (known.kind if known is not None else None) or BY_CONFIGURATION
            before = kinds.get(model, kind)
            if BY_CONFIGURATION not in (before, kind) and before != kind:
                raise ModelError(model, f"it is declared as a verifier of kind {before} and of kind {kind}")
            kinds[model] = kind if before == BY_CONFIGURATION else before
    return kinds


def check_vocabularies(plan: PhysicalPlan, operators: Iterable[ops.Operator], models: Mapping[str, TextModel]) -> None:
    """Raises ModelError unless both models of every `via filter` and of every `draft` write with the same tokens.

    A token of one stands in the text of the other, or is proposed for it. `models` are the loaded models by id.
    """
    for op in operators:
        if isinstance(op, ops.Generate) and isinstance(op.via, ops.Filter):
            large, small = models[plan.models[op.model]], models[plan.models[op.via.model]]
            if large.tokenizer.get_vocab() != small.tokenizer.get_vocab() or large.eos != small.eos:
                raise ModelError(small.name, f"`via filter` needs the vocabulary of `{large.name}`, and it has another")
        if isinstance(op, ops.Generate) and op.draft is not None and op.draft.method == "model":
            assert op.draft.model is not None
            large, small = models[plan.models[op.model]], models[plan.models[op.draft.model]]
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
            if plan.models[op.model] not in models:
                continue
            model, head = models[plan.models[op.model]], heads[place]
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
        yield op.model


def check_templates(plan: PhysicalPlan, operators: Iterable[ops.Operator], models: Mapping[str, TextModel]) -> None:
    """Raises ModelError where a model that writes cannot be given chat turns as the plan has them.

    Tried with the turns before the first text that is generated, and for a model that is asked with its question.
    `models` are the loaded models by id.
    """
    turns: list[tuple[str, str]] = []
    started = False
    for op in operators:
        match op:
            case ops.SetContext(turns=more) if not started:
                turns += [(turn.role, "x") for turn in more]
            case ops.Generate(model=name):
                if turns and not started:
                    _check_turns(models[plan.models[name]], turns)
                started = True
            case ops.Judge(model=name) | ops.Prob(model=name) | ops.Tournament(model=name):
                _check_turns(models[plan.models[name]], [("user", "x")])


def _check_turns(model: TextModel, turns: list[tuple[str, str]]) -> None:
    try:
        encode(model.tokenizer, Context(turns=tuple(turns)))
    except ContextError as error:
        raise ModelError(model.name, str(error)) from error


def check_features(plan: PhysicalPlan, engine: Engine) -> None:
    """Raises ModelError where a model of the plan cannot be asked for what the plan will ask for.

    What servers lack is told by `qpdsl/remote/needs.py`, stage by stage.
    """
    for name, features in required_features(plan).items():
        model = plan.models[name]
        if is_remote(model):
            continue
        if (inability := engine.capabilities(model).refusal(features)) is not None:
            raise ModelError(model, f"it {inability}")
