"""The physical plan: operators with a strategy, an equivalence class and an estimate.

A strategy says how one operator is to run: what the rules decided, for the runtime to carry out. Its defaults are the
plainest way there is, which is what the naive plan uses. No strategy changes what an operator means.

All of these check themselves where they are built, and raise `InvalidPlan`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from qpdsl.grammar import ast
from qpdsl.grammar.model_id import is_remote
from qpdsl.grammar.source import Source
from qpdsl.grammar.words import KVType
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.budget_policy import BudgetPolicy
from qpdsl.planner.plan.decode_plan import DecodePlan, Equivalence
from qpdsl.planner.plan.evaluate import Scope, evaluate
from qpdsl.planner.plan.logical import Parameter, default_values
from qpdsl.planner.plan.ops import Operator, Return, require
from qpdsl.planner.values.value import Value


@dataclass(frozen=True, slots=True)
class GenerateStrategy:
    """How a `generate` runs.

    `decode`: how each decoding step is carried out. `share`: one prefill for the samples of a row, forked, and the
    prefix cache for what was computed before; else each sample is a request of its own that computes its whole prompt.
    `collapse`: samples that must be equal are drawn once and copied. `until`: a sample ends as soon as this pattern has
    matched and nothing that follows can change the match. `run_ahead`: how many steps a sample may go on past its stop
    while its row waits to be chosen (the thesis's decode-aware tree expansion); what the chosen rows can use is kept.
    `vote`: the operator (an id) that the rows go to one by one as they are done, through the operators between, and
    that can give up the rest.

    Of a model on a server: with `lead` the first sample of a row goes alone until it has its first token, so that the
    others find their prompt in the server's cache. A sample that stops is asked to go on for `beyond` tokens more, and
    with `continues` one is taken from such tokens of an earlier sample, where they go on from its prompt.

    Of a filter: what the large model has to draw waits until `flush_rows` rows want it, or until the first of them has
    waited for `flush_seconds`, and not once nothing else is under way.

    Without `logprobs` nobody reads log-probabilities: samples have 0, and of a filter each token has that of the model
    that drew it, where the large model would else tell that of all that was written. With `figures` it is told of each
    draw what it was drawn from, which takes the logits of all ids: the program reads that.
    """

    decode: DecodePlan = field(default_factory=DecodePlan)
    share: bool = False
    collapse: bool = False
    until: ast.Regex | None = None
    run_ahead: int = 0
    vote: str | None = None
    flush_rows: int = 1
    flush_seconds: float = 0.0
    logprobs: bool = True
    figures: bool = False
    lead: bool = False
    beyond: int = 0
    continues: bool = False

    def __post_init__(self) -> None:
        require(self.run_ahead >= 0 and self.beyond >= 0, "no sample runs back")
        require(self.flush_rows >= 1 and self.flush_seconds >= 0, "a batch has a row at least, and waits for no past")

    @property
    def speculates(self) -> bool:
        """Whether samples may run ahead, into time that would be idle."""
        return self.run_ahead > 0

    @property
    def alone(self) -> GenerateStrategy:
        """The same without shared prefixes: a sample runs ahead on a prefix that is shared."""
        return replace(self, share=False, run_ahead=0)


@dataclass(frozen=True, slots=True)
class ScoreStrategy:
    """How a `score` runs; that by a judge has the prefix cache alone to decide about.

    `share`: only what is new in a text is computed, on the prefix that is cached; else the whole text, every time.
    `cache`: the score of every step is kept by its content, and equal content is scored once. `same_as`: the operator
    (an id) whose scores of the same rows these are, read anew under another reduction. `ahead`: the steps of a sample
    are scored while it is drawn, by which a vote or `keep` that it feeds can give it up.
    """

    share: bool = False
    cache: bool = False
    same_as: str | None = None
    ahead: bool = False


@dataclass(frozen=True, slots=True)
class VoteStrategy:
    """How a `vote` or `keep` runs. `decided`: samples that can no longer change what it chooses are given up.

    `waves`: samples are begun only as many at a time as the vote must at least look at before it can end; of a `keep`
    some are begun first, and the others once it is known what they are held to. `whole`:
    somebody reads the winner's share, so no row that counts is given up.
    """

    decided: bool = False
    waves: bool = False
    whole: bool = False


@dataclass(frozen=True, slots=True)
class BranchStrategy:
    """How a `branch` runs. `same_as`: for each arm the number of the arm before it whose rows it would make again."""

    same_as: tuple[int | None, ...] = ()

    def __post_init__(self) -> None:
        earlier = all(first is None or 0 <= first < arm for arm, first in enumerate(self.same_as))
        require(earlier, "an arm can be the same only as one before it")


@dataclass(frozen=True, slots=True)
class BudgetStrategy:
    """How a `strategy` runs: by which of its ways a problem is tried, and when it ends. None tries the first way."""

    policy: BudgetPolicy | None = None


Strategy = GenerateStrategy | ScoreStrategy | VoteStrategy | BranchStrategy | BudgetStrategy


def holds(op: ops.Operator) -> Literal["body", "arms"] | None:
    """Whether an operator runs a chain of operators, or several in the place of one another."""
    if isinstance(op, ops.Call):
        return "body"
    kinds = [part.kind for _, part in ast.parts(type(op)) if part.kind in ("block", "arms")]
    return None if not kinds else "body" if kinds == ["block"] else "arms"


def plainest(op: ops.Operator) -> Strategy | None:
    """The way in which the naive plan runs an operator; None where there is but one."""
    match op:
        case ops.Generate():
            return GenerateStrategy(DecodePlan.plainest(op))
        case ops.StepScore() | ops.Judge() | ops.Prob() | ops.Tournament():
            return ScoreStrategy()
        case ops.Vote() | ops.Keep():
            return VoteStrategy()
        case ops.Branch(arms=arms):
            return BranchStrategy((None,) * len(arms))
        case ops.Strategy():
            return BudgetStrategy()
    return None


# What a sample keeps of that of another run with the same seed: every token; every token as long as the same server
# answers; what was kept of the first run.
Repeats = Literal["exact", "replayable", "recorded"]
_LESS: Mapping[Repeats, int] = {"exact": 0, "replayable": 1, "recorded": 2}


@dataclass(frozen=True, slots=True)
class RemoteModel:
    """What is known of a model that a server elsewhere runs; as it stands, nothing: nobody has asked the server yet.

    `probed`: somebody has. `repeats` is what comes again of its samples, `greedy` whether those at temperature 0 do in
    any case. `token_ids`: prompts are token ids, and those of samples come back. `streams`: text comes as it is
    written. `spare_rows`: see `Capabilities`.
    """

    probed: bool = False
    repeats: Repeats = "replayable"
    greedy: bool = False
    token_ids: bool = False
    streams: bool = False
    spare_rows: int | None = None


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a program permits a plan to change, in the program's words: `exact`, `epsilon(0.001)`, `loss(0.02)`.

    `bound` is the most by which logits may differ under `epsilon`, and the largest share of results that may change
    under `loss`. `lossy` permits what the program's own `via` does and nothing more. `repeats` is the least that must
    come again in another run: who says nothing permits models on servers that sample by seeds, `within exact` only
    models of this machine, and `within recorded` any.
    """

    level: Literal["exact", "epsilon", "loss", "lossy"] = "exact"
    bound: float | None = None
    repeats: Repeats = "replayable"

    def __post_init__(self) -> None:
        bounded = self.level in ("epsilon", "loss")
        require(bounded == (self.bound is not None), f"`{self.level}` has {'no' if bounded else 'a'} bound")

    def __str__(self) -> str:
        if self.bound is not None:
            return f"{self.level}({self.bound:g})"
        return self.repeats if self.repeats == "recorded" and self.level == "exact" else self.level

    def refuses(self, repeats: Repeats) -> bool:
        """Whether it refuses what comes again so little."""
        return _LESS[repeats] > _LESS[self.repeats]


@dataclass(frozen=True, slots=True)
class Cost:
    """What one operator is expected to take for one problem of many, over the rounds of an enclosing `repeat`.

    `seconds` are those of the device's forwards, or for a model on a server those that the operator waits; None where
    nobody measured the server. `cached_tokens` are those of `prompt_tokens` whose KV is found; tokens are counted as
    `Usage` counts them.
    """

    seconds: float | None
    prompt_tokens: float
    cached_tokens: float
    sampled_tokens: float

    @classmethod
    def of(cls, costs: Sequence[Cost], problems: float = 1) -> Cost:
        """Of one of so many problems that together cost the sum of these."""
        known = [cost.seconds for cost in costs if cost.seconds is not None]
        tokens = (sum(getattr(cost, f"{kind}_tokens") for cost in costs) for kind in ("prompt", "cached", "sampled"))
        seconds = sum(known) / problems if len(known) == len(costs) else None
        return cls(seconds, *(count / problems for count in tokens))


@dataclass(frozen=True, slots=True)
class PhysicalOp:
    """One operator as it will run.

    It reads the rows of the operator before it in its chain. `id` is stable for a program ("0", "1", "3.0" for the
    first operator of operator 3's body, "3.1.0" for that of its second arm). `rows` estimates the rows it makes in all,
    over the rounds of an enclosing `repeat`, None where that depends on a parameter without a default, or on the rows.
    `body` is what a `repeat`, a `search`, an `each`, a `peek`, an `ask` or a `call` runs; `arms` what a `branch`, an
    `if` or a `strategy` does. A body or an arm without operators passes the rows as they are: a rule found that nothing
    of it is needed. `strategy` is what was decided about it by `rules`; `cost` is an estimate.
    """

    id: str
    op: Operator
    equivalence: Equivalence
    rows: float | None
    columns: Mapping[str, str]
    body: tuple[PhysicalOp, ...] = ()
    arms: tuple[tuple[PhysicalOp, ...], ...] = ()
    strategy: Strategy | None = None
    rules: tuple[str, ...] = ()
    cost: Cost | None = None

    def __post_init__(self) -> None:
        op, strategy, where = self.op, self.strategy, f"operator {self.id} ({self.op.operator})"
        require(holds(op) == "body" or not self.body, f"{where} has a body too many")
        require(bool(self.body) or not isinstance(op, ops.Search), f"{where} has nothing to search")
        require((holds(op) == "arms") == bool(self.arms), f"{where} has no arms, or some too many")
        require(not isinstance(op, ops.If) or len(self.arms) < 3, f"{where} has more arms than two")
        plain = plainest(op)
        require(type(strategy) is type(plain), f"{where} is to run in a way of another operator's")
        if isinstance(strategy, GenerateStrategy):
            assert isinstance(op, ops.Generate)
            require(strategy.decode.applies(op), f"{where} has a decode plan of another operator's")
        if isinstance(strategy, BranchStrategy):
            require(len(strategy.same_as) == len(self.arms), f"{where} does not say of each arm how it runs")
        if isinstance(op, ops.BudgetedArms):
            require(len(op.ways) == len(self.arms), f"{where} does not have a chain of operators for each way")

    @property
    def inside(self) -> tuple[tuple[PhysicalOp, ...], ...]:
        """The chains of operators inside this one: its body, or its arms."""
        return (self.body,) if self.body else self.arms


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The most `sequences` of a model and `tokens` that a step of the engine has, and in words who said so."""

    sequences: int = 128
    tokens: int = 2048
    source: str = "as usual"

    @classmethod
    def largest(cls, limits: Iterable[StepLimits | None]) -> StepLimits | None:
        """The limits of one engine that runs several plans; None where nobody decided about any of them."""
        known = [own for own in limits if own is not None]
        if not known:
            return None
        sources = dict.fromkeys(own.source for own in known)
        return cls(max(own.sequences for own in known), max(own.tokens for own in known), "; ".join(sources))


@dataclass(frozen=True, slots=True)
class PhysicalPlan:
    """Operators in running order; the last one's rows are the program's.

    `source` is what the operators' spans point into, and `record` the JSON Schema of the value, None where it has none.
    A parameter's `default` is the value that the estimates go by; `declared` holds those of the program's text.
    `models` maps the program's names to model ids. `equivalence` is what the plan keeps to, `within` what the program
    permits; `prefer` is its λ, and `budget` what a problem may take, if it has one; in `deadline` seconds it is to be
    done. `reads` are the columns of the last rows that whoever runs the plan looks at, besides the value that it
    returns; None means all. `support`: they look at how sure it was of its answer too (see
    `executor/runtime/standing.py`). `in_flight` is how many problems run at once, None where nothing was decided;
    `floor` the fewest sequences that the engine should have to work at: below it another problem starts, and samples
    run ahead. Problems of which the parameters `prompted` begin alike start one after another: these are those of the
    prompts, in their order. `rules` are the names of the rules that made the plan what it is, those that a choice by
    cost turned back left out; `chosen` is true where such a choice was made, and `ways` says by id of which operators
    the `via` is its, and what was measured of that. `kv_type` is how keys and values are kept, None for the models' own
    type. `sparse_shares`: of models by their ids, up to which share of the head a step reads the allowed ids alone,
    where that was measured. `remote`: what is known of models on servers, by their ids. `limits` are those of the
    engine's steps, and `kv_shares` the most of its memory that models may take, by name, where somebody decided about
    them.
    """

    name: str
    source: Source = field(repr=False)
    params: tuple[Parameter, ...]
    declared: Mapping[str, ast.Expr | None]
    models: Mapping[str, str]
    ops: tuple[PhysicalOp, ...]
    returns: str
    record: str | None = field(repr=False)
    score_column: str | None
    equivalence: Equivalence
    within: Tolerance = Tolerance()
    prefer: float | None = None
    budget: ast.Budget | None = None
    deadline: float | None = None
    reads: tuple[str, ...] | None = None
    support: bool = False
    in_flight: int | None = None
    floor: int = 0
    prompted: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    chosen: bool = False
    kv_type: KVType | None = None
    ways: Mapping[str, str] = field(default_factory=dict)
    sparse_shares: Mapping[str, float] = field(default_factory=dict)
    remote: Mapping[str, RemoteModel] = field(default_factory=dict)
    limits: StepLimits | None = None
    kv_shares: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        ends = bool(self.ops) and isinstance(self.ops[-1].op, ops.Return | ops.Strategy)
        require(ends, "the plan does not end in a return")
        require(self.in_flight is None or self.in_flight >= 1, "no problem is in flight")
        require(self.floor >= 0, "the floor is below nothing")

    @property
    def policy(self) -> BudgetPolicy | None:
        """What the plan of a program under a budget decides by; None for any other plan."""
        strategy = self.ops[-1].strategy
        return strategy.policy if isinstance(strategy, BudgetStrategy) else None

    @property
    def returning(self) -> Return:
        """What gives the program's value; of ways the first one's."""
        last = self.ops[-1].arms[0][-1] if isinstance(self.ops[-1].op, ops.Strategy) else self.ops[-1]
        assert isinstance(last.op, ops.Return)
        return last.op

    def values(self) -> dict[str, Value]:
        """The values that the estimates go by, of the parameters that have one."""
        return default_values(self.params)

    def remote_model(self, name: str) -> RemoteModel | None:
        """What is known of a model by its name in the program; None where it is not one of a server."""
        id = self.models.get(name, name)
        return self.remote.get(id, _UNKNOWN) if is_remote(id) else None

    def has_remote(self) -> bool:
        """Whether a server elsewhere runs one of its models."""
        return any(map(is_remote, self.models.values()))

    def repeats(self, node: PhysicalOp) -> Repeats:
        """What comes again, in another run with the same seed, of what the models of an operator give, those inside it.

        Where nobody has asked a server yet, it is taken to sample by seeds.
        """
        found: Repeats = "exact"
        for inner in everything((node,)):
            for name in models_of(inner.op):
                model = self.remote_model(name)
                if model is not None:
                    own = "replayable" if model.greedy and not _draws(inner.op, self.values()) else model.repeats
                    found = max(found, own, key=_LESS.__getitem__)
        return found


_UNKNOWN = RemoteModel()


def repeats_of(plan: PhysicalPlan) -> Repeats:
    """What comes again of a whole plan: the least that does of one of its operators."""
    return max((plan.repeats(node) for node in plan.ops), key=_LESS.__getitem__)


def models_of(op: ops.Operator) -> tuple[str, ...]:
    """The models that an operator asks, by their names in the program; one that drafts for another is among them."""
    nodes = (op, op.via) if isinstance(op, ops.Generate) and op.via is not None else (op,)
    fields = [(node, name) for node in nodes for name, part in ast.parts(type(node)) if part.kind == "model"]
    asked = [getattr(node, name).name for node, name in fields]
    if isinstance(op, ops.Generate) and op.via is None and op.draft is not None and op.draft.method == "model":
        asked += [op.draft.model]
    return tuple(asked)


def _draws(op: ops.Operator, values: Scope) -> bool:
    """Whether samples of the operator depend on noise, as far as that is known: at a temperature above 0 they do."""
    return isinstance(op, ops.Generate) and evaluate(op.temperature, values) != 0


def everything(chain: tuple[PhysicalOp, ...]) -> Iterator[PhysicalOp]:
    """The operators with those inside them, in running order."""
    for op in chain:
        yield op
        for inner in op.inside:
            yield from everything(inner)


def head_folders(plan: PhysicalPlan) -> Iterator[str]:
    """The folders of the heads that draft, and of those that a model is left early by, as the plan names them."""
    for node in everything(plan.ops):
        if isinstance(node.op, ops.Generate):
            draft, via = node.op.draft, node.op.via
            if draft is not None and draft.method != "model" and draft.model is not None:
                yield draft.model
            if isinstance(via, ops.Amortized) and via.head is not None:
                yield via.head
