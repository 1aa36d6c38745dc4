"""A judge is asked once for each text, greedily and in a separate chat; its answer is a number of the scale."""

from __future__ import annotations

import asyncio

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.runtime.instance.candidates import Candidates, Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Services
from qpdsl.executor.runtime.scoring.judge import judge
from qpdsl.executor.text.context import Context
from qpdsl.grammar import ast
from qpdsl.planner.plan import ops
from qpdsl.session.session import Session
from tests.support.executor.programs import HEADER, compiled, texts
from tests.support.executor.rows import NOWHERE, expr, name

FOLDER = zoo.path("zoo/counting")
RUBRIC = ast.Template(("Mark it, ", ast.Name("who", span=NOWHERE), ": "), span=NOWHERE)


SCALE = (2, 5)


def answer(problem: str, text: str) -> float:
    """The number of the scale that transformers gives the highest logit to, as the answer to the same turn."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    turn = f"{problem}\n\n{text}\n\nMark it, Ann: \n\nAnswer with one whole number from 2 to 5."
    messages = [{"role": "user", "content": turn}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt])).logits[0, -1]
    marks = {id: tokenizer.decode([id]) for id in range(len(logits)) if tokenizer.decode([id]) in "2345"}
    return float(marks[max((id for id in marks if marks[id]), key=lambda id: float(logits[id]))])


def judged(
    instance: Instance,
    session: Session,
    *answers: str,
    scale: tuple[int, int] = SCALE,
    given: ast.Expr | None = None,
) -> Candidates:
    low, high = scale
    op = ops.Judge(
        stage=0,
        span=NOWHERE,
        model=ast.ModelRef("llm", False, span=NOWHERE),
        rubric=RUBRIC,
        reduce="answer",
        into=name("mark"),
        low=low,
        high=high,
        given=given,
    )
    context = Context(turns=(("user", texts(1)[0]),))
    rows = tuple(Row(context, (index,), {"who": "Ann"}, Generated(text=text)) for index, text in enumerate(answers))

    async def main() -> Candidates:
        async with session.running():
            return await judge(op, rows, instance)

    return asyncio.run(main())


def loaded() -> tuple[Session, Instance]:
    session = Session()
    session.load(compiled(HEADER + "program p(problem: text) -> text {\n chat user=problem\n generate llm\n}"))
    services = Services(session._engine, {"llm": session._models["zoo/counting"]}, {}, session.events)
    return session, Instance("", services, {}, 0)


def test_the_score_is_the_likeliest_number_of_the_scale() -> None:
    session, instance = loaded()
    answers = ("4 * 54 = 216.", "The answer is 12.", "no idea")
    marks = [row.columns["mark"] for row in judged(instance, session, *answers)]
    assert marks == [answer(texts(1)[0], text) for text in answers]


@pytest.mark.parametrize("scale", [(0, 1), (-12, -9), (98, 245)])
def test_no_answer_lies_outside_the_scale(scale: tuple[int, int]) -> None:
    session, instance = loaded()
    for row in judged(instance, session, "", "245", "The answer is 1.", scale=scale):
        mark = row.columns["mark"]
        assert isinstance(mark, float) and mark in range(scale[0], scale[1] + 1)


def test_the_judge_is_shown_the_problem_that_the_program_says() -> None:
    session, instance = loaded()
    judged(instance, session, "one", given=expr('"{who}?"'))
    ((*_, question),) = instance.judged
    assert question.startswith("Ann?\n\none\n\n")
    nobody = judged(instance, session, "one", given=expr("nobody"))
    assert nobody[0].columns["mark"] is None and not instance.usage.counts["unscored"]


def test_what_is_too_long_for_the_judge_has_no_score() -> None:
    session, instance = loaded()
    model = session._models["zoo/counting"]
    model.max_positions = 160
    short, long = judged(instance, session, "one", "1 + 1 = 2. " * 40)
    assert short.columns["mark"] is not None and long.columns["mark"] is None
    assert instance.usage.counts["unscored"] == 1


def test_equal_content_is_judged_once() -> None:
    session, instance = loaded()
    first = judged(instance, session, "one", "two", "one")
    spent = instance.usage.prompt_tokens
    assert first[0].columns["mark"] == first[2].columns["mark"]
    assert judged(instance, session, "two", "one")[0].columns["mark"] == first[1].columns["mark"]
    assert instance.usage.prompt_tokens == spent


def test_a_model_without_a_chat_template_is_no_judge() -> None:
    session, instance = loaded()
    session._models["zoo/counting"].tokenizer.chat_template = None
    with pytest.raises(RowError, match="judge `llm`: its tokenizer has no chat template"):
        judged(instance, session, "one")
