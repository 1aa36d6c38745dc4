"""Solutions with mistakes, and what a careful solver would have written at every place.

The verifier learns from both: the labels say which steps are wrong, the intended text shows at which token.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass

from qpdsl.zoo.stories import Equation
from qpdsl.zoo.task import STEP_SEPARATOR, Problem, judge, parse_step, split_steps, step_text

_MAKE = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


@dataclass(frozen=True)
class JudgedStep:
    """A step as written, whether it is right, and the right text for its place (None after an earlier mistake)."""

    text: str
    right: bool
    intended: str | None


def judged(problem: Problem, text: str) -> list[JudgedStep]:
    """The steps of any solution text with the checker's flags."""
    steps: list[JudgedStep] = []
    before = True
    for index, (step, right) in enumerate(zip(split_steps(text), judge(problem, text).steps, strict=True)):
        intended = step if right else problem.steps[index] if before and index < len(problem.steps) else None
        steps.append(JudgedStep(step, right, intended))
        before = right
    return steps


def corrupted(problem: Problem, rng: random.Random) -> list[JudgedStep]:
    """The canonical solution with at least one mistake, each carried on consistently into the steps after it.

    After a mistake the intended text is what follows from the numbers as they were written, as long as that is clear.
    """
    equations = [equation for step in problem.steps if (equation := parse_step(step)) is not None]
    first = rng.randrange(len(equations))
    texts: list[str] = []
    intended: list[str | None] = []
    carried = equations[0].left
    for index, equation in enumerate(equations):
        last = index == len(equations) - 1
        result = _MAKE[equation.operator](carried, equation.right)
        current = Equation(carried, equation.operator, equation.right, abs(result) % 10_000)
        stated_in_story = re.search(rf"\b{equation.right}\b", problem.text) is not None
        clear = index <= first or (stated_in_story and result == current.result)
        intended.append(step_text(current, last) if clear else None)
        stated = None
        if index == first or (index > first and rng.random() < 0.3):
            if last and rng.random() < 0.1:
                stated = change_digit(current.result, rng)
            else:
                current = corrupt(current, equations, rng)
        texts.append(f"{current}. The answer is {stated}." if stated is not None else step_text(current, last))
        carried = current.result
    flags = judge(problem, STEP_SEPARATOR.join(texts)).steps
    return [JudgedStep(*step) for step in zip(texts, flags, intended, strict=True)]


def corrupt(equation: Equation, story: list[Equation], rng: random.Random) -> Equation:
    """One mistake: a wrong result (most often), or a wrong operand or operator with the result that follows from it."""
    kind = rng.random()
    if kind < 0.6:
        return Equation(equation.left, equation.operator, equation.right, _wrong_result(equation.result, rng))
    left, operator, right = equation.left, equation.operator, equation.right
    if kind < 0.75:
        right = _other_number(right, story, rng)
    elif kind < 0.9:
        left = _other_number(left, story, rng)
    else:
        operator = rng.choice([other for other in "+-*" if other != operator])
    if operator == "-" and right > left:
        operator = "+"
    result = _MAKE[operator](left, right)
    changed = Equation(left, operator, right, result if result < 10_000 else equation.result)
    if changed == equation or changed.says_the_same(equation):
        return Equation(equation.left, equation.operator, equation.right, _wrong_result(equation.result, rng))
    return changed


def change_digit(number: int, rng: random.Random) -> int:
    """`number` with one digit replaced by another."""
    digits = list(str(number))
    place = rng.randrange(len(digits))
    digits[place] = rng.choice([digit for digit in "0123456789" if digit != digits[place]])
    return int("".join(digits))


def _wrong_result(result: int, rng: random.Random) -> int:
    if rng.random() < 0.6:
        return change_digit(result, rng)
    off = rng.choice((1, 2, 9, 10, 10, 20, 90, 100, 100, 200))
    return result - off if result >= off and rng.random() < 0.5 else result + off


def _other_number(number: int, story: list[Equation], rng: random.Random) -> int:
    if rng.random() < 0.5:
        others = [n for e in story for n in (e.left, e.right, e.result) if n != number]
        if others:
            return rng.choice(others)
    changed = change_digit(number, rng)
    return changed if changed != number else number + 1
