"""The decode plan of a `generate`: how each of its decoding steps is carried out.

A step has four parts, and each has variants (LLM-QP, section 3: a logical `DecodeStep` and its physical arms):

    head        from hidden states to the id that is drawn
    constraint  what holds the ids to the program's constraint
    draft       what proposes tokens that one forward then checks
    filter      how two models come to one token
    router      what decides, step by step, between ways that a plan permits

`DecodePlan` names a variant of each part. A new variant is an entry in `VARIANTS`: where it applies, what it keeps,
what it costs, how EXPLAIN calls it, what the engine must be able to do, what runs count of it, and the rule that picks
it. The plainest plan takes the first variant of each part that applies; `planner/rules/decode.py` makes the rules that
pick the others. A plan holds names, so that plans compare, print and travel as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

from qpdsl.planner.plan import ops

# What a result keeps of that of the plainest plan: all of it; logits within a bound; a known share of the results.
Equivalence = Literal["exact", "epsilon", "lossy"]
_LOOSER: Mapping[Equivalence, int] = {"exact": 0, "epsilon": 1, "lossy": 2}

# What the engine must be able to do; the names are those of the executor's `Feature`.
Feature = Literal["early_exit", "drafts"]
Part = Literal["head", "constraint", "draft", "filter", "router"]


@dataclass(frozen=True, slots=True)
class TokenCost:
    """What a token of a sample takes: shares of the tokens that the operator's model and the filter's small one draw.

    `requests`: each token is a request of its own, which computes or finds all that stands before it. `gained` are the
    tokens that a forward gains where nothing was measured, and `drafting` what a drafted token costs, as a share of a
    forward.
    """

    large: float = 1.0
    small: float = 0.0
    requests: bool = False
    gained: float = 1.0
    drafting: float = 0.0


@dataclass(frozen=True, slots=True)
class Replacement:
    """The rule that takes a variant in the place of the variant `of` of the same part; see `Rule` for its words.

    `choice` names what the choice by cost decides about then. `unless_drafted`: not where tokens are drafted.
    `served`: for models on servers as well, whose steps are else their own affair. `settings` are fields of the
    strategy that go with the variant.
    """

    of: str
    rule: str
    description: str
    place: str
    choice: str
    unless_drafted: bool = False
    served: bool = False
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class StepFigures:
    """What is known of an operator's model and of its earlier runs, as far as costs of steps depend on it.

    `head` is the head's share of the weights. `exit_depth` is the share of the other weights up to an early exit, and
    `refined` of the draws that go on from there. `large` is the share of a filtered sample's tokens that the large
    model draws, and `rows` the share of the head's rows that sparse steps read. None where not known.
    """

    head: float | None = None
    exit_depth: float = 0.5
    refined: float = 0.5
    large: float | None = None
    rows: float = 1.0


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to do one part of a decoding step, with all that the planner and the runtime need to know about it.

    `applies` says of which operators it can be a part. `equivalence` is what it keeps. `words` is how EXPLAIN calls it,
    empty where there is nothing to say. `whole` is true where one request to the engine draws a whole sample, which is
    what running ahead and early votes build on; one that is not draws samples by itself, and its words stand alone.

    `cost` is what a token takes where nothing was measured; `large` gives its share of the large model's work by what
    is known. `features` are what the engine must be able to do (see `Capabilities`). `counts` are the counts of a
    sample's steps that tell something of it, which statistics keep; `rare` those that are counted where there are any.
    `unasked`: of drafts, whether the planner may pick it where the program says nothing; then what it would have come
    to is counted where nothing drafts. `replaces`: the rule that picks it in the place of a plainer one.
    """

    part: Part
    name: str
    words: str
    equivalence: Equivalence
    applies: Callable[[ops.Generate], bool]
    cost: TokenCost = TokenCost()
    whole: bool = True
    large: Callable[[StepFigures], float | None] | None = None
    features: frozenset[Feature] = frozenset()
    counts: tuple[str, ...] = ()
    rare: tuple[str, ...] = ()
    unasked: bool = False
    replaces: Replacement | None = None

    def token_cost(self, figures: StepFigures) -> TokenCost:
        """What a token takes, by what is known."""
        large = None if self.large is None else self.large(figures)
        return self.cost if large is None else replace(self.cost, large=large)


