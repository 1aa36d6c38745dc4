"""Thoughts about counting problems: each equation of the solution, worked out digit by digit and then stated.

::

    18 + 24
    8 + 4 = 12
    1 + 2 + 1 = 4
    18 + 24 = 42.

    42 * 3
    2 * 3 = 6
    4 * 3 = 12
    42 * 3 = 126.

The work goes from the last digit to the first, with carries and borrowed tens written out. An equation stands in the
thought once, with its right result, so that an answer can copy it. After "Wait", a thought begins the line again that
it was in, or else the last equation.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest

from family.tasks.counting import STEP_SEPARATOR, Problem
from family.tasks.stories import Equation

WAITS = ("Wait", "Wait,", "Wait, ", " Wait", " Wait,", " Wait, ", "\nWait,", "\n\nWait", "\n\nWait, ")


@dataclass(frozen=True)
class ThoughtPiece:
    """Part of a thought; `learned` is False for text that a model should read and not learn to write."""

    text: str
    learned: bool = True


def work_lines(equation: Equation) -> list[str]:
    """The equation worked out digit by digit, a line each.

    Digits that nothing is added to or taken from stand alone. One operand of a product has one digit.
    """
    return {"+": _sum, "-": _difference, "*": _product}[equation.operator](equation.left, equation.right)


def _digits(number: int) -> list[int]:
    """From the last to the first."""
    return [int(digit) for digit in reversed(str(number))]


def _line(operator: str, terms: list[int], result: int) -> str:
    return f"{f' {operator} '.join(map(str, terms))} = {result}" if len(terms) > 1 else str(result)


def _sum(left: int, right: int) -> list[str]:
    lines, carry = [], 0
    for pair in zip_longest(_digits(left), _digits(right)):
        terms = [*(digit for digit in pair if digit is not None), *([carry] if carry else [])]
        lines.append(_line("+", terms, sum(terms)))
        carry = sum(terms) // 10
    return lines


def _difference(left: int, right: int) -> list[str]:
    lines, borrowed, taken = [], 0, _digits(right)
    for place, digit in enumerate(_digits(left)):
        less = [*taken[place : place + 1], *([borrowed] if borrowed else [])]
        borrowed = int(digit < sum(less))
        start = digit + 10 * borrowed
        lines.append(_line("-", [start, *less], start - sum(less)))
    return lines


def _product(left: int, right: int) -> list[str]:
    lines, carry = [], 0
    factor, digits = (right, _digits(left)) if right < 10 else (left, _digits(right))
    for digit in digits:
        value = digit * factor + carry
        lines.append(f"{digit} * {factor}{f' + {carry}' if carry else ''} = {value}")
        carry = value // 10
    return lines


def thought_lines(problem: Problem) -> list[list[str]]:
    """A thought for each fact of the problem, in lines: what is to be worked out, the work, and the equation.

    Each line ends with one token that is not its own: a line break, or a full stop.
    """
    ends = [f".{STEP_SEPARATOR}"] * (len(problem.facts) - 1) + ["."]
    return [
        [
            *(f"{line}\n" for line in (str(fact.equation).partition(" = ")[0], *work_lines(fact.equation))),
            f"{fact.equation}{end}",
        ]
        for fact, end in zip(problem.facts, ends, strict=True)
    ]


def solution_steps(problem: Problem, worked: int, guessing: bool) -> list[list[ThoughtPiece]]:
    """The solution's steps. Results are learned where `guessing` is, and of the first `worked` ones."""
    ends = [STEP_SEPARATOR] * (len(problem.facts) - 1) + [""]
    return [
        [
            ThoughtPiece(f"{str(fact.equation).partition(' = ')[0]} = "),
            ThoughtPiece(str(fact.equation.result), guessing or index < worked),
            ThoughtPiece(step.removeprefix(str(fact.equation)) + end),
        ]
        for index, (fact, step, end) in enumerate(zip(problem.facts, problem.steps, ends, strict=True))
    ]
