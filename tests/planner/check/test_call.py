"""`call`: the stages of another program in its place; and the models of used files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.grammar.diagnostic import QpError
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.grammar.words import COLUMNS
from qpdsl.planner.check.program import lower
from qpdsl.planner.explain.plan import describe
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import LogicalPlan
from tests.support.planner.lowered import chain, name, program_of

FILE = """
model llm = "a"
program main(problem: text, wide: int = 3) -> text {
  chat system="Be brief."
  %s
  vote answer
}
program solve(question: text, n: int = 2, tail: text = "!") -> text {
  chat user="{question}{tail}"
  repeat 2 until all(finished) { generate llm n=n * 2 stop="x" }
  extract answer = /a/
  return answer
}
"""


def described(plan: LogicalPlan) -> list[tuple[int, str, list[str]]]:
    """Every operator, those of bodies too, with its stage and columns."""
    found = []
    for node in plan:
        found.append((node.op.stage, describe(node.op, {}), list(node.columns)))
        if isinstance(node.op, ops.Repeat):
            found += described(node.inside[0])
    return found


@pytest.mark.parametrize(
    ("call", "pasted"),
    [
        (
            "call solve(problem, wide)",
            'chat user="{problem}!" | repeat 2 until all(finished) { generate llm n=wide * 2 stop="x" }'
            " | extract answer = /a/",
        ),
        (
            'call solve(tail=" {wide}?", question="Q: {problem}")',
            'chat user="Q: {problem} {wide}?" | repeat 2 until all(finished) { generate llm n=2 * 2 stop="x" }'
            " | extract answer = /a/",
        ),
    ],
)
def test_a_call_is_the_stages_in_its_place(call: str, pasted: str) -> None:
    """Numbers of stages included, so that samples are the same."""
    called, written = (program_of(FILE % text, "main") for text in (call, pasted))
    assert described(called.plan) == described(written.plan)
    assert (called.models, called.returns) == (written.models, written.returns)


def test_the_result_of_a_call() -> None:
    """Its stages stand inside, and leave no column but its own."""
    program = program_of(FILE % "call solve(problem) into answer", "main")
    node = program.plan[-3]
    call = node.op
    assert isinstance(call, ops.Call)
    assert (call.program, call.into, call.value, call.stage) == ("solve", name("answer"), name("answer"), 1)
    assert [stage for stage, _, _ in described(node.inside[0])] == [2, 3, 4, 5]
    assert list(node.columns) == [*COLUMNS, "answer"]


def test_a_call_needs_no_conversation_before_it() -> None:
    text = FILE.replace('chat system="Be brief."', "call solve(problem) into answer") % "chat user=answer"
    assert [type(op) for op in chain(program_of(text, "main"))][:2] == [ops.Call, ops.Chat]
    with pytest.raises(QpError, match="no stage starts a context") as error:
        program_of('program p() { call q() into x }\nprogram q() { chat user="a" | generate "m" }', "p")
    assert [found.code for found in error.value.diagnostics] == ["QP215"]


def test_models_of_used_files_keep_their_ids(tmp_path: Path) -> None:
    lib = 'model llm = "a"\nuse "deep.qp"\nprogram p(q: text) { chat user=q | call d() }'
    (tmp_path / "lib.qp").write_text(lib)
    (tmp_path / "deep.qp").write_text('model slm = "b"\nprogram d() { chat user="x" | generate slm }')
    text = 'model slm = "c"\nuse "lib.qp"\nprogram main(q: text) { call p(q) | chat user=q | generate slm }'
    main, environment = parse_file(Source("main.qp", text)), Environment(Files(tmp_path))
    assert lower(main, environment=environment).models == {"b": "b", "slm": "c"}
    replaced = replace(environment, models={"slm": "d"})
    assert lower(main, environment=replaced).models == {"slm": "d"}
