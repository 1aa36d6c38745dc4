"""Scorers in whole programs: which rows and which problem they are shown, and rows that are too long for them."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from qpdsl.executor.runtime.instance.functions import PythonFunction
from qpdsl.executor.text.context import encode
from qpdsl.grammar.files import Files
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment, Inputs
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.session import Session
from tests.support.executor.programs import CASES, run_all, texts
from tests.support.planner.runs import assert_same

MODELS = 'model llm = "zoo/counting-mini"\nmodel prm = "zoo/counting-prm"\n'
SCORERS = frozenset({"rank", "overlap"})


def naive(text: str) -> PhysicalPlan:
    environment = Environment(Files(), SCORERS, inputs={"overlap": Inputs(frozenset({"text", "problem", "row"}))})
    return plan(lower(parse_file(Source("p.qp", text)), environment=environment))


def plans(text: str) -> list[PhysicalPlan]:
    """The naive plan, the one that all rules make, and one in which no scores are merged."""
    first = naive(text)
    return [first, optimize(first).plan, optimize(first, ["merge_equal"]).plan]


def test_every_plan_shows_a_verifier_the_problem_that_the_program_says() -> None:
    rows = [{"problem": texts(1)[0]}]
    first, *others = (run_all(each, rows) for each in plans((CASES / "problems.qp").read_text("utf-8")))
    for result in first:
        columns = result.rows[0].columns
        assert result.error is None and columns["score"] == columns["told"] != columns["second"]
    for other in others:
        assert_same(first, other)


BEAM = """
program beam(problem: text) -> text {
  chat user=problem
  repeat 3 {
    generate llm n=4 stop="\\n\\n" temperature=0.9
    score rank
    keep 3 by score
  }
  return text
}
"""


@pytest.mark.parametrize("per_row", [False, True])
def test_a_batched_scorer_is_shown_all_rows_of_every_round_unless_it_says_that_it_compares_none(per_row: bool) -> None:
    shown: list[list[str]] = []

    def rank(texts: Sequence[str]) -> list[float]:
        """The share of the texts that are as long as this one, or shorter."""
        shown.append(list(texts))
        if per_row:
            return [float(len(text)) for text in texts]
        return [sum(len(other) <= len(text) for other in texts) / len(texts) for text in texts]

    scorer = PythonFunction("rank", rank, "batch" if per_row else "all")
    results = []
    for each in plans(MODELS + BEAM):
        shown.clear()
        results.append(run_all(each, [{"problem": texts(1)[0]}], session=Session(functions=(scorer,))))
        sizes = [len(batch) for batch in shown]
        if per_row:
            assert len({text for batch in shown for text in batch}) == sum(sizes)
        else:
            # Rows that have finished pass through `generate` as one row.
            assert len(sizes) == 3 and sizes[0] == 4 and all(size in (3, 6, 9, 12) for size in sizes[1:])
            ranks = [row.columns["score"] for row in results[-1][0].rows]
            assert ranks == sorted(ranks, reverse=True)
    assert_same(results[0], results[1])
    assert_same(results[0], results[2])


LONG = """
program long(problem: text) -> text {
  chat user=problem
  generate llm n=4 temperature=1.5 max_tokens=40 into first
  score prm into before
  chat user="Go on."
  generate llm max_tokens=4
  return text
}
"""


def test_a_candidate_that_is_too_long_fails_no_other() -> None:
    """The longest text is too long for the verifier, and the conversation with it for the model."""
    rows = [{"problem": texts(1)[0]}]
    session = Session()
    (whole,) = run_all(naive(MODELS + LONG), rows, session=session)
    llm, prm = (session._models[f"zoo/{name}"] for name in ("counting-mini", "counting-prm"))
    assert prm.verifier is not None and whole.error is None
    contexts = [len(encode(llm.tokenizer, row.context)) for row in whole.rows if row.context is not None]
    reads = [prm.verifier.reads(texts(1)[0], str(row.columns["first"])) for row in whole.rows]
    lengths = [0 if steps is None else steps.positions[-1] for steps in reads]
    llm.max_positions, prm.max_positions = max(contexts), max(lengths)
    for each in plans(MODELS + LONG):
        (result,) = run_all(each, rows, session=session)
        assert result.error is None and 0 < result.unscored == lengths.count(max(lengths)) < 4
        for before, row, context, length in zip(whole.rows, result.rows, contexts, lengths, strict=True):
            if length == max(lengths):
                assert row.columns["before"] is None
            else:
                assert row.columns["before"] == before.columns["before"]
            if context == max(contexts):
                assert (row.columns["text"], row.columns["finish"], row.columns["finished"]) == ("", "context", True)
            else:
                assert row.columns["text"]
    assert min(contexts) < max(contexts)


def test_a_problem_that_is_too_long_for_the_model_fails_with_its_length() -> None:
    session = Session()
    plan_ = naive(MODELS + "program p(problem: text) -> text {\n chat user=problem\n generate llm\n}")
    (result,) = run_all(plan_, [{"problem": "1 + " * 3000}], session=session)
    assert result.error is not None and "the context has" in result.error
