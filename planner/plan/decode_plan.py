"""The decode plan of a `generate`: how each of its decoding steps is carried out.

A step has four parts, and each has variants (LLM-QP, section 3: a logical `DecodeStep` and its physical arms):

    head        from hidden states to the id that is drawn
    constraint  what holds the ids to the program's constraint
    draft       what proposes tokens that one forward then checks
    filter      which of two models decides a token
    router      what decides, step by step, between ways that a plan permits

`DecodePlan` names a variant of each part. A new variant is an entry in `VARIANTS`, which says where it applies, what it
keeps, what it costs and how EXPLAIN calls it, and the code in `executor/runtime/generate` that carries it out. The
plainest plan takes the first variant of each part that applies; the rules in `planner/rules/decode` pick the others. A
plan holds names, so that plans compare, print and travel as data.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Literal as OneOf

from qpdsl.grammar.words import DraftMethod
from qpdsl.planner.plan import ops

# What a result keeps of that of the plainest plan: all of it; logits within a bound; a known share of the results.
Equivalence = OneOf["exact", "epsilon", "lossy"]
_LOOSER: Mapping[Equivalence, int] = {"exact": 0, "epsilon": 1, "lossy": 2}

Part = OneOf["head", "constraint", "draft", "filter", "router"]


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
class Variant:
    """One way to do one part of a decoding step.

    `applies` says of which operators it can be a part. `equivalence` is what it keeps. `words` is how EXPLAIN calls it,
    empty where there is nothing to say. `whole` is true where one request to the engine draws a whole sample, which is
    what running ahead and early votes build on; one that is not draws samples by itself, and its words stand alone.
    """

    part: Part
    name: str
    words: str
    equivalence: Equivalence
    applies: Callable[[ops.Generate], bool]
    cost: TokenCost = TokenCost()
    whole: bool = True


def _exits_early(op: ops.Generate) -> bool:
    return isinstance(op.via, ops.Amortized)


def _filters(op: ops.Generate) -> bool:
    return isinstance(op.via, ops.Filter)


def _chooses(op: ops.Generate) -> bool:
    return op.constraint is not None and op.constraint.kind == "choice"


def _is_masked(op: ops.Generate) -> bool:
    return op.constraint is not None and op.constraint.kind != "choice"


def _routes(op: ops.Generate) -> bool:
    """Where the steps of one sample differ in what carries them out best."""
    return not _chooses(op) and not _filters(op) and (_is_masked(op) or _exits_early(op))


def _drafts_by(method: DraftMethod) -> Callable[[ops.Generate], bool]:
    return lambda op: op.draft is not None and op.draft.method == method and not _chooses(op) and not _filters(op)


def _may_draft(op: ops.Generate) -> bool:
    """N-grams need no model, so the planner may draft by them where the program does not say otherwise."""
    return (op.draft is None or op.draft.method == "ngram") and not _chooses(op) and not _filters(op)


# Of the variants of a part that apply to an operator, the plainest plan takes the first.
VARIANTS: tuple[Variant, ...] = (
    # A draw leaves at an early layer where its margin is wide enough, as `via amortized(…)` asks for. All layers run.
    Variant("head", "early_exit", "early exit", "lossy", _exits_early),
    # The layers behind the exit run only where a draw stays, then for all tokens before it that they have not seen.
    Variant("head", "deferred", "early exit · later layers deferred", "lossy", _exits_early),
    # One product over the whole vocabulary.
    Variant("head", "dense", "dense head", "exact", lambda op: not _exits_early(op)),
    # Where a step's mask leaves few ids, their rows alone.
    Variant("head", "sparse", "sparse head", "exact", lambda op: _is_masked(op) and not _exits_early(op)),
    # Every option is scored whole, and one of them is drawn.
    Variant("constraint", "options", "paged prefill · options scored", "exact", _chooses, whole=False),
    # All of them in one request: what they begin with alike is computed once.
    Variant("constraint", "tree", "paged prefill · options in one tree", "exact", _chooses, whole=False),
    # llguidance says which ids may come next.
    Variant("constraint", "mask", "llguidance mask", "exact", _is_masked),
    # And the ids that it forces are taken without asking the model.
    Variant("constraint", "jump", "llguidance mask · forced tokens jump", "exact", _is_masked),
    Variant("constraint", "none", "", "exact", lambda op: op.constraint is None),
    # What may follow is proposed, and one forward checks it (leapfrogging by n-grams: Saxena, 2023; speculative
    # decoding: Leviathan et al., 2023; EAGLE: Li et al., 2024). The noise of a token depends on its place alone.
    Variant("draft", "none", "", "exact", lambda op: True),
    Variant("draft", "ngram", "n-gram drafts", "exact", _may_draft, TokenCost(gained=1.5)),
    Variant("draft", "model", "drafts of a small model", "exact", _drafts_by("model"), TokenCost(gained=3.0)),
    Variant(
        "draft",
        "early_exit",
        "drafts of the first layers",
        "exact",
        _drafts_by("early_exit"),
        TokenCost(gained=3.0, drafting=0.5),
    ),
    Variant("draft", "eagle", "EAGLE drafts", "exact", _drafts_by("eagle"), TokenCost(gained=3.0, drafting=0.05)),
    # The small model's token stands where it is confident, as `via filter(…)` asks for. It decides most tokens.
    Variant(
        "filter",
        "confidence",
        "filter · plain",
        "lossy",
        _filters,
        TokenCost(large=0.15, small=1.0, requests=True),
        whole=False,
    ),
    # And draws on by itself until it is not; what the large model has to draw is gathered into batches.
    Variant(
        "filter",
        "cached",
        "filter · small runs · large calls in batches",
        "lossy",
        _filters,
        TokenCost(large=0.15, small=0.85),
        whole=False,
    ),
    Variant("filter", "none", "", "exact", lambda op: not _filters(op)),
    Variant("router", "none", "", "exact", lambda op: True),
    # A policy learns which of the permitted ways is the best for what a step shows (LLM-QP, section 4).
    Variant("router", "learned", "learned router", "exact", _routes),
)
_BY_NAME = {(variant.part, variant.name): variant for variant in VARIANTS}


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
        """The plan that does what the program says and nothing more."""
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
    def whole(self) -> bool:
        """Whether one request to the engine draws a whole sample."""
        return all(variant.whole for variant in self.variants)

    @property
    def cost(self) -> TokenCost:
        """What a token takes with all its parts."""
        return _cost(self)

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
    costs = [variant.cost for variant in plan.variants]
    return TokenCost(
        large=math.prod(cost.large for cost in costs),
        small=sum(cost.small for cost in costs),
        requests=any(cost.requests for cost in costs),
        gained=math.prod(cost.gained for cost in costs),
        drafting=sum(cost.drafting for cost in costs),
    )
