"""How much work the operators of a plan have for one problem: from statistics of earlier runs, or by rule of thumb.

Nothing here hangs on how an operator is run: rows, rounds, lengths. What a plan makes of them is `work.py`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from qpdsl.grammar import ast
from qpdsl.planner.cost.statistics import OperatorStatistics, ProgramStatistics, Statistics
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate
from qpdsl.planner.plan.physical import PhysicalOp, PhysicalPlan

# Rules of thumb, for programs that never ran: a `repeat` with a condition ends after this many rounds, a step and a
# whole solution have these many tokens, and so has the text that a program starts from.
ROUNDS = 8.0
STEP_TOKENS = 32.0
SOLUTION_TOKENS = 128.0
PROBLEM_TOKENS = 96.0
# The longest of some samples against the average one.
_LONGEST = 1.6
# How much of what rows there could be is left where rows end before the last round.
_GOING_ON = 0.75


@dataclass(frozen=True, slots=True)
class Cardinality:
    """Of one operator and one problem, sums over its `runs`; `entering` rows came into the first of them.

    `going` rows went on into `samples` of `length` tokens, from contexts of `context` tokens each; each run waited for
    a sample of `longest` tokens. `texts` of `text_tokens` each were to be scored, `new_tokens` of them in steps that
    had not been scored, and `first_tokens` up to the end of the first step; `stem_tokens` are those that all texts of a
    problem begin with, and `fresh_tokens` those of all steps together that no other text had, None where not known.
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
    used_ahead: float = 0.5
    given_up: float = 0.0
    measured: bool = False


@dataclass(frozen=True, slots=True)
class Cardinalities:
    """By operator. `source` says in words what they go by; `longest`: see `RunFigures`."""

    of: Mapping[str, Cardinality]
    source: str
    longest: float
    statistics: ProgramStatistics | None


def cardinalities(plan: PhysicalPlan, statistics: Statistics) -> Cardinalities:
    """Measured ones where the program ran under these values, scaled ones where it ran under others, else priors."""
    exact, found = statistics.of(plan), statistics.like(plan)
    guess = _Guess(plan)
    guess.chain(plan.ops, 1.0, 1.0, PROBLEM_TOKENS, 0.0)
    if found is None:
        return Cardinalities(guess.found, "rules of thumb", _LONGEST, None)
    used = exact or found
    measured = {id: _measured(one, used.operators.get(id), guess.nodes[id]) for id, one in guess.found.items()}
    source = f"{used.problems:,} problem{'s' if used.problems != 1 else ''} measured"
    return Cardinalities(measured, source + ("" if exact else " under other values"), used.longest, exact)


