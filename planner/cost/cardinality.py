"""How much work the operators of a plan have for one problem: from statistics of earlier runs, or by rule of thumb.

Cardinalities (rows, rounds, lengths) do not depend on how an operator is run. `demand.py` makes the demand on the
models from them and from the plan's strategies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from qpdsl.grammar import ast
from qpdsl.planner.cost.server_times import ServerTimes
from qpdsl.planner.cost.statistics import (
    ALLOWED_BITS,
    OperatorStatistics,
    ProgramStatistics,
    Statistics,
)
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.decode_plan import DRAFTS, TokenCost
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import most_ahead, value_ahead
from qpdsl.planner.rules import EFFECTS

# Rules of thumb for programs that never ran: the rounds of a `repeat` with a condition, and the tokens of a step, of a
# whole solution, of the text that a program starts from and of what a `say` adds.
ROUNDS = 8.0
STEP_TOKENS = 32.0
SOLUTION_TOKENS = 128.0
PROBLEM_TOKENS = 96.0
SAID_TOKENS = 4.0
# The longest of several samples, relative to the average one.
_LONGEST = 1.6
# The elements of a list that nobody has seen.
_ELEMENTS = 4.0
# The share of the possible rows that is left where rows end before the last round.
_GOING_ON = 0.75


@dataclass(frozen=True, slots=True)
class DraftFigures:
    """What a way to draft came to: the tokens drawn in a forward, on average, and those proposed for it."""

    gained: float
    proposed: float


@dataclass(frozen=True, slots=True)
class Cardinality:
    """Of one operator and one problem: sums over its `runs`. `entering` rows came into the first run.

    Of a `generate`: `going` rows were continued by `samples` of `length` tokens, from contexts of `context` tokens
    each. Each run waited for a sample of `longest` tokens. `shares` are those on which the
    effects of decisions depend, by the names of their rules. `forced` is the share of
    the tokens that a constraint forces; `drafts` says what each way to draft came to. `allowed` holds the shares of the
    draws under a mask by the bits of the number of ids that it allowed. Of the draws that could leave the model early
    the share `refined` did not; the share `large` of a filtered sample's tokens was the large model's. These are None
    where not known.

    Of a `score`: `texts` of `text_tokens` each were to be scored. Of these tokens, `new_tokens` stand in steps that had
    not been scored, and `first_tokens` up to the end of the first step. `stem_tokens` are those that all texts of a
    problem begin with. `fresh_tokens` are those of all steps together that no other text had, None where not known.
    """

    runs: float
    rows_in: float
    rows_out: float
    entering: float
    going: float = 0.0
    samples: float = 0.0
    length: float = 0.0
    longest: float = 0.0
    context: float = 0.0
    texts: float = 0.0
    text_tokens: float = 0.0
    new_tokens: float = 0.0
    first_tokens: float = 0.0
    stem_tokens: float = 0.0
    fresh_tokens: float | None = None
    shares: Mapping[str, float] = field(default_factory=dict)
    forced: float = 0.0
    drafts: Mapping[str, DraftFigures] = field(default_factory=dict)
    allowed: Mapping[int, float] = field(default_factory=dict)
    refined: float | None = None
    large: float | None = None
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Cardinalities:
    """By operator. `source` says in words what they are based on; `longest`: see `RunFigures`.

    `ways` has what a token takes with ways to decode that were measured beforehand. `servers` are the waits for models
    on servers, by their ids.
    """

    of: Mapping[str, Cardinality]
    source: str
    longest: float
    statistics: ProgramStatistics | None
    ways: Mapping[ops.Via, TokenCost] = field(default_factory=dict)
    servers: Mapping[str, ServerTimes] = field(default_factory=dict)


def cardinalities(plan: PhysicalPlan, statistics: Statistics) -> Cardinalities:
    """Measured ones where the program ran under these values, scaled ones where it ran under others, else priors."""
    exact, latest = statistics.of(plan), statistics.like(plan)
    prior = _Prior(plan)
    prior.chain(plan.ops, 1.0, 1.0, PROBLEM_TOKENS, 0.0)
    if latest is None:
        return Cardinalities(prior.cards, "rules of thumb", _LONGEST, None, servers=statistics.servers)
    used = exact or latest
    measured = {id: _measured(card, used.operators.get(id), prior.nodes[id]) for id, card in prior.cards.items()}
    source = f"{used.problems:,} problem{'s' if used.problems != 1 else ''} measured"
    source += "" if exact else " under other values"
    return Cardinalities(measured, source, used.longest, exact, servers=statistics.servers)


class _Prior:
    """Cardinalities by rule of thumb: goes through a plan in running order, all rounds of a `repeat` at once."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self.cards: dict[str, Cardinality] = {}
        self.nodes: dict[str, PhysicalOp] = {}
        self._values = plan.values()

    def chain(
        self, chain: tuple[PhysicalOp, ...], rows: float, runs: float, problem: float, text: float
    ) -> tuple[float, float, float]:
        """What comes out: rows a run, the tokens of the context they started from, and those generated since."""
        for node in chain:
            rows, problem, text = self._operator(node, rows, runs, problem, text)
        return rows, problem, text

    def _operator(
        self, node: PhysicalOp, rows: float, runs: float, problem: float, text: float
    ) -> tuple[float, float, float]:
        self.nodes[node.id] = node
        op, out = node.op, self._left(node.op, rows)
        card = Cardinality(runs, rows * runs, rows * runs, rows)
        match op:
            case ops.SetContext():
                problem, text = (problem + text + STEP_TOKENS if text else problem), 0.0
            case ops.Say():
                text += SAID_TOKENS
            case ops.Generate():
                count, length = self._number(op.n, 1.0), self._length(op)
                out = rows * count
                ended = _GOING_ON if runs > 1 else 1.0
                samples = out * runs * ended
                card = replace(
                    card, rows_out=out * runs, going=rows * runs * ended, samples=samples, length=length,
                    longest=length * (_LONGEST if samples > 1 else 1.0), context=problem + text,
                )  # fmt: skip
                text += length
            case ops.StepScore() | ops.Judge() | ops.Prob() | ops.Tournament():
                whole = problem + text
                new = min(STEP_TOKENS, text) if runs > 1 else whole
                card = replace(
                    card, texts=rows * runs, text_tokens=whole, new_tokens=new, first_tokens=problem + STEP_TOKENS,
                    stem_tokens=problem,
                )  # fmt: skip
                if isinstance(op, ops.Tournament):
                    matches = max(rows - (1.0 if op.per is None else rows / 4), 0.0)
                    if isinstance(op, ops.KeepTournament):
                        matches += max(out - 1, 0.0) * math.log2(max(rows, 1.0))
                    elif isinstance(op, ops.RoundRobin):
                        matches *= rows / 2
                    card = replace(card, texts=matches * runs * (1 + op.both), text_tokens=problem + 2 * text)
            case ops.Split():
                out = self._number(op.count, 1.0)
                out *= rows if op.by is None else 1.0 if op.per is None else max(1.0, rows / 4)
            case ops.Repeat():
                limit = self._number(op.limit, ROUNDS)
                rounds = min(limit, ROUNDS) if op.until is not None else limit
                if op.gather is not None:
                    out, problem, text = self.chain(node.body, rows, runs * rounds, problem, text)
                    self.cards[node.id] = replace(card, rows_out=out * rounds * runs)
                    return out * rounds, problem, text
                kept, _, grown = self.chain(node.body, rows, 1.0, problem, text)
                # Every round but the first starts from the rows of the one before, on average with half of the text.
                middle = text + (grown - text) * max(rounds - 1, 0) / 2
                out, problem, _ = self.chain(node.body, kept, runs * rounds, problem, middle)
                out = out if rounds else rows
                self._enter(node.body, rows)
                text += (grown - text) * rounds
            case ops.Search():
                simulations = self._number(op.simulations, ROUNDS)
                # A row that is expanded has, on average, half of the text that the last ones have.
                # So does one that is carried on to its end, a sample a step, for as many steps again as it has.
                carried = op.rollout in ("greedy", "sampled") and not op.turns
                expanded = rows * runs * simulations * (1 + carried * ROUNDS / 2)
                children, problem, text = self.chain(node.body, 1.0, expanded, problem, text)
                out = rows * max(simulations * (children - (not op.turns and not carried)), 1.0)
            case ops.Peek(alone=alone):
                # The text that it generates is dropped afterwards.
                self.chain(node.body, 1.0 if alone else rows, rows * runs if alone else runs, problem, text)
            case ops.Call() | ops.Ask():
                # Each row has a conversation of its own, which begins with a problem as the program does.
                self.chain(node.body, 1.0, rows * runs, PROBLEM_TOKENS, 0.0)
            case ops.Each():
                out, problem, text = self.chain(node.body, rows * _ELEMENTS, runs, problem, text)
            case ops.If():
                # As if the condition held for every other row; where there is one block the other rows pass.
                blocks = [self.chain(arm, rows / 2, runs, problem, text) for arm in node.arms]
                out = sum(block[0] for block in blocks) + (rows / 2 if len(blocks) == 1 else 0.0)
                text = max(text, *(block[2] for block in blocks))
            case ops.Strategy():
                # What each way would come to, for a problem that is tried by it.
                for arm in node.arms:
                    self.chain(arm, rows, runs, problem, text)
                out = 1.0
            case ops.Branch():
                arms = [self.chain(arm, rows, runs, problem, text) for arm in node.arms]
                out, text = sum(arm[0] for arm in arms), max(arm[2] for arm in arms)
        self.cards[node.id] = replace(card, rows_out=out * runs)
        return out, problem, text

    def _left(self, op: ops.Operator, rows: float) -> float:
        """How many of the rows are left after a stage that declares it, as many for any other."""
        if op.rows == "fewer":
            return rows * _GOING_ON
        if op.rows not in ("count", "one"):
            return rows
        count = getattr(op, "count", None) if op.rows == "count" else None
        known = None if count is None else most_ahead(count, rows * _GOING_ON, self._values)
        kept = 1.0 if known is None else known
        grouped = getattr(op, "per", None) is not None
        return min(rows, max(kept, rows / 4) if grouped else kept)

    def _enter(self, body: tuple[PhysicalOp, ...], rows: float) -> None:
        for node in body[:1]:
            self.cards[node.id] = replace(self.cards[node.id], entering=rows)

    def _length(self, op: ops.Generate) -> float:
        usual = STEP_TOKENS if op.stop is not None or op.constraint is not None else SOLUTION_TOKENS
        answer = usual if op.max_tokens is None else min(usual, self._number(op.max_tokens, usual))
        thinks = op.think is not None and not isinstance(evaluate(op.think, self._values), bool)
        bound = self._number(op.think, 0.0) if thinks else 0.0
        if op.only == "thought":
            return min(answer, bound or answer)
        return answer + (0.0 if op.only else bound)

    def _number(self, expr: ast.Expr | None, otherwise: float) -> float:
        value = value_ahead(expr, self._values)
        return float(value) if isinstance(value, int | float) else otherwise


