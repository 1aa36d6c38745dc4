"""The figures of a run, by operator and by model, and how the time of forwards is charged to operators.

They are filled from the events, and read by EXPLAIN ANALYZE and the statistics. One forward serves many operators, so
its time is charged by token share.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan, everything, models_of

ACCOUNTING_RULE = (
    "time: that of forwards; one forward serves many operators, and is charged by token share, prompt and drawn "
    "tokens apart"
)
# The count of the sampled tokens that are thoughts.
THOUGHT_TOKENS = "thought_tokens"
# Programs whose result is a row that was left before its end.
UNFINISHED = "unfinished"
# The counts that tell of calls, as `Usage` has them; the second ones of those that were asked to go on past their stop.
SAVED_COUNTS = ("saved_calls", "beyond_tokens", "beyond_used")
CALL_COUNTS = ("requests", "retries", "replayed", "server_cached", "cost_millionths", *SAVED_COUNTS)

# The beginning of the counts of texts by the rule that `final_answer` found an answer by, or `none`.
ANSWERS_FOUND = "answers_"

# Those that a whole plan has too.
_TOTALED = ("near_ties", THOUGHT_TOKENS)

# What is summed up of each operator, besides its seconds and what it counts.
FIGURES = ("runs", "rows_in", "rows_out", "prompt_tokens", "cached_tokens", "sampled_tokens")


@dataclass(frozen=True, slots=True)
class OperatorFigures:
    """Sums over all runs of one operator, of all problems. Tokens and `counts` are those of the runtime's `Usage`.

    `runs` is how often the operator ran: inside a `repeat`, the rounds of all problems. `squares` are sums of squares
    over problems, of the `rows` that it made and its `tokens` of both kinds.
    """

    runs: int = 0
    rows_in: int = 0
    rows_out: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    squares: Mapping[str, float] = field(default_factory=dict)

    @property
    def cached_share(self) -> float | None:
        """The cached share of the prompts' tokens; None where there were none."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else None

    def count(self, name: str) -> int:
        return self.counts.get(name, 0)

    def allowed(self, share: float) -> int | None:
        """So many ids, or fewer, a mask allowed at this share of the draws; None where there was no mask."""
        prefix = "allowed_"
        buckets = {int(name.removeprefix(prefix)): n for name, n in self.counts.items() if name.startswith(prefix)}
        left = share * sum(buckets.values())
        for ids in sorted(buckets):
            left -= buckets[ids]
            if left <= 0:
                return ids
        return None


@dataclass(frozen=True, slots=True)
class ModelFigures:
    """Sums over the forwards of one model. The seconds of a forward are divided by its tokens of either kind.

    At most `peak_pages` of `pages` were held at once, `mean_pages` on average over the steps, each of `page_bytes`
    bytes (0 where not known). Beside the layers the forwards took `mask_seconds` to wait for masks, `head_seconds` to
    read hidden states and `draft_seconds` to propose tokens. Samples waited `first_token` seconds for their first token
    and `between_tokens` for each other: the percentiles 50, 95 and 99, or nothing where none was drawn. Besides those
    that forwards computed, `cached_tokens` of prompts were found in the prefix cache.
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
    mask_seconds: float = 0.0
    head_seconds: float = 0.0
    draft_seconds: float = 0.0
    first_token: tuple[float, ...] = ()
    between_tokens: tuple[float, ...] = ()
    mean_pages: float = 0.0
    cached_tokens: int = 0

    @property
    def hit_rate(self) -> float:
        """The share of the prompts' tokens that were found in the prefix cache."""
        return self.cached_tokens / max(self.cached_tokens + self.prefill_tokens, 1)

    @property
    def layer_seconds(self) -> float:
        """What the layers took, with all else that is not one of the parts."""
        return max(self.seconds - self.mask_seconds - self.head_seconds - self.draft_seconds, 0.0)

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds


@dataclass(frozen=True, slots=True)
class RouterFigures:
    """What the router of one model did: of `steps`, how many each arm computed, in how many `seconds`.

    `spent` are the seconds that the router itself took.
    """

    policy: str
    steps: Mapping[str, int]
    seconds: float
    spent: float


