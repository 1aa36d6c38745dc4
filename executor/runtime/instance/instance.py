"""One program instance: what its operators share while it runs."""

from __future__ import annotations

import asyncio
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from qpdsl.executor.engine.engine import Engine
from qpdsl.executor.events.events import Path, Rounds
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.requests.request import Completion, Request, Sample
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.runtime.instance.mathematics import Mathematics
from qpdsl.executor.runtime.instance.noise import noise_key
from qpdsl.executor.text.context import Context
from qpdsl.executor.verifiers.score_store import ScoreStore
from qpdsl.executor.verifiers.verifier import Verifier
from qpdsl.grammar import ast
from qpdsl.planner.plan.evaluate import Value, evaluate, format_value
from qpdsl.planner.plan.options import RANGES

# What a verifier scores of a row: the problem, the text and the system turn.
Shown = tuple[str, str, str]
_KINDS = {"int": "a whole number", "float": "a number"}


class RowError(Exception):
    """Why one program instance failed, in words for the user."""


class RunAhead(Protocol):
    """What runs ahead of a `repeat`, as the `generate` in it sees it. It is `generate/run_ahead.py` that makes one."""

    def taken(self, going: Any, instance: Instance) -> Ticket | None:
        """The request for the children of a row that is to go on now, where they ran ahead."""

    def drop_others(self, instance: Instance) -> None:
        """Gives up the children of rows that did not come into this round, and their children."""

    def ended(self, drawing: Any, going: Any, index: int, sample: Sample) -> None:
        """Engine side: a sample of a row has ended, so its children may run ahead."""


@dataclass(frozen=True)
class Services:
    """What all instances of a run share: the engine and, by the names in the program, models, verifiers and functions.

    `on_token`, where given, is called with each piece of text as it is generated: the path and the source stage of the
    row that it will be in, and the piece. `scores` are kept from instance to instance, where that is sound.
    """

    engine: Engine
    models: Mapping[str, TextModel]
    verifiers: Mapping[str, Verifier]
    events: EventStream
    functions: Mapping[str, PythonFunction] = field(default_factory=dict)
    on_token: Callable[[Path, int, str], None] | None = None
    mathematics: Mathematics = field(default_factory=Mathematics)
    scores: ScoreStore | None = None


@dataclass
class Usage:
    """Tokens as an API would bill them: the whole prompt of every request, and every token sampled.

    `cached_tokens` are those of the prompt tokens whose KV was found. `counts` are of what the cost hangs on: rows
    `going` on and the tokens of their `context`, `samples` drawn and the tokens of the `longest`; `texts` shown to
    verifiers and `texts_known` among them, their `text_tokens`, those up to their first step's end (`first_tokens`) and
    those of steps that this instance never scored (`new_tokens`); `steps` asked of verifiers and `steps_known` among
    them; `run_ahead` samples and `run_ahead_used` among them, and the tokens of the others, prompted and sampled
    (`unused_prompt`, `unused_sampled`), which are not among those above; samples `given_up`.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    sampled_tokens: int = 0
    near_ties: int = 0
    counts: Counter[str] = field(default_factory=Counter)

    def add(self, other: Usage) -> None:
        self.prompt_tokens += other.prompt_tokens
        self.cached_tokens += other.cached_tokens
        self.sampled_tokens += other.sampled_tokens
        self.near_ties += other.near_ties
        for name, count in other.counts.items():
            self.counts[name] += count


@dataclass
class Instance:
    """`scores` maps a digest of a model and a token prefix to the score read at its end, `judged` what a judge or a
    Python function was shown to what it said: equal content is scored once. `scored` are the digests of whole texts.

    `contexts` maps (model, context) to the context's tokens. `steps` maps an operator's id and what it scored to the
    scores of its steps. `floor`: see `PhysicalPlan`; `ahead` is what runs ahead in a `repeat`. An operator runs on a
    copy that has a `usage`, and inside `repeat` the `rounds`, of its own; the rest is shared. `operator` is the id of
    the one that runs. `baseline` marks greedy decoding, which is run to compare with.
    """

    name: str
    services: Services
    arguments: Mapping[str, Value]
    seed: int
    digest: bytes
    baseline: bool = False
    operator: str = ""
    rounds: Rounds = ()
    usage: Usage = field(default_factory=Usage)
    floor: int = 0
    ahead: RunAhead | None = None
    scores: dict[bytes, float] = field(default_factory=dict)
    scored: set[bytes] = field(default_factory=set)
    steps: dict[tuple[str, Shown], tuple[float, ...]] = field(default_factory=dict)
    contexts: dict[tuple[str, Context], tuple[int, ...]] = field(default_factory=dict)
    judged: dict[tuple[str, ...], Value] = field(default_factory=dict)
    _scoring: dict[str, asyncio.Lock] = field(default_factory=dict)

    @property
    def watched(self) -> bool:
        """Whether somebody reads about this instance's candidates."""
        return self.services.events.detailed and not self.baseline

    def key(self, stage: int, path: tuple[int, ...]) -> int:
        return noise_key(self.seed, self.digest, stage, self.rounds, path)

    def scoring(self, name: str) -> asyncio.Lock:
        """Held while `name` scores, so that the arms of a `branch` do not score equal content side by side."""
        return self._scoring.setdefault(name, asyncio.Lock())

    def scope(self, row: Row) -> Mapping[str, Value]:
        """What an expression over a row can name: parameters, and columns over them."""
        return {**self.arguments, **row.columns}

    def option(self, expr: ast.Expr | None) -> Value:
        """The value of a stage option, which reads parameters only; None where the option is absent."""
        return None if expr is None else evaluate(expr, self.arguments)

    def whole(self, name: str, expr: ast.Expr) -> int:
        """A stage option that counts something, within the language's bounds for `name`. Raises RowError."""
        return int(self._checked(name, self.option(expr)))

    def number(self, name: str, expr: ast.Expr | None) -> float | None:
        """A stage option that is a number, as `whole` checks it; None where absent. Raises RowError."""
        return None if expr is None else self._checked(name, self.option(expr))

    def _checked(self, name: str, value: Value) -> float:
        bounds = RANGES[name]
        if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
            whole = bounds.type != "int" or value == int(value)
            if whole and bounds.holds(value):
                return value
        raise RowError(f"`{name}` must be {_KINDS[bounds.type]} of {bounds}, not {format_value(value)}")


class Submissions:
    """The requests of one operator: submitted in a `with` block, and given up together where the block fails."""

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
        """The completions of all requests, in the order they were submitted."""
        completions = [await ticket for ticket in self._tickets]
        self._usage.cached_tokens += sum(completion.cached for completion in completions)
        return completions

    def take(self, ticket: Ticket) -> None:
        """A request that was submitted before becomes the next one here."""
        self._tickets.append(ticket)

    def __exit__(self, *failure: object) -> None:
        # A ticket that is done does not mind.
        for ticket in self._tickets:
            ticket.cancel()
