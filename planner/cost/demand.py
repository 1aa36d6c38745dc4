"""What each operator demands of its models for one problem: tokens, and forwards that follow one another.

It depends on the operator's cardinality and on its strategy.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from qpdsl.grammar.model_id import is_remote
from qpdsl.planner.cost.cardinality import Cardinalities, Cardinality, DraftFigures
from qpdsl.planner.cost.device import Device, ModelShape
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DecodePlan, StepFigures, TokenCost
from qpdsl.planner.plan.evaluate import Scope, evaluate
from qpdsl.planner.plan.physical import BranchStrategy, GenerateStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy
from qpdsl.planner.plan.rule import Drawing
from qpdsl.planner.rules import EFFECTS

# Tokens computed of a prompt that is cached as a whole: the last one, and often the one before it.
_MIN_COMPUTED = 1.5
_JUDGE_TOKENS = 4.0
# The share of the tokens that is drawn where a constraint forces nearly all.
_MIN_DRAWN = 0.02


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of one operator on one model, for one problem: sums over the operator's runs.

    `steps` are the forwards, one after another, in which it draws tokens. `waves` are those in which its prompts are
    computed. `sequences` run side by side. `kept_tokens` are in the KV cache at the end. Of the `sampled` tokens,
    `opening` are drawn where a prompt ends, in the forward that computes it. `context` is how many tokens a drawn
    token attends to. A forward gains a sequence `gained` tokens, and computes `rows` of them.
    """

    operator: str
    model: str
    prompt: float
    cached: float
    sampled: float
    steps: float
    waves: float
    sequences: float
    kept_tokens: float
    opening: float = 0.0
    context: float = 0.0
    gained: float = 1.0
    rows: float = 1.0

    @property
    def decoded(self) -> float:
        """Sequences that draw, summed over the forwards that do not end a prompt."""
        return max(self.sampled / self.gained - self.opening, 0.0)

    @property
    def computed(self) -> float:
        """Prompt tokens that go through the model."""
        return self.prompt - self.cached


def demands(
    plan: PhysicalPlan, cards: Cardinalities, idle: float = 0.0, device: Device | None = None
) -> tuple[Demand, ...]:
    """Of all operators. `idle` is the share of the time when samples may run ahead (see `PhysicalPlan.floor`).

    `device` has the shapes of the models; without it they are taken to be like others.
    """
    values = plan.values()
    nodes = executed(plan.ops)
    return tuple(demand for node in nodes for demand in demands_of(node, plan.models, values, cards, idle, device))


def demands_of(
    node: PhysicalOp,
    models: Mapping[str, str],
    values: Scope,
    cards: Cardinalities,
    idle: float = 0.0,
    device: Device | None = None,
) -> list[Demand]:
    """Those of one operator, those inside it left out. `values` are those of the parameters."""
    card = cards.of[node.id]
    match node.op, node.strategy:
        case ops.Generate() as op, GenerateStrategy() as strategy:
            shape = None if device is None else device.profile(models.get(op.model.name, op.model.name)).shape
            cost = cards.ways.get(op.via) if op.via is not None else None
            cost = cost or token_cost(op, strategy.decode, card, shape, values)
            return _generate(node, op, strategy, card, models, idle, values, cost)
        case ops.StepScore() as op, ScoreStrategy() as strategy:
            return [_score(node, models.get(op.verifier.name, op.verifier.name), strategy, card)]
        case ops.Judge() | ops.Prob() | ops.Tournament() as op, ScoreStrategy() as strategy:
            drawn = 0.0 if not isinstance(op, ops.Judge) or op.reduce == "expected" else _JUDGE_TOKENS
            return [_asked(node, models.get(op.model.name, op.model.name), strategy, card, drawn)]
    return []


