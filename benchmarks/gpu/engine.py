"""The engine on a GPU: its checks, decode steps against the time that reading what they must takes, and `generate`.

A step is timed whole, scheduling and sampling included, from one token on the host to the next. The roofline is the
bytes of the weights and of the sequences' keys and values over the copy bandwidth measured in this run.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from benchmarks.common.shapes import random_prompts
from benchmarks.gpu import engine_checks
from benchmarks.gpu.kernels import copy_bandwidth
from benchmarks.gpu.record import Record
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step.backends import fixed_rows, kernel_backend
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams


@dataclass(frozen=True)
class Plan:
    """What is measured: on which models, with how many sequences at which contexts, and how long."""

    device: str = "cuda"
    dtype: torch.dtype = torch.bfloat16
    models: tuple[str, ...] = ("1B", "8B")
    cases: tuple[tuple[int, int], ...] = ((1, 512), (64, 4096), (1, 4096), (16, 4096), (64, 512))
    steps: int = 32
    warmup: int = 8
    # Sequences, tokens of the prompts, tokens generated.
    generated: tuple[tuple[int, int, int], ...] = ((1, 128, 128), (32, 128, 128))
    variants: tuple[str, ...] = ("graphs", "eager", "deterministic")


# Llama 3.2 1B and Llama 3.1 8B.
CONFIGS = {
    "1B": {"hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "tie_word_embeddings": True},
    "8B": {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "tie_word_embeddings": False},
    "tiny": {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "vocab_size": 1000,
             "num_attention_heads": 4, "num_key_value_heads": 2},
}  # fmt: skip


def run(record: Record, plan: Plan | None = None) -> None:
    """Checks and measurements of all that takes no compiler but Triton's."""
    plan = plan or Plan()
    engine_checks.run(record, plan.device)
    bandwidth = started(record, plan)
    for name in plan.models:
        record.attempt(name, lambda name=name: measure(record, name, plan.variants, bandwidth, plan))
    for batch, prompt, length in plan.generated:
        record.case("generate", f"{batch} sequences", lambda g=(batch, prompt, length): generate_case(*g, plan))


def run_compiled(record: Record, plan: Plan | None = None) -> None:
    """The same with compiled layers, which takes a compiler minutes."""
    plan = plan or Plan()
    engine_checks.run_compiled(record, plan.device)
    bandwidth = started(record, plan)
    for name in plan.models:
        record.attempt(name, lambda name=name: measure(record, name, ("compiled",), bandwidth, plan))


def started(record: Record, plan: Plan) -> float:
    """The copy bandwidth; elsewhere than on CUDA the measurements only show that they run."""
    bandwidth = copy_bandwidth() if plan.device == "cuda" else 1e10
    record.note(copy_gb_per_s=round(bandwidth / 1e9, 1))
    return bandwidth


def measure(record: Record, name: str, variants: tuple[str, ...], bandwidth: float, plan: Plan) -> None:
    """The decode steps of one model. Compiled layers stay compiled."""
    with model_of(name, plan) as model:
        paged = PagedModel(model, kernels=True)
        weights = weight_bytes(model)
        for variant, (batch, context) in product(variants, plan.cases):
            if variant == "compiled":
                paged.compile()
            record.case(
                "decode",
                f"{name} {variant} {batch}×{context}",
                lambda g=(variant, batch, context): decode_case(name, paged, weights, *g, bandwidth, plan),
            )


