"""Real GGUF files answer sensibly, and as `generate` does with the same weights as floats."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from qpdsl.executor.models.load import load
from qpdsl.executor.text.context import Context, encode
from tests.support.executor.programs import compiled, run_all

FOLDER = Path(os.environ.get("QPDSL_REAL_MODELS", ""))
SMOLLM2, GEMMA3 = "SmolLM2-135M-Instruct.Q4_1.gguf", "gemma-3-270m-Q4_K_M.gguf"
DENSE = {SMOLLM2: "smollm2-135m-f32", GEMMA3: "gemma3-270m-f32"}
# How each is asked: the second was not trained to follow instructions.
ASKED = {SMOLLM2: "chat user=q", GEMMA3: 'prompt "{q}"'}
QUESTIONS = {
    SMOLLM2: ("What is the capital of France?", "Write a short poem about the sea.", "What is 7 + 5?"),
    GEMMA3: ("The capital of France is", "The first ten prime numbers are 2, 3, 5,", "Once upon a time"),
}
TOKENS = 40

pytestmark = pytest.mark.skipif(
    "QPDSL_REAL_MODELS" not in os.environ,
    reason="QPDSL_REAL_MODELS names no folder with real models (benchmarks.common.real_models makes one)",
)


def answers(name: str) -> list[str]:
    program = f'model llm = "{FOLDER / name}"\nprogram p(q: text) -> text {{\n {ASKED[name]}\n'
    plan = compiled(f"{program} generate llm temperature=0 max_tokens={TOKENS}\n}}")
    return [str(result.value) for result in run_all(plan, [{"q": question} for question in QUESTIONS[name]])]


def test_it_knows_the_capital_of_france() -> None:
    assert "Paris" in answers(SMOLLM2)[0]


@pytest.mark.parametrize("name", DENSE)
def test_greedy_tokens_are_those_of_generate(name: str) -> None:
    model = load(name, FOLDER / name, "cpu", None)
    dense = AutoModelForCausalLM.from_pretrained(FOLDER / DENSE[name], dtype=torch.float32)
    for question, answer in zip(QUESTIONS[name], answers(name), strict=True):
        chat = ASKED[name].startswith("chat")
        context = Context(turns=(("user", question),)) if chat else Context(prompt=((question, False),))
        prompt = encode(model.tokenizer, context)
        ends = sorted(model.eos)
        out = dense.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=ends)
        assert answer == model.decode(tuple(out[0, len(prompt) :].tolist())), question
