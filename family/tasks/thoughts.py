"""Thoughts about counting problems: each equation of the solution as first guessed, then computed digit by digit.

::

    18 + 24 = 43.

    Check 8 + 4 = 12, 1 + 2 + 1 = 4: 42, not 43.

    42 * 3 = 126.

    Check 2 * 3 = 6, 4 * 3 = 12: 126.

The check is longer than the guess and easier: it goes from the last digit to the first, with carries and borrowed tens
written out. After "Wait", a thought takes up the first step again that is not checked yet, or else the last one.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from family.tasks.counting import STEP_SEPARATOR, Problem
from family.tasks.stories import Equation
from family.tasks.wrong_solutions import wrong_result

WAITS = ("Wait", "Wait,", "Wait, ", " Wait", " Wait,", " Wait, ", "\nWait,", "\n\nWait", "\n\nWait, ")
_WRONG = 0.3


@dataclass(frozen=True)
class ThoughtPiece:
    """Part of a thought; `learned` is False for text that a model should read and not learn to write."""

    text: str
    learned: bool = True


def check_text(equation: Equation) -> str:
    """The equation worked out digit by digit, with its result.

    Digits that nothing is added to or taken from are left out. One operand of a product has one digit.
    """
    work = {"+": _sum, "-": _difference, "*": _product}[equation.operator](equation.left, equation.right)
    return f"Check {', '.join(work)}: {equation.result}"


def _digits(number: int) -> list[int]:
    """From the last to the first."""
    return [int(digit) for digit in reversed(str(number))]


def _sum(left: int, right: int) -> list[str]:
    work, carry = [], 0
    longer, shorter = sorted((_digits(left), _digits(right)), key=len, reverse=True)
    swapped = longer != _digits(left)
    for place, digit in enumerate(longer):
        pair = [digit, *shorter[place : place + 1]]
        terms = [*(reversed(pair) if swapped else pair), *([carry] if carry else [])]
        if len(terms) == 1:
            break
        work.append(f"{' + '.join(map(str, terms))} = {sum(terms)}")
        carry = sum(terms) // 10
    return work


def _difference(left: int, right: int) -> list[str]:
    work, borrowed, taken = [], 0, _digits(right)
    for place, digit in enumerate(_digits(left)):
        less = [*taken[place : place + 1], *([borrowed] if borrowed else [])]
        if not less:
            break
        borrowed = int(digit < sum(less))
        start = digit + 10 * borrowed
        work.append(f"{' - '.join(map(str, [start, *less]))} = {start - sum(less)}")
    return work


def _product(left: int, right: int) -> list[str]:
    work, carry = [], 0
    factor, digits = (right, _digits(left)) if right < 10 else (left, _digits(right))
    for digit in digits:
        value = digit * factor + carry
        work.append(f"{digit} * {factor}{f' + {carry}' if carry else ''} = {value}")
        carry = value // 10
    return work


def stated(equation: Equation, result: int, learned: bool, rest: str) -> list[ThoughtPiece]:
    """An equation with a result, and what follows it; `learned` is of the result alone."""
    return [
        ThoughtPiece(f"{equation.left} {equation.operator} {equation.right} = "),
        ThoughtPiece(str(result), learned),
        ThoughtPiece(rest),
    ]


def thought_steps(problem: Problem, rng: random.Random, guessing: bool) -> list[list[ThoughtPiece]]:
    """A thought for each fact of the problem: the guess and its check.

    Three guesses in ten are wrong, and their checks say so. Right ones are learned where `guessing` is.
    """
    steps = []
    for index, fact in enumerate(problem.facts):
        equation = fact.equation
        wrong = rng.random() < _WRONG
        guess = wrong_result(equation.result, rng) if wrong else equation.result
        correction = f", not {guess}" if wrong else ""
        end = "." if index == len(problem.facts) - 1 else f".{STEP_SEPARATOR}"
        check = f".{STEP_SEPARATOR}{check_text(equation)}{correction}{end}"
        steps.append(stated(equation, guess, guessing and not wrong, check))
    return steps


def solution_steps(problem: Problem, checked: int, guessing: bool) -> list[list[ThoughtPiece]]:
    """The solution's steps: results are learned where they were checked, the first so many, or `guessing` is."""
    ends = [STEP_SEPARATOR] * (len(problem.facts) - 1) + [""]
    return [
        stated(
            fact.equation,
            fact.equation.result,
            guessing or index < checked,
            step.removeprefix(str(fact.equation)) + end,
        )
        for index, (fact, step, end) in enumerate(zip(problem.facts, problem.steps, ends, strict=True))
    ]
