"""What a model is asked about rows: expected marks, probabilities of answers, tournaments, and texts that are named."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from functools import cache

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan as naive
from qpdsl.planner.values.value import Value
from qpdsl.session.session import Session
from tests.support.executor.programs import HEADER, run_all, texts
from tests.support.planner.lowered import program_of
from tests.support.planner.runs import assert_same

FOLDER = zoo.path("zoo/counting")


@cache
def reference() -> tuple[AutoTokenizer, torch.nn.Module]:
    return AutoTokenizer.from_pretrained(FOLDER), AutoModelForCausalLM.from_pretrained(
        FOLDER, dtype=torch.float32
    ).eval()


def logprobs(question: str, answers: Sequence[str]) -> list[float]:
    """Of each answer and the end after it, by plain forwards of transformers."""
    tokenizer, model = reference()
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": question}], add_generation_prompt=True, return_dict=False
    )
    found = []
    for answer in answers:
        ids = [*tokenizer.encode(answer, add_special_tokens=False), tokenizer.eos_token_id]
        with torch.inference_mode():
            logits = model(torch.tensor([[*prompt, *ids]])).logits[0, len(prompt) - 1 : -1]
        found.append(float(logits.double().log_softmax(-1).gather(1, torch.tensor(ids)[:, None]).sum()))
    return found


def shares(question: str, answers: Sequence[str]) -> list[float]:
    return torch.tensor(logprobs(question, answers), dtype=torch.float64).softmax(0).tolist()


def run(text: str, session: Session | None = None, **values: Value) -> InstanceResult:
    (result,) = run_all(naive(program_of(HEADER + text)), [values], session=session or Session())
    assert result.error is None
    return result


GIVEN = """
program p(problem: text, solution: text, reference: text, none_: text?) -> float {
  score judge(llm, "{problem} {solution} {reference}?") as int(1..5) reduce=expected into mean
  score judge(llm, "{problem} {solution} {reference}?") as int(1..5) into mark
  score judge(llm, "Rate it.", 1..5) reduce=expected of solution given problem into rated
  score prob(llm, "{problem} {solution}?", "Yes", "No", "{reference}") into among
  score prob(llm, "{problem} {solution}?", "{reference}") into alone
  score prm of solution given problem into steps
  score prm of none_ given problem into nothing
  return mean
}
"""


def test_a_model_is_asked_about_texts_that_no_model_wrote() -> None:
    values = {"problem": texts(1)[0], "solution": "3 * 4 = 12.\n\nThe answer is 12.", "reference": "12"}
    result = run(GIVEN, **values, none_=None)
    columns, problem, solution = result.rows[0].columns, values["problem"], values["solution"]
    marks = [str(mark) for mark in range(1, 6)]
    chances = shares(f"{problem} {solution} 12?", marks)
    assert columns["mean"] == pytest.approx(sum(int(m) * c for m, c in zip(marks, chances, strict=True)), abs=2e-5)
    assert columns["mark"] == float(max(zip(chances, marks, strict=True))[1])
    rated = shares(f"{problem}\n\n{solution}\n\nRate it.\n\nAnswer with one whole number from 1 to 5.", marks)
    assert columns["rated"] == pytest.approx(sum(int(m) * c for m, c in zip(marks, rated, strict=True)), abs=2e-5)
    question = f"{problem} {solution}?"
    assert columns["among"] == pytest.approx(shares(question, ("Yes", "No", "12"))[0], abs=2e-5)
    assert columns["alone"] == pytest.approx(math.exp(logprobs(question, ("12",))[0]), abs=2e-5)
    # The same as where the model had written the text itself.
    written = (
        "program p(q: text) -> float { chat user=q | generate llm as choice(SOLUTION) | score prm | return score }"
    )
    assert columns["steps"] == run(written.replace("SOLUTION", json.dumps(solution)), q=problem).value
    assert columns["nothing"] is None


TOURNAMENT = """
program p(problem: text, both: bool = true) -> text {
  chat user=problem
  split 2
  generate llm n=3 temperature=1.5 max_tokens=12
  peek { score logprob into x }
  best by compare(llm, "{problem} Which is better? A: {a.text} B: {b.text}"BOTH)PER
}
"""


def chance_of(problem: str, a: str, b: str, both: bool) -> float:
    """The chance of the first text to win against the second."""
    ask = f"{problem} Which is better? A: {{}} B: {{}}".format
    chance = shares(ask(a, b), "AB")[0]
    return (chance + shares(ask(b, a), "AB")[1]) / 2 if both else chance


def knockout(problem: str, rows: list[str], both: bool) -> str:
    """A tournament, match by match."""
    while len(rows) > 1:
        bye, rest = rows[: len(rows) % 2], rows[len(rows) % 2 :]
        winners = []
        for a, b in zip(rest[::2], rest[1::2], strict=True):
            chance = chance_of(problem, a, b, both)
            assert a == b or abs(chance - 0.5) > 1e-4
            winners.append(a if a == b or chance > 0.5 else b)
        rows = bye + winners
    return rows[0]


@pytest.mark.parametrize("both", [True, False])
@pytest.mark.parametrize("per", [True, False])
def test_a_tournament_is_won_match_by_match(both: bool, per: bool) -> None:
    program = TOURNAMENT.replace("BOTH", "" if both else ", both=false").replace("PER", " per group" if per else "")
    problem = texts(1)[0]
    everyone = TOURNAMENT[: TOURNAMENT.index("  best by")] + "}"
    rows = run(everyone, problem=problem).rows
    groups = [[row for row in rows if not per or row.columns["group"] == group] for group in ((0, 1) if per else (0,))]
    expected = [knockout(problem, [str(row.columns["text"]) for row in group], both) for group in groups]
    assert [row.columns["text"] for row in run(program, problem=problem).rows] == expected


def test_tournaments_keep_the_best_of_an_order_and_all_pairs_are_asked_about() -> None:
    """What `order by compare` makes of rows is their order by chances; each further winner beats all that are left."""
    problem = texts(1)[0]
    everyone = TOURNAMENT[: TOURNAMENT.index("  best by")] + "}"
    rows = [str(row.columns["text"]) for row in run(everyone, problem=problem).rows]
    compared = 'by compare(llm, "{problem} Which is better? A: {a.text} B: {b.text}")'

    def after(stage: str) -> list[str]:
        program = everyone[: everyone.rindex("}")] + f"  {stage} {compared}\n}}"
        return [str(row.columns["text"]) for row in run(program, problem=problem).rows]

    sums = [sum(chance_of(problem, a, b, True) for at, b in enumerate(rows) if at != own) for own, a in enumerate(rows)]
    ordered = [rows[at] for at in sorted(range(len(rows)), key=lambda at: -round(sums[at], 4))]
    assert after("order") == ordered
    assert after("keep 1") == after("best") and after("keep 9") == after("keep int(count())")
    kept = after("keep 3")
    assert kept == after("keep 9")[:3]
    for place, winner in enumerate(kept):
        # Wherever a beats b and b beats c, a beats c here, so that what is left loses to each that is kept.
        others = [text for text in rows if text not in kept[: place + 1]]
        assert all(chance_of(problem, winner, other, True) > 0.5 - 1e-4 for other in others)


SEARCH = """
program p(problem: text) -> text {
  chat user=problem
  repeat 2 until all(finished) {
    generate llm n=2 stop="\\n\\n" temperature=0.9
    score judge(llm, "{problem} {text} Is this right?") as int(0..9) reduce=expected
    keep 2 by score
  }
  score prob(llm, "{problem} {text} Is this right?", "Yes", "No") into sure
  extract answer = /(\\d+)\\.$/
  score equal(answer, "12", by=number) into right
  score json of answer into valid
  keep 3 by score + sure + valid
  order by compare(llm, "{problem} A: {a.step} B: {b.step}", both=false)
  keep 2 by compare(llm, "{problem} A: {a.text} B: {b.text}")
  best by compare(llm, "{problem} A: {a.text} B: {b.answer}")
}
"""


def test_all_plans_alone_in_a_batch_and_with_little_memory_give_the_same() -> None:
    """The naive plan computes everything anew, and the other shares prefixes; pages are scarce in the last runs."""
    program = program_of(HEADER + SEARCH)
    plans = [naive(program), optimize(naive(program)).plan]
    rows = [{"problem": text} for text in texts(2)]
    alone = [run_all(plans[0], [row], session=Session())[0] for row in rows]
    for plan in plans:
        for session in (Session(), Session(config=EngineConfig(max_sequences=3, token_budget=50), kv_bytes=1 << 19)):
            assert_same(alone, run_all(plan, rows, session=session))


def test_what_does_not_fit_is_counted_and_equal_questions_are_asked_once() -> None:
    program = """
program p(problem: text, long: text) -> float {
  score judge(llm, "{long}") as int(1..5) reduce=expected into none_
  score prob(llm, "{problem}?", "Yes", "No") into once
  score prob(llm, "{problem}?", "Yes", "No") into again
  return once
}
"""
    session = Session()
    first = run(program, session, problem="Right", long="1 + 1 = 2. " * 400)
    columns = first.rows[0].columns
    assert columns["none_"] is None and first.unscored == 1 and columns["once"] == columns["again"]
    tokenizer, _ = reference()
    turns = [{"role": "user", "content": "Right?"}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=False)
    answers = [tokenizer.encode(text, add_special_tokens=False) for text in ("Yes", "No")]
    nodes = {tuple(ids[:length]) for ids in answers for length in range(1, len(ids) + 1)}
    assert first.prompt_tokens == len(prompt) + len(nodes)
