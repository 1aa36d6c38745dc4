"""The counting task: word problems whose every solution step can be checked exactly.

A problem tells a short story about objects that are bought, lost, multiplied and put together; its solution is
one equation a step, steps parted by a blank line, and the last step states the answer::

    Mia has 18 apples. Mia buys 24 more. Tom has 3 times as many as Mia. How many apples does Tom have?

    18 + 24 = 42.

    42 * 3 = 126. The answer is 126.

Every step but the first builds on a step before it, so one wrong step makes all later ones wrong. Five levels of
difficulty (`stories.LEVELS`).
"""

from __future__ import annotations

import argparse
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from family.tasks.held_out import Split, distinct, stream
from family.tasks.stories import LEVELS, Equation, Fact, Story

STEP_SEPARATOR = "\n\n"
_STEP = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)\.(?: The answer is (\d+)\.)?")
_ANSWER = re.compile(r"The answer is (\d+)\.")


@dataclass(frozen=True)
class Problem:
    """A word problem with the facts that solve it, in the order of the story."""

    text: str
    facts: tuple[Fact, ...]
    level: int

    @property
    def steps(self) -> tuple[str, ...]:
        """The canonical solution, step by step."""
        last = len(self.facts) - 1
        return tuple(step_text(fact.equation, last=index == last) for index, fact in enumerate(self.facts))

    @property
    def solution(self) -> str:
        return STEP_SEPARATOR.join(self.steps)

    @property
    def answer(self) -> str:
        return str(self.facts[-1].equation.result)


@dataclass(frozen=True)
class StepVerdict:
    """The result of `judge`: a flag for each step, the stated answer (None without one), and whether it is right.

    `expected` is the right text in place of the first wrong step; None without one, or where no equation is left.
    """

    steps: list[bool]
    answer: str | None
    right: bool
    expected: str | None

    @property
    def first_wrong(self) -> int | None:
        """Index of the first wrong step, None when every step is right."""
        return self.steps.index(False) if False in self.steps else None


def split_steps(text: str) -> list[str]:
    """The steps of a solution text, stripped; empty ones (as after a trailing separator) are left out."""
    return [step.strip() for step in text.split(STEP_SEPARATOR) if step.strip()]


def parse_step(step: str) -> Equation | None:
    """The equation of one step, or None when the step is not of the task's form."""
    match = _STEP.fullmatch(step.strip())
    if match is None:
        return None
    return Equation(int(match[1]), match[2], int(match[3]), int(match[4]))


def extract_answer(text: str) -> str | None:
    """The digits of the last "The answer is N." in `text`, or None."""
    answers = _ANSWER.findall(text)
    return answers[-1] if answers else None


def step_text(equation: Equation, last: bool) -> str:
    """One solution step as the task writes it."""
    return f"{equation}. The answer is {equation.result}." if last else f"{equation}."


def judge(problem: Problem, text: str) -> StepVerdict:
    """Check every step of `text` against the problem.

    A step is right when it states an equation of the story that was not stated yet and whose operands were, if they
    are results of other equations (so two branches of a story may come in any order, and operands of `+` and `*` may
    be swapped); when it states the answer exactly if it is the last equation of the story; and when every step before
    it is right.
    """
    steps = split_steps(text)
    open_facts = dict(enumerate(problem.facts))
    sound = 0
    while sound < len(steps) and (index := _matching(open_facts, steps[sound])) is not None:
        del open_facts[index]
        sound += 1
    answer = extract_answer(text)
    return StepVerdict(
        steps=[position < sound for position in range(len(steps))],
        answer=answer,
        right=answer == problem.answer,
        expected=_expected(open_facts) if sound < len(steps) else None,
    )


def _expected(open_facts: dict[int, Fact]) -> str | None:
    first = next(iter(open_facts.values()), None)
    return None if first is None else step_text(first.equation, last=len(open_facts) == 1)


def _matching(open_facts: dict[int, Fact], step: str) -> int | None:
    """The index of the fact that the step states, None when it states none that can come now."""
    equation, answer = parse_step(step), extract_answer(step)
    if equation is None:
        return None
    stated = str(equation.result) if len(open_facts) == 1 else None
    for index, fact in open_facts.items():
        if answer == stated and not fact.needs & open_facts.keys() and equation.says_the_same(fact.equation):
            return index
    return None


def make_problem(rng: random.Random, level: int) -> Problem:
    """A random problem of a level.

    Raises ValueError when `level` is not in `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {', '.join(map(str, LEVELS))}, found {level}")
    story = Story(rng, LEVELS[level])
    return Problem(text=story.text, facts=tuple(story.facts), level=level)


def problems(seed: int, split: Split = "train") -> Iterator[Problem]:
    """An endless stream of problems of evenly mixed levels; the same seed and split give the same stream."""
    return stream(make_problem, LEVELS, str(seed), split)


def evaluation_problems(count: int = 500, seed: int = 500) -> list[Problem]:
    """The first `count` distinct held-out problems of a seed; the defaults give the shipped evaluation set."""
    return distinct(problems(seed, "held-out"), count)


def write_evaluation_set(path: Path, count: int = 500) -> None:
    """Write the evaluation set as JSON lines with the keys id, problem, answer and level."""
    _write(path, evaluation_problems(count), "count")


def write_training_set(path: Path, count: int, seed: int = 0) -> None:
    """Write so many distinct problems that are not held out, in the same form."""
    _write(path, distinct(problems(seed), count), "train")


def _write(path: Path, chosen: list[Problem], name: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, problem in enumerate(chosen, start=1):
            row = {
                "id": f"{name}-{number:03d}",
                "problem": problem.text,
                "answer": problem.answer,
                "level": problem.level,
            }
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m family.tasks.counting", description="write counting problems: the evaluation set, or others"
    )
    parser.add_argument("--write", type=Path, required=True, metavar="FILE", help="the JSON-lines file to write")
    parser.add_argument("--count", type=int, default=500, help="number of problems (default 500)")
    parser.add_argument("--training", action="store_true", help="problems that are not held out")
    arguments = parser.parse_args()
    if arguments.training:
        write_training_set(arguments.write, arguments.count)
    else:
        write_evaluation_set(arguments.write, arguments.count)


if __name__ == "__main__":
    main()