def _exits_early(op: ops.Generate) -> bool:
    return isinstance(op.via, ops.Amortized)


def _filters(op: ops.Generate) -> bool:
    return isinstance(op.via, ops.Filter)


def _contrasts(op: ops.Generate) -> bool:
    return isinstance(op.via, ops.Contrast)


def _pairs(op: ops.Generate) -> bool:
    return isinstance(op.via, ops.Paired)


def _chooses(op: ops.Generate) -> bool:
    return op.constraint is not None and op.constraint.kind == "choice"


def _is_masked(op: ops.Generate) -> bool:
    return op.constraint is not None and op.constraint.kind != "choice"


def _is_sparse(op: ops.Generate) -> bool:
    """Where a mask leaves few ids, whose logits are the model's own: a penalty or a contrast changes those of any."""
    return _is_masked(op) and not _exits_early(op) and not op.penalties and not _contrasts(op)


def _routes(op: ops.Generate) -> bool:
    """Where the steps of one sample differ in what carries them out best."""
    return not _chooses(op) and not _pairs(op) and (_is_sparse(op) or _exits_early(op))


def _drafter(method: str, words: str, cost: TokenCost, *, leaves: bool = False, unasked: bool = False) -> Variant:
    """A way to draft: what may follow is proposed, and one forward checks it.

    The noise of a token depends on its place alone (leapfrogging by n-grams: Saxena, 2023; speculative decoding:
    Leviathan et al., 2023; EAGLE: Li et al., 2024).
    """

    def applies(op: ops.Generate) -> bool:
        asked = unasked if op.draft is None else op.draft.method == method
        return asked and not _chooses(op) and not _pairs(op)

    needs: frozenset[Feature] = frozenset({"drafts", "early_exit"} if leaves else {"drafts"})
    return Variant("draft", method, words, "exact", applies, cost, features=needs, unasked=unasked)


def _leaving(figures: StepFigures) -> float | None:
    """What a draw with an early exit takes: f + r·(1 − f) of a forward (LLM-QP, section 5).

    f is the part of the weights up to the exit, its head counted, and r the share of the draws that go on.
    """
    head = figures.head or 0.0
    leaves = (1 - head) * figures.exit_depth + head
    rest = (1 - head) * (1 - figures.exit_depth) + head
    return leaves + figures.refined * rest


_EXITS = ("exits", "refined", "late", "skipped")
_SHADOWS = ("full", "shadowed", "differed")
_FILTERED = ("filter_samples", "filter_alone", "filter_draws", "filter_sure", "large_draws", "large_tokens")

