"""A value is of the type that the checker says: random expressions, typed and then worked out over random rows."""

from __future__ import annotations

import random
from typing import Any

from qpdsl.grammar import ast
from qpdsl.grammar.diagnostic import Diagnostic
from qpdsl.planner.names.scope import BoundColumn, Scope
from qpdsl.planner.names.types import Typer
from qpdsl.planner.plan.evaluate import evaluate_each
from qpdsl.planner.values.library import AGGREGATES, OF_SEVERAL, ROW_FUNCTIONS
from qpdsl.planner.values.value import Value, frozen, holds, item_of, record_of
from tests.support.executor.rows import NOWHERE, expr

RECORD = record_of({"name": "text", "sizes": "[float]"})
COLUMNS = {
    "t": "text",
    "n": "int",
    "x": "float",
    "b": "bool",
    "words": "[text]",
    "record": RECORD,
    "items": f"[{RECORD}]",
    "any": "unknown",
}
OPERATORS = [*"+-*/%<", "==", "!=", ">=", "in", "and", "or"]
# How often a random expression is of one type throughout, at least.
SOUND = 0.25


class Expressions:
    """Expressions over `COLUMNS`, of which many are well typed, and rows for them."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def text(self, depth: int) -> str:
        pick = self.chance
        if depth == 0 or pick.random() < 0.2:
            names = [*COLUMNS, "words[0]", "record.name", "items[-1].sizes[0]", "record.sizes"]
            return pick.choice([*names, "2", "0.5", '"a"', "true", "none", '"{t} {record.name}"', "-3"])
        inner = [self.text(depth - 1) for _ in range(3)]
        function = pick.choice([*ROW_FUNCTIONS])
        aggregate = pick.choice([*AGGREGATES])
        more = ", 0.5" if aggregate == "quantile" else ""
        per = f" per {pick.choice([*COLUMNS])}" if pick.random() < 0.4 else ""
        return pick.choice(
            [
                f"({inner[0]}) {pick.choice(OPERATORS)} ({inner[1]})",
                f"{pick.choice(['not ', '-'])}({inner[0]})",
                f"{function}({', '.join(inner[: len(ROW_FUNCTIONS[function].takes)])})",
                f"{aggregate}({inner[0]}{more}{per})",
                f"{pick.choice([*OF_SEVERAL])}({inner[0]}, {inner[1]})",
                f"[{inner[0]}, {inner[1]}]",
                f"{{a: {inner[0]}, b: {inner[1]}}}" if depth == 3 else inner[0],
                f"({inner[0]}) matches /a/",
                f"({inner[0]})[{inner[1]}]",
                f"({inner[0]})[({inner[1]}):{pick.choice(['', f'({inner[2]})'])}]",
                f"number({per.strip()})",
            ]
        )

    def value(self, type_: str) -> Any:
        pick = self.chance
        if pick.random() < 0.2:
            return None
        if type_.startswith("["):
            return [self.value(item_of(type_)) for _ in range(pick.randint(0, 3))]
        if type_ == RECORD:
            return {"name": self.value("text"), "sizes": self.value("[float]")}
        kinds: dict[str, list[Any]] = {
            "text": ["a", "", "12", "-3.5", "é"],
            "int": [0, 1, -7, 10**30],
            "float": [0.0, 2.5, -1e300, 4],
            "bool": [True, False],
            "unknown": ["a", 3, True, [1], {"name": 2}],
        }
        return pick.choice(kinds[type_])

    def rows(self) -> list[dict[str, Value]]:
        count = self.chance.randint(1, 4)
        return [{name: frozen(self.value(type_)) for name, type_ in COLUMNS.items()} for _ in range(count)]


def test_a_value_is_of_the_type_that_the_checker_says() -> None:
    sound = tried = 0
    for seed in range(400):
        expressions = Expressions(seed)
        tree = expr(expressions.text(3))
        faults: list[Diagnostic] = []
        scope = Scope({}, faults.append, columns={name: BoundColumn(type_) for name, type_ in COLUMNS.items()})
        type_ = Typer(scope, ast.Return(tree, span=NOWHERE), "row").type(tree)
        rows = expressions.rows()
        values = evaluate_each(tree, rows)
        tried += 1
        if not any(fault.severity == "error" for fault in faults):
            sound += 1
            assert all(holds(type_, value) for value in values), (expressions, type_, values)
    assert sound / tried > SOUND
