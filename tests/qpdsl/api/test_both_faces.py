"""Random programs written in Python and in text are one syntax tree, or have the same faults."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import pytest

import qpdsl as qp

llm = qp.model("zoo/counting")
prm = qp.model("zoo/counting-prm")
pytestmark = pytest.mark.filterwarnings("ignore::qpdsl.api.program.QpWarning")

_HEAD = r"""model llm = "zoo/counting"
model prm = "zoo/counting-prm"

program p(problem: text, k: int = 2) -> int {
chat user="Solve it: {problem}"
generate llm n=k temperature=0.8
score prm
extract answer = /(\d+)/
"""
# Something of the language in text, and what makes it in Python.
Value = tuple[str, Callable[[], Any]]
Stage = tuple[str, Callable[[qp.Rows], object]]


def number(pick: Random, depth: int) -> Value:
    if not depth:
        name = pick.choice(["tokens", "logprob", "group", "score", "k"])
        return name, lambda: qp.col[name]
    (left, x), (right, y) = number(pick, depth - 1), number(pick, depth - 1)
    condition, holds = truth(pick, depth - 1)
    return pick.choice(
        [
            (f"({left} + {right})", lambda: x() + y()),
            (f"({left} - 2)", lambda: x() - 2),
            (f"(0.5 * {left})", lambda: 0.5 * x()),
            (f"({left} / {right})", lambda: x() / y()),
            (f"(-{left})", lambda: -x()),
            (f"min({left}, {right})", lambda: qp.min(x(), y())),
            (f"abs({left})", lambda: qp.abs(x())),
            (f"if({condition}, {left}, {right})", lambda: qp.if_(holds(), x(), y())),
            (f"mean({left} per answer)", lambda: qp.mean(x(), per=qp.col.answer)),
            (f"rank({left})", lambda: qp.rank(x())),
            ("count(per group)", lambda: qp.count(per=qp.col.group)),
            ("number()", qp.number),
        ]
    )


def truth(pick: Random, depth: int) -> Value:
    if not depth:
        return "finished", lambda: qp.col.finished
    (left, x), (right, y) = truth(pick, depth - 1), truth(pick, depth - 1)
    (less, a), (more, b) = number(pick, depth - 1), number(pick, depth - 1)
    return pick.choice(
        [
            (f"({left} and {right})", lambda: x() & y()),
            (f"({left} or {right})", lambda: x() | y()),
            (f"(not {left})", lambda: qp.not_(x())),
            (f"({less} < {more})", lambda: a() < b()),
            (f"({less} == {more})", lambda: a() == b()),
            ("text matches /is (a|b)/", lambda: qp.matches(qp.col.text, "is (a|b)")),
            (f"any({left})", lambda: qp.any(x())),
        ]
    )


def stage(pick: Random, depth: int) -> Stage:
    if depth and pick.random() < 0.4:
        return block(pick, depth - 1)
    (key, x), (condition, holds) = number(pick, 2), truth(pick, 2)
    return pick.choice(
        [
            (
                'generate llm n=2 stop="\\n" temperature=0.5',
                lambda rows: rows.generate(llm, n=2, stop="\n", temperature=0.5),
            ),
            ("generate llm", lambda rows: rows.generate(llm)),
            ("score prm reduce=min into worst", lambda rows: rows.score(prm, reduce="min", into="worst")),
            (f"let worst = {key}", lambda rows: rows.let("worst", x())),
            ("extract answer = /is (\\d+)/", lambda rows: rows.extract("answer", r"is (\d+)")),
            (f"where {condition}", lambda rows: rows.where(holds())),
            (f"keep k by {key} per group", lambda rows: rows.keep(qp.col.k, by=x(), per=qp.col.group)),
            (f"best by {key}", lambda rows: rows.best(by=x())),
            (f"order by {key}", lambda rows: rows.order(by=x())),
            (f"split 3 by {key} draw=systematic", lambda rows: rows.split(3, by=x(), draw="systematic")),
            ("distinct by text per answer", lambda rows: rows.distinct(by=qp.col.text, per=qp.col.answer)),
            ("first k", lambda rows: rows.first(qp.col.k)),
            (f"vote answer weight={key}", lambda rows: rows.vote(qp.col.answer, weight=x())),
            ('say "{answer}, "', lambda rows: rows.say(f"{qp.col.answer}, ")),
        ]
    )


def block(pick: Random, depth: int) -> Stage:
    inner, (condition, holds) = stages(pick, depth), truth(pick, 2)
    word, opened = pick.choice(
        [
            (f"repeat 2 until {condition}", lambda rows: rows.repeat(2, until=holds())),
            ("repeat 3 gather", lambda rows: rows.repeat(3, gather=True)),
            (f"if {condition}", lambda rows: rows.if_(holds())),
            ("peek", lambda rows: rows.peek()),
            ("ask", lambda rows: rows.ask()),
        ]
    )

    def compose(rows: qp.Rows) -> None:
        with opened(rows):
            for _, made in inner:
                made(rows)

    return f"{word} {{\n" + "\n".join(text for text, _ in inner) + "\n}", compose


def stages(pick: Random, depth: int) -> list[Stage]:
    return [stage(pick, depth) for _ in range(pick.randint(1, 4))]


def outcome(made: Callable[[], qp.Program[..., Any]]) -> object:
    """The tree, or the codes of what is wrong."""
    try:
        return made().file.programs
    except qp.QpError as error:
        return {diagnostic.code for diagnostic in error.diagnostics}


def composed(body: list[Stage]) -> qp.Program[..., Any]:
    @qp.program
    def p(problem: str, k: int = 2) -> int:
        rows = qp.chat(user=f"Solve it: {problem}")
        rows.generate(llm, n=k, temperature=0.8)
        rows.score(prm)
        rows.extract("answer", r"(\d+)")
        for _, compose in body:
            compose(rows)
        return qp.len(qp.col.text)

    return p


def test_both_faces_are_one() -> None:
    sound = 0
    for seed in range(100):
        body = stages(Random(seed), 2)
        text = _HEAD + "\n".join(text for text, _ in body) + "\nreturn len(text)\n}"
        expected, found = (outcome(made) for made in (partial(qp.parse, text), partial(composed, body)))
        assert found == expected, text
        sound += not isinstance(expected, set)
    assert sound > 30