@dataclass(frozen=True, slots=True)
class ExitRouterFigures:
    """What the router of one early exit did: of its draws, how many tried the `exit`, tried it and chose among its best
    ids where the token did not stand (`rerank`), and left it out (`full`).

    `where` says the exit. `state` names what the router decided by: with another one, other draws try their exit.
    `spent` are the seconds that the router itself took.
    """

    policy: str
    where: str
    draws: Mapping[str, int]
    state: str
    spent: float = 0.0


@dataclass(frozen=True, slots=True)
class MemoryPart:
    """Bytes of one part of the memory over the steps of a run."""

    peak: float
    mean: float


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run of a plan over `problems` rows of input, `in_flight` at once.

    `seconds` is wall time from the first instance's start to the last one's end. `peak_kv` and `kv_budget` are bytes,
    None where not known. `longest` is the number of steps of the longest problem over that of the average one.
    `memory` has the parts `weights`, `activations`, `other`, `kv_leased` and `kv`; it is empty where nobody told what
    is taken. Of the problems with `deadlines` so many have `kept` theirs.
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
    memory: Mapping[str, MemoryPart] = field(default_factory=dict)
    deadlines: int = 0
    kept: int = 0

    @property
    def forward_seconds(self) -> float:
        """The part of the wall time spent in forwards; the rest was spent in the runtime around them."""
        return sum(model.seconds for model in self.models.values())


_NO_FIGURES = OperatorFigures()


def operator_seconds(plan: PhysicalPlan, figures: RunFigures) -> dict[str, float]:
    """Seconds of forwards by operator, for those that call a model; one that contains others has the sum of theirs."""
    seconds: dict[str, float] = {}
    users = {
        node.id: tuple(plan.models.get(name, name) for name in models_of(node.op)) for node in everything(plan.ops)
    }
    for model, spent in figures.models.items():
        own = {id: figures.operators.get(id, _NO_FIGURES) for id, models in users.items() if model in models}
        prompt = {id: float(operator.prompt_tokens - operator.cached_tokens) for id, operator in own.items()}
        drawn = {id: float(operator.sampled_tokens) for id, operator in own.items()}
        for tokens, time in ((prompt, spent.prefill_seconds), (drawn, spent.decode_seconds)):
            whole = sum(tokens.values())
            for id in own:
                # Forwards whose tokens no operator got in the end are charged in equal shares.
                share = tokens[id] / whole if whole else 1 / len(own)
                seconds[id] = seconds.get(id, 0.0) + time * share
    for node in reversed(list(everything(plan.ops))):
        contained = [inner.id for chain in node.inside for inner in chain if inner.id in seconds]
        if contained:
            seconds[node.id] = sum(seconds[id] for id in contained)
    return seconds


def total(chain: tuple[PhysicalOp, ...], figures: RunFigures) -> OperatorFigures:
    """The tokens and calls of a chain of operators; the figures of one that contains others include theirs."""
    operators = [figures.operators.get(node.id, _NO_FIGURES) for node in chain]
    return OperatorFigures(
        prompt_tokens=sum(operator.prompt_tokens for operator in operators),
        cached_tokens=sum(operator.cached_tokens for operator in operators),
        sampled_tokens=sum(operator.sampled_tokens for operator in operators),
        counts={name: sum(operator.count(name) for operator in operators) for name in (*_TOTALED, *CALL_COUNTS)},
    )


def thought_json(counts: Mapping[str, int]) -> dict[str, int]:
    """How many of the sampled tokens are thoughts, as data with a stable key; empty where none are."""
    return {THOUGHT_TOKENS: counts[THOUGHT_TOKENS]} if counts.get(THOUGHT_TOKENS) else {}


def has_calls(counts: Mapping[str, int]) -> bool:
    """Whether a server was asked, or would have been."""
    return any(counts.get(name) for name in ("requests", "replayed", "saved_calls"))


def calls_json(counts: Mapping[str, int]) -> dict[str, int | float] | None:
    """As data with stable keys; None where no server was asked. `cost` is in the currency of the price table."""
    if not has_calls(counts):
        return None
    names = ("requests", "retries", "replayed", "server_cached", "saved_calls")
    return {
        **{name: counts.get(name, 0) for name in names},
        "wasted_tokens": wasted_tokens(counts),
        "cost": counts.get("cost_millionths", 0) / 1e6,
    }


def wasted_tokens(counts: Mapping[str, int]) -> int:
    """Tokens that calls wrote past their stop and no later call took."""
    return counts.get("beyond_tokens", 0) - counts.get("beyond_used", 0)
