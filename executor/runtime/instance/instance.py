"""One program instance: what its operators share while it runs."""

from __future__ import annotations

import asyncio
import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from qpdsl.executor.events.events import Aside, Path, Rounds
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.engine import Engine
from qpdsl.executor.requests.request import Completion, Request, Sample
from qpdsl.executor.requests.routing import ExitRouting, Routing
from qpdsl.executor.requests.shadow import Shadowing
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.instance.candidates import Row, hash_context, noise_key, uniform
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.instance.kept_draws import KeptDraws
from qpdsl.executor.runtime.instance.mathematics import Mathematics
from qpdsl.executor.runtime.instance.request_cache import RequestCache
from qpdsl.executor.runtime.instance.row_tasks import RowClock
from qpdsl.executor.runtime.instance.tools import CallStore, ToolCalls
from qpdsl.executor.runtime.instance.value_sources import ValueSources
from qpdsl.executor.runtime.sandbox.permission import CodePermission
from qpdsl.executor.text.context import Context
from qpdsl.executor.verifiers.verifier import ScoreStore, Verifier
from qpdsl.grammar import ast
from qpdsl.planner.plan.evaluate import Draw, evaluate, evaluate_each, evaluate_rows
from qpdsl.planner.plan.options import LARGEST, RANGES
from qpdsl.planner.plan.reads import is_same_for_all
from qpdsl.planner.values.value import Value, format_value

# What a verifier scores: the problem, the text and the system turn.
VerifierInput = tuple[str, str, str]
_KINDS = {"int": "a whole number", "float": "a number"}
_MAY_BE_NONE = ("keep", "first")
# So many samples that wrote past their stop are kept, the latest.
_MAX_WRITTEN = 256


@dataclass(slots=True)
class WrittenAhead:
    """A prompt with the tokens that `model` went on to, of which those from `start` on are past the stop.

    `billed`: the server counted its own tokens for all of it, and these are others. `used`: up to where it was taken.
    """

    model: str
    tokens: tuple[int, ...]
    start: int
    billed: bool = False
    used: int = 0

    def goes_on_from(self, prompt: tuple[int, ...]) -> bool:
        """Whether there are tokens here that follow a prompt, some of which may be past the stop as well."""
        return self.start <= len(prompt) < len(self.tokens) and self.tokens[: len(prompt)] == prompt

    def use(self, end: int) -> int:
        """Takes what is past the stop up to `end`; returns how many tokens of it nobody took before."""
        before = max(self.used, self.start)
        self.used = max(before, end)
        return self.used - before


class RowError(Exception):
    """Why one program instance failed, in words for the user."""


# Rows that one problem may have at a time: they take a gigabyte or two.
MAX_ROWS = 1_000_000


def check_rows(count: int) -> None:
    """Raises RowError where a stage would make more rows than memory is for; it is asked before they are made."""
    if count > MAX_ROWS:
        raise RowError(f"{count:,} rows at a time are too many: a problem has at most {MAX_ROWS:,}")


class NoAnswerError(RowError):
    """Why one program instance came to no answer: what the model wrote has none, or none that is whole."""


# Called with each piece of text as it is generated: the path and the source stage of the row that it will be in, the
# piece, and whether it is of a thought.
OnToken = Callable[[Path, int, str, bool], None]


class RunAhead(Protocol):
    """What runs ahead of a `repeat`, as the `generate` in it sees it."""

    def taken(self, continuation: Any, instance: Instance) -> Ticket | None:
        """The request for the children of a row that is sampled from now, where they ran ahead."""

    def drop_others(self, instance: Instance) -> None:
        """Gives up the children of rows that are not in this round, and their children."""

    def ended(self, sampling: Any, continuation: Any, index: int, sample: Sample) -> None:
        """Engine side: a sample of a row has ended, so its children may run ahead."""