# Of the variants of a part that apply to an operator, the plainest plan takes the first.
VARIANTS: tuple[Variant, ...] = (
    # A draw leaves at an early layer where its margin is wide enough, as `via amortized(…)` asks for. All layers run,
    # and the head is read twice.
    Variant(
        "head",
        "early_exit",
        "early exit",
        "lossy",
        _exits_early,
        large=lambda figures: 1 + (figures.head or 0.0),
        features=frozenset({"early_exit"}),
        counts=_EXITS,
        rare=_SHADOWS,
    ),
    # The layers behind the exit run only where a draw stays, then for all tokens before it that they have not seen,
    # with all others that it has to attend to in one forward (LLM-QP, section 3, the physical arm `amortized`). CALM
    # copies the state of the exit in their place (Schuster et al., 2022), which changes what later draws see. Here a
    # draw that goes on sees what it sees in the plain form. A model whose layers cannot run in part is run in the plain
    # form.
    Variant(
        "head",
        "deferred",
        "early exit · later layers deferred",
        "lossy",
        _exits_early,
        large=_leaving,
        features=frozenset({"early_exit"}),
        counts=_EXITS,
        rare=_SHADOWS,
        replaces=Replacement(
            "early_exit",
            "defer_layers",
            "run the layers after an early exit only for draws that continue, for all tokens that lack them at once",
            "after drafts, which all layers check",
            "later layers",
            unless_drafted=True,
        ),
    ),
    # One product over the whole vocabulary.
    Variant("head", "dense", "dense head", "exact", lambda op: not _exits_early(op)),
    # Where a step's mask leaves few ids, their rows alone: a row of the head is a product of its own. Which steps are
    # better off with the whole head is decided at each of them (LLM-QP, section 3, the physical arm `sparse`).
    Variant(
        "head",
        "sparse",
        "sparse head",
        "exact",
        _is_sparse,
        large=lambda figures: 1 - (figures.head or 0.0) * (1 - figures.rows),
        replaces=Replacement(
            "dense",
            "sparse_logits",
            "compute only the logits of ids that a constraint allows, if they are few",
            "after masks and drafts, which decide a head's rows",
            "head",
        ),
    ),
    # Every option is scored whole, and one of them is drawn.
    Variant("constraint", "options", "paged prefill · options scored", "exact", _chooses, whole=False),
    # All of them in one request, a tree in which each token sees those on its own path: what they begin with alike is
    # computed once. One by one they share whole pages of KV at the most.
    Variant(
        "constraint",
        "tree",
        "paged prefill · options in one tree",
        "exact",
        _chooses,
        whole=False,
        replaces=Replacement(
            "options",
            "option_tree",
            "score the options of a choice as one tree",
            "after forced tokens, the same for other constraints",
            "options",
        ),
    ),
    # llguidance says which ids may come next.
    Variant("constraint", "mask", "llguidance mask", "exact", _is_masked),
    # And the ids that it forces are taken without asking the model: the compressed finite state machine of SGLang
    # (Zheng et al., 2024, section 4). There the forced text is tokenized anew, which can change what the model would
    # have written; here the ids are those that the mask forces, so they are the tokens that would have been drawn.
    Variant(
        "constraint",
        "jump",
        "llguidance mask · forced tokens jump",
        "exact",
        _is_masked,
        counts=("forced",),
        replaces=Replacement(
            "mask",
            "jump_forward",
            "take the tokens that a constraint forces without asking the model",
            "before drafts, which begin where nothing is forced",
            "forced tokens",
        ),
    ),
    Variant("constraint", "none", "", "exact", lambda op: op.constraint is None),
    Variant("draft", "none", "", "exact", lambda op: True),
    _drafter("ngram", "n-gram drafts", TokenCost(gained=1.5), unasked=True),
    _drafter("model", "drafts of a small model", TokenCost(gained=3.0)),
    _drafter("early_exit", "drafts of the first layers", TokenCost(gained=3.0, drafting=0.5), leaves=True),
    _drafter("eagle", "EAGLE drafts", TokenCost(gained=3.0, drafting=0.05)),
    # The small model's token stands where it is confident, as `via filter(…)` asks for. It decides most tokens.
    Variant(
        "filter",
        "confidence",
        "filter · plain",
        "lossy",
        _filters,
        TokenCost(large=0.15, small=1.0, requests=True),
        whole=False,
        large=lambda figures: figures.large,
        counts=_FILTERED,
    ),
    # And draws on by itself until it is not, in one request, which ends before the first token that is not its to
    # decide. Samples that wait for the large model wait together, and it catches up on all that it has not seen in one
    # forward (CALID, the request cache of filter decoding). Who draws a token depends on the tokens before it alone.
    Variant(
        "filter",
        "cached",
        "filter · small runs · large calls in batches",
        "lossy",
        _filters,
        TokenCost(large=0.15, small=0.85),
        whole=False,
        large=lambda figures: figures.large,
        counts=_FILTERED,
        replaces=Replacement(
            "confidence",
            "filter_in_runs",
            "let a filter's small model draw until it is unsure, and batch the large model's tokens",
            "after deferred layers, the same within one model",
            "filter",
            served=True,
            # The large model is asked at once for so many rows, or once the first of them has waited for so long.
            settings={"flush_rows": 16, "flush_seconds": 0.1},
        ),
    ),
    # A token takes the logits of both models. They are read of the smaller one before the larger one draws by them,
    # so that the engine steps each model for all rows at once.
    Variant(
        "filter",
        "contrast",
        "contrast · both models' logits",
        "exact",
        _contrasts,
        TokenCost(large=1.0, small=1.0, requests=True),
        whole=False,
        counts=("contrast_draws", "contrast_alone"),
    ),
    Variant("filter", "none", "", "exact", lambda op: not _pairs(op)),
    Variant("router", "none", "", "exact", lambda op: True),
    # A policy learns which of the permitted ways is the best for what a step shows (LLM-QP, section 4).
    Variant("router", "learned", "learned router", "exact", _routes),
)
_BY_NAME = {(variant.part, variant.name): variant for variant in VARIANTS}
# What can propose tokens.
DRAFTS: tuple[Variant, ...] = tuple(
    variant for variant in VARIANTS if variant.part == "draft" and variant.name != "none"
)


