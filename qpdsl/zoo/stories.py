"""The stories of the counting task, grown sentence by sentence with the equation that each sentence calls for."""

from __future__ import annotations

import random
from dataclasses import dataclass

LIMIT = 1000
"""Every number in a problem and its solution is at least 0 and below this."""

_NAMES = ("Mia", "Tom", "Ann", "Ben", "Eva", "Sam", "Lena", "Max", "Nora", "Paul", "Rosa", "Tim")
_OBJECTS = ("apples", "books", "coins", "pens", "cards", "shells", "stamps", "eggs", "stones", "balls")


@dataclass(frozen=True)
class Equation:
    """`left operator right = result`; the operator is one of `+ - *`."""

    left: int
    operator: str
    right: int
    result: int

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right} = {self.result}"

    def says_the_same(self, other: Equation) -> bool:
        """Equal, or equal after swapping the operands of `+` or `*`."""
        if self == other:
            return True
        swapped = Equation(self.right, self.operator, self.left, self.result)
        return self.operator in "+*" and swapped == other


class Story:
    """A story being told: `equations` and `count`, what the owner holds, are up to date after every `extend`."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._names = rng.sample(_NAMES, k=len(_NAMES))
        self._things = rng.choice(_OBJECTS)
        self._owner = self._names.pop()
        self._other_count: int | None = None  # what the previous owner holds, when the owner has just changed
        self._question = ""
        self.equations: list[Equation] = []
        if rng.random() < 0.25:
            boxes, each = rng.randint(2, 9), rng.randint(3, 60)
            self._sentences = [f"{self._owner} has {boxes} boxes with {each} {self._things} in each box."]
            self.count = boxes
            self._apply("*", each)
        else:
            self.count = rng.randint(5, 300)
            self._sentences = [f"{self._owner} has {self.count} {self._things}."]

    def text(self) -> str:
        question = self._question or f"How many {self._things} does {self._owner} have?"
        return " ".join([*self._sentences, question])

    def extend(self) -> None:
        """Add one sentence and its equation."""
        choices = [self._gain, self._lose, self._gain, self._lose, self._compare, self._multiply, self._multiply]
        if self._other_count is not None and self._other_count + self.count < LIMIT:
            choices += [self._together] * 3
        self._rng.choice(choices)()

    def _apply(self, operator: str, right: int) -> None:
        result = {"+": self.count + right, "-": self.count - right, "*": self.count * right}[operator]
        self.equations.append(Equation(self.count, operator, right, result))
        self.count = result

    def _gain(self) -> None:
        amount = self._amount(min(400, LIMIT - 1 - self.count))
        if amount is None:
            return
        verb = self._rng.choice((f"{self._owner} buys {amount} more.", f"{self._owner} finds {amount} more."))
        self._tell(verb, "+", amount)

    def _lose(self) -> None:
        amount = self._amount(self.count)
        if amount is None:
            return
        verb = self._rng.choice(
            (
                f"{self._owner} loses {amount}.",
                f"{self._owner} sells {amount}.",
                f"{self._owner} gives {amount} to {self._names[0]}.",
            )
        )
        self._tell(verb, "-", amount)

    def _compare(self) -> None:
        more = self._rng.random() < 0.5
        amount = self._amount(min(400, LIMIT - 1 - self.count) if more else self.count)
        if amount is None:
            return
        word = "more" if more else "fewer"
        self._pass_on(f"{amount} {word} than", "+" if more else "-", amount)

    def _multiply(self) -> None:
        most = min(9, (LIMIT - 1) // self.count) if self.count else 0
        if most < 2:
            return
        factor = self._rng.randint(2, most)
        self._pass_on(f"{factor} times as many as", "*", factor)

    def _together(self) -> None:
        assert self._other_count is not None
        self._tell(f"{self._owner} gets all the {self._things} of the other.", "+", self._other_count)

    def _tell(self, sentence: str, operator: str, right: int) -> None:
        self._sentences.append(sentence)
        self._apply(operator, right)
        self._other_count = None

    def _pass_on(self, relation: str, operator: str, right: int) -> None:
        before, owner = self.count, self._names.pop()
        self._sentences.append(f"{owner} has {relation} {self._owner}.")
        self._owner = owner
        self._apply(operator, right)
        self._other_count = before

    def _amount(self, most: int) -> int | None:
        return self._rng.randint(2, most) if most >= 2 else None
