"""Checking and estimating stay quick, whatever a program says."""

from __future__ import annotations

from pathlib import Path

import pytest

from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import check
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.options import MAX_STAGES
from tests.support.paths import PROGRAMS
from tests.support.planner.lowered import lowered, program_of
from tests.support.timing import assert_quick, cpu_seconds


def test_numbers_of_any_size() -> None:
    program = lowered(
        "chat user=problem | generate llm | keep " + "9" * 300 + " by logprob | repeat 1000000 { generate llm }"
    )
    assert plan(program).ops[-1].rows == 1


def test_calls_that_multiply_are_bounded() -> None:
    programs = [f"program p{i}() {{ call p{i + 1}() | call p{i + 1}() }}" for i in range(30)]
    text = "\n".join([*programs, 'program p30() { chat user="x" }'])

    def refused() -> None:
        with pytest.raises(QpError) as error:
            program_of(text, "p0")
        assert {found.code for found in error.value.diagnostics} == {"QP310"}

    assert_quick(lambda: cpu_seconds(refused), 5)


def test_a_program_of_too_many_stages_is_refused() -> None:
    stages = "".join(f"  let a{number} = tokens\n" for number in range(MAX_STAGES))
    text = f"program p(problem: text) -> text {{\n  chat user=problem\n{stages}  return problem\n}}\n"

    def refused() -> None:
        with pytest.raises(QpError) as error:
            program_of(text)
        assert [found.code for found in error.value.diagnostics] == ["QP310"]

    assert_quick(lambda: cpu_seconds(refused), 5)


def test_schemas_that_multiply_are_checked_quickly() -> None:
    """Three references a level, which are 3^24 fields when written out."""
    levels = [f"schema S{i} {{ a: S{i + 1}, b: S{i + 1}, c: S{i + 1} }}" for i in range(24)]
    head = "\n".join(['model llm = "m"', *levels, "schema S24 { a: int }"])
    text = f"{head}\nprogram p(q: text) -> S0 {{\n  chat user=q\n  generate llm as S0\n}}\n"
    assert_quick(lambda: cpu_seconds(lambda: program_of(text)), 2)


def test_rows_that_grow_slowly_are_counted_quickly() -> None:
    program = lowered(
        "chat user=problem | generate llm | repeat 1000000 { branch { { keep 1 by tokens } { where finished } } }"
    )
    assert plan(program).ops[-2].rows == 1_000_001
    assert_quick(lambda: cpu_seconds(lambda: plan(program)), 1)


@pytest.mark.parametrize("path", sorted(PROGRAMS.glob("*.qp")), ids=lambda path: path.stem)
def test_checking_is_quick(path: Path) -> None:
    file, environment = parse_file(Source(path.name, path.read_text("utf-8"))), Environment(Files(path.parent))
    assert_quick(lambda: cpu_seconds(lambda: check(file, environment)), 0.02)
