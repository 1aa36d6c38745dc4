"""The stories of the counting task: sentence by sentence, each with the equation that follows from it."""

from __future__ import annotations

import random
from dataclasses import dataclass

NAMES = ("Mia", "Tom", "Ann", "Ben", "Eva", "Sam", "Lena", "Max", "Nora", "Paul", "Rosa", "Tim")
_OBJECTS = ("apples", "books", "coins", "pens", "cards", "shells", "stamps", "eggs", "stones", "balls")
_WEATHER = ("sunny", "rainy", "windy", "cold")

COMPUTE = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}


@dataclass(frozen=True)
class Difficulty:
    """A level: the number of operations, the size of numbers, sentences that do not matter, branches.

    Every number is at least 0 and below `limit`. `asides` is the chance of a sentence that does not matter after each
    one that does. With `branches`, a story may return to an earlier owner and add the two ends together at the end.
    """

    steps: int
    limit: int
    asides: float
    branches: bool


LEVELS: dict[int, Difficulty] = {
    1: Difficulty(steps=2, limit=300, asides=0.0, branches=False),
    2: Difficulty(steps=3, limit=1000, asides=0.0, branches=False),
    3: Difficulty(steps=4, limit=1000, asides=0.0, branches=False),
    4: Difficulty(steps=4, limit=1000, asides=0.25, branches=True),
    5: Difficulty(steps=5, limit=1000, asides=0.25, branches=True),
}


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


@dataclass(frozen=True)
class Fact:
    """An equation of the story; `left_from` and `right_from` are the facts whose results it takes, None for a number
    that the story states."""

    equation: Equation
    left_from: int | None
    right_from: int | None = None

    @property
    def needs(self) -> set[int]:
        return {index for index in (self.left_from, self.right_from) if index is not None}


@dataclass(frozen=True)
class _Holding:
    count: int
    fact: int | None
    """The fact whose result `count` is; None when the story states it."""


class Story:
    """A complete story of one level: `text` and `facts`, the last of which is the answer's."""

    def __init__(self, rng: random.Random, difficulty: Difficulty) -> None:
        self._rng = rng
        self._difficulty = difficulty
        while not self._generate():
            pass

    @property
    def text(self) -> str:
        return " ".join([*self._sentences, self._question])

    def _generate(self) -> bool:
        """Generate a story from its beginning; False when its numbers outgrow the level."""
        self._names = self._rng.sample(NAMES, k=len(NAMES))
        self._things = self._rng.choice(_OBJECTS)
        self._before: str | None = None  # the previous owner, when the owner has just changed
        self._other_end: str | None = None  # where the first branch ended, once the story has branched
        self.facts: list[Fact] = []
        self._begin()
        steps = self._difficulty.steps
        while len(self.facts) < steps - (self._other_end is not None):
            count = len(self.facts)
            self._extend()
            if len(self.facts) > count and self._rng.random() < self._difficulty.asides:
                self._aside()
        self._question = f"How many {self._things} does {self._owner} have?"
        if self._other_end is not None:
            self._question = f"How many {self._things} do {self._owner} and {self._other_end} have together?"
            other = self._held[self._other_end]
            if other.count + self._count >= self._difficulty.limit:
                return False
            self._apply("+", other)
        return True

    def _begin(self) -> None:
        rng, limit = self._rng, self._difficulty.limit
        self._owner = self._names.pop()
        if rng.random() < 0.25:
            boxes = rng.randint(2, 9)
            per_box = rng.randint(3, min(60, (limit - 1) // boxes))
            self._sentences = [f"{self._owner} has {boxes} boxes with {per_box} {self._things} in each box."]
            self._held = {self._owner: _Holding(boxes, None)}
            self._apply("*", _Holding(per_box, None))
        else:
            count = rng.randint(5, limit * 3 // 10)
            self._sentences = [f"{self._owner} has {count} {self._things}."]
            self._held = {self._owner: _Holding(count, None)}

    @property
    def _count(self) -> int:
        return self._held[self._owner].count

    def _extend(self) -> None:
        choices = [self._gain, self._lose, self._gain, self._lose, self._compare, self._multiply, self._multiply]
        left = self._difficulty.steps - len(self.facts)
        if self._before is not None and self._held[self._before].count + self._count < self._difficulty.limit:
            choices += [self._gather] * 3
        if self._difficulty.branches and self._other_end is None and len(self._held) > 1 and left >= 2:
            choices += [self._branch] * 4
        self._rng.choice(choices)()

    def _apply(self, operator: str, right: _Holding) -> None:
        left = self._held[self._owner]
        result = COMPUTE[operator](left.count, right.count)
        self.facts.append(Fact(Equation(left.count, operator, right.count, result), left.fact, right.fact))
        self._held[self._owner] = _Holding(result, len(self.facts) - 1)

    def _gain(self) -> None:
        amount = self._amount(self._room(self._count))
        if amount is not None:
            verb = self._rng.choice(("buys", "finds", "wins", "is given"))
            self._add(f"{self._owner} {verb} {amount} more.", "+", _Holding(amount, None))

    def _lose(self) -> None:
        amount = self._amount(self._count)
        if amount is not None:
            verb = self._rng.choice(("loses {}", "sells {}", f"gives {{}} to {self._names[0]}", "throws away {}"))
            self._add(f"{self._owner} {verb.format(amount)}.", "-", _Holding(amount, None))

    def _gather(self) -> None:
        assert self._before is not None
        sentence = f"{self._owner} gets all the {self._things} of {self._before}."
        self._add(sentence, "+", self._held.pop(self._before))

    def _compare(self) -> None:
        self._relate(self._owner, multiply=False)

    def _multiply(self) -> None:
        self._relate(self._owner, multiply=True)

    def _branch(self) -> None:
        end = self._owner
        earlier = self._rng.choice([name for name in self._held if name != end])
        if self._relate(earlier, multiply=self._rng.random() < 0.4):
            self._other_end, self._before = end, None

    def _relate(self, reference: str, multiply: bool) -> bool:
        """Add an owner whose count is stated relative to that of `reference`; False when no number fits."""
        count = self._held[reference].count
        more = self._rng.random() < 0.5
        if multiply:
            most = min(9, (self._difficulty.limit - 1) // count) if count else 0
        else:
            most = self._room(count) if more else count
        amount = self._amount(most)
        if amount is None:
            return False
        owner = self._names.pop()
        relation = f"{amount} times as many as" if multiply else f"{amount} {'more' if more else 'fewer'} than"
        self._sentences.append(f"{owner} has {relation} {reference}.")
        self._held[owner] = self._held[reference]
        self._before, self._owner = reference, owner
        self._apply("*" if multiply else "+" if more else "-", _Holding(amount, None))
        return True

    def _add(self, sentence: str, operator: str, right: _Holding) -> None:
        self._sentences.append(sentence)
        self._apply(operator, right)
        self._before = None

    def _aside(self) -> None:
        number = self._rng.randint(2, self._difficulty.limit - 1)
        thing = self._rng.choice([thing for thing in _OBJECTS if thing != self._things])
        self._sentences.append(
            self._rng.choice(
                (
                    f"{self._owner} also has {number} {thing}.",
                    f"{self._owner} is {min(number, 11 + number % 80)} years old.",
                    f"It is a {self._rng.choice(_WEATHER)} day.",
                )
            )
        )

    def _room(self, count: int) -> int:
        limit = self._difficulty.limit
        return min(limit * 4 // 10, limit - 1 - count)

    def _amount(self, most: int) -> int | None:
        return self._rng.randint(2, most) if most >= 2 else None
