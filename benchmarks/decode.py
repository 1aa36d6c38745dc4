"""Decode throughput against transformers' own batched `generate`, on the built-in generator, in one run.

    python benchmarks/decode.py [--repeats 3] [--threads 1] [--output benchmarks/results]

Both sides decode greedily in float32 from the same prompts, at 1, 16 and 64 sequences. "equal": every sequence gets 128
tokens. "ragged": 16 to 240 tokens, evenly spread; `generate` runs the whole batch to the longest, which is how a static
batch behaves, and only the tokens asked for count. Sides take turns; the figures are medians.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from machine import describe, sentence
from transformers import AutoModelForCausalLM, AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.engine.engine import Engine
from qpdsl.executor.engine.model import PagedModel
from qpdsl.executor.engine.request import GenerateRequest, SamplingParams
from qpdsl.executor.runtime.context import Context, encode
from qpdsl.executor.runtime.loading import load
from qpdsl.zoo.tasks.counting import problems

MODEL = "zoo/counting"
Tokens = list[tuple[int, ...]]


@dataclass(frozen=True)
class Case:
    """Tokens per second of both sides, medians over the repeats, and the lowest and highest ratio of a repeat."""

    sequences: int
    lengths: str
    tokens: int
    generate: float
    qpdsl: float
    ratio: float
    ratio_low: float
    ratio_high: float
    same_tokens: str


def ours(model: PagedModel, prompts: Tokens, lengths: list[int]) -> Tokens:
    # A new engine has an empty prefix cache: both sides prefill every prompt, every time.
    engine = Engine()
    engine.add(MODEL, model)
    tickets = [
        engine.submit(MODEL, GenerateRequest(prompt, (0,), SamplingParams(0.0), length))
        for prompt, length in zip(prompts, lengths, strict=True)
    ]
    while engine.has_work:
        engine.step()
    return [ticket.result().samples[0].tokens for ticket in tickets]


@torch.inference_mode()
def theirs(model: torch.nn.Module, prompts: Tokens, lengths: list[int]) -> Tokens:
    width, longest = max(map(len, prompts)), max(lengths)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    out = model.generate(
        input_ids=ids,
        attention_mask=mask,
        max_new_tokens=longest,
        min_new_tokens=longest,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=0,
    )
    return [tuple(row[width : width + length].tolist()) for row, length in zip(out, lengths, strict=True)]


def measure(paged: PagedModel, model: torch.nn.Module, prompts: Tokens, kind: str, repeats: int) -> Case:
    count = len(prompts)
    if kind == "equal":
        lengths = [128] * count
    else:
        lengths = [16 + 224 * index // max(1, count - 1) for index in range(count)] if count > 1 else [128]
        random.Random(count).shuffle(lengths)
    seconds: dict[str, list[float]] = {"qpdsl": [], "generate": []}
    outputs: dict[str, Tokens] = {}
    for repeat in range(repeats + 1):
        for name in seconds:
            start = time.perf_counter()
            if name == "qpdsl":
                outputs[name] = ours(paged, prompts, lengths)
            else:
                outputs[name] = theirs(model, prompts, lengths)
            # The first round warms both sides up.
            if repeat:
                seconds[name].append(time.perf_counter() - start)
    ratios = [a / b for a, b in zip(seconds["generate"], seconds["qpdsl"], strict=True)]
    same = sum(a == b for a, b in zip(outputs["qpdsl"], outputs["generate"], strict=True))
    total = sum(lengths)
    return Case(
        count,
        kind,
        total,
        round(total / statistics.median(seconds["generate"]), 1),
        round(total / statistics.median(seconds["qpdsl"]), 1),
        round(statistics.median(ratios), 2),
        round(min(ratios), 2),
        round(max(ratios), 2),
        f"{same}/{count}",
    )


def table(cases: list[Case]) -> str:
    lines = [
        "| sequences | lengths | `generate` tok/s | qpdsl tok/s | ratio (low–high) | rows with the same tokens |",
        "|---:|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {case.sequences} | {case.lengths} | {case.generate:,.0f} | {case.qpdsl:,.0f} "
        f"| {case.ratio:.2f} ({case.ratio_low:.2f}–{case.ratio_high:.2f}) | {case.same_tokens} |"
        for case in cases
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--output", type=Path, default=Path(__file__).parent / "results")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)

    folder = zoo.path(MODEL)
    loaded = load(MODEL, folder, "cpu", None, 1 << 30)
    # A model of its own: switching the attention implementation changes the loaded one.
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    stream = problems(seed=1, split="held-out")
    texts = [next(stream).text for _ in range(64)]
    prompts = [encode(tokenizer, Context(turns=(("user", text),))) for text in texts]

    cases = []
    for kind in ("equal", "ragged"):
        for count in (1, 16, 64):
            if kind == "ragged" and count == 1:
                continue
            cases.append(measure(loaded.paged, reference, prompts[:count], kind, arguments.repeats))
            print(cases[-1])
    arguments.output.mkdir(parents=True, exist_ok=True)
    record = {"machine": describe(), "repeats": arguments.repeats, "cases": [asdict(case) for case in cases]}
    (arguments.output / "decode.json").write_text(json.dumps(record, indent=2) + "\n")
    text = f"# Decode throughput, `{MODEL}`, float32\n\n{table(cases)}\n\nMeasured on: {sentence()}.\n"
    (arguments.output / "decode.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