@dataclass(frozen=True)
class Services:
    """What all instances of a run share: the engine and, by the names in the program, models, verifiers and functions.

    `scores` keeps scores from instance to instance; None where that would not be sound.
    `routing`: who decides what a plan leaves to a router. `request_cache`: where requests to large models wait for each
    other; None where those of an operator do so alone. `exit_routing`: who decides which draws try an early exit, where
    the plan leaves it to a router, and `exit_state` names what that knows of a model; `shadowing`: of which draws it is
    looked at whether the full model agrees. `candidates`: those of the last choice are wanted too. `kept`: what keeps
    the draws, where somebody looks at them again. `shares_samples`: other instances get what this one draws, so that it
    leaves no sample unfinished. `tool_calls` has what pure tools gave, and `call_store` keeps all calls of the run.
    """

    engine: Engine
    models: Mapping[str, TextModel]
    verifiers: Mapping[str, Verifier]
    events: EventStream
    functions: Mapping[str, PythonFunction] = field(default_factory=dict)
    on_token: OnToken | None = None
    mathematics: Mathematics = field(default_factory=Mathematics)
    scores: ScoreStore | None = None
    routing: Routing = field(default_factory=Routing)
    request_cache: RequestCache | None = None
    allow_code: CodePermission = False
    exit_routing: ExitRouting | None = None
    exit_state: Callable[[str], str] = str
    shadowing: Shadowing = field(default_factory=Shadowing)
    candidates: bool = False
    kept: KeptDraws | None = None
    shares_samples: bool = False
    tool_calls: ToolCalls = field(default_factory=ToolCalls)
    call_store: CallStore | None = None