def _measured(prior: Cardinality, statistics: OperatorStatistics | None, node: PhysicalOp) -> Cardinality:
    """The measured cardinality, scaled by how many more rows there can be now."""
    if statistics is None:
        return prior
    scale = node.rows / statistics.most if node.rows and statistics.most else 1.0
    going, texts = statistics.count("going"), statistics.count("texts")
    samples = statistics.count("samples")
    # Copies of a greedy sample are not drawn; how many there would be depends on the plan.
    per_row = max(prior.samples / prior.going, 1.0) if prior.going else 0.0
    # The rows that come in grow by the same factor as those that go out, corrected by how many each row makes.
    scale_in = scale if scale == 1.0 or not (going and per_row) else scale * (samples / going) / per_row
    unscored = max(statistics.count("steps") - statistics.count("steps_known"), 0.0)
    step = _step_tokens(statistics)
    return Cardinality(
        statistics.runs, statistics.rows_in * scale_in, statistics.rows_out * scale, prior.entering,
        going=going * scale_in, samples=going * per_row * scale_in if going else samples * scale,
        length=statistics.sampled_tokens / samples if samples else 0.0,
        longest=statistics.count("longest") / statistics.runs if statistics.runs else 0.0,
        context=statistics.count("context") / going if going else 0.0,
        texts=texts * scale,
        text_tokens=statistics.count("text_tokens") / texts if texts else prior.text_tokens,
        new_tokens=statistics.count("new_tokens") / texts if texts else prior.new_tokens,
        first_tokens=statistics.count("first_tokens") / texts if texts else prior.first_tokens,
        stem_tokens=max(statistics.count("first_tokens") / texts - step, 0.0) if texts else prior.stem_tokens,
        fresh_tokens=unscored * step * scale if texts else None,
        shares={rule: effect.share(statistics.count) for rule, effect in EFFECTS.items()},
        forced=min(statistics.count("forced") / statistics.sampled_tokens, 1.0) if statistics.sampled_tokens else 0.0,
        drafts=_drafts(statistics),
        allowed=_allowed(statistics),
        refined=_share(statistics.count("refined"), statistics.count("exits")),
        large=_share(statistics.count("large_draws"), statistics.count("filter_sure")),
        measured=True,
    )  # fmt: skip


