"""What a plan needs and its servers were not seen to do: found before a request is sent."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.remote.dialects.known_dialects import named
from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.request import CONSTRAINT_NAMES, Feature
from qpdsl.executor.runtime.requirements import features_of
from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.grammar.model_id import dialect_of, think_of
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import enumerated
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import asks_for_logprobs, is_same_for_all
from qpdsl.planner.values.value import Value

# What a server can be asked for where it has the tokens of a model and log-probabilities of given ones.
_BY_IDS = "a vLLM server with `tokenizer=`, the folder of the model's tokenizer, does"
_BY_FIGURES = "local models do; or remove `until` and the scores of draws"


@dataclass(frozen=True, slots=True)
class MissingFeature:
    """What the stage at `span` needs of a model and its server was not seen to do.

    `model` is the model's id; `lacks` is to be read after "its server", and `instead` says what would do.
    """

    model: str
    lacks: str
    instead: str
    span: Span

    @property
    def error(self) -> ModelError:
        """The error where the program's text is not at hand."""
        return ModelError(self.model, f"its server {self.lacks}; {self.instead}")

    def diagnostic(self, models: Mapping[str, str]) -> Diagnostic:
        """The error in the program's text. `models` are ids by name."""
        name = next((name for name, id in models.items() if id == self.model), self.model)
        note = f"the model is `{self.model}`; `qpdsl models --probe` shows what its server can do"
        message = f"the server of `{name}` {self.lacks}"
        return Diagnostic("QP403", message, self.span, "needed here", notes=(note,), help=self.instead)


@dataclass(frozen=True, slots=True)
class _Context:
    """What rows go on from: chat turns or a plain prompt, None where there is none; with text after it or without.

    `drawn`: a former turn is to stay in the tokens that it was drawn in.
    """

    turns: bool | None = None
    grown: bool = False
    drawn: bool = False


def missing_features(plan: PhysicalPlan, capabilities: Mapping[str, ServerCapabilities]) -> tuple[MissingFeature, ...]:
    """What the plan needs of models on servers and these lack, in the order of its stages, each once.

    `capabilities` are those of the models on servers, by their ids.
    """
    walk = _Walk(plan, capabilities)
    walk.chain(plan.ops, _Context())
    return tuple(dict.fromkeys(walk.found))