@dataclass
class Usage:
    """Tokens as an API would bill them: the whole prompt of every request, and every token sampled.

    `cached_tokens` are the prompt tokens whose KV was found. `engine_seconds`: see `InstanceResult`. `counts` holds
    what the cost depends on, by name:

    - `going`: rows that went on; `context`: their tokens; `samples`: samples drawn; `longest`: tokens of the longest
    - `texts`: texts shown to verifiers; `texts_known`: those of them that were scored before; `text_tokens`: all their
      tokens; `first_tokens`: those up to the end of the first step; `new_tokens`: those of steps that this instance
      never scored
    - `unscored`: rows without a score, as their text is too long for the verifier, or the judge's answer was cut off
    - `unfinished`: 1 where what the program gives back is a row that a `repeat` or `search` left before its end
    - `expansions` of the rows of a `search`, and `rollouts` of rows to their end
    - `steps`: steps asked of verifiers; `steps_known`: those of them that were scored before
    - what decisions of rules came to, by the names in their `Effect` (`planner/plan/rule.py`); `unused_prompt` and
      `unused_sampled`: the tokens of samples that ran ahead for nothing, which are counted nowhere else
    - `failed_prompt`: the prompts of requests that failed, which no server billed, and which are counted nowhere else
    - `thought_tokens`: those of the sampled tokens that are thoughts; `thoughts_given_up`: thoughts that a decided vote
      broke off, with `thought_tokens_given_up`, which are among them
    - `draws`: tokens that a model was asked for, in `rounds` forwards; `forced`: those that a constraint forced without
      it; `allowed_8`: draws at which a mask allowed so many ids, or a few more (see `count_steps`)
    - `exits`: draws that left the model early, `refined`: those that could have and went on; `late`: tokens whose last
      layers were computed after later tokens had been drawn; `skipped`: for each token that never had some, the layers
      that it was spared; `full`: draws that a router had leave the exit out
    - `shadowed`: draws of an exit or of a small model that the full model made too, `differed`: those of them for which
      it drew another token; `shadowed_0.9`, `differed_0.9`: those in which a small model was so sure, or more
    - `dense_steps`, `rows_steps`, `union_steps`: forwards in which a router had the head computed so
    - `filter_samples`: samples that two models wrote, `filter_alone`: those of them without a request to the large one;
      `filter_draws`: tokens that the small one drew, `filter_sure`: those of them that stood; `large_draws`: tokens
      that the large one drew, `large_tokens`: those that it computed for them, prompts and what it caught up on;
      `flush_8`: requests that went to it in a batch of eight, and so on
    - `contrast_draws`: tokens that were drawn by the logits of two models, `contrast_alone`: those of them that had one
      plausible id
    - `drafted`: tokens that were proposed, `accepted`: those of them that stood; `eagle_drafted`, `eagle_rounds` and
      `eagle_draws`, and so for other ways to draft: the same of that way; `would_drafted`, …: the same where nothing
      drafted, of the way that needs no other model
    - of models on servers: `requests` that were sent, `retries` of them again, `replayed` ones that an earlier run had
      kept; `server_cached`: prompt tokens that the server found in a cache; `cost_millionths` of the currency of the
      price table
    - `shared_samples`: samples that were drawn for other requests, with `saved_tokens`, which count as sampled all the
      same; `shared_scores`: scores of steps that other instances read. How many depends on what ran before
    - `answers_boxed`, `answers_stated`, `answers_marked`, `answers_none`: texts by the rule of `final_answer` that held
    - `tool_calls` of tools that were made, `tool_kept` ones whose result was known, `tool_errors` among both
    - of calls that were asked to go on past their stop: `beyond_tokens` that they wrote there, `beyond_used`: those of
      them that later calls took, with what the program put between; `saved_calls`: samples that no request was made for
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    near_ties: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    engine_seconds: float = 0.0

    def spent(self, ticket: Ticket) -> None:
        """Counts what a request took, once, when nothing more comes of it: it was answered, was given up or failed.

        Prompt tokens are those that a server billed, where it says so, and of them those that it had cached.
        """
        calls, prompt = ticket.calls, len(ticket.request.tokens)
        billed = None if calls is None else calls.prompt_tokens
        if billed is None and ticket.failed:
            self.counts["failed_prompt"] += prompt
        else:
            self.prompt_tokens += prompt if billed is None else billed
            self.cached_tokens += ticket.cached if calls is None else calls.cached_tokens
        self.engine_seconds += ticket.seconds
        if ticket.shared:
            self.counts.update(shared_samples=ticket.shared, saved_tokens=ticket.saved_tokens)
        if calls is not None:
            self.counts.update(
                requests=calls.requests,
                retries=calls.retries,
                replayed=calls.replayed,
                server_cached=calls.cached_tokens,
                cost_millionths=round(calls.cost * 1e6),
            )

    def read_before(self, tokens: int) -> None:
        """Counts tokens of a prompt that another request has read: this one need not."""
        self.prompt_tokens += tokens
        self.cached_tokens += tokens

    def add(self, other: Usage) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.sampled_tokens += other.sampled_tokens
        self.near_ties += other.near_ties
        self.engine_seconds += other.engine_seconds
        for name, count in other.counts.items():
            self.counts[name] += count


@dataclass(frozen=True, slots=True)
class Decision:
    """How an operator told its rows apart: by these keys, those of each group by themselves.

    `groups` are places of rows. `weights` are those of a vote's rows, None for one that was not counted; where copies
    are shared out, each row's share of those of its group, None for one that goes on as it is.
    """

    groups: Sequence[Sequence[int]]
    keys: Sequence[Hashable] = ()
    weights: Sequence[float | None] = ()


@dataclass
class Instance:
    """One run of a program over one problem. `run` makes it.

    An operator runs on a copy with its own `operator` (its id) and `usage`, and inside `repeat` its own `rounds`; the
    rest is shared. `aside`: see `Detail` of the events; `decision` is what that operator came to, where it chooses
    among rows, and `sources` are those of values, where somebody watches. `floor`: see `PhysicalPlan`. `ahead` is what
    runs ahead in a `repeat`. `baseline` marks greedy decoding that is run for comparison. `clock` bounds how long it
    may take.

    These keep what was computed, so that equal content is computed once: `scores` maps a digest of a model and a token
    prefix to the score read at its end, and `scored` holds the digests of whole texts; `judged` maps what a judge or a
    Python function was shown to its answer; `contexts` maps (model, context, switch) to the context's tokens, and
    `digests` a context to its digest in noise keys; `steps` maps an operator's id and its input to the scores of the
    steps, of which there are none where the text is too long.

    `written` is what samples wrote past their stop. `emptied` says of each operator that left no row why, in words that
    follow a colon. `supports` has, by the id of an operator that chooses one row of several, how sure it was (see
    `standing.py`). `drawn` are marks of the samples that were counted, and `drawn_before` of those that an earlier way
    of the program drew, which are counted no more; None where it has no ways. `unshown` has, by a row's path, the stage
    that wrote it last, what stands at its end for a letter that is only begun, and whether that is of a thought:
    `on_token` is given that at the end.
    """

    name: str
    services: Services
    arguments: Mapping[str, Value]
    seed: int
    baseline: bool = False
    operator: str = ""
    rounds: Rounds = ()
    aside: Aside = ()
    decision: Decision | None = None
    usage: Usage = field(default_factory=Usage)
    floor: int = 0
    ahead: RunAhead | None = None
    clock: RowClock = field(default_factory=RowClock)
    scores: dict[bytes, float] = field(default_factory=dict)
    scored: set[bytes] = field(default_factory=set)
    steps: dict[tuple[str, VerifierInput], tuple[float, ...]] = field(default_factory=dict)
    emptied: list[str] = field(default_factory=list)
    supports: dict[str, float] = field(default_factory=dict)
    drawn: set[Hashable] = field(default_factory=set)
    drawn_before: frozenset[Hashable] | None = None
    unshown: dict[Path, tuple[int, str, bool]] = field(default_factory=dict)
    contexts: dict[tuple[str, Context, str], tuple[int, ...]] = field(default_factory=dict)
    digests: dict[Context, bytes] = field(default_factory=dict)
    judged: dict[tuple[str, ...], Value] = field(default_factory=dict)
    written: deque[WrittenAhead] = field(default_factory=lambda: deque(maxlen=_MAX_WRITTEN))
    sources: ValueSources = field(default_factory=ValueSources)
    _scoring: dict[str, asyncio.Lock] = field(default_factory=dict)

    @property
    def shadow(self) -> float:
        """The share of the operator's early draws that are shadowed; greedy decoding to compare with has none."""
        return 0.0 if self.baseline else self.services.shadowing.of(self.operator)

    @property
    def watched(self) -> bool:
        """Whether somebody reads about this instance's candidates."""
        return self.services.events.detailed and not self.baseline

    def beside(self) -> Instance:
        """The instance for what its operator runs beside the rows: see `Detail` of the events."""
        frame = f"{self.operator}@{'.'.join(map(str, self.rounds))}"
        return replace(self, aside=(*self.aside, frame), ahead=None)

    def keys(self, ordinal: int, context: Context, paths: Sequence[Path]) -> tuple[int, ...]:
        """The noise keys of the samples of a `generate`, by its ordinal, that a row with that context makes."""
        digest = self.digests.get(context)
        if digest is None:
            digest = self.digests[context] = hash_context(context)
        keys = tuple(noise_key(self.seed, digest, ordinal, self.rounds, path) for path in paths)
        if self.services.kept is not None:
            self.services.kept.name(self.name, self.operator, self.rounds, paths, keys)
        return keys

    def chance(self, number: int, context: Context | None, path: Path) -> int:
        """The key of what is left to chance and is no token. `number` counts these apart from a program's `generate`s.

        Before the first context nothing of the problem is in it.
        """
        (key,) = self.keys(-1 - number, context or Context(), (path,))
        return key

    def draw(self, rows: Sequence[Row]) -> Draw:
        """What `random()` is in each of the rows."""
        return lambda number: [uniform(self.chance(number, row.context, row.path)) for row in rows]

    def scoring(self, name: str) -> asyncio.Lock:
        """Held while `name` scores, so that the arms of a `branch` do not score equal content side by side."""
        return self._scoring.setdefault(name, asyncio.Lock())

    def scope(self, row: Row) -> Mapping[str, Value]:
        """What an expression over a row can name: parameters, and columns over them."""
        return {**self.arguments, **row.columns}

    def values(self, expr: ast.Expr, rows: Sequence[Row]) -> list[Value]:
        """The value of an expression for each of the rows; aggregates in it look at all of them."""
        return evaluate_each(expr, [self.scope(row) for row in rows], self.draw(rows))

    def problems(self, rows: Sequence[Row], given: ast.Expr | None) -> list[str | None]:
        """What a verifier is shown as the problem of each row: the value of `given`, else what its context has for it.

        None where that value is none.
        """
        if given is None:
            return ["" if row.context is None else row.context.problem for row in rows]
        return [None if value is None else format_value(value) for value in self.values(given, rows)]

    def option(self, expr: ast.Expr | None, rows: Sequence[Row] = ()) -> Value:
        """The value of a stage option: over parameters, and aggregates of all rows; None where the option is absent."""
        if expr is None or not rows:
            return evaluate(expr, self.arguments)
        return evaluate_rows(expr, [self.scope(row) for row in rows], self.arguments)

    def whole(self, name: str, expr: ast.Expr, rows: Sequence[Row] = ()) -> int:
        """A stage option that counts something, within the language's bounds for `name`. Raises RowError.

        Rows to keep that are worked out in a run may come to 0: then there are none.
        """
        value = self.option(expr, rows)
        none = type(value) is int and value == 0 and name in _MAY_BE_NONE and not is_same_for_all(expr, self.arguments)
        return 0 if none else int(checked(name, value))

    def number(self, name: str, expr: ast.Expr | None, rows: Sequence[Row] = ()) -> float | None:
        """A stage option that is a number, as `whole` checks it; None where absent. Raises RowError."""
        return None if expr is None else checked(name, self.option(expr, rows))


