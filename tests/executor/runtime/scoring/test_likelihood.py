"""Log-probabilities of parts that a call wrote, which are kept, and of given texts, by one pass of the model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from tests.support.cli import Run
from tests.support.executor.programs import HEADER, compiled, run_all, texts

BODY = """
  chat user=problem
  generate llm n=3 temperature=1.0
  score likelihood(llm, "{problem}", text) into whole
  score likelihood(llm, "{problem}", text) reduce=mean into mean
  score likelihood(llm, "{problem}", text) reduce=min into least
  let empty = strip(" ")
  score likelihood(llm, "{problem}", empty) into nothing
  extract lost = /Nobody/
  score likelihood(llm, "{problem}", lost) into lost_too
  score prob(llm, "{problem}", "Yes", lost) into chance
  return list("{lost_too} {chance}")
"""
PARTS = """
  chat user=problem
  generate llm temperature=1.0 n=2 into solution
  score logprob into before
  say "\\n\\nThe answer is "
  generate llm as int(0..1000) temperature=1.0 into answer
  score logprob into after
  score logprob of answer into part
  score logprob of answer reduce=mean into mean
  score logprob of solution into first
  chat user="Why?"
  generate llm temperature=1.0 max_tokens=5
  score logprob of answer into later
  score entropy of answer into entropy
  score confidence(window=2) of answer into confidence
  return list(text)
"""


def test_a_likelihood_is_the_models_own() -> None:
    (result,) = run_all(compiled(f"{HEADER}program p(problem: text) -> [text] {{{BODY}}}"), [{"problem": texts(1)[0]}])
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    model = AutoModelForCausalLM.from_pretrained(zoo.path("zoo/counting"), dtype=torch.float32)
    turns = [{"role": "user", "content": texts(1)[0]}]
    prompt = tokenizer.apply_chat_template(turns, add_generation_prompt=True, return_dict=True)["input_ids"]
    for row in result.rows:
        target = tokenizer.encode(row.columns["text"], add_special_tokens=False)
        with torch.inference_mode():
            logprobs = model(torch.tensor([[*prompt, *target]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        own = logprobs[range(len(target)), target]
        told = [row.columns[name] for name in ("whole", "mean", "least")]
        assert told == pytest.approx([own.sum().item(), own.mean().item(), own.min().item()], abs=1e-3)
        assert row.columns["nothing"] is None
    assert (result.value, result.unscored) == (["none none"] * 3, 0)


def test_a_part_has_the_log_probability_of_its_tokens() -> None:
    (result,) = run_all(compiled(f"{HEADER}program p(problem: text) -> [text] {{{PARTS}}}"), [{"problem": texts(1)[0]}])
    for row in result.rows:
        columns = {name: value for name, value in row.columns.items() if isinstance(value, float)}
        assert columns["part"] == pytest.approx(columns["after"] - columns["before"], abs=1e-4)
        assert columns["first"] == columns["before"] and columns["later"] == columns["part"] <= columns["mean"] < 0
        assert columns["entropy"] >= 0 and "confidence" in row.columns


@pytest.mark.parametrize(
    ("stages", "message"),
    [
        ("score logprob of problem", "a column that `generate … into` wrote in this conversation"),
        ("peek { generate llm max_tokens=3 into a }\n score logprob of a", "wrote in this conversation"),
        ("generate llm into a\n let a = 3\n score entropy of a", "takes a text, found an int"),
        ('score likelihood(llm, "x", problem) reduce=last', "nothing to reduce by `last`"),
        ('score likelihood(llm, "x")', "`likelihood` takes 3 arguments, found 2"),
    ],
)
def test_what_was_not_drawn_here_is_refused(stages: str, message: str, qpdsl: Run, tmp_path: Path) -> None:
    path = tmp_path / "p.qp"
    path.write_text(
        f"{HEADER}program p(problem: text) -> text {{\n chat user=problem\n generate llm max_tokens=3\n {stages}\n"
        " best by score\n}"
    )
    ran = qpdsl("check", path)
    assert ran.code and message in ran.out + ran.err
