"""The counting task: word problems whose every solution step can be checked exactly.

A problem tells a short story about objects that are bought, lost, multiplied and put together; its solution is
one equation a step, steps parted by a blank line, and the last step states the answer::

    Mia has 18 apples. Mia buys 24 more. Tom has 3 times as many as Mia. How many apples does Tom have?

    18 + 24 = 42.

    42 * 3 = 126. The answer is 126.

Every step after the first works on the result of the step before it, so one wrong step makes all later ones wrong.
Needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from qpdsl.zoo.stories import Equation, Story

STEP_SEPARATOR = "\n\n"
LEVELS = (2, 3, 4, 5)
"""Difficulty: the number of operations, which is also the number of steps."""

Split = Literal["train", "held-out"]

_STEP = re.compile(r"(\d+) ([+*-]) (\d+) = (\d+)\.(?: The answer is (\d+)\.)?")
_ANSWER = re.compile(r"The answer is (\d+)\.")


@dataclass(frozen=True)
class Problem:
    """A word problem with its canonical solution."""

    text: str
    steps: tuple[str, ...]
    answer: str
    level: int

    @property
    def solution(self) -> str:
        return STEP_SEPARATOR.join(self.steps)


@dataclass(frozen=True)
class Verdict:
    """What `judge` found: one flag a step, the stated answer (None when there is none), and whether it is right."""

    steps: list[bool]
    answer: str | None
    right: bool

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
    found = _ANSWER.findall(text)
    return found[-1] if found else None


def step_text(equation: Equation, last: bool) -> str:
    """One solution step as the task writes it."""
    return f"{equation}. The answer is {equation.result}." if last else f"{equation}."


def judge(problem: Problem, text: str) -> Verdict:
    """Check every step of `text` against the problem.

    A step is right when it is well formed, states the equation the story calls for at that place (operands of `+`
    and `*` may be swapped), states the answer exactly when it is the last one, and every step before it is right.
    """
    flags: list[bool] = []
    sound = True
    for index, step in enumerate(split_steps(text)):
        sound = sound and index < len(problem.steps) and _step_matches(step, problem.steps[index])
        flags.append(sound)
    answer = extract_answer(text)
    return Verdict(steps=flags, answer=answer, right=answer == problem.answer)


def _step_matches(step: str, expected: str) -> bool:
    found, wanted = parse_step(step), parse_step(expected)
    if found is None or wanted is None:
        return False
    return found.says_the_same(wanted) and extract_answer(step) == extract_answer(expected)


def held_out(text: str) -> bool:
    """Whether the problem with this text is kept for evaluation: one in sixteen, by a hash of the text."""
    return hashlib.blake2b(text.encode(), digest_size=1).digest()[0] % 16 == 0


def make_problem(rng: random.Random, level: int) -> Problem:
    """A random problem with `level` operations.

    Raises ValueError when `level` is not in `LEVELS`.
    """
    if level not in LEVELS:
        raise ValueError(f"level must be one of {LEVELS}, found {level}")
    story = Story(rng)
    while len(story.equations) < level:
        story.extend()
    steps = tuple(step_text(equation, last=i == level - 1) for i, equation in enumerate(story.equations))
    return Problem(text=story.text(), steps=steps, answer=str(story.count), level=level)


def problems(seed: int, split: Split = "train") -> Iterator[Problem]:
    """An endless stream of problems of evenly mixed levels; the same seed and split give the same stream."""
    rng = random.Random(f"{seed} {split}")
    for level in itertools.cycle(LEVELS):
        problem = make_problem(rng, level)
        while held_out(problem.text) != (split == "held-out"):
            problem = make_problem(rng, level)
        yield problem


def evaluation_problems(count: int = 500, seed: int = 500) -> list[Problem]:
    """The first `count` distinct held-out problems of a seed; the defaults give the shipped evaluation set."""
    distinct: dict[str, Problem] = {}
    for problem in problems(seed, "held-out"):
        if len(distinct) == count:
            break
        distinct.setdefault(problem.text, problem)
    return list(distinct.values())


def write_evaluation_set(path: Path, count: int = 500) -> None:
    """Write the evaluation set as JSON lines with the keys id, problem, answer and level."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, problem in enumerate(evaluation_problems(count), start=1):
            row = {
                "id": f"count-{number:03d}",
                "problem": problem.text,
                "answer": problem.answer,
                "level": problem.level,
            }
            file.write(json.dumps(row) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m qpdsl.zoo.task", description="write the counting evaluation set")
    parser.add_argument("--write", type=Path, required=True, metavar="FILE", help="the JSON-lines file to write")
    parser.add_argument("--count", type=int, default=500, help="number of problems (default 500)")
    arguments = parser.parse_args()
    write_evaluation_set(arguments.write, arguments.count)


if __name__ == "__main__":
    main()
