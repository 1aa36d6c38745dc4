"""A judge is asked once for each text, greedily and in a separate chat; the first number in its answer is the score."""

from __future__ import annotations

import asyncio
import re

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.runtime.instance.candidates import Candidates, Generated, Row
from qpdsl.executor.runtime.instance.instance import Instance, RowError, Services
from qpdsl.executor.runtime.operators.judge import judge
from qpdsl.executor.text.context import Context
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.planner.plan import ops
from qpdsl.session import Session
from tests.support.executor.programs import HEADER, compiled, texts

FOLDER = zoo.path("zoo/counting")
NOWHERE = Span(0, 0)
RUBRIC = ast.Template(("Mark it, ", ast.Name("who", span=NOWHERE), ": "), span=NOWHERE)


def answer(problem: str, text: str) -> float | None:
    """The first number that transformers' own greedy decoding answers to the same turn."""
    tokenizer = AutoTokenizer.from_pretrained(FOLDER)
    model = AutoModelForCausalLM.from_pretrained(FOLDER, dtype=torch.float32).eval()
    turn = f"{problem}\n\n{text}\n\nMark it, Ann: \n\nAnswer with one number."
    messages = [{"role": "user", "content": turn}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    out = model.generate(torch.tensor([prompt]), max_new_tokens=16, do_sample=False)
    match = re.search(r"-?\d+(\.\d+)?", tokenizer.decode(out[0, len(prompt) :], skip_special_tokens=True))
    return None if match is None else float(match.group())


def judged(instance: Instance, session: Session, *answers: str) -> Candidates:
    op = ops.Judge(stage=0, span=NOWHERE, model="llm", rubric=RUBRIC, into="mark")
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
    return session, Instance("", services, {}, 0, b"")


def test_the_score_is_the_first_number_of_the_answer() -> None:
    session, instance = loaded()
    answers = ("4 * 54 = 216.", "The answer is 12.", "no idea")
    marks = [row.columns["mark"] for row in judged(instance, session, *answers)]
    assert marks == [answer(texts(1)[0], text) for text in answers]
    assert any(mark is not None for mark in marks)


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