class _Walk:
    def __init__(self, plan: PhysicalPlan, capabilities: Mapping[str, ServerCapabilities]) -> None:
        self._plan = plan
        self._capabilities = capabilities
        self.found: list[MissingFeature] = []

    def chain(self, chain: tuple[PhysicalOp, ...], context: _Context) -> _Context:
        """Goes through operators, and returns what their rows go on from."""
        for node in chain:
            context = self._after(node, context)
        return context

    def _after(self, node: PhysicalOp, context: _Context) -> _Context:
        self._look(node, context)
        match node.op:
            case ops.SetContext() as op:
                drawn = context.drawn or (isinstance(op, ops.Chat) and op.history == "tokens" and context.grown)
                return _Context(isinstance(op, ops.Chat) if context.turns is None else context.turns, drawn=drawn)
            case ops.Generate() | ops.Say():
                return replace(context, grown=True)
            case ops.Repeat(gather=None) | ops.Search():
                # Its rounds go on from what the one before has written.
                return self.chain(node.body, self.chain(node.body, context))
            case ops.Each() | ops.Repeat():
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
                every = (context, *ends)
                grown, drawn = any(end.grown for end in every), any(end.drawn for end in every)
                return _Context(known[0] if known else context.turns, grown, drawn)
        return context

    def _inside_call(self, node: PhysicalOp) -> None:
        """Goes through a called program, whose text may be in another file: what it needs stands where it is called."""
        before = len(self.found)
        self.chain(node.body, _Context())
        self.found[before:] = [replace(missing, span=node.op.span) for missing in self.found[before:]]

    def _look(self, node: PhysicalOp, context: _Context) -> None:
        """Notes what one operator needs and its servers lack."""
        for name, features in features_of(node):
            model = self._plan.models[name]
            able = self._capabilities.get(model)
            if able is None:
                continue
            if self._plan.within.refuses("replayable"):
                what = "gives other tokens than this machine, which `within exact` does not allow"
                instead = "`within replayable` allows servers that sample by seed"
                self.found.append(MissingFeature(model, what, instead, node.op.span))
                continue
            lacks = [*self._lacks(node.op, able, context)]
            if not lacks:
                known = Capabilities(able.for_engine.features | _held_as_calls(node.op, able, context) | {"seeds"})
                if (inability := known.refusal(features)) is not None:
                    told = min(features - known.features) != "figures"
                    lacks = [(inability, _instead(node.op, able) if told else _BY_FIGURES)]
            for what, instead in lacks:
                self.found.append(MissingFeature(model, what, instead, node.op.span))

    def _lacks(self, op: ops.Operator, able: ServerCapabilities, context: _Context) -> Iterator[tuple[str, str]]:
        match op:
            case ops.Generate():
                own = self._plan.models[op.model.name]
                if isinstance(op.via, ops.Filter) and able is self._capabilities.get(own) and able.endpoint != "ids":
                    yield "takes no token ids, and both models of `via filter` must have the same tokens", _BY_IDS
                    return
                yield from self._continuing(able, context)
                if able.endpoint != "ids":
                    yield from self._thinking(op, able, context)
                yield from self._sampling(op, able, context)
            case ops.Judge() | ops.Prob() | ops.Tournament() if able.endpoint != "ids":
                if not able.chat:
                    yield "answers no chat messages", "with `tokenizer=` chat templates are rendered here"
                elif able.thinking is not None and "off" not in able.thinking.switches:
                    yield "cannot be asked for an answer without a thought, as this stage needs", _BY_IDS

    def _continuing(self, able: ServerCapabilities, context: _Context) -> Iterator[tuple[str, str]]:
        if able.endpoint == "ids":
            return
        if context.turns and not able.chat:
            yield "answers no chat messages", "with `tokenizer=` chat templates are rendered here, or use `prompt`"
        elif context.turns is False and able.endpoint != "text":
            yield "takes chat messages only, and no plain text", "use `chat` instead of `prompt`"
        elif context.drawn:
            yield "renders each turn anew, and `history=tokens` keeps the tokens of one", _BY_IDS
        elif context.turns and context.grown and not able.prefill:
            what = "cannot continue a turn that it has begun, as this stage does"
            yield what, f"{_BY_IDS}; or give each step its own `chat` turn"

    def _thinking(self, op: ops.Generate, able: ServerCapabilities, context: _Context) -> Iterator[tuple[str, str]]:
        """What a stage says of thoughts, and the server was not seen to do."""
        thinking, think = able.thinking, self._value(op.think)
        marks = think_of(self._plan.models[op.model.name])
        if marks is not None or not context.turns or (op.think is None and op.only is None):
            return
        if thinking is None:
            what = "does not part thoughts from answers" if able.chat else "answers no chat messages"
            yield what, "start it with a reasoning parser, or add `tokenizer=`: thoughts are parted here then"
        elif op.only is not None:
            yield f"gives a thought and its answer together, and `only={op.only}` asks for one", _BY_IDS
        elif isinstance(think, int | float) and not isinstance(think, bool) and think > 0:
            if thinking.bound is None:
                yield "takes no bound on a thought", f"{_BY_IDS}; or leave out `think={think:g}`"
        elif think is not None:
            asked = think if isinstance(think, str) else "on" if think else "off"
            if asked not in thinking.switches:
                known = enumerated([f"`think={name}`" for name in thinking.switches], last="and")
                yield f"was not seen to heed `think={asked}`", f"it heeds {known or 'no switch'}"

    def _sampling(self, op: ops.Generate, able: ServerCapabilities, context: _Context) -> Iterator[tuple[str, str]]:
        if op.constraint is not None and op.constraint.kind == "choice":
            # It is drawn here, by the log-probabilities of its options, which are features.
            return
        yield from self._processors(op, able)
        temperature = self._number(op.temperature)
        if able.own_temperature and temperature != 1:
            yield "takes no `temperature` but its own", "`temperature=1`, or another server"
        elif temperature != 0:
            if not able.temperature and temperature != 1:
                yield "ignores `temperature`", "`temperature=0`, or another server"
            for option, heeded in (("top_k", able.top_k), ("top_p", able.top_p), ("min_p", able.min_p)):
                if getattr(op, option) is not None and not heeded:
                    yield f"ignores `{option}`", f"leave out `{option}`, or use another server"
            if not able.seeds and self._plan.within.refuses("recorded"):
                what = "samples without seeds, so another run would give other samples"
                instead = "`temperature=0`" if able.greedy else "another server"
                yield what, f"{instead}; or `within recorded` in the program, or `--within recorded`, allows it"
        elif not able.greedy and self._plan.within.refuses("recorded"):
            instead = "`within recorded` in the program, or `--within recorded`, allows it"
            yield "gave two texts at temperature 0", instead
        is_told = able.logprobs or isinstance(op.via, ops.Filter)
        if not is_told and asks_for_logprobs(self._plan):
            what = "does not return the log-probabilities of its text, which the program reads"
            yield what, "vLLM, SGLang and llama.cpp return them; or remove what reads `logprob`"
        constraint = op.constraint
        if constraint is None:
            return
        if isinstance(op.via, ops.Filter):
            what = "enforces a constraint only from the beginning of an answer, and `via filter` continues within one"
            yield what, "remove `via filter` or the constraint, or use a local large model"
        elif _calls_by_fields(op, able):
            if not context.turns:
                yield "takes tools in chats alone", "begin the context with `chat`"
        elif constraint.kind not in (kinds := able.answers_held if context.turns else able.constraints):
            held = [words for kind, words in CONSTRAINT_NAMES.items() if kind in kinds]
            instead = f"it enforces {' or '.join(held)}" if held else "vLLM, SGLang and llama.cpp do"
            yield f"does not constrain its output to {CONSTRAINT_NAMES[constraint.kind]}", instead
        elif dialect_of(self._plan.models[op.model.name]) == "openai" and _is_union(constraint):
            yield "takes no union of schemas", "use one schema, or vLLM, SGLang or llama.cpp"

    def _processors(self, op: ops.Generate, able: ServerCapabilities) -> Iterator[tuple[str, str]]:
        """What changes or masks the logits of a row by its own tokens, as far as the server's API has it not."""
        given = [name for name in ("without", "min_tokens") if getattr(op, name) is not None]
        given += [name for name, _ in op.penalties] + (["first_tokens"] if op.first_tokens != "drawn" else [])
        if not given:
            return
        instead = f"leave out `{given[0]}`, or use a local model"
        dialect = dialect_of(self._plan.models[op.model.name])
        known = named(dialect).processors if dialect is not None and op.via is None else frozenset[str]()
        for name in given:
            if name not in known:
                yield f"has no `{name}`" + (" beside `via`" if op.via is not None else ""), instead
            elif able.endpoint != "ids" and name in ("logit_bias", "min_tokens"):
                yield f"has tokens of its own, and `{name}` is said of tokens", _BY_IDS
        if op.penalties and asks_for_logprobs(self._plan):
            yield "returns log-probabilities without the penalties of this stage, and the program reads them", instead

    def _number(self, expr: ast.Expr | None) -> float | None:
        """The number that is an option's value."""
        value = self._value(expr)
        return value if isinstance(value, int | float) else None

    def _value(self, expr: ast.Expr | None) -> Value:
        """The value of an option that is the same for all rows; None where that is not known yet."""
        values = self._plan.values()
        return evaluate(expr, values) if expr is not None and is_same_for_all(expr, values) else None


def _held_as_calls(op: ops.Operator, able: ServerCapabilities, context: _Context) -> frozenset[Feature]:
    """The kind of constraint that a server need not hold to, as calls of tools have fields of their own."""
    if isinstance(op, ops.Generate) and op.constraint is not None and context.turns and _calls_by_fields(op, able):
        return frozenset({op.constraint.kind})
    return frozenset()


def _calls_by_fields(op: ops.Generate, able: ServerCapabilities) -> bool:
    return op.constraint is not None and bool(op.constraint.tools) and able.calls_in_fields


def _is_union(constraint: ast.Constraint) -> bool:
    return constraint.kind == "json_schema" and "anyOf" in json.loads(constraint.source)


def _instead(op: ops.Operator, able: ServerCapabilities) -> str:
    if not isinstance(op, ops.Generate):
        return _BY_IDS
    held = op.constraint is not None and op.constraint.kind == "choice" and "regex" in able.answers_held
    # It draws another option than a choice does: that one is drawn by the options' own probabilities.
    like = ", and with `as /A|B/` this one can write one of the texts token by token" if held else ""
    return f"{_BY_IDS}, or a local model{like}"