class _Guess:
    """Walks a plan as it would run, rounds at once."""

    def __init__(self, plan: PhysicalPlan) -> None:
        self.found: dict[str, Cardinality] = {}
        self.nodes: dict[str, PhysicalOp] = {}
        self._values = {param.name: evaluate(param.default, {}) for param in plan.params if param.default is not None}

    def chain(
        self, chain: tuple[PhysicalOp, ...], rows: float, runs: float, problem: float, text: float
    ) -> tuple[float, float, float]:
        """What comes out: rows a run, the tokens of the context they started from, and those generated since."""
        for node in chain:
            rows, problem, text = self._one(node, rows, runs, problem, text)
        return rows, problem, text

    def _one(
        self, node: PhysicalOp, rows: float, runs: float, problem: float, text: float
    ) -> tuple[float, float, float]:
        self.nodes[node.id] = node
        op, out = node.op, rows
        card = Cardinality(runs, rows * runs, rows * runs, rows)
        match op:
            case ops.SetContext():
                problem, text = (problem + text + STEP_TOKENS if text else problem), 0.0
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
            case ops.Score() | ops.Judge():
                whole = problem + text
                new = min(STEP_TOKENS, text) if runs > 1 else whole
                card = replace(
                    card, texts=rows * runs, text_tokens=whole, new_tokens=new, first_tokens=problem + STEP_TOKENS,
                    stem_tokens=problem,
                )  # fmt: skip
            case ops.TopK():
                kept = self._number(op.k, 1.0)
                out = min(rows, kept if op.per is None else max(kept, rows / 4))
            case ops.Vote() | ops.Return():
                out = 1.0
            case ops.Split():
                out = self._number(op.count, 1.0) * (rows if op.by is None else 1.0)
            case ops.Where():
                out = rows * _GOING_ON
            case ops.Repeat():
                limit = self._number(op.limit, ROUNDS)
                rounds = min(limit, ROUNDS) if op.until is not None else limit
                kept, _, grown = self.chain(node.body, rows, 1.0, problem, text)
                # As every round but the first goes: on what a round leaves, half of the text written on average.
                middle = text + (grown - text) * (rounds - 1) / 2
                out, problem, _ = self.chain(node.body, kept, runs * rounds, problem, middle)
                self._enter(node.body, rows)
                text += (grown - text) * rounds
            case ops.Peek():
                # What it writes is looked at and forgotten.
                self.chain(node.body, rows, runs, problem, text)
            case ops.Branch():
                made = [self.chain(arm, rows, runs, problem, text) for arm in node.arms]
                out, text = sum(arm[0] for arm in made), max(arm[2] for arm in made)
        self.found[node.id] = replace(card, rows_out=out * runs)
        return out, problem, text

    def _enter(self, body: tuple[PhysicalOp, ...], rows: float) -> None:
        for node in body[:1]:
            self.found[node.id] = replace(self.found[node.id], entering=rows)

    def _length(self, op: ops.Generate) -> float:
        usual = STEP_TOKENS if op.stop is not None or op.constraint is not None else SOLUTION_TOKENS
        return usual if op.max_tokens is None else min(usual, self._number(op.max_tokens, usual))

    def _number(self, expr: ast.Expr, otherwise: float) -> float:
        value = evaluate(expr, self._values)
        return float(value) if isinstance(value, int | float) else otherwise


def _measured(guess: Cardinality, found: OperatorStatistics | None, node: PhysicalOp) -> Cardinality:
    """What was measured, scaled by how many more rows there can be now."""
    if found is None:
        return guess
    scale = node.rows / found.most if node.rows and found.most else 1.0
    going, texts = found.count("going"), found.count("texts")
    samples = found.count("samples")
    # Copies of a greedy sample are not drawn; how many there would be is the plan's affair.
    per_row = max(guess.samples / guess.going, 1.0) if guess.going else 0.0
    # Of the rows that come in there are as many more as of those that go out, but for how many each makes.
    onward = scale if scale == 1.0 or not (going and per_row) else scale * (samples / going) / per_row
    ahead, given_up = found.count("run_ahead"), found.count("given_up")
    return Cardinality(
        found.runs, found.rows_in * onward, found.rows_out * scale, guess.entering,
        going=going * onward, samples=going * per_row * onward if going else samples * scale,
        length=found.sampled_tokens / samples if samples else 0.0,
        longest=found.count("longest") / found.runs if found.runs else 0.0,
        context=found.count("context") / going if going else 0.0,
        texts=texts * scale,
        text_tokens=found.count("text_tokens") / texts if texts else guess.text_tokens,
        new_tokens=found.count("new_tokens") / texts if texts else guess.new_tokens,
        first_tokens=found.count("first_tokens") / texts if texts else guess.first_tokens,
        stem_tokens=max(found.count("first_tokens") / texts - _step(found), 0.0) if texts else guess.stem_tokens,
        fresh_tokens=max(found.count("steps") - found.count("steps_known"), 0.0) * _step(found) * scale
        if texts
        else None,
        used_ahead=found.count("run_ahead_used") / ahead if ahead else guess.used_ahead,
        given_up=given_up / (given_up + samples) if given_up + samples else 0.0,
        measured=True,
    )  # fmt: skip


def _step(found: OperatorStatistics) -> float:
    """The tokens of a step that was scored, by those after the first one of each text."""
    later = found.count("steps") - found.count("texts")
    return (found.count("text_tokens") - found.count("first_tokens")) / later if later > 0 else STEP_TOKENS
