"""Real GGUF files answer sensibly, and as `generate` does with the same weights as floats."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
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
# From a start with warm files to a model that is ready, in seconds of processor time.
READY = {SMOLLM2: 3.0, GEMMA3: 8.0}

pytestmark = pytest.mark.skipif(
    "QPDSL_REAL_MODELS" not in os.environ,
    reason="QPDSL_REAL_MODELS names no folder with real models (benchmarks.common.real_models makes one)",
)


@cache
def loaded(name: str) -> PagedTextModel:
    return load(name, FOLDER / name, "cpu", None)


def answers(name: str) -> list[str]:
    program = f'model llm = "{FOLDER / name}"\nprogram p(q: text) -> text {{\n {ASKED[name]}\n'
    plan = compiled(f"{program} generate llm temperature=0 max_tokens={TOKENS}\n}}")
    return [str(result.value) for result in run_all(plan, [{"q": question} for question in QUESTIONS[name]])]


def test_it_knows_the_capital_of_france() -> None:
    assert "Paris" in answers(SMOLLM2)[0]


@pytest.mark.parametrize("name", DENSE)
def test_greedy_tokens_are_those_of_generate(name: str) -> None:
    model = loaded(name)
    dense = AutoModelForCausalLM.from_pretrained(FOLDER / DENSE[name], dtype=torch.float32)
    for question, answer in zip(QUESTIONS[name], answers(name), strict=True):
        chat = ASKED[name].startswith("chat")
        context = Context(turns=(("user", question),)) if chat else Context(prompt=question)
        prompt = encode(model.tokenizer, context)
        ends = sorted(model.eos)
        out = dense.generate(torch.tensor([prompt]), max_new_tokens=TOKENS, do_sample=False, eos_token_id=ends)
        assert answer == model.decode(tuple(out[0, len(prompt) :].tolist())), question


@pytest.mark.parametrize("name", READY)
def test_the_second_start_takes_seconds(name: str) -> None:
    code = (
        "import sys, time\nfrom pathlib import Path\nfrom qpdsl.executor.models.load import load\n"
        "load('m', Path(sys.argv[1]), 'cpu', None)\nprint(time.process_time())"
    )
    seconds = []
    for _ in range(2):
        start = time.monotonic()
        command = [sys.executable, "-c", code, str(FOLDER / name)]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        seconds.append(float(run.stdout))
        print(f"{name}: {seconds[-1]:.1f} s of processor time, {time.monotonic() - start:.1f} s")
    assert seconds[1] < READY[name]
