"""What a plan needs of servers that were not seen to do it: found before a request is sent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.server.abilities import Abilities
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.request import CONSTRAINT_NAMES
from qpdsl.executor.runtime.requirements import features_of
from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import asks_for_logprobs, is_same_for_all

# What a server can be asked for where it has the tokens of a model and log-probabilities of given ones.
_BY_IDS = "a vLLM server, with `tokenizer=` and the folder of the model's tokenizer, does"


@dataclass(frozen=True, slots=True)
class Need:
    """What the stage at `span` needs of a model and its server was not seen to do.

    `model` is the model's id; `lacks` is to be read after "its server", and `instead` says what would do.
    """

    model: str
    lacks: str
    instead: str
    span: Span


class UnmetNeeds(ModelError):
    """A plan that needs what servers were not seen to do; `needs` says what and where."""

    def __init__(self, needs: tuple[Need, ...]) -> None:
        first = needs[0]
        super().__init__(first.model, f"its server {first.lacks}; {first.instead}")
        self.needs = needs

    def __reduce__(self) -> tuple[Any, ...]:
        return UnmetNeeds, (self.needs,)


@dataclass(frozen=True, slots=True)
class _Context:
    """What rows go on from: chat turns or a plain prompt, None where there is none; with text after it or without."""

    turns: bool | None = None
    grown: bool = False


def unmet(plan: PhysicalPlan, abilities: Mapping[str, Abilities]) -> tuple[Need, ...]:
    """What the plan needs of models on servers and they lack, in the order of its stages, each once.

    `abilities` are those of the models on servers, by their ids.
    """
    walk = _Walk(plan, abilities)
    walk.chain(plan.ops, _Context())
    return tuple(dict.fromkeys(walk.found))


def diagnostics(needs: Iterable[Need], models: Mapping[str, str]) -> list[Diagnostic]:
    """The same to be shown in the program's text. `models` are ids by name."""
    names = {id: name for name, id in models.items()}
    return [
        Diagnostic(
            "QP403",
            f"the server of `{names.get(need.model, need.model)}` {need.lacks}",
            need.span,
            "needed here",
            notes=(f"the model is `{need.model}`; `qpdsl models --probe` shows what its server can do",),
            help=need.instead,
        )
        for need in needs
    ]


