"""`--draft`: settings in the words of the clause, what they do to a program, and those that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest

import qpdsl as qp
from qpdsl.errors import UsageError
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.logical import operators
from qpdsl.planner.plan.physical import GenerateStrategy, everything
from qpdsl.session.programs import load_program
from qpdsl.session.surroundings import read_surroundings

PROGRAM = """model llm = "zoo/counting"
model slm = "zoo/counting-mini"
program p(problem: text) -> text draft slm {
  chat user=problem
  generate llm stop="." draft early_exit
  generate llm
  chat user="Another." | generate slm
}
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "p.qp"
    path.write_text(PROGRAM, "utf-8")
    return path


def drafts(program: Path, *settings: str) -> list[ops.Draft | None]:
    """Of the stages that generate, in order."""
    plan = load_program(str(program), None, None, read_surroundings(drafts=settings)).plan
    return [op.draft for op in operators(plan) if isinstance(op, ops.Generate)]


def test_a_stage_goes_before_its_program_and_the_user_before_both(program: Path) -> None:
    small = ops.Draft("model", "slm")
    assert drafts(program) == [ops.Draft("early_exit"), small, None]
    assert drafts(program, "ngram") == [ops.Draft("ngram")] * 3
    assert drafts(program, "none") == [ops.Draft("none")] * 3
    assert drafts(program, "llm=ngram") == [ops.Draft("ngram")] * 2 + [None]
    assert drafts(program, "llm=slm", "ngram") == [small, small, ops.Draft("ngram")]


def test_ids_and_paths_stand_without_quotes(program: Path, tmp_path: Path) -> None:
    texts = tmp_path / "some texts.txt"
    texts.write_text("a b a b", "utf-8")
    (first, *_) = drafts(program, "llm=zoo/counting-mini(tokens=3)")
    assert first is not None and (first.method, first.model, first.tokens) == ("model", "zoo/counting-mini", 3)
    for setting in (f"ngram({texts}, tokens=3)", f'ngram("{texts}", tokens=3)'):
        (first, *_) = drafts(program, setting)
        assert first == ops.Draft("ngram", None, "a b a b", 3)
    (first, *_) = drafts(program, "eagle(./head)")
    assert first is not None and (first.method, first.model) == ("eagle", "./head")
    (first, *_) = drafts(program, "slm(branches=2)")
    assert first is not None and (first.tokens, first.branches) == (3, 2)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (("=ngram",), "takes DRAFT or NAME=DRAFT"),
        (("ngram", "slm"), "says twice what drafts for all models"),
        (("lm=ngram",), "did you mean `llm`"),
        (("ngram(tokens=99)",), "between 1 and 63"),
        (("slm(tokens=9, branches=4)",), "at most 63 tokens"),
        (("slm(token=3)",), "no option `token`"),
        (("eagle",), "needs the folder"),
        (("ngram(no/such/file.txt)",), "no such file"),
        (("slm=slm",), "no stage of `p` that generates with `slm` can draft so"),
    ],
)
def test_what_is_refused(program: Path, settings: tuple[str, ...], why: str) -> None:
    with pytest.raises(UsageError, match=why):
        drafts(program, *settings)


def test_a_program_without_a_place_for_drafts_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "p.qp"
    path.write_text('program p(q: text) -> text {\n  chat user=q\n  generate "zoo/counting" as choice("a", "b")\n}\n')
    assert drafts(path) == [None]
    with pytest.raises(UsageError, match="no stage of `p` that generates can draft so"):
        drafts(path, "ngram")


def test_in_python(program: Path) -> None:
    asked = qp.load(program, draft="llm=ngram(tokens=5)").logical.plan
    found = [op.draft for op in operators(asked) if isinstance(op, ops.Generate)]
    assert found == [ops.Draft("ngram", tokens=5)] * 2 + [None]
    with pytest.raises(qp.UsageError, match="no option `token`"):
        qp.load(program, draft="slm(token=3)")

    llm, slm = qp.model("zoo/counting"), qp.model("zoo/counting-mini")

    @qp.program(draft=qp.draft(slm, tokens=4))
    def drafted(q: str) -> None:
        rows = qp.chat(user=q)
        rows.generate(llm, stop="1")
        rows.generate(llm, stop="2", draft=qp.ngram(tokens=3, branches=2))
        rows.generate(llm, stop="3", draft=False)
        rows.generate(llm, stop="4", draft=qp.early_exit())
        rows.generate(llm, draft="zoo/counting-mini")

    lines = [line.strip() for line in str(drafted).splitlines() if "draft" in line]
    assert lines == [
        "program drafted(q: text) draft slm(tokens=4) {",
        'generate llm stop="2" draft ngram(tokens=3, branches=2)',
        'generate llm stop="3" draft none',
        'generate llm stop="4" draft early_exit',
        'generate llm draft "zoo/counting-mini"',
    ]
    with pytest.raises(qp.QpError, match="`tokens` of a draft is a whole number"):

        @qp.program
        def wrong(q: str) -> None:
            qp.chat(user=q).generate(llm, draft=qp.ngram(tokens=0))


def test_the_plan_drafts_as_the_program_says() -> None:
    plan = qp.parse(PROGRAM).plan
    strategies = [node.strategy for node in everything(plan.physical.ops)]
    ways = [strategy.decode.draft for strategy in strategies if isinstance(strategy, GenerateStrategy)]
    assert ways == ["early_exit", "model", "none"]
