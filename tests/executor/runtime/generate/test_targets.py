"""`as` with types and with options that are known when it runs: what comes out, and that every plan draws the same."""

from __future__ import annotations

import json
from typing import Any

import pytest

from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planner.values.value import Value
from qpdsl.session.session import Session
from tests.support.executor.programs import HEADER, arguments, run_all


@pytest.fixture(scope="module")
def session() -> Session:
    return Session()


def plans(stages: str, head: str = "q: text", returns: str = "text") -> list[PhysicalPlan]:
    """The naive plan of a program, and that by all rules."""
    file = parse_file(Source("test.qp", f"{HEADER}program p({head}) -> {returns} {{\n{stages}\n}}\n"))
    return [planned(lower(file), naive=naive) for naive in (True, False)]


def run(session: Session, plan: PhysicalPlan, seed: int = 0, **values: Value) -> InstanceResult:
    return run_all(plan, [arguments(plan, **values)], seed=seed, session=session)[0]


@pytest.mark.parametrize(
    ("type_", "is_one"),
    [
        ("int(1..10)", lambda value: type(value) is int and 1 <= value <= 10),
        ("bool", lambda value: type(value) is bool),
        ("[text(max_length=3)](2..3)", lambda value: isinstance(value, list) and 2 <= len(value) <= 3),
        ("{ a: int(0..9), b: bool }", lambda value: set(value) == {"a", "b"} and type(value["a"]) is int),
    ],
)
def test_a_value_of_the_type_comes_out(session: Session, type_: str, is_one: Any) -> None:
    stages = f"chat user=q\ngenerate llm temperature=0.1 as {type_} into x\nreturn x"
    naive, best = plans(stages, returns=type_.replace("(max_length=3)", ""))
    for seed in range(3):
        result = run(session, naive, seed, q="x")
        assert result.error is None and is_one(result.value), result.value
        assert result.value == json.loads(str(result.rows[0].columns["text"]))
        assert run(session, best, seed, q="x").value == result.value


def test_a_value_that_was_cut_off_is_none_and_the_program_says_why_it_has_no_result(session: Session) -> None:
    stages = "chat user=q\ngenerate llm as { a: text } into x max_tokens=2\nreturn x"
    for plan in plans(stages, returns="{a: text}"):
        result = run(session, plan, q="x")
        assert result.rows[0].columns["x"] is None
        assert str(result.error).startswith("no row has a value to return: what the first row generated was cut off")


def test_the_value_is_one_in_expressions_and_as_the_last_text(session: Session) -> None:
    stages = "chat user=q\ngenerate llm as int(1..3) into n\nreturn n + 1"
    assert run(session, plans(stages, returns="int")[1], q="x").value in (2, 3, 4)
    assert run(session, plans("chat user=q\ngenerate llm as bool", returns="bool")[1], q="x").value in (True, False)


def test_what_is_cut_off_is_none(session: Session) -> None:
    stages = "chat user=q\ngenerate llm as [text(max_length=9)](9..9) max_tokens=3 into x\nreturn x == none"
    assert run(session, plans(stages, returns="bool")[1], q="x").value is True


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_options_of_a_list_are_drawn_as_written_ones(session: Session, temperature: float) -> None:
    """As a parameter, and as a column that differs from row to row; alone and beside other problems."""
    words = ("yes", "no", "of course")
    written = plans(f'chat user=q\ngenerate llm n=3 as choice("yes", "no", "of course") temperature={temperature}')
    given = plans(f"chat user=q\ngenerate llm n=3 as choice(words) temperature={temperature}", "q: text, words: [text]")
    column = plans(
        f"let own = words\nchat user=q\ngenerate llm n=3 as choice(own) temperature={temperature}",
        "q: text, words: [text]",
    )
    expected = [row.columns["text"] for row in run(session, written[0], q="x").rows]
    assert set(map(str, expected)) <= set(words)
    for plan in (*given, *column):
        rows = [arguments(plan, q="x", words=words), arguments(plan, q="y", words=words[:2])]
        both = run_all(plan, rows, session=session)
        assert [row.columns["text"] for row in both[0].rows] == expected
        assert {str(row.columns["text"]) for row in both[1].rows} <= {"yes", "no"}


@pytest.mark.parametrize(("words", "why"), [((), "a list of texts"), (("", "a"), "none of them empty")])
def test_options_that_do_not_do(session: Session, words: tuple[str, ...], why: str) -> None:
    plan = plans("chat user=q\ngenerate llm as choice(words)", "q: text, words: [text]")[1]
    assert why in str(run(session, plan, q="x", words=words).error)


def test_an_option_that_is_there_twice_counts_once(session: Session) -> None:
    plan = plans("chat user=q\ngenerate llm n=4 as choice(words)", "q: text, words: [text]")[1]
    once, twice = (run(session, plan, q="x", words=words) for words in (("a", "b"), ("a", "b", "a")))
    assert [row.columns["text"] for row in once.rows] == [row.columns["text"] for row in twice.rows]


def test_a_result_is_held_to_its_declared_type(session: Session) -> None:
    stages = "chat user=q\ngenerate llm as int(1..9) into n\nreturn {n: n, text: text, gone: none}"
    plan = plans(stages, returns="{n: int(1..9), text: text, gone: int?}")[1]
    value = run(session, plan, q="x").value
    assert isinstance(value, dict) and set(value) == {"n", "text"}
    short = plans(stages, returns="{n: int(1..9), text: text(max_length=0), gone: int?}")[1]
    assert "not of the type that the program declares" in str(run(session, short, q="x").error)


def test_a_called_program_gives_a_value_of_its_declared_type(session: Session) -> None:
    text = (
        f"{HEADER}schema Person {{ name: text(max_length=4) }}\n"
        "program who(q: text) -> Person {\n chat user=q\n generate llm as Person\n}\n"
        "program count(q: text) -> int {\n chat user=q\n generate llm as int(1..9)\n}\n"
        "program p(q: text) -> {name: text, more: int} {\n"
        ' call who(q) into who\n call count(q) into n\n chat user="{who.name}"\n generate llm max_tokens=1\n'
        " return {name: who.name, more: n + 1}\n}\n"
    )
    results = [
        run(session, planned(lower(parse_file(Source("t.qp", text)), "p"), naive=naive), q="x")
        for naive in (True, False)
    ]
    value = results[0].value
    assert isinstance(value, dict) and value == results[1].value
    assert isinstance(value["name"], str) and value["more"] in range(2, 11)
