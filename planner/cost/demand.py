"""What each operator asks of its models for one problem, as its strategy has it: tokens, and forwards in turn."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from qpdsl.planner.cost.cardinality import Cardinalities, Cardinality
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import BranchStrategy, GenerateStrategy, PhysicalOp, PhysicalPlan, ScoreStrategy

# A prompt that is found whole still has its last token computed, and often the one before it.
_LEAST_COMPUTED = 1.5
_JUDGE_TOKENS = 4.0
# Of the tokens under `via filter`, those that the large model writes.
_FILTERED = 0.15


@dataclass(frozen=True, slots=True)
class Work:
    """One operator on one model, for one problem, sums over its runs.

    `steps` are forwards that follow one another in which it draws tokens, `waves` those in which its prompts are
    computed; `sequences` are at work side by side; `kept_tokens` are in the KV cache at the end. Of the `sampled`
    tokens `opening` are drawn where a prompt ends, in the forward that computes it; `context` is what a token looks
    back on.
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

    @property
    def decoded(self) -> float:
        """Tokens that are drawn in forwards of their own."""
        return max(self.sampled - self.opening, 0.0)

    @property
    def computed(self) -> float:
        """Prompt tokens that go through the model."""
        return self.prompt - self.cached


def works(plan: PhysicalPlan, cards: Cardinalities, idle: float = 0.0) -> tuple[Work, ...]:
    """Of all operators. `idle` is the share of the time in which samples may run ahead (see `PhysicalPlan.floor`)."""
    values = {param.name: evaluate(param.default, {}) for param in plan.params if param.default is not None}
    found = []
    for node in running(plan.ops):
        card = cards.of[node.id]
        match node.op, node.strategy:
            case ops.Generate(), GenerateStrategy() as strategy:
                found += _generate(node, node.op, strategy, card, plan.models, idle, values)
            case ops.Score() as op, ScoreStrategy() as strategy:
                found.append(_score(node, plan.models.get(op.verifier, op.verifier), strategy, card))
            case ops.Judge() as op, ScoreStrategy() as strategy:
                found.append(_judge(node, plan.models.get(op.model, op.model), strategy, card))
    return tuple(found)


def running(chain: tuple[PhysicalOp, ...]) -> Iterator[PhysicalOp]:
    """The operators that do something; an arm that is the same as another does not run."""
    for node in chain:
        yield node
        yield from running(node.body)
        same = node.strategy.same_as if isinstance(node.strategy, BranchStrategy) else ()
        for number, arm in enumerate(node.arms):
            if number >= len(same) or same[number] is None:
                yield from running(arm)


def _generate(
    node: PhysicalOp,
    op: ops.Generate,
    strategy: GenerateStrategy,
    card: Cardinality,
    models: Mapping[str, str],
    idle: float,
    values: Mapping[str, object],
) -> list[Work]:
    greedy = evaluate(op.temperature, values) == 0  # type: ignore[arg-type]
    distinct = card.going if strategy.collapse and greedy else card.samples
    requests = card.going if strategy.share else distinct
    prompt = card.context * requests
    # Contexts grow from round to round; the rows of the first one have no text yet.
    start = max(card.context - card.length * (card.runs - 1) / 2, 1.0)
    first = min(card.going, card.entering)
    computed = min(prompt, first * start + (requests - first) * _LEAST_COMPUTED) if strategy.share else prompt
    sampled = distinct * card.length
    steps = max(card.longest - 1, 0.0) * card.runs
    if strategy.run_ahead and card.runs > 1:
        # While its row waits for longer ones a sample draws of its children; what is not chosen is lost.
        saved = (card.longest - card.length) * card.runs * card.used_ahead * idle
        sampled *= 1 + (1 - card.used_ahead) * idle * strategy.run_ahead
        steps = max(steps - saved, card.length)
    if strategy.vote is not None:
        sampled *= 1 - card.given_up
    model = models.get(op.model, op.model)
    kept = start + distinct * card.length if strategy.share else card.context + card.length
    runs = max(card.runs, 1e-9)
    context = card.context + card.length / 2
    work = Work(
        node.id, model, prompt, prompt - computed, sampled, steps, card.runs, distinct / runs, kept, distinct, context
    )  # fmt: skip
    if not isinstance(op.via, ops.Filter):
        return [work]
    # Each token is a request of its own to the small model, and to the large one where the small one is not sure.
    waves = card.longest * card.runs
    small = replace(work, model=models.get(op.via.model, op.via.model), steps=0.0, waves=waves, opening=sampled)
    some = sampled * _FILTERED
    large = replace(work, sampled=some, steps=0.0, waves=waves * _FILTERED, opening=some)
    return [small, large]


def _score(node: PhysicalOp, model: str, strategy: ScoreStrategy, card: Cardinality) -> Work:
    texts = 0.0 if strategy.same_as is not None else card.texts
    # A text that is the same as before is scored once in every plan.
    texts *= min(1.0, card.new_tokens / max(card.text_tokens - card.first_tokens, 1.0) + 0.5) if card.runs > 1 else 1.0
    prompt = texts * card.text_tokens
    computed = prompt
    if strategy.share:
        # The texts of the first run have their beginning in common, of which all but one find it computed.
        opening = texts / max(card.runs, 1.0)
        common = max(opening - 1, 0.0) * card.stem_tokens
        computed = texts * min(card.new_tokens, card.text_tokens) - common
        if strategy.cache and card.fresh_tokens is not None:
            computed = min(computed, card.fresh_tokens + card.stem_tokens)
        elif not strategy.cache:
            # Without the scores of earlier steps every step is read, from the first one's end on.
            read = texts * (card.text_tokens - card.first_tokens) + opening * card.first_tokens - common
            computed = max(computed, read) if card.runs > 1 else computed
        computed = min(max(computed, texts), prompt)
    kept = card.text_tokens + (texts - 1) * card.new_tokens if strategy.share else card.text_tokens
    runs = max(card.runs, 1e-9)
    waves = card.runs if texts else 0.0
    return Work(node.id, model, prompt, prompt - computed, 0.0, 0.0, waves, texts / runs, max(kept, 0.0))


def _judge(node: PhysicalOp, model: str, strategy: ScoreStrategy, card: Cardinality) -> Work:
    texts = 0.0 if strategy.same_as is not None else card.texts
    prompt = texts * card.text_tokens
    computed = prompt * 0.8 if strategy.share else prompt
    runs = max(card.runs, 1e-9)
    steps = (_JUDGE_TOKENS - 1) * card.runs if texts else 0.0
    sampled = texts * _JUDGE_TOKENS
    sequences = texts / runs
    return Work(
        node.id, model, prompt, prompt - computed, sampled, steps, card.runs, sequences, prompt, texts, card.text_tokens
    )
