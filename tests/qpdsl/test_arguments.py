"""Values for parameters: what each type takes, and what the message says otherwise."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpdsl.arguments import ArgumentError, bind, from_json, from_text, parse_settings
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan.logical import Parameter
from qpdsl.planner.values.value import Value

NOWHERE = Span(0, 0)


def parameter(type_: str, default: ast.Expr | None = None) -> Parameter:
    return Parameter("x", type_, default)


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        ("text", " a=b ", " a=b "),
        ("text", "", ""),
        ("int", " -12 ", -12),
        ("int", "+7", 7),
        ("float", "-.5", -0.5),
        ("float", "2.", 2.0),
        ("float", "3", 3.0),
        ("float", "1e-3", 0.001),
        ("bool", "True", True),
        ("bool", "false", False),
    ],
)
def test_text_becomes_the_declared_type(type_: str, text: str, value: Value) -> None:
    read = from_text(parameter(type_), text)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("type_", "text"),
    [
        ("int", "1.5"),
        ("int", ""),
        ("int", "9" * 5000),
        ("int", "1_0"),
        ("int", "٣"),
        ("float", "1_0.5"),
        ("float", "٣"),
        ("float", "nan"),
        ("float", "inf"),
        ("float", "x"),
        ("bool", "1"),
    ],
)
def test_other_text_is_refused(type_: str, text: str) -> None:
    with pytest.raises(ArgumentError, match="`x` takes") as caught:
        from_text(parameter(type_), text)
    assert len(str(caught.value)) < 160


@pytest.mark.parametrize(
    ("type_", "value", "shown"),
    [
        ("text", 3, "not 3"),
        ("text", None, "not null"),
        ("text", ["a"], "not a list"),
        ("int", True, "not true"),
        ("int", 1.0, "not 1.0"),
        ("int", "3", 'not the text "3"'),
        ("int", 2**63, "64 bits"),
        ("float", True, "not true"),
        ("float", 10**400, "`x` takes a number"),
        ("bool", 0, "not 0"),
        ("bool", {"a": 1}, "not an object"),
        ("text", "\ud800", "UTF-8"),
    ],
)
def test_json_of_another_type_is_refused(type_: str, value: object, shown: str) -> None:
    with pytest.raises(ArgumentError, match="x") as caught:
        from_json(parameter(type_), value)
    assert shown in str(caught.value)


def test_a_float_takes_a_whole_number_and_stays_a_float() -> None:
    assert type(from_json(parameter("float"), 3)) is float
    assert bind([parameter("float", ast.Literal(3, span=NOWHERE))], {}) == {"x": 3.0}


def test_a_whole_number_that_no_float_holds_is_refused() -> None:
    param = parameter("float")
    assert from_json(param, 2**53) == from_text(param, str(2**53)) == float(2**53)
    for read in (lambda: from_json(param, 2**53 + 1), lambda: from_text(param, str(2**53 + 1))):
        with pytest.raises(ArgumentError, match="none here has all the digits of 9007199254740993"):
            read()


@given(st.integers(-(2**63) + 1, 2**63 - 1), st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_survive_the_command_line(whole: int, number: float) -> None:
    assert from_text(parameter("int"), str(whole)) == whole
    assert from_text(parameter("float"), repr(number)) == number


@given(st.text())
def test_any_text_is_taken_or_refused_in_words(text: str) -> None:
    for type_ in ("text", "int", "float", "bool"):
        try:
            from_text(parameter(type_), text)
        except ArgumentError as error:
            assert "\n" not in str(error) and "`x`" in str(error)


def test_arguments_stand_in_the_order_of_the_declaration() -> None:
    params = [Parameter("a", "text", None), Parameter("b", "int", ast.Literal(2, span=NOWHERE))]
    settings = parse_settings(params, ["b=3", "a=x=y"], "p")
    assert list(bind(params, settings).items()) == [("a", "x=y"), ("b", 3)]
    with pytest.raises(ArgumentError, match="no value for `a`"):
        bind(params, {})
    with pytest.raises(ArgumentError, match="gives `b` twice"):
        parse_settings(params, ["b=1", "a=x=y", "b=3"], "p")


def test_a_subclass_of_text_or_number_counts_as_its_value() -> None:
    class Word(str, Enum):  # noqa: UP042
        ONE = "pens"

    class Count(IntEnum):
        TWO = 2

    text = from_json(Parameter("a", "text", None), Word.ONE)
    assert (text, type(text), f"{text}") == ("pens", str, "pens")
    number = from_json(Parameter("a", "int", None), Count.TWO)
    assert (number, type(number)) == (2, int)


LIST = Parameter("x", "[text]", None, False, "[text](..2)", '{"type":"array","items":{"type":"string"},"maxItems":2}')
CHOICE = Parameter("x", "text", None, True, 'choice("a", "b")?', '{"type":"string","enum":["a","b"]}')
RECORD = Parameter("x", "{name: text, age: int}", None, False, "Person", None)


@pytest.mark.parametrize(
    ("param", "text", "value"),
    [
        (LIST, '["a", "b"]', ("a", "b")),
        (LIST, "[]", ()),
        (CHOICE, "a", "a"),
        (RECORD, '{"name": "Ann", "age": 3}', {"name": "Ann", "age": 3}),
        (Parameter("x", "[float]", None), "[1, 2.5]", (1.0, 2.5)),
        (Parameter("x", "int", None, True), "none", None),
        (Parameter("x", "text", None), "@home", "@home"),
        (Parameter("x", "text", None), "@@a.txt", "@a.txt"),
        (
            Parameter("x", "messages", None),
            '[{"role": "user", "content": "hi"}]',
            ({"role": "user", "content": "hi"},),
        ),
    ],
)
def test_values_that_are_no_plain_ones_are_written_as_json(param: Parameter, text: str, value: object) -> None:
    read = from_text(param, text)
    assert read == value and {read: 1}  # it can be a key


@pytest.mark.parametrize(
    ("param", "text", "why"),
    [
        (LIST, '["a", 1]', r"`x\[1\]` takes text, not 1"),
        (LIST, '["a", "b", "c"]', "3 items are too many"),
        (LIST, "a, b", "written as JSON; the value is none at column 1"),
        (LIST, '{"a": 1}', r"takes a value of the type `\[text\]\(..2\)`, not an object"),
        (CHOICE, "c", "none of the values allowed"),
        (RECORD, '{"name": "Ann", "age": "3"}', "`x.age` takes a whole number"),
        (LIST, "@a.csv", "ends in `.txt`"),
        (LIST, "@nowhere.json", "cannot read `nowhere.json`"),
    ],
)
def test_values_that_do_not_fit(param: Parameter, text: str, why: str) -> None:
    with pytest.raises(ArgumentError, match=why):
        from_text(param, text)


def test_a_value_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\n\ntwo\n")
    (tmp_path / "a.json").write_text('["one", "two"]')
    (tmp_path / "a.jsonl").write_text('"one"\n\n"two"\n')
    for name in ("a.txt", "a.json", "a.jsonl"):
        assert from_text(LIST, f"@{tmp_path / name}") == ("one", "two")
    assert from_text(Parameter("x", "text", None), f"@{tmp_path / 'a.txt'}") == "one\n\ntwo\n"
    (tmp_path / "a.jsonl").write_text('"one"\n{\n')
    with pytest.raises(ArgumentError, match=r"line 2 of `.*a.jsonl` is none"):
        from_text(LIST, f"@{tmp_path / 'a.jsonl'}")


def test_python_values_of_records() -> None:
    @dataclass
    class Person:
        name: str
        age: int | None = None

    assert from_json(RECORD, Person("Ann", 3)) == {"name": "Ann", "age": 3}
    assert from_json(RECORD, Person("Ann")) == {"name": "Ann"}
    assert from_json(CHOICE, None) is None and bind([CHOICE], {"x": None}) == {"x": None}