@dataclass(frozen=True, slots=True)
class DecodePlan:
    """A variant of each part of a decoding step, by its name. Raises InvalidPlan for a name that `VARIANTS` lacks."""

    head: str = "dense"
    constraint: str = "none"
    draft: str = "none"
    filter: str = "none"
    router: str = "none"

    def __post_init__(self) -> None:
        for part, name in self._names():
            ops.require((part, name) in _BY_NAME, f"there is no {part} `{name}`")

    @classmethod
    def plainest(cls, op: ops.Generate) -> DecodePlan:
        """The plan that does what the program asks for and nothing more."""
        names: dict[str, str] = {}
        for variant in VARIANTS:
            if variant.applies(op):
                names.setdefault(variant.part, variant.name)
        return cls(**names)

    @property
    def variants(self) -> tuple[Variant, ...]:
        """Those of head, constraint, draft, filter and router, in this order."""
        return tuple(_BY_NAME[part, name] for part, name in self._names())

    @property
    def equivalence(self) -> Equivalence:
        """The loosest of its parts'."""
        return max((variant.equivalence for variant in self.variants), key=_LOOSER.__getitem__)

    @property
    def features(self) -> frozenset[Feature]:
        """What the engine must be able to do for its parts."""
        return frozenset[Feature]().union(*(variant.features for variant in self.variants))

    @property
    def whole(self) -> bool:
        """Whether one request to the engine draws a whole sample."""
        return all(variant.whole for variant in self.variants)

    @property
    def cost(self) -> TokenCost:
        """What a token takes with all its parts, where nothing was measured."""
        return _cost(self)

    def measured_cost(self, figures: StepFigures) -> TokenCost:
        """The same by what is known."""
        return _joint(variant.token_cost(figures) for variant in self.variants)

    @property
    def drafts(self) -> bool:
        return self.draft != "none"

    @property
    def exits_early(self) -> bool:
        """Whether a draw may leave before the last layer, all layers computed or not."""
        return self.head in ("early_exit", "deferred")

    @property
    def routed(self) -> bool:
        """Whether a policy decides something step by step."""
        return self.routes_heads or self.routes_exits

    @property
    def routes_heads(self) -> bool:
        """Whether a policy decides at each step how the head is computed."""
        return self.router == "learned" and self.head == "sparse"

    @property
    def routes_exits(self) -> bool:
        """Whether a policy decides of each draw whether it tries its early exit; drafts are checked by all layers."""
        return self.router == "learned" and self.exits_early and not self.drafts

    @property
    def masked(self) -> bool:
        """Whether a mask says at every step which ids may come."""
        return self.constraint in ("mask", "jump")

    def applies(self, op: ops.Generate) -> bool:
        """Whether this is a plan for the operator."""
        return all(variant.applies(op) for variant in self.variants)

    def words(self) -> str:
        """How EXPLAIN calls it."""
        alone = next((variant.words for variant in self.variants if not variant.whole), None)
        return alone or " · ".join(["paged decode", *(variant.words for variant in self.variants if variant.words)])

    def variant(self, part: Part) -> str:
        """The name of the variant of a part."""
        return dict(self._names())[part]

    def words_of(self, part: Part) -> str:
        """How EXPLAIN calls one of its parts."""
        return next(variant.words for variant in self.variants if variant.part == part)

    def _names(self) -> Iterator[tuple[Part, str]]:
        yield "head", self.head
        yield "constraint", self.constraint
        yield "draft", self.draft
        yield "filter", self.filter
        yield "router", self.router


@cache
def _cost(plan: DecodePlan) -> TokenCost:
    """The choice by cost asks for it some hundred times a plan."""
    return _joint(variant.cost for variant in plan.variants)


def _joint(parts: Iterable[TokenCost]) -> TokenCost:
    costs = list(parts)
    return TokenCost(
        large=math.prod(cost.large for cost in costs),
        small=sum(cost.small for cost in costs),
        requests=any(cost.requests for cost in costs),
        gained=math.prod(cost.gained for cost in costs),
        drafting=sum(cost.drafting for cost in costs),
    )
