"""Step scores in the RLHFlow format against a straight transformers computation, and what is computed only once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.events.events import EngineStepped, Event
from qpdsl.executor.runtime.instance.candidates import Candidates, Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance, Services
from qpdsl.executor.runtime.scoring.score import score
from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import Context
from qpdsl.executor.verifiers.rlhflow import RlhflowVerifier
from qpdsl.executor.verifiers.verifier import reduce_scores
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.physical import ScoreStrategy
from qpdsl.session.session import Session
from tests.support.executor.programs import HEADER, compiled
from tests.support.executor.rows import NOWHERE, expr, name

PROBLEM = "Mia has 12 coins. She finds 30 more. How many coins does Mia have?"
STEPS = ["12 + 30 = 42.", "42 - 2 = 40.", "40 * 2 = 80. The answer is 80."]
FOLDER = zoo.path("zoo/counting-prm")


def straight(problem: str, steps: list[str]) -> list[float]:
    """Each step's score by a separate forward over the conversation up to it."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    plus, minus = (tokenizer.encode(sign, add_special_tokens=False)[-1] for sign in "+-")
    scores = []
    for count in range(1, len(steps) + 1):
        messages = []
        for index, step in enumerate(steps[:count]):
            messages.append({"role": "user", "content": f"{problem} {step}" if index == 0 else step})
            messages.append({"role": "assistant", "content": "+"})
        ids = tokenizer.apply_chat_template(messages[:-1], add_generation_prompt=True, return_dict=False)
        with torch.inference_mode():
            logits = model(torch.tensor([ids])).logits[0, -1]
        scores.append(logits[[plus, minus]].softmax(0)[0].item())
    return scores


def loaded() -> Session:
    session = Session()
    session.load(
        compiled(HEADER + "program p(problem: text) -> text {\n chat user=problem\n generate llm\n score prm\n}")
    )
    return session


def scored(
    texts: Sequence[str | Row],
    reduce: ops.Reduce,
    session: Session,
    instance: Instance | None = None,
    given: ast.Expr | None = None,
) -> tuple[Candidates, Instance]:
    """`texts` are rows, or the texts of rows whose first and only user turn is the problem."""
    asked = Context(turns=(("user", PROBLEM),))
    rows = tuple(
        text if isinstance(text, Row) else Row(asked, (index,), {}, Generated(text=text))
        for index, text in enumerate(texts)
    )
    services = Services(
        session._engine,
        {"prm": session._models["zoo/counting-prm"]},
        {"prm": session._models["zoo/counting-prm"].verifier},
        session.events,
    )
    instance = instance or Instance("", services, {}, 0)
    op = ops.StepScore(
        stage=0,
        span=Span(0, 0),
        verifier=ast.ModelRef("prm", False, span=NOWHERE),
        reduce=reduce,
        into=name("score"),
        given=given,
    )

    async def main() -> Candidates:
        async with session.running():
            return await score(op, rows, instance, ScoreStrategy(share=True, cache=True))

    return asyncio.run(main()), instance


def test_scores_are_those_of_a_straight_forward() -> None:
    expected = straight(PROBLEM, STEPS)
    for reduce in ("last", "min", "mean", "prod", "sum"):
        (row,), _ = scored(["\n\n".join(STEPS)], reduce, loaded())
        assert row.columns["score"] == pytest.approx(reduce_scores(expected, reduce), abs=3e-5)


def test_a_text_that_ends_in_a_separator_has_no_extra_empty_step() -> None:
    (cut, whole, empty), _ = scored([STEPS[0] + "\n\n", STEPS[0], "\n\n"], "last", loaded())
    assert cut.columns["score"] == whole.columns["score"]
    assert empty.columns["score"] is None


def test_the_problem_is_the_first_user_turn_or_what_the_program_says() -> None:
    session, text = loaded(), "\n\n".join(STEPS)
    again = (("user", PROBLEM), ("assistant", "I cannot tell."), ("user", "Try again."))
    prompted = Context(prompt=((PROBLEM, False), ("So: ", True), ("x", False), (" Again: ", True)), opening=1)
    contexts = (Context(turns=(("system", "Be brief."), *again)), prompted, Context(turns=(("user", "Try again."),)))
    rows = tuple(Row(context, (), {"asked": PROBLEM}, Generated(text=text)) for context in contexts)
    (expected,), _ = scored([text], "last", session)
    default, _ = scored(rows, "last", session)
    told, _ = scored((*rows, replace(rows[0], columns={"asked": None})), "last", session, given=expr("asked"))
    assert [row.columns["score"] for row in default[:2]] == [expected.columns["score"]] * 2
    assert default[2].columns["score"] != expected.columns["score"]
    assert [row.columns["score"] for row in told] == [expected.columns["score"]] * 3 + [None]


def test_a_text_that_is_too_long_for_the_verifier_has_no_score_and_the_others_have_theirs() -> None:
    session, texts = loaded(), [STEPS[0], "\n\n".join(STEPS)]
    reads = RlhflowVerifier(AutoTokenizer.from_pretrained(FOLDER)).reads(PROBLEM, texts[1])
    assert reads is not None
    for room, unscored in ((reads.positions[-1] + 1, 0), (reads.positions[-1], 1)):
        session._models["zoo/counting-prm"].max_positions = room
        (short, long), instance = scored(texts, "min", session)
        assert short.columns["score"] is not None
        assert (long.columns["score"] is None) == bool(unscored)
        assert instance.usage.counts["unscored"] == unscored


def test_equal_content_is_scored_once_and_a_step_more_costs_a_step() -> None:
    session = loaded()
    reports: list[StepReport] = []

    def keep(event: Event) -> None:
        if isinstance(event, EngineStepped):
            reports.append(event.report)

    session.events.subscribe(keep)
    two = "\n\n".join(STEPS[:2])
    rows, instance = scored([two] * 8, "last", session)
    assert len({row.columns["score"] for row in rows}) == 1
    first = sum(report.prefill_tokens + report.decode_tokens for report in reports)
    assert instance.usage.prompt_tokens == first

    reports.clear()
    tokens = RlhflowVerifier(AutoTokenizer.from_pretrained(FOLDER)).reads(PROBLEM, "\n\n".join(STEPS))
    assert tokens is not None
    scored(["\n\n".join(STEPS), two], "last", session, instance)
    again = sum(report.prefill_tokens + report.decode_tokens for report in reports)
    # Of the longer text only what follows the last score read is computed, of the old text nothing.
    assert again == tokens.positions[2] - tokens.positions[1]


@pytest.mark.parametrize(
    ("how", "value"), [("last", 0.5), ("min", 0.2), ("mean", 0.53333), ("prod", 0.09), ("sum", 1.6)]
)
def test_reductions(how: str, value: float) -> None:
    assert reduce_scores([0.9, 0.2, 0.5], how) == value


def test_a_tokenizer_without_the_signs_is_no_verifier() -> None:
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    tokenizer.chat_template = None
    verifier = RlhflowVerifier(tokenizer)
    with pytest.raises(ContextError, match="no chat template"):
        verifier.reads("a", "b")