def _share(part: float, rest: float) -> float | None:
    """The part of both; None where there is neither."""
    return part / (part + rest) if part + rest else None


def _allowed(statistics: OperatorStatistics) -> dict[int, float]:
    counts = {name: count for name, count in statistics.counts.items() if name.startswith(ALLOWED_BITS)}
    whole = sum(counts.values())
    return {int(name.removeprefix(ALLOWED_BITS)): count / whole for name, count in counts.items() if whole}


def _drafts(statistics: OperatorStatistics) -> dict[str, DraftFigures]:
    """What each way to draft came to; one that nobody asks for, as it would have."""
    figures: dict[str, DraftFigures] = {}
    for variant in DRAFTS:
        for counted in (variant.name, "would") if variant.unasked else (variant.name,):
            rounds, draws = statistics.count(f"{counted}_rounds"), statistics.count(f"{counted}_draws")
            if rounds and variant.name not in figures:
                figures[variant.name] = DraftFigures(
                    max(draws / rounds, 1.0), statistics.count(f"{counted}_drafted") / rounds
                )
    return figures


def _step_tokens(statistics: OperatorStatistics) -> float:
    """The tokens of a scored step, averaged over those after the first one of each text."""
    later = statistics.count("steps") - statistics.count("texts")
    return (statistics.count("text_tokens") - statistics.count("first_tokens")) / later if later > 0 else STEP_TOKENS