@contextmanager
def model_of(name: str, plan: Plan) -> Iterator[PreTrainedModel]:
    """A model of random weights, the same every time."""
    shape = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128_256, **CONFIGS[name]}
    config = LlamaConfig(
        **shape,
        max_position_embeddings=16_384,
        rope_theta=500_000.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(plan.device):
        model = AutoModelForCausalLM.from_config(config, dtype=plan.dtype).eval()
    yield model
    del model
    free(plan)


def free(plan: Plan) -> None:
    """Gives back the memory of what nobody refers to any more."""
    gc.collect()
    if plan.device == "cuda":
        torch.cuda.empty_cache()


def weight_bytes(model: PreTrainedModel) -> int:
    """Bytes of weights that a decode step reads: of an embedding that is not also the head, some rows only."""
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    embedding = model.get_input_embeddings().weight
    head = model.get_output_embeddings()
    tied = head is not None and head.weight.data_ptr() == embedding.data_ptr()
    return int(weights if tied else weights - embedding.numel() * embedding.element_size())


def engine_for(model: PagedModel, variant: str, batch: int, tokens: int) -> PagedEngine:
    """An engine with room for `batch` sequences of `tokens` tokens; nothing of it is shared or evicted."""
    pages = batch * (-(-tokens // model.layout.page_size) + 2) + 2
    config = EngineConfig(max_sequences=batch, token_budget=8192, graphs=False)
    engine = PagedEngine(config, kv_bytes=int(pages * model.layout.page_bytes * 1.1))
    engine.add("m", model)
    runner = engine._runners["m"]
    assert engine._arena is not None
    cache = KVCache(engine._arena.buffer, model.layout, runner.scheduler.memory.pool.scratch)
    rows = fixed_rows(batch) if variant == "deterministic" else None
    # Prompts are read in steps of any size; what decodes is the variant's.
    decoding = kernel_backend(model, cache, rows, graphs=variant != "eager")
    reading = runner.backend.forward

    def forward(chunks: list[Any], exits: Any = ()) -> Any:
        return (decoding.forward if all(chunk.count == 1 for chunk in chunks) else reading)(chunks, exits)

    runner.backend.forward = forward  # type: ignore[method-assign]
    runner.backend.readout = decoding.readout
    return engine


def decode_case(
    name: str, model: PagedModel, weights: int, variant: str, batch: int, context: int, bandwidth: float, plan: Plan
) -> dict[str, Any]:
    """The median time of a decode step of `batch` sequences with prompts of `context` tokens that share nothing."""
    total = plan.warmup + plan.steps + 2
    engine = engine_for(model, variant, batch, context + total)
    for index, prompt in enumerate(random_prompts(batch, context, model.vocabulary)):
        engine.submit("m", GenerateRequest(prompt, (index,), SamplingParams(1.0), total))
    while any(sequence.drawn == 0 for sequence in sequences(engine)):
        engine.step()
    for _ in range(plan.warmup):
        engine.step()
    times = []
    for _ in range(plan.steps):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    held = statistics.mean(len(sequence.tokens) for sequence in sequences(engine))
    del engine
    free(plan)
    moved = weights + batch * held * model.layout.token_bytes
    step = statistics.median(times)
    return {
        "model": name,
        "variant": variant,
        "sequences": batch,
        "context": context,
        "gib": round(moved / 2**30, 2),
        "ms": round(step * 1e3, 3),
        "tokens_per_s": round(batch / step),
        "of_roofline": round(moved / bandwidth / step, 3),
    }


def sequences(engine: PagedEngine) -> list[Any]:
    scheduler = engine._runners["m"].scheduler
    return [*scheduler.running, *scheduler.waiting]


def generate_case(batch: int, prompt: int, length: int, plan: Plan) -> dict[str, Any]:
    """Greedy tokens a second, prompts included, of this engine with graphs and of `generate`, on the first model."""
    name = plan.models[0]
    prompts = random_prompts(batch, prompt, 1000)
    rates: dict[str, float] = {}
    with model_of(name, plan) as model, torch.inference_mode():
        ids = torch.tensor(prompts, device=plan.device)

        def generate() -> None:
            model.generate(
                input_ids=ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=length,
                min_new_tokens=length,
                do_sample=False,
                pad_token_id=0,
            )

        rates["generate"] = rate(generate, batch * length)
    with model_of(name, plan) as model:
        paged = PagedModel(model, kernels=True)
        pages = batch * (-(-(prompt + length) // 16) + 2) + 2
        engine = PagedEngine(EngineConfig(max_sequences=batch), kv_bytes=int(1.2 * pages * paged.layout.page_bytes))
        engine.add("m", paged)
        # New prompts every time: what is cached would not be read again.
        rounds = iter(range(1, 100))

        def serve() -> None:
            for tokens in random_prompts(batch, prompt, 1000, seed=next(rounds)):
                engine.submit("m", GenerateRequest(tokens, (0,), SamplingParams(0.0), length))
            while engine.has_work:
                engine.step()

        rates["engine"] = rate(serve, batch * length)
    return {
        "model": name,
        "sequences": batch,
        "prompt": prompt,
        "tokens": length,
        **{f"{who}_tok_s": round(value) for who, value in rates.items()},
        "ratio": round(rates["engine"] / rates["generate"], 2),
    }


def rate(work: Any, tokens: int) -> float:
    """Tokens a second, the second and third time; results come to the host, so the device is done by then."""
    work()
    start = time.perf_counter()
    for _ in range(2):
        work()
    return 2 * tokens / (time.perf_counter() - start)