def executed(chain: tuple[PhysicalOp, ...]) -> Iterator[PhysicalOp]:
    """The operators of a chain that run, with those inside them. An arm that is the same as another does not run."""
    for node in chain:
        yield node
        yield from executed(node.body)
        same = node.strategy.same_as if isinstance(node.strategy, BranchStrategy) else ()
        for number, arm in enumerate(node.arms):
            if number >= len(same) or same[number] is None:
                yield from executed(arm)


def _generate(
    node: PhysicalOp,
    op: ops.Generate,
    strategy: GenerateStrategy,
    card: Cardinality,
    models: Mapping[str, str],
    idle: float,
    values: Scope,
    cost: TokenCost,
) -> list[Demand]:
    greedy = evaluate(op.temperature, values) == 0
    distinct = card.going if strategy.collapse and greedy else card.samples
    model = models.get(op.model.name, op.model.name)
    # A server is sent the prompt with every sample.
    requests = card.going if strategy.share and not is_remote(model) else distinct
    prompt = card.context * requests
    # Contexts grow from round to round; the rows of the first one have no text yet.
    start = max(card.context - card.length * (card.runs - 1) / 2, 1.0)
    first = min(card.going, card.entering)
    computed = min(prompt, first * start + (requests - first) * _MIN_COMPUTED) if strategy.share else prompt
    sampled = distinct * card.length
    steps = max(card.longest - 1, 0.0) * card.runs
    drawing = Drawing(sampled, steps, card.length, card.longest, card.runs, idle)
    for rule, effect in EFFECTS.items():
        drawing = effect.drawing(strategy, drawing, card.shares.get(rule, effect.usual))
    sampled, steps = drawing.sampled, drawing.steps
    kept_tokens = start + distinct * card.length if strategy.share else card.context + card.length
    runs = max(card.runs, 1e-9)
    context = card.context + card.length / 2
    demand = Demand(
        node.id, model, prompt, prompt - computed, sampled, steps, card.runs, distinct / runs, kept_tokens, distinct,
        context,
    )  # fmt: skip
    if not isinstance(op.via, ops.Paired):
        if cost.large != 1.0:
            demand = replace(demand, sampled=sampled * cost.large, steps=steps * cost.large)
        return _drafted(demand, op, strategy.decode, card, models)
    waves = card.longest * card.runs
    drawn = sampled * cost.large
    # What the small model decided, the large one reads before its next token.
    caught_up = 0.0 if cost.requests else sampled - drawn
    # Nor does it read those that it draws nothing of.
    asked = 1.0 if cost.requests else min(cost.large * card.length, 1.0)
    read, known = (prompt + caught_up) * asked, (prompt - computed) * asked
    large = replace(
        demand, prompt=read, cached=known, sampled=drawn, steps=0.0, waves=waves * cost.large, opening=drawn
    )
    small, drawn = models.get(op.via.model.name, op.via.model.name), sampled * cost.small
    if cost.requests:
        return [replace(demand, model=small, sampled=drawn, steps=0.0, waves=waves * cost.small, opening=drawn), large]
    return [replace(demand, model=small, sampled=drawn, steps=steps * cost.small), large]


def token_cost(
    op: ops.Generate, decode: DecodePlan, card: Cardinality, shape: ModelShape | None, values: Scope
) -> TokenCost:
    """What a token takes, by what earlier runs of the operator came to where they are known."""
    figures = StepFigures(large=card.large)
    if card.refined is not None:
        figures = replace(figures, refined=card.refined)
    if shape is not None:
        figures = replace(figures, head=shape.head_share, rows=_rows_read(card, shape.vocabulary))
        layer = evaluate(op.via.layer, values) if isinstance(op.via, ops.Amortized) and op.via.layer else None
        if isinstance(layer, int | float):
            figures = replace(figures, exit_depth=min(layer / shape.layers, 1.0))
    return decode.measured_cost(figures)


def _rows_read(card: Cardinality, vocabulary: int) -> float:
    """The share of the head's rows that sparse steps read, on average; all of them where nobody knows."""
    if not vocabulary:
        return 1.0
    # Of the numbers with so many bits the middle one.
    return sum(share * min(0.75 * 2**bits / vocabulary, 1.0) for bits, share in card.allowed.items()) or 1.0


