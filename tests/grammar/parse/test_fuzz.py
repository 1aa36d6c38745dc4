"""Whatever is put in, either a program comes out or diagnostics that point into the text: 1,300 inputs.

`benchmarks/fuzz.py` does the same to a million.
"""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.grammar.fuzzing import examine
from tests.support.grammar.random_programs import ProgramGenerator, mutated, random_program

PROGRAMS, MUTANTS, STAGES, STAGE_MUTANTS, TEXTS = 30, 75, 500, 625, 40


@pytest.mark.parametrize("part", range(5))
def test_well_formed_programs(part: int) -> None:
    for seed in range(part, PROGRAMS, 5):
        assert examine(random_program(seed)).parsed, random_program(seed)


@pytest.mark.parametrize("part", range(5))
def test_mutated_programs(part: int) -> None:
    for seed in range(part, MUTANTS, 5):
        examine(mutated(random_program(seed), seed))


def test_well_formed_stages() -> None:
    for seed in range(STAGES):
        assert examine(ProgramGenerator(seed).stage(0), pipeline=True).parsed, ProgramGenerator(seed).stage(0)


def test_mutated_stages() -> None:
    for seed in range(STAGE_MUTANTS):
        examine(mutated(ProgramGenerator(seed).stage(0), seed), pipeline=True)


@settings(max_examples=TEXTS)
@given(st.text(max_size=80))
def test_any_text(text: str) -> None:
    examine(text)
    examine(text, pipeline=True)
