"""`qp.load` and `qp.parse`: whole files, and stages alone as `-e` takes them, give the same object."""

from __future__ import annotations

import inspect
import warnings
from pathlib import Path

import pytest

import qpdsl as qp
from tests.qpdsl.api.test_plans import shape

STAGES = """# Comments may stand first.
chat user=question | generate llm n=n temperature=0.8 max_tokens=8
best by len(text)
"""
WHOLE = """model llm = "zoo/counting"

program main(question: text, n: int) {
  chat user=question
  generate llm n=n temperature=0.8 max_tokens=8
  best by len(text)
}
"""


def test_stages_alone_are_a_program(problem: str) -> None:
    stages, whole = qp.parse(STAGES), qp.parse(WHOLE)
    assert shape(stages.logical) == shape(whole.logical)
    assert stages.run(problem, n=2).rows == whole.run(problem, 2).rows
    assert repr(stages) == "<program main(question: text, n: int) -> text>"


def test_stages_alone_print_as_the_program_that_they_are() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert str(qp.parse(STAGES)) == WHOLE == str(qp.parse(WHOLE))
        assert str(qp.parse('chat user=q | generate "zoo/counting"')).startswith("program main(q: text) {")


def test_another_program_can_call_stages_alone() -> None:
    stages = qp.parse(STAGES)

    @qp.program
    def asking(topic: str) -> str:
        rows = qp.chat(user=f"What is {topic}?")
        return rows.call_into("answer", stages, topic, n=2)

    assert list(asking.logical.models) == ["llm"]
    assert "model prm" not in str(asking)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("chta user=q | generate llm", "unknown stage `chta`"),
        ("chat user=q | generate none_such", "unknown model `none_such`"),
        ('porgram p() { prompt "x" }', "unknown declaration `porgram`"),
        ("hello there", "unknown declaration `hello`"),
        ("", "no program in this file"),
        ('prompt "x" | generate llm as grammar("a.lark")', "has no folder to read from"),
    ],
)
def test_what_a_text_was_meant_for_is_told_by_its_first_word(text: str, message: str) -> None:
    with pytest.raises(qp.QpError, match=message):
        qp.parse(text)


def test_stages_alone_read_in_the_folder_they_are_given(tmp_path: Path) -> None:
    (tmp_path / "a.lark").write_text("start: /a/\n")
    text = 'prompt "x" | generate llm as grammar("a.lark")'
    assert qp.parse(text, folder=tmp_path).name == "main"


def test_the_signature_is_the_programs_own() -> None:
    program = qp.parse(
        """schema Note { said: text }
        program p(q: text, k: int(1..4) = 2, how: choice("a", "b") = "a", xs: [Note] = [], llm: model) -> [text]? {
          chat user="{q} {how} {xs}" | generate llm n=k | return list(text)
        }"""
    )
    expected = (
        "(q: str, k: int = 2, how: Literal['a', 'b'] = 'a', xs: list[dict[str, typing.Any]] = [], *, llm: str, "
        "seed: int = 0) -> list[str] | None"
    )
    assert str(inspect.signature(program)).replace("typing.Literal", "Literal") == expected
    assert list(
        inspect.signature(qp.parse("program p(seed: text) -> text { let x = seed | return x }")).parameters
    ) == ["seed"]
