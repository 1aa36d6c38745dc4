"""What a stage asks of thoughts and its model does not have is an error before anything runs, with the caret there."""

from __future__ import annotations

from pathlib import Path

import pytest

import qpdsl as qp
from qpdsl import zoo
from qpdsl.cli.exits import Exit
from qpdsl.grammar.diagnostic import QpError
from tests.qpdsl.cli.test_models_thinking import tokenizer
from tests.support.cli import Run

PROGRAM = """\
model llm = "zoo/counting-thinker"
model old = "zoo/counting"

program p(problem: text, how: text = "deep", end: text = "<|end|>") -> text {{
  chat user=problem
  {stage}
}}
"""
NO_THOUGHT = ("QP404", "no thought", "`old` is not known to think before it answers")
UNKNOWN = ("QP404", "unknown effort", "does not know the effort `deep`")
NEVER = ("QP405", "never matches", "is a special token of `llm`")


@pytest.fixture
def program(tmp_path: Path) -> Path:
    return tmp_path / "p.qp"


@pytest.mark.parametrize(
    ("stage", "place", "said"),
    [
        ("generate old think=32", "32", NO_THOUGHT),
        ("generate old think=off", "off", NO_THOUGHT),
        ("generate old only=thought max_tokens=4", "generate", NO_THOUGHT),
        ("peek { generate llm think=how }", "how", UNKNOWN),
        ('generate llm stop="</think>"', '"</think>"', NEVER),
        ('generate llm stop=["\\n\\n", "</think>\\n\\n"]', '"</think>\\n\\n"', NEVER),
        ("generate llm stop=end", "end", NEVER),
        ("generate llm stop=/<\\/think>/", "/<\\/think>/", NEVER),
        ('generate llm stop=["é", /(<)[|]end\\|>\\n/]', "/(<)[|]end\\|>\\n/", NEVER),
    ],
)
def test_refused_at_load(qpdsl: Run, program: Path, stage: str, place: str, said: tuple[str, str, str]) -> None:
    text = PROGRAM.format(stage=stage)
    program.write_text(text)
    done = qpdsl("run", program, "--set", "problem=Hi")
    code, label, message = said
    assert done.code == Exit.USAGE and done.out == "" and done.err.count("error[") == 1
    assert f"error[{code}]" in done.err and message in done.err
    column = f"  {stage}".index(place, len("  generate")) if place != "generate" else 2
    assert f"{program}:6:{column + 1}\n" in done.err
    assert f"{' ' * column}{'^' * len(place)} {label}\n" in done.err


def test_check_finds_the_same_without_weights(qpdsl: Run, program: Path, tmp_path: Path) -> None:
    program.write_text(PROGRAM.format(stage='generate llm think="deep" stop="</think>"'))
    assert qpdsl("check", program).code == Exit.OK
    for model, codes in (("zoo/counting", ["QP404"]), ("zoo/counting-thinker", ["QP404", "QP405"])):
        done = qpdsl("check", program, "--model", f"llm={model}")
        assert done.code == Exit.USAGE
        assert [code for code in ("QP404", "QP405") if code in done.err] == codes
    efforts = qpdsl("check", program, "--model", f"llm={tokenizer(tmp_path / 'efforts', 'channels')}")
    assert efforts.code == Exit.USAGE and '`"low"`' in efforts.err
    assert qpdsl("check", program, "--model", "other=zoo/counting").code == Exit.USAGE
    assert qpdsl("check", program, "--model", "llm=zoo/nowhere").code == Exit.MODEL


def test_what_the_model_knows_is_taken(qpdsl: Run, program: Path) -> None:
    stages = ["generate llm think=8 max_tokens=4", 'generate old stop="</think>" max_tokens=4']
    # These match more than the text of a special token.
    stages += [f"generate llm stop=/{regex}/ max_tokens=4" for regex in ("<?\\/think>", "<\\/think>|é")]
    for stage in stages:
        program.write_text(PROGRAM.format(stage=stage))
        assert qpdsl("run", program, "--set", "problem=Hi").code == Exit.OK
    program.write_text(PROGRAM.format(stage="generate old think=4 max_tokens=4"))
    marked = f'old={zoo.path("zoo/counting")} think="<think>|</think>"'
    assert qpdsl("check", program, "--model", marked).code == Exit.OK


def test_a_called_program_is_refused_where_it_is_called(qpdsl: Run, program: Path) -> None:
    (program.parent / "lib.qp").write_text(PROGRAM.format(stage="generate old think=3"))
    called = 'use "lib.qp" as lib\n\nprogram q(problem: text) -> text {\n  call lib.p(problem) into a\n  return a\n}\n'
    program.write_text(called)
    done = qpdsl("run", program, "--set", "problem=Hi")
    assert done.code == Exit.USAGE and f"{program}:4:3\n" in done.err


BUDGETED = """\
model llm = "zoo/counting"

program p(problem: text) -> text within budget(thought_tokens=1000) {
  chat user=problem
  generate llm n=auto(2, 4) max_tokens=4
  best by logprob
}
"""


def test_a_budget_of_thoughts_that_no_model_has(qpdsl: Run, program: Path, tmp_path: Path) -> None:
    program.write_text(BUDGETED)
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "é"}\n' * 40)
    for command in (("run", "--set", "problem=Hi"), ("run", "--input", rows), ("check", "--model", "llm=zoo/counting")):
        done = qpdsl(command[0], program, *command[1:])
        assert done.code == Exit.USAGE and done.out == ""
        assert "error[QP404]" in done.err and f"{program}:3:41\n" in done.err and "`llm` is not known" in done.err
    assert qpdsl("check", program, "--model", "llm=zoo/counting-thinker").code == Exit.OK
    assert qpdsl("run", program, "--set", "problem=Hi", "--budget", "tokens=500").code == Exit.OK
    program.write_text(BUDGETED.replace("zoo/counting", "zoo/counting-thinker").replace("thought_tokens", "tokens"))
    assert qpdsl("run", program, "--set", "problem=Hi", "--budget", "thought_tokens=9").code == Exit.OK
    program.write_text(BUDGETED.replace("thought_tokens", "tokens"))
    done = qpdsl("run", program, "--set", "problem=Hi", "--budget", "thought_tokens=9")
    assert done.code == Exit.USAGE and "`--budget`: a budget of `thought_tokens` counts thoughts" in done.err


def test_a_row_may_say_none(qpdsl: Run, program: Path, tmp_path: Path) -> None:
    program.write_text(PROGRAM.format(stage="let budget = if(len(problem) > 2, 4, none) | generate old think=budget"))
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "Hi"}\n{"problem": "Hello"}\n')
    done = qpdsl("run", program, "--input", rows)
    assert done.code == Exit.ROW_FAILED
    errors = [record.get("error") for record in done.records]
    assert errors[0] is None and "is not known to think before it answers" in str(errors[1])


def test_composed_programs_point_into_python() -> None:
    @qp.program
    def thinks(problem: str) -> str:
        return qp.chat(user=problem).generate("zoo/counting-thinker", stop="</think>")

    with pytest.raises(QpError, match="QP405") as caught:
        thinks("Hi")
    assert "return qp.chat" in str(caught.value)