def checked(name: str, value: Value) -> float:
    """The value of an option, a whole number where that counts something. Raises RowError where it does not do."""
    bounds, shown = RANGES[name], format_value(value)
    if isinstance(value, (int, float)) and abs(value) > LARGEST:
        shown = "one this large"
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        whole = bounds.type != "int" or value == int(value)
        if whole and bounds.holds(value):
            return value
    raise RowError(f"`{name}` must be {_KINDS[bounds.type]} of {bounds}, not {shown}")


class Submissions:
    """The requests of one operator: submitted in a `with` block, given up where it fails, and counted as it ends."""

    def __init__(self, instance: Instance) -> None:
        self._engine = instance.services.engine
        self._usage = instance.usage
        self._tickets: list[Ticket] = []

    def __enter__(self) -> Submissions:
        return self

    def submit(self, model: str, request: Request) -> Ticket:
        self._tickets.append(self._engine.submit(model, request))
        return self._tickets[-1]

    async def completions(self) -> list[Completion]:
        """The completions of all requests, in the order of submission. Raises EngineError."""
        return [await ticket for ticket in self._tickets]

    def take(self, ticket: Ticket) -> None:
        """Adds a request that was submitted elsewhere before."""
        self._tickets.append(ticket)

    def __exit__(self, *failure: object) -> None:
        # Cancelling a ticket that is done does nothing.
        for ticket in self._tickets:
            ticket.cancel()
            self._usage.spent(ticket)


async def completed(instance: Instance, model: str, request: Request) -> Completion:
    """What an engine answers one request, which is counted. Raises EngineError."""
    with Submissions(instance) as submissions:
        return await submissions.submit(model, request)