class _Walk:
    def __init__(self, plan: PhysicalPlan, abilities: Mapping[str, Abilities]) -> None:
        self._plan = plan
        self._abilities = abilities
        self.found: list[Need] = []

    def chain(self, chain: tuple[PhysicalOp, ...], context: _Context) -> _Context:
        """Goes through operators, and returns what their rows go on from."""
        for node in chain:
            context = self._after(node, context)
        return context

    def _after(self, node: PhysicalOp, context: _Context) -> _Context:
        self._look(node, context)
        match node.op:
            case ops.SetContext(turns=turns):
                return _Context(bool(turns) if context.turns is None else context.turns)
            case ops.Generate() | ops.Say():
                return replace(context, grown=True)
            case ops.Repeat() | ops.Search():
                # Its rounds go on from what the one before has written.
                return self.chain(node.body, self.chain(node.body, context))
            case ops.Each():
                return self.chain(node.body, context)
            case ops.Peek():
                self.chain(node.body, context)
            case ops.Ask():
                self.chain(node.body, _Context())
            case ops.Call():
                self._inside_call(node)
            case ops.Branch() | ops.If() | ops.Strategy():
                ends = [self.chain(arm, context) for arm in node.arms]
                known = [end.turns for end in ends if end.turns is not None]
                return _Context(known[0] if known else context.turns, any(end.grown for end in (context, *ends)))
        return context

    def _inside_call(self, node: PhysicalOp) -> None:
        """Goes through a called program, whose text may be in another file: what it needs stands where it is called."""
        before = len(self.found)
        self.chain(node.body, _Context())
        self.found[before:] = [replace(need, span=node.op.span) for need in self.found[before:]]

    def _look(self, node: PhysicalOp, context: _Context) -> None:
        """Notes what one operator needs and its servers lack."""
        for name, features in features_of(node):
            model = self._plan.models[name]
            able = self._abilities.get(model)
            if able is None:
                continue
            if self._plan.within.refuses("replayable"):
                what = "gives other tokens than this machine, and `within exact` does not permit that"
                instead = "`within replayable` permits servers that sample by seeds"
                self.found.append(Need(model, what, instead, node.op.span))
                continue
            lacks = [*self._lacks(node.op, able, context)]
            if not lacks:
                known = Capabilities(able.capabilities.features | {"seeds"})
                if (inability := known.refusal(features)) is not None:
                    lacks = [(inability, _instead(node.op, able))]
            for what, instead in lacks:
                self.found.append(Need(model, what, instead, node.op.span))

    def _lacks(self, op: ops.Operator, able: Abilities, context: _Context) -> Iterator[tuple[str, str]]:
        match op:
            case ops.Generate():
                own = self._plan.models[op.model]
                if isinstance(op.via, ops.Filter) and able is self._abilities.get(own) and able.endpoint != "ids":
                    yield "is not sent token ids, and both models of `via filter` write with the same tokens", _BY_IDS
                    return
                yield from self._continuing(able, context)
                yield from self._sampling(op, able)
            case ops.Judge() | ops.Prob() | ops.Tournament() if able.endpoint != "ids" and not able.chat:
                yield "takes no chat messages", "with `tokenizer=` chat templates are rendered here"

    def _continuing(self, able: Abilities, context: _Context) -> Iterator[tuple[str, str]]:
        if able.endpoint == "ids":
            return
        if context.turns and not able.chat:
            yield "takes no chat messages", "with `tokenizer=` chat templates are rendered here, or use `prompt`"
        elif context.turns is False and able.endpoint != "text":
            yield "takes chat messages alone, and no plain text", "use `chat` in the place of `prompt`"
        elif context.turns and context.grown and not able.prefill:
            what = "does not go on with a turn that it has begun, as this stage does with what was written before it"
            yield what, f"{_BY_IDS}; or give each step a `chat` turn of its own"

    def _sampling(self, op: ops.Generate, able: Abilities) -> Iterator[tuple[str, str]]:
        if op.constraint is not None and op.constraint.kind == "choice":
            # It is drawn here, by the log-probabilities of its options, which are features.
            return
        temperature = self._number(op.temperature)
        if temperature != 0:
            if not able.temperature and temperature != 1:
                yield "pays no heed to `temperature`", "`temperature=0`, or another server"
            for option, heeded in (("top_k", able.top_k), ("top_p", able.top_p), ("min_p", able.min_p)):
                if getattr(op, option) is not None and not heeded:
                    yield f"pays no heed to `{option}`", f"leave out `{option}`, or use another server"
            if not able.seeds and self._plan.within.refuses("recorded"):
                what = "samples without seeds, so that another run would draw something else"
                instead = "`temperature=0`" if able.greedy else "another server"
                yield what, f"{instead}; or `within recorded` in the program, or `--within recorded`, permits it"
        elif not able.greedy and self._plan.within.refuses("recorded"):
            instead = "`within recorded` in the program, or `--within recorded`, permits it"
            yield "was seen to write two texts at temperature 0", instead
        is_told = able.logprobs or isinstance(op.via, ops.Filter)
        if not is_told and asks_for_logprobs(self._plan):
            what = "does not tell the log-probabilities of what it writes, and the program reads them"
            yield what, "vLLM, SGLang and llama.cpp tell them; or leave out what reads `logprob`"
        constraint = op.constraint
        if constraint is None:
            return
        if isinstance(op.via, ops.Filter):
            what = "is held to a constraint from the beginning of an answer alone, and `via filter` has it go on in it"
            yield what, "leave out `via filter` or the constraint, or use a large model of this machine"
        elif constraint.kind not in able.constraints:
            held = [words for kind, words in CONSTRAINT_NAMES.items() if kind in able.constraints]
            instead = f"it does to {' or '.join(held)}" if held else "vLLM, SGLang and llama.cpp do"
            yield f"does not hold what is written to {CONSTRAINT_NAMES[constraint.kind]}", instead

    def _number(self, expr: ast.Expr) -> float | None:
        """The value of an option that is the same for all rows; None where that is not known yet."""
        values = self._plan.values()
        value = evaluate(expr, values) if is_same_for_all(expr, values) else None
        return value if isinstance(value, int | float) else None


def _instead(op: ops.Operator, able: Abilities) -> str:
    if not isinstance(op, ops.Generate):
        return _BY_IDS
    held = op.constraint is not None and op.constraint.kind == "choice" and "regex" in able.constraints
    # It draws another option than a choice does: that one is drawn by the options' own probabilities.
    like = ", and with `as /A|B/` this one writes one of the texts token by token" if held else ""
    return f"{_BY_IDS}, or a model of this machine{like}"
