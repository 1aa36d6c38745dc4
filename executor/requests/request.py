"""The requests that an engine takes, and the completions that it gives back. Token ids only: no text and no plans.

All requests say the same of themselves, so that an engine need not ask for their class:

    tokens        the tokens to compute before anything can be read
    length        how many positions these take
    positions     where among them something is read: the next token, logits or log-probabilities
    samples       how many samples are drawn; 0 for a request that only reads
    generation    the request itself where it draws samples, else None; `reading` likewise where it only reads
    tree          the tokens at its end that make a tree and the parents of each by number, None where none do
    exit          when the model may be left early, None for never
    features      what the engine must be able to do
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, TypeAlias

from qpdsl.executor.requests.drawing import (
    UNPROCESSED,
    Confidence,
    ConfidenceFloor,
    Drafting,
    DrawFigures,
    LogitContrast,
    LogitProcessors,
    Logits,
)
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.routing import Arm, Routing

if TYPE_CHECKING:
    import numpy as np

# Below this temperature logits divided by it leave the range of float32, and any sampling has long become greedy.
_MIN_TEMPERATURE = 1e-6
# Above this one they would become 0, all alike, and a filter would cut none of them; sampling has long become uniform.
_MAX_TEMPERATURE = 1e30

# What an engine may be able to do for a model (see `Capabilities`).
Feature = Literal[
    "sampling",
    "seeds",
    "json_schema",
    "regex",
    "grammar",
    "choice",
    "early_exit",
    "confidence",
    "figures",
    "contrast",
    "drafts",
    "routing",
    "logits",
    "logprobs",
    "forks",
    "thoughts",
]
# "until": its confidence fell under its floor. "thought": it has no room for an answer behind its thought.
Finish = Literal["eos", "stop", "length", "match", "unsure", "until", "thought"]
# 0: needed now. 1: spare work, which only uses what would stand idle: it is admitted where nothing else waits, is
# the first to be preempted, and takes no cached page that was used lately.
Priority = Literal[0, 1]
# What a sample keeps of that of another run with the same seed: every token; every token as long as the same server
# answers; what was kept of the first run.
Repeats = Literal["exact", "replayable", "recorded"]
# What wrote a token, where that is no draw of the whole model: a constraint that let nothing else follow, a draft that
# the model would have drawn too, its first layers, or the small model of a filter.
Writer = Literal["forced", "drafted", "early", "small"]
ConstraintKind = Literal["json_schema", "regex", "grammar", "choice"]
# Each as it is called in messages.
CONSTRAINT_NAMES: Mapping[ConstraintKind, str] = {
    "json_schema": "a JSON Schema",
    "regex": "a regex",
    "grammar": "a grammar",
    "choice": "a choice",
}
# Which ids may be drawn, 32 to a word, lowest bit first: int32 [B, ⌈V/32⌉].
Bits: TypeAlias = "np.ndarray[Any, np.dtype[np.int32]]"
# What a request reads at a position: some numbers, or the logits of all ids.
Values: TypeAlias = "tuple[float, ...] | Logits"


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one token is drawn from the logits. Filters apply in the order top-k, top-p, min-p; None switches one off."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    processors: LogitProcessors = UNPROCESSED

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0, not {self.temperature}")
        if self.temperature > _MAX_TEMPERATURE:
            object.__setattr__(self, "temperature", _MAX_TEMPERATURE)
        if self.top_k is not None and self.top_k < 1:
            raise ValueError(f"top_k must be at least 1, not {self.top_k}")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], not {self.top_p}")
        if self.min_p is not None and not 0 <= self.min_p < 1:
            raise ValueError(f"min_p must be in [0, 1), not {self.min_p}")

    @property
    def greedy(self) -> bool:
        return self.temperature < _MIN_TEMPERATURE

    @property
    def filtered(self) -> bool:
        return self.top_k is not None or self.top_p is not None or self.min_p is not None


@dataclass(frozen=True, slots=True)
class Client:
    """Who asks. It changes no token, only when the request is served.

    `name` is the program instance, between which an engine is fair. `urgency`: a higher one goes first. `deadline`:
    when the whole instance has to be done, on the clock of `time.monotonic`, None for whenever. What is computed for
    one `owner` is found by its own requests only: how fast an answer comes says nothing of what others asked (vLLM's
    `cache_salt`).
    """

    name: str = ""
    urgency: int = 0
    deadline: float | None = None
    owner: str = ""


@dataclass(frozen=True, slots=True)
class SampleConstraint:
    """What a mask holds a sample to, for engines that hold to it themselves.

    `source` is JSON Schema as JSON text, a regex, a llguidance Lark grammar, or a JSON list of options.
    """

    kind: ConstraintKind
    source: str


class Watch(Protocol):
    """Follows one sample and says when it is to stop, such as at a stop string."""

    def push(self, token: int) -> bool:
        """Takes the next sampled token (eos excepted); True ends the sample."""


class WatchAround:
    """A `Watch` around another one, its `own`, which may be none.

    It is told the log-probability of its sample so far before each token, and has `pushed` so many. `given_up`: it has
    ended the sample for a reason that its own watch knows nothing of.
    """

    own: Watch | None
    logprob: float
    given_up: bool
    pushed: int

    def push(self, token: int) -> bool:
        """See `Watch`."""
        raise NotImplementedError


class Mask(Protocol):
    """Follows one sample and says which tokens may come next, as a grammar does. It depends on the tokens alone."""

    @property
    def error(self) -> str | None:
        """Why it cannot go on; None where it can."""

    def push(self, token: int) -> bool:
        """Takes the next sampled token (eos excepted); True where only the end can follow."""

    def fork(self) -> Self:
        """One in the same state, which goes its own way from here."""

    def forced(self) -> list[int]:
        """The ids that must follow, one after the other, up to where there is a choice; the end is none of them."""

    def admits(self, tokens: Sequence[int]) -> int:
        """How many of these tokens, one after the other from here, it would take."""

    def fill(self, masks: Sequence[Self], bits: Bits) -> None:
        """Writes the ids that each of `masks` allows into its row of `bits`. All of them are of this class."""

    def fill_ahead(self, masks: Sequence[Self], paths: Sequence[Sequence[Sequence[int]]], bits: Bits) -> None:
        """As `fill`, with a row after each mask's own for each of its paths: what it would allow after these tokens.

        `bits` are zeros before. Rows behind a token that a mask does not admit stay so.
        """


@dataclass(frozen=True, slots=True)
class Thought:
    """That the samples of a request begin with a thought, or in one, which has at most `limit` tokens.

    Behind one that is `bounded` and reaches the limit comes `close`, and then the answer; behind one that the model
    closes itself `rest`, where a mask holds the answer. Thought and answer have `room` for so many tokens together.
    The model itself writes `mark` tokens before the thought. `ended_by` is what ends a thought, as that of a request.
    """

    limit: int
    bounded: bool
    close: tuple[int, ...]
    rest: tuple[int, ...]
    room: int
    mark: int = 0
    ended_by: Hashable = None

    @property
    def most(self) -> int:
        """How many tokens may be drawn up to its end."""
        return min(self.limit + self.mark, self.room)


@dataclass(frozen=True, slots=True)
class GenerateRequest:
    """Samples continuations of one prompt; the prompt is prefilled once, then forked.

    `keys` holds a 64-bit noise key for each sample, under which `drawn` tokens were drawn before this request; where
    there are any, it goes on with a sample that has its first token. It has waited for its next one since `since`, on
    the clock of `time.perf_counter`, None for since the request came (see `latencies.py`). `watch` and `mask` make a
    fresh `Watch` and `Mask` for each sample; `watch` is given the sample's number. With an `exit`, tokens may be drawn
    before the model's last layer. With a `confidence`, a sample ends before the first token that does not stand by it.
    With a `contrast`, which is of one place, each sample has one token. With a `rank`, the first token of sample i is
    the one of rank `rank` + i, from 0, and only the others are drawn. With a `floor`, it ends with the token that falls
    under it, unless the model ends it there. `priority`: see `Priority`. With `cached`, the request may use what the
    engine computed for others, and they may use what is computed for it. With `lead`, the first sample goes alone until
    it has its first token or has ended, so that a server's cache has the prompt when the others come; it changes no
    token.

    How the steps are carried out changes no token: with `jump`, ids that the mask forces are taken without asking the
    model; with `sparse`, the head computes the ids that the mask allows alone, where they are few; `draft` proposes
    tokens that one forward then checks; `route` says who decides at each step how the head is computed. Without
    `logprobs` nobody reads the samples' log-probabilities: they are 0, and the head may leave out ids that cannot win.
    With `figures`, each draw is told of (see `DrawFigures`), which takes the logits of all ids.

    With a `thought`, `mask`, `stops` and `max_tokens` are those of the answers. It is for engines that part the two
    themselves, as servers of chats do; for others it becomes two requests (`executor/runtime/generate/thought.py`).

    `constraint` and `stops` say again what `mask` and `watch` do, as far as a server can be told: what the mask holds
    to, and texts after which nothing is read any more. `ended_by` is what `watch` ends samples by: the watches of two
    requests to a model for which it is equal end equal samples at the same token. It is () where they end none, and
    None where that is not known.
    """

    prompt: tuple[int, ...]
    keys: tuple[int, ...]
    sampling: SamplingParams
    max_tokens: int
    eos: frozenset[int] = frozenset()
    watch: Callable[[int], Watch] | None = None
    mask: Callable[[], Mask] | None = None
    drawn: int = 0
    exit: EarlyExit | None = None
    confidence: Confidence | None = None
    priority: Priority = 0
    cached: bool = True
    jump: bool = False
    sparse: bool = False
    draft: Drafting | None = None
    route: Routing | None = None
    logprobs: bool = True
    figures: bool = False
    floor: ConfidenceFloor | None = None
    contrast: LogitContrast | None = None
    rank: int | None = None
    constraint: SampleConstraint | None = None
    stops: tuple[str, ...] = ()
    lead: bool = False
    thought: Thought | None = None
    since: float | None = field(default=None, compare=False)
    client: Client = field(default=Client(), compare=False)
    ended_by: Hashable = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if not self.prompt:
            raise ValueError("a prompt needs at least one token")
        if not self.keys or self.max_tokens < 1:
            raise ValueError("a request needs at least one sample of at least one token")
        if self.exit is not None and self.confidence is not None:
            raise ValueError("a token may leave the model early or have to be sure, not both")
        if self.exit is not None and self.figures:
            raise ValueError("nothing is told of a draw that may leave the model early")
        if self.floor is not None and not self.figures:
            raise ValueError("a floor goes by the figures of the draws")
        if self.contrast is not None and (self.max_tokens > 1 or self.exit is not None or self.draft is not None):
            raise ValueError("a contrast is of one place, which all layers come to")

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.prompt

    @property
    def positions(self) -> range:
        """The prompt's last token: the first token of every sample is drawn there."""
        return range(len(self.prompt) - 1, len(self.prompt))

    @property
    def length(self) -> int:
        return len(self.tokens)

    @property
    def samples(self) -> int:
        return len(self.keys)

    @property
    def generation(self) -> GenerateRequest:
        return self

    @property
    def reading(self) -> None:
        return None

    @property
    def tree(self) -> None:
        return None

    @property
    def held_to(self) -> ConstraintKind:
        """The kind of constraint that a mask stands for; any mask can be written as a grammar."""
        return "grammar" if self.constraint is None else self.constraint.kind

    @property
    def features(self) -> frozenset[Feature]:
        # A least length is no constraint: servers may have it, and hold to none.
        least_alone = self.constraint is None and self.sampling.processors.given == ("min_tokens",)
        needed: dict[Feature, bool] = {
            "sampling": True,
            "seeds": not self.sampling.greedy,
            self.held_to: self.mask is not None and not least_alone,
            "early_exit": self.exit is not None,
            "confidence": self.confidence is not None,
            "figures": self.figures,
            "contrast": self.contrast is not None,
            "thoughts": self.thought is not None,
            "drafts": self.draft is not None,
            "routing": self.route is not None or (self.exit is not None and self.exit.route is not None),
        }
        return frozenset(feature for feature, is_needed in needed.items() if is_needed)


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadOnly:
    """A request that draws nothing. `priority`, `cached`: see `GenerateRequest`."""

    priority: Priority = 0
    cached: bool = True
    client: Client = field(default=Client(), compare=False)

    @property
    def length(self) -> int:
        # A property here would be the default of a field there.
        return len(self.tokens)  # type: ignore[attr-defined]

    @property
    def features(self) -> frozenset[Feature]:
        return frozenset({"logprobs"})

    @property
    def samples(self) -> int:
        return 0

    @property
    def generation(self) -> None:
        return None

    @property
    def reading(self) -> Self:
        return self

    @property
    def tree(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        return None

    @property
    def ids(self) -> tuple[int, ...] | None:
        """The ids whose logits are read at each position, None where log-probabilities are, or all logits."""
        return None

    @property
    def whole(self) -> bool:
        """Whether the logits of all ids are read."""
        return False

    @property
    def exit(self) -> None:
        return None


@dataclass(frozen=True, slots=True)
class ReadRequest(_ReadOnly):
    """Prefills `tokens` and reads the logits of `ids` at `positions` (ascending, each below len(tokens))."""

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    ids: tuple[int, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip(self.positions, self.positions[1:], strict=False))
        if not self.positions or not ascending or not 0 <= self.positions[0] <= self.positions[-1] < len(self.tokens):
            raise ValueError("positions must be ascending and lie inside the tokens")

    @property
    def features(self) -> frozenset[Feature]:
        return frozenset({"logits"})

    def read_ids(self, place: int) -> tuple[tuple[int, ...], ...]:
        """At any of its positions, the ids that are read, for each value."""
        return tuple((id,) for id in self.ids)

    def completion(self, values: Sequence[Values], cached: int) -> Completion:
        """The answer, from the logits of `ids` at each position."""
        return Completion(logits=tuple(map(tuple, values)), cached=cached)

    def values(self, completion: Completion) -> Sequence[tuple[float, ...]]:
        """What `completion` was made from."""
        return completion.logits


@dataclass(frozen=True, slots=True)
class LogitsRequest(_ReadOnly):
    """Reads the logits of all ids after each of the last `count` of `tokens`."""

    tokens: tuple[int, ...]
    count: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.count <= len(self.tokens):
            raise ValueError(f"logits are read after 1 to {len(self.tokens)} of the tokens, not {self.count}")

    @property
    def positions(self) -> range:
        """The last tokens."""
        return range(len(self.tokens) - self.count, len(self.tokens))

    @property
    def features(self) -> frozenset[Feature]:
        return frozenset({"contrast"})

    @property
    def whole(self) -> bool:
        return True

    def read_ids(self, place: int) -> tuple[tuple[int, ...], ...]:
        """Raises TypeError: of all ids there is no list."""
        raise TypeError("the logits of all ids are read as a whole")

    def completion(self, values: Sequence[Values], cached: int) -> Completion:
        """The answer, from the logits at each position."""
        rows = [row for row in values if not isinstance(row, tuple)]
        return Completion(whole=tuple(rows), cached=cached)


@dataclass(frozen=True, slots=True)
class LogProbRequest(_ReadOnly):
    """Reads the log-probability of each of `targets` after `prompt` and the targets before it, at temperature 1.

    With `end`, the summed probability of those ids after all the targets is read as well.
    """

    prompt: tuple[int, ...]
    targets: tuple[int, ...]
    end: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.prompt or not (self.targets or self.end):
            raise ValueError("a log-probability needs a prompt and something that follows it")

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and targets. The last target is left out where nothing is read after it."""
        return self.prompt + (self.targets if self.end else self.targets[:-1])

    @property
    def positions(self) -> range:
        """One for each target, and one more for `end`."""
        first = len(self.prompt) - 1
        return range(first, first + len(self.targets) + bool(self.end))

    def read_ids(self, place: int) -> tuple[tuple[int, ...], ...]:
        """At this one of its positions, the ids whose summed probability is read, for each value."""
        return ((self.targets[place],) if place < len(self.targets) else self.end,)

    def completion(self, values: Sequence[Values], cached: int) -> Completion:
        """The answer, from the one log-probability at each position."""
        return Completion(logprobs=tuple(value for (value,) in values), cached=cached)

    def values(self, completion: Completion) -> Sequence[tuple[float, ...]]:
        """What `completion` was made from."""
        return [(value,) for value in completion.logprobs]


@dataclass(frozen=True, slots=True)
class TreeRequest(_ReadOnly):
    """Reads of each of `branches` what a `LogProbRequest` of it reads, with what they share computed once.

    The tokens of the branches that something is read after make a tree: `nodes`, each of which follows the one that
    `parents` names by its number, -1 for the prompt's last token. Parents come first.
    """

    prompt: tuple[int, ...]
    branches: tuple[tuple[int, ...], ...]
    end: tuple[int, ...] = ()
    nodes: tuple[int, ...] = field(init=False, repr=False)
    parents: tuple[int, ...] = field(init=False, repr=False)
    _reads: tuple[tuple[tuple[int, ...], ...], ...] = field(init=False, repr=False)
    _places: tuple[tuple[int, int], ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.prompt or not self.branches or not all(branch or self.end for branch in self.branches):
            raise ValueError("a log-probability needs a prompt and something that follows it")
        numbers: dict[tuple[int, ...], int] = {(): -1}
        reads: list[dict[tuple[int, ...], int]] = [{}]
        places: list[tuple[int, int]] = []
        for branch in self.branches:
            ids = [*((target,) for target in branch), *((self.end,) if self.end else ())]
            for length, read in enumerate(ids):
                path = branch[:length]
                if path not in numbers:
                    numbers[path] = len(numbers) - 1
                    reads.append({})
                own = reads[numbers[path] + 1]
                places.append((numbers[path] + 1, own.setdefault(read, len(own))))
        paths = [path for path in numbers if path]
        object.__setattr__(self, "nodes", tuple(path[-1] for path in paths))
        object.__setattr__(self, "parents", tuple(numbers[path[:-1]] for path in paths))
        object.__setattr__(self, "_reads", tuple(tuple(own) for own in reads))
        object.__setattr__(self, "_places", tuple(places))

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and nodes."""
        return self.prompt + self.nodes

    @property
    def tree(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return self.nodes, self.parents

    @property
    def length(self) -> int:
        return len(self.prompt) + max(len(branch) - (not self.end) for branch in self.branches)

    @property
    def positions(self) -> range:
        """The prompt's last token and every node."""
        return range(len(self.prompt) - 1, len(self.tokens))

    def read_ids(self, place: int) -> tuple[tuple[int, ...], ...]:
        """At this one of its positions, the ids whose summed probability is read, for each value."""
        return self._reads[place]

    def completion(self, values: Sequence[Values], cached: int) -> Completion:
        """The answer, from the values at each position."""
        return Completion(logprobs=tuple(values[row][place] for row, place in self._places), cached=cached)

    def values(self, completion: Completion) -> Sequence[tuple[float, ...]]:
        """What `completion` was made from."""
        known = dict(zip(self._places, completion.logprobs, strict=True))
        return [tuple(known[row, place] for place in range(len(read))) for row, read in enumerate(self._reads)]


ReadingRequest = ReadRequest | LogitsRequest | LogProbRequest | TreeRequest
Request = GenerateRequest | ReadingRequest


@dataclass(frozen=True, slots=True)
class StepCounts:
    """How the tokens of a sample came about.

    `draws` asked the model, in `rounds` forwards; `forced` were taken without it. Of `drafted` tokens `accepted` were
    what the model would have drawn, and `rejected` were proposed for a place where it drew another. `allowed` holds,
    for each draw under a mask, how many ids it allowed.

    Of the draws that could leave the model early, `exits` did and `refined` went on. `late` tokens had their last
    layers computed after the token that follows them was drawn; `skipped` sums, over those that never had them, how
    many layers these are. `full` draws left the exit out, as a router said. Of the draws that an exit decided, the full
    model made `shadowed` too, and `differed` of these have another token than it drew. `arms`: of the forwards in which
    a router chose how the head is computed, how many were so. `written`: the places of tokens that were no draws of the
    whole model, ascending, and what wrote each.
    """

    draws: int = 0
    rounds: int = 0
    forced: int = 0
    drafted: int = 0
    accepted: int = 0
    allowed: tuple[int, ...] = ()
    exits: int = 0
    refined: int = 0
    late: int = 0
    skipped: int = 0
    arms: tuple[tuple[Arm, int], ...] = ()
    rejected: int = 0
    shadowed: int = 0
    differed: int = 0
    full: int = 0
    written: tuple[tuple[int, Writer], ...] = ()


@dataclass(frozen=True, slots=True)
class Sample:
    """One continuation: its tokens, eos included, and why it ended.

    `logprob` sums the tokens' natural log-probabilities under the model's distribution at temperature 1, over the ids
    that the request's mask allowed, and of a token that left early under the distribution that it was drawn from;
    `near_ties` counts draws that rounding could have decided; `watch` is the request's watch on this sample; `logprobs`
    are the tokens' own, empty where they were not read one by one; `steps` says how they came about. With the finish
    "unsure" the sample ended before a token of too little confidence, which is none of its tokens but counts among the
    draws and near ties; `confidence` is what the next draw would be held to. `figures` are those of each token, where
    the request asks for them. `billed`: how many tokens the engine counted, where its tokens are not these, and
    `thought` how many of them were the thought's, where its watch cannot tell.
    """

    tokens: tuple[int, ...]
    finish: Finish
    logprob: float
    near_ties: int
    watch: Watch | None = field(default=None, compare=False)
    logprobs: tuple[float, ...] = field(default=(), compare=False)
    steps: StepCounts = field(default=StepCounts(), compare=False)
    confidence: Confidence | None = field(default=None, compare=False)
    figures: tuple[DrawFigures, ...] = field(default=(), compare=False)
    billed: int | None = field(default=None, compare=False)
    thought: int | None = field(default=None, compare=False)

    @property
    def size(self) -> int:
        """How many tokens it has, as its engine counts them."""
        return len(self.tokens) if self.billed is None else self.billed


@dataclass(frozen=True, slots=True)
class Calls:
    """What a completion took at a server elsewhere.

    `requests` were sent, `retries` of them again; `replayed` were answered by what an earlier run had kept. Tokens are
    as the server counted them: `prompt_tokens`, of which it found `cached_tokens` in a cache, and `sampled_tokens`.
    `cost` is in the currency of the price table, 0 without one. `prompt_tokens` is None where the server does not say.
    """

    requests: int = 0
    retries: int = 0
    replayed: int = 0
    prompt_tokens: int | None = None
    cached_tokens: int = 0
    sampled_tokens: int = 0
    cost: float = 0.0

    def __add__(self, other: Calls) -> Calls:
        known = [tokens for tokens in (self.prompt_tokens, other.prompt_tokens) if tokens is not None]
        return Calls(
            self.requests + other.requests,
            self.retries + other.retries,
            self.replayed + other.replayed,
            sum(known) if known else None,
            self.cached_tokens + other.cached_tokens,
            self.sampled_tokens + other.sampled_tokens,
            self.cost + other.cost,
        )


@dataclass(frozen=True, slots=True)
class Completion:
    """The answer to one request.

    A `GenerateRequest` fills `samples`, in the order of its keys; a `ReadRequest` fills `logits`, one tuple of len(ids)
    floats a position; a `LogitsRequest` fills `whole`, an array of all logits a position; a `LogProbRequest` fills
    `logprobs`, one a position; a `TreeRequest` fills them for its branches one after the other, each as a
    `LogProbRequest` of it would. `cached` counts prompt tokens whose KV was found in the prefix cache. `calls`: what it
    took, where a server elsewhere gave it.
    """

    samples: tuple[Sample, ...] = ()
    logits: tuple[tuple[float, ...], ...] = ()
    logprobs: tuple[float, ...] = ()
    cached: int = 0
    calls: Calls | None = None
    whole: tuple[Logits, ...] = field(default=(), compare=False)