def _drafted(
    demand: Demand, op: ops.Generate, decode: DecodePlan, card: Cardinality, models: Mapping[str, str]
) -> list[Demand]:
    """The demand where some tokens take no forward: those that a constraint forces, and drafted ones that stand.

    What is forced is computed with the token after it, and what is drafted with the token before. The demand on a model
    that drafts comes second.
    """
    drawn = 1 - card.forced if decode.constraint == "jump" else 1.0
    if drawn == 1.0 and not decode.drafts:
        return [demand]
    figures = card.drafts.get(decode.draft)
    if figures is None:
        # Nobody knows what n-grams that the program does not ask for would come to.
        gained = decode.cost.gained if op.draft is not None else 1.0
        figures = DraftFigures(gained, float(op.draft.tokens if op.draft is not None else ops.DRAFTED))
    if not decode.drafts:
        figures = DraftFigures(1.0, 0.0)
    gained = figures.gained / max(drawn, _MIN_DRAWN)
    rows = gained + max(figures.proposed + 1 - figures.gained, 0.0)
    forwards = demand.steps / gained
    own = replace(demand, gained=gained, rows=rows, steps=forwards * (1 + decode.cost.drafting * figures.proposed))
    if decode.draft != "model" or op.draft is None or op.draft.model is None:
        return [own]
    proposed = demand.sampled / gained * figures.proposed
    drafting = replace(
        demand, model=models.get(op.draft.model, op.draft.model), sampled=proposed, steps=forwards * figures.proposed
    )
    return [own, drafting]


def _score(node: PhysicalOp, model: str, strategy: ScoreStrategy, card: Cardinality) -> Demand:
    texts = 0.0 if strategy.same_as is not None else card.texts
    # A text that is the same as before is scored once in every plan.
    texts *= min(1.0, card.new_tokens / max(card.text_tokens - card.first_tokens, 1.0) + 0.5) if card.runs > 1 else 1.0
    prompt = texts * card.text_tokens
    computed = prompt
    if strategy.share:
        # The texts of the first run have their beginning in common. All but one of them find it computed.
        opening = texts / max(card.runs, 1.0)
        common = max(opening - 1, 0.0) * card.stem_tokens
        computed = texts * min(card.new_tokens, card.text_tokens) - common
        if strategy.cache and card.fresh_tokens is not None:
            computed = min(computed, card.fresh_tokens + card.stem_tokens)
        elif not strategy.cache:
            # Without the scores of earlier steps, every step is read from the end of the first one on.
            read = texts * (card.text_tokens - card.first_tokens) + opening * card.first_tokens - common
            computed = max(computed, read) if card.runs > 1 else computed
        computed = min(max(computed, texts), prompt)
    kept_tokens = card.text_tokens + (texts - 1) * card.new_tokens if strategy.share else card.text_tokens
    runs = max(card.runs, 1e-9)
    waves = card.runs if texts else 0.0
    return Demand(node.id, model, prompt, prompt - computed, 0.0, 0.0, waves, texts / runs, max(kept_tokens, 0.0))


def _asked(node: PhysicalOp, model: str, strategy: ScoreStrategy, card: Cardinality, drawn: float) -> Demand:
    """Of an operator that asks questions, to each of which an answer of so many tokens is drawn."""
    texts = 0.0 if strategy.same_as is not None else card.texts
    prompt = texts * card.text_tokens
    computed = prompt * 0.8 if strategy.share else prompt
    runs = max(card.runs, 1e-9)
    steps = max(drawn - 1, 0.0) * card.runs if texts else 0.0
    sampled = texts * drawn
    sequences = texts / runs
    return Demand(
        node.id,
        model,
        prompt,
        prompt - computed,
        sampled,
        steps,
        card.runs,
        sequences,
        prompt,
        texts if drawn else 0.0,
        card.text_tokens,
    )
