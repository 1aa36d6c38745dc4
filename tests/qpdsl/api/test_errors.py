"""Errors in a decorated function point at the Python file, its line, and the part that is wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

import qpdsl as qp
from qpdsl.grammar.codes import CODES
from tests.support.api import mistakes
from tests.support.golden import check

MISTAKES = [
    value
    for name, value in vars(mistakes).items()
    if isinstance(value, FunctionType) and value.__module__ == mistakes.__name__ and not name.startswith("_")
]


def message(function: Callable[..., Any]) -> str:
    with pytest.raises(qp.QpError) as caught:
        qp.program(function)
    return str(caught.value)


def test_mistakes() -> None:
    parts = [f"# {function.__name__}\n{message(function)}" for function in MISTAKES]
    check(Path(__file__).with_name("mistakes.txt"), "\n\n".join(parts).replace(str(Path.cwd()) + "/", ""))


@pytest.mark.parametrize("function", MISTAKES, ids=lambda function: function.__name__)
def test_the_place_is_in_the_function(function: Callable[..., Any]) -> None:
    line = int(re.findall(r"mistakes\.py:(\d+):\d+", message(function))[0])
    helped = mistakes._helped.__code__
    code = helped if function is mistakes.a_helper else function.__code__
    assert code.co_firstlineno <= line <= max(number for *_, number in code.co_lines() if number)


@pytest.mark.parametrize("code", [code for code in CODES if code.startswith("QP5")])
def test_pages_of_errors_that_only_python_can_make(code: str, tmp_path: Path) -> None:
    explanation = CODES[code]
    assert explanation.fails and explanation.fixed
    for text in (explanation.fails, explanation.fixed):
        (tmp_path / "shown.py").write_text(text)
        done = subprocess.run(
            [sys.executable, tmp_path / "shown.py"],
            capture_output=True,
            text=True,
            cwd=Path.cwd(),
            env={"PYTHONPATH": str(Path.cwd())},
        )
        assert (f"error[{code}]" in done.stderr) == (text is explanation.fails), done.stderr
        assert (done.returncode == 0) == (text is explanation.fixed)


def test_code_without_a_file_has_line_numbers() -> None:
    lines = ["@qp.program", "def p(q: str) -> str:", "    rows = qp.chat(user=q)", '    return rows.generate("m", n=0)']
    code = "\n".join(["import qpdsl as qp", *lines])
    with pytest.raises(qp.QpError, match=r"<nowhere>:5:1") as caught:
        exec(compile(code, "<nowhere>", "exec"), {"__name__": "nowhere"})
    assert "`n` is at least 1" in str(caught.value)


def test_stages_outside_a_program() -> None:
    with pytest.raises(RuntimeError, match=r"`qp.chat` makes a part of a program"):
        qp.chat(user="hi")
    with pytest.raises(TypeError, match="holds is known only when the program runs"):
        bool(qp.col.finished)


def test_an_error_of_the_functions_own_is_passed_on() -> None:
    with pytest.raises(ZeroDivisionError):

        @qp.program
        def p(q: str) -> str:
            rows = qp.chat(user=q)
            return rows.generate(mistakes.llm, n=1 // 0)


def test_warnings_are_pythons_and_point_at_the_line() -> None:
    with pytest.warns(qp.QpWarning, match="2 samples at temperature 0") as caught:

        @qp.program
        def p(q: str) -> str:
            rows = qp.chat(user=q)
            return rows.generate(mistakes.llm, n=2, temperature=0)

    (warning,) = caught
    assert Path(warning.filename).name == Path(__file__).name
    assert "n=2, temperature=0" in Path(__file__).read_text().splitlines()[warning.lineno - 1]
