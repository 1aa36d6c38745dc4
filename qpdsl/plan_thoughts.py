"""What a plan says of thoughts that its models do not know, found in its text once their tokenizers are there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from qpdsl.errors import UsageError
from qpdsl.executor.models.text_model import TextModel
from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic, QpError
from qpdsl.grammar.literals.regex import only_text, parse
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.planner.names.scope import word_span
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import is_same_for_all
from qpdsl.planner.values.value import Value


def check_thoughts(plan: PhysicalPlan, models: Mapping[str, TextModel]) -> None:
    """Raises QpError where a stage asks for a thought that its model has not, or stops at a token that text never has.

    So does a budget of thoughts that no model of the program has, but a UsageError where the caller set it. `models`
    are the models by id; one whose tokens only its server knows is left to the server. What is known only row by row is
    left to the run.
    """
    found = [fault for op, place in _generates(plan.ops, None) for fault in _Stage(plan, op, models).faults(place)]
    if plan.budget is not None and plan.budget.unit == "thought_tokens":
        found += _of_budget(plan, plan.budget, models)
    if found:
        raise QpError(found, plan.source)


def _of_budget(plan: PhysicalPlan, budget: ast.Budget, models: Mapping[str, TextModel]) -> Iterator[Diagnostic]:
    """That a budget counts thoughts, and none of the models that write has any."""
    writers = {plan.models[op.model.name]: op.model.name for op, _ in _generates(plan.ops, None)}
    loaded = [models.get(id) for id in writers]
    if any(model is None or not model.own_tokens or model.thinking is not None for model in loaded):
        return
    are = "is not known to think before it answers" if len(writers) == 1 else "are not known to think"
    message = f"a budget of `thought_tokens` counts thoughts, and {listed(writers.values(), last='and')} {are}"
    help = "a budget of `tokens` counts all that is drawn"
    if not budget.span.end:
        raise UsageError(f"`--budget`: {message}", help)
    notes = tuple(f"`{name}` is `{id}`" for id, name in writers.items())
    yield Diagnostic("QP404", message, budget.span, "no thought", notes=notes, help=help)


def _generates(chain: tuple[PhysicalOp, ...], place: Span | None) -> Iterator[tuple[ops.Generate, Span | None]]:
    """The `generate`s, and where the program calls the one that they are in, which may be in another file."""
    for node in chain:
        if isinstance(node.op, ops.Generate):
            yield node.op, place
        for inner in node.inside:
            yield from _generates(inner, place or (node.op.span if isinstance(node.op, ops.Call) else None))


class _Stage:
    def __init__(self, plan: PhysicalPlan, op: ops.Generate, models: Mapping[str, TextModel]) -> None:
        self._op, self._values = op, plan.values()
        self._id = plan.models[op.model.name]
        model = models.get(self._id)
        self._model = model if model is not None and model.own_tokens else None

    def faults(self, place: Span | None) -> Iterator[Diagnostic]:
        """What is wrong with the stage, each at its option, or at `place`."""
        if self._model is None:
            return
        for fault in (*self._of_thought(self._model), *self._of_stops(self._model)):
            yield fault if place is None else replace(fault, span=place)

    def _of_thought(self, model: TextModel) -> Iterator[Diagnostic]:
        op, thinking, name = self._op, model.thinking, self._op.model.name
        think = None if op.think is None else self._value(op.think)
        shows = f"`qpdsl models {self._id}` shows how it thinks"
        if thinking is None:
            span = op.think.span if op.think is not None and think is not None else None
            option = "only" if span is None else "think"
            if span is None and op.only is None:
                return
            message = f"`{name}` is not known to think before it answers"
            help = f'remove `{option}=`; `model … think="<think>|</think>"` says how a model thinks'
            note = f"the model is `{self._id}`"
            yield Diagnostic("QP404", message, span or word_span(op), "no thought", notes=(note,), help=help)
        elif isinstance(think, str) and not thinking.knows(think) and op.think is not None:
            message = f"the chat template of `{name}` does not know the effort `{think}`"
            notes = (f"efforts that it knows: {thinking.efforts}", f"the model is `{self._id}`; {shows}")
            help = "`think=on`, `think=off` or a number of tokens does"
            yield Diagnostic("QP404", message, op.think.span, "unknown effort", notes=notes, help=help)

    def _of_stops(self, model: TextModel) -> Iterator[Diagnostic]:
        stop = self._op.stop
        entries = stop.items if isinstance(stop, ast.ListLiteral) else () if stop is None else (stop,)
        for entry in entries:
            texts = only_text(parse(entry.pattern)) if isinstance(entry, ast.Regex) else self._value(entry)
            for text in texts if isinstance(texts, tuple) else (texts,):
                if isinstance(text, str) and (token := text.strip()) in model.special_texts:
                    yield self._of_stop(model, token, entry.span)

    def _of_stop(self, model: TextModel, token: str, span: Span) -> Diagnostic:
        name, thinking = self._op.model.name, model.thinking
        message = f"`{token}` is a special token of `{name}`, and no text has one"
        help = "stop at text that the model writes"
        if thinking is not None and token in (thinking.open_mark, thinking.close_mark):
            help = "`think=N` bounds the thought, and `only=thought` ends with it"
        elif model.tokenizer.convert_tokens_to_ids(token) in model.eos:
            help = "leave it out: the model's turn ends there by itself"
        return Diagnostic("QP405", message, span, "never matches", notes=(f"the model is `{self._id}`",), help=help)

    def _value(self, expr: ast.Expr) -> Value:
        """The value of an option that is the same for all rows; None where that is not known yet."""
        return evaluate(expr, self._values) if is_same_for_all(expr, self._values) else None
