"""How sure the model was of a text: scores of its draws, the same in every plan; they change no token."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.runtime.scoring.score import group_means
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import GenerateStrategy, everything
from tests.support.executor.programs import HEADER, compiled, run_all, texts

SCORES = """ score entropy into e
 score certainty into sure
 score confidence(window=4) into low
 score confidence(window=4) reduce=last into tail
 score confidence reduce=mean into whole
 score logprob reduce=min into least
 score logprob reduce=mean into usual
"""
NAMES = ("e", "sure", "low", "tail", "whole", "least", "usual")
WRITING = {
    "free": " generate llm n=3 temperature=1.0\n",
    "filters": " generate llm n=2 temperature=1.2 top_p=0.8\n",
    "steps": ' repeat 3 {\n generate llm n=2 stop="\\n\\n" temperature=1.0\n keep 2 by tokens\n }\n',
    "drafts": " generate llm n=2 temperature=1.0 draft ngram(tokens=4)\n",
    "masks": " generate llm as /-?\\d{1,6}(\\.\\d+)? units/ temperature=1.0\n",
}


@pytest.mark.parametrize("name", WRITING)
def test_they_are_the_same_in_every_plan_and_change_no_token(name: str) -> None:
    head = f"{HEADER}program p(problem: text) -> text {{\n chat user=problem\n{WRITING[name]}"
    given = [{"problem": text} for text in texts(2)]
    plan = compiled(f"{head}{SCORES} return text\n}}")
    naive = run_all(plan, given)
    assert all(result.error is None for result in naive)
    ruled = run_all(optimize(plan).plan, given)
    untold = run_all(compiled(f"{head} return text\n}}"), given)
    for one, two, three in zip(naive, ruled, untold, strict=True):
        assert [[row.columns[name] for name in NAMES] for row in one.rows] == [
            [row.columns[name] for name in NAMES] for row in two.rows
        ]
        assert [row.generated.tokens for row in one.rows] == [row.generated.tokens for row in two.rows]
        assert [row.generated.tokens for row in one.rows] == [row.generated.tokens for row in three.rows]
        for row in one.rows:
            columns = row.columns
            assert columns["e"] >= 0 and columns["sure"] >= 0
            assert columns["low"] <= columns["tail"] and columns["least"] <= columns["usual"] <= 0


def test_a_group_is_a_run_of_tokens() -> None:
    assert group_means([1.0, 2.0, 6.0, 4.0], 2) == [1.5, 4.0, 5.0]
    assert group_means([1.0, 2.0, 6.0], 256) == [3.0]


def test_nothing_is_told_of_draws_that_nobody_reads() -> None:
    head = f"{HEADER}program p(problem: text) -> text {{\n chat user=problem\n generate llm n=2\n"
    for stages, told in ((" score entropy into e\n best by e\n", True), (" score entropy into e\n", False)):
        plan = optimize(replace(compiled(f"{head}{stages} return text\n}}"), reads=())).plan
        drawn = [node.strategy for node in everything(plan.ops) if isinstance(node.op, ops.Generate)]
        assert [strategy.figures for strategy in drawn if isinstance(strategy, GenerateStrategy)] == [told]


def test_a_text_without_figures_has_no_score() -> None:
    arms = ' branch { { generate llm as choice("yes", "no") } { generate llm max_tokens=5 } }\n score entropy into e\n'
    plan = compiled(f"{HEADER}program p(problem: text) -> text {{\n chat user=problem\n{arms} return text\n}}")
    (result,) = run_all(plan, [{"problem": "Yes or no?"}])
    chosen, written = (row.columns["e"] for row in result.rows)
    assert chosen is None and written is not None


THINKER = 'model llm = "zoo/counting-thinker"\n'
PARTS = " score {0} into whole\n score {0} of thought into thinking\n score {0} of text into answering\n"
TURNS = {
    "one call": " generate llm n=2 think=24 temperature=1.0\n",
    "three calls": " generate llm n=2 only=thought max_tokens=12 temperature=1.0\n"
    " generate llm only=thought max_tokens=12 temperature=1.0\n generate llm only=answer temperature=1.0\n",
    "held": " generate llm n=2 think=24 as /The answer is \\d+\\./ temperature=1.0\n",
    "thought alone": " generate llm n=2 only=thought max_tokens=12\n",
    "no thought": " generate llm n=2 think=off\n",
}


@pytest.mark.parametrize("name", TURNS)
def test_those_of_a_thought_and_of_its_answer(name: str) -> None:
    given = [{"problem": text} for text in texts(2)]
    for score in ("entropy", "confidence(window=5) reduce=min"):
        head = f"{THINKER}program p(problem: text) -> text {{\n chat user=problem\n{TURNS[name]}"
        plan = compiled(f"{head}{PARTS.format(score)} return text\n}}")
        naive, ruled = run_all(plan, given), run_all(optimize(plan).plan, given)
        columns = ("whole", "thinking", "answering", "text", "thought")
        rows = [row for result in naive for row in result.rows]
        assert [[row.columns[name] for name in columns] for row in rows] == [
            [row.columns[name] for name in columns] for result in ruled for row in result.rows
        ]
        for row in rows:
            generated, thought = row.generated, row.generated.thought
            assert generated.figures is not None and len(thought.figures) == thought.tokens
            assert (row.columns["thinking"] is None) == (name == "no thought")
            assert (row.columns["answering"] is None) == (name == "thought alone")
            if score == "entropy":
                parts = [*thought.figures, *generated.figures[thought.before :]]
                # What closes the thought, where it was forced, was not open.
                assert sum(figures.entropy for figures in generated.figures) >= sum(
                    figures.entropy for figures in parts
                )
