"""The accuracy of the thinker over its thoughts' budgets, and what "Wait" adds, on the held-out problems.

All of it runs through the engine, greedily, as any user's programs do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from transformers import LlamaForCausalLM

from family.measure.program_runs import pipeline, run_all
from family.measure.search_accuracy import share
from family.tasks.counting import Problem, evaluation_problems

BUDGETS = (0, 16, 32, 64, 128, None)
FORCED = (16, 32)
"""Budgets that are spent twice, with "Wait" between, after a thought that ends there."""

_ANSWER = r"temperature=0 max_tokens=128 | extract answer = /The answer is (\d+)/ | return answer"


@dataclass(frozen=True)
class ThoughtAccuracy:
    """The share of problems right, in all and by level, after thoughts of at most `budget` tokens; None: as it likes.

    A thought that was `forced` had as many tokens again after "Wait". `tokens` is the mean of a thought's.
    """

    budget: int | None
    forced: bool
    right: float
    by_level: dict[int, float]
    tokens: float


def program_text(budget: int | None, forced: bool) -> str:
    """The stages that think so."""
    if budget is None:
        return f"chat user=problem | generate llm think=on {_ANSWER}"
    if not forced:
        return f"chat user=problem | generate llm think={budget} {_ANSWER}"
    think = f"generate llm think={budget} only=thought temperature=0"
    return f'chat user=problem | {think} | say " Wait," | {think} | generate llm only=answer {_ANSWER}'


def thinking_accuracies(thinker: str, problems: Sequence[Problem]) -> list[ThoughtAccuracy]:
    """Every budget, and every forced one. `thinker` is a model id."""
    kinds = [*((budget, False) for budget in BUDGETS), *((budget, True) for budget in FORCED)]
    return [_accuracy(thinker, problems, budget, forced) for budget, forced in kinds]


def _accuracy(thinker: str, problems: Sequence[Problem], budget: int | None, forced: bool) -> ThoughtAccuracy:
    program = pipeline(program_text(budget, forced), {"llm": thinker})
    rows = [{"problem": problem.text} for problem in problems]
    outcomes = run_all(f"thoughts of {budget}", program, rows, [problem.answer for problem in problems])
    by_level = {
        level: share([bool(o.correct) for o, p in zip(outcomes, problems, strict=True) if p.level == level])
        for level in sorted({problem.level for problem in problems})
    }
    return ThoughtAccuracy(
        budget=budget,
        forced=forced,
        right=share([bool(outcome.correct) for outcome in outcomes]),
        by_level=by_level,
        tokens=sum(int(row["thought_tokens"] or 0) for o in outcomes for row in o.rows or []) / len(outcomes),
    )


@dataclass(frozen=True)
class ThinkingFigures:
    """The thinker's figures; `problems` is how many it was measured on."""

    parameters: int
    problems: int
    thoughts: list[ThoughtAccuracy]

    def thought(self, budget: int | None, forced: bool = False) -> ThoughtAccuracy:
        """Raises StopIteration where it was not measured."""
        return next(entry for entry in self.thoughts if (entry.budget, entry.forced) == (budget, forced))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_json(data: dict[str, Any]) -> ThinkingFigures:
        thoughts = [
            ThoughtAccuracy(**{**entry, "by_level": {int(level): right for level, right in entry["by_level"].items()}})
            for entry in data["thoughts"]
        ]
        return ThinkingFigures(data["parameters"], data["problems"], thoughts)


def measure_thinking(thinker: Path, problems: int = 500) -> ThinkingFigures:
    """Measure the model in this folder on the first of the held-out problems."""
    parameters = LlamaForCausalLM.from_pretrained(thinker).num_parameters()
    tasks = evaluation_problems()[:problems]
    return ThinkingFigures(parameters, len(tasks), thinking_accuracies(str(thinker), tasks))
