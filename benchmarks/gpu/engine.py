"""Whole steps of the engine on a GPU, against the time that reading what they must takes, and `generate`.

A step is timed from one token on the host to the next, scheduling and sampling included. The roofline is the bytes of
the weights and of the sequences' keys and values over the copy bandwidth measured in this run. What the keys and values
are makes no difference to that, so prompts are not read: their pages hold noise.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from benchmarks.common.shapes import random_prompts
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.estimate.shapes import SHAPES, Shape
from benchmarks.gpu.record import Record
from qpdsl.executor.engine.memory.sequence import Chunk
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step.backends import ForwardOutput
from qpdsl.executor.requests.request import GenerateRequest, ReadRequest, SamplingParams
from qpdsl.grammar.words import KVType


@dataclass(frozen=True)
class Steps:
    """What is measured: of which models, sequences and their contexts; and how many steps."""

    models: tuple[str, ...] = ("8B", "1B")
    cases: tuple[tuple[int, int], ...] = ((1, 4096), (64, 4096), (16, 4096), (64, 512), (256, 1024))
    small: tuple[tuple[int, int], ...] = ((1, 512), (64, 4096), (256, 512))
    variants: tuple[str, ...] = ("overlapped", "stack", "deterministic", "modules")
    kv_types: tuple[KVType, ...] = ("fp8",)
    steps: int = 32
    warmup: int = 8
    # Sequences, tokens of the prompts, tokens generated.
    generated: tuple[tuple[int, int, int], ...] = ((1, 128, 128), (32, 128, 128))
    # Problems, beams, rounds, tokens of a round.
    search: tuple[int, int, int, int] = (8, 4, 10, 24)


_DRY = Steps(
    ("tiny",),
    ((2, 20),),
    ((2, 20),),
    ("overlapped", "deterministic", "modules"),
    ("fp8",),
    2,
    1,
    ((2, 8, 4),),
    (2, 2, 2, 3),
)
_TINY = Shape(64, 96, 2, 4, 2, 1000, tied=True)
# How each variant is set up: what the engine is told, and whether layers run without transformers' modules.
VARIANTS: dict[str, tuple[dict[str, bool], bool]] = {
    "overlapped": ({}, True),
    "stack": ({"overlap": False}, True),
    "eager": ({"overlap": False, "graphs": False}, True),
    "deterministic": ({"deterministic": True}, True),
    "modules": ({"overlap": False}, False),
}


def run(record: Record, bench: Bench) -> None:
    """Steps of a search, decode steps, and whole generations."""
    steps = _DRY if bench.dry else Steps()
    bandwidth = started(record, bench)
    record.case("search", steps.models[-1], lambda: search_case(steps.models[-1], steps, bench))
    for name in steps.models:
        record.attempt(name, lambda name=name: measure(record, name, steps, bandwidth, bench))
    for batch, prompt, length in steps.generated:
        case = (steps.models[-1], batch, prompt, length)
        record.case("generate", f"{batch} sequences", lambda g=case: generate_case(*g, bench))


def started(record: Record, bench: Bench) -> float:
    """The copy bandwidth of this run."""
    bandwidth = bench.copy_bandwidth()
    record.note(copy_gb_per_s=round(bandwidth / 1e9, 1))
    return bandwidth


def measure(record: Record, name: str, steps: Steps, bandwidth: float, bench: Bench) -> None:
    """The decode steps of one model: those without modules first, which say most; and with other keys and values."""
    fused = tuple(variant for variant in steps.variants if VARIANTS[variant][1])
    variants_of(record, name, fused, steps, bandwidth, bench)
    for kv_type in steps.kv_types:
        # Loading a model takes as long as several cases.
        if record.late:
            break
        with model_of(name, bench) as model:
            paged = PagedModel(model, kernels=True, kv_type=kv_type)
            attended = cases_of(name, steps)[0]
            record.case(
                "decode",
                f"{name} {kv_type} {attended}",
                lambda p=paged, g=attended: decode_case(name, p, "overlapped", *g, steps, bandwidth, bench),
            )
    variants_of(record, name, tuple(set(steps.variants) - set(fused)), steps, bandwidth, bench)


def variants_of(
    record: Record, name: str, variants: Sequence[str], steps: Steps, bandwidth: float, bench: Bench
) -> None:
    """The decode steps of one model in variants that have the same layers."""
    if not variants or record.late:
        return
    with model_of(name, bench) as model:
        paged = PagedModel(model, kernels=True, native=VARIANTS[variants[0]][1])
        record.note(**{f"layers_{name}_{variants[0]}": paged.implementation})
        for variant, (batch, context) in product(variants, cases_of(name, steps)):
            record.case(
                "decode",
                f"{name} {variant} {batch} × {context}",
                lambda g=(variant, batch, context): decode_case(name, paged, *g, steps, bandwidth, bench),
            )


def cases_of(name: str, steps: Steps) -> tuple[tuple[int, int], ...]:
    return steps.cases if name == "8B" else steps.small


@contextmanager
def model_of(name: str, bench: Bench) -> Iterator[PreTrainedModel]:
    """A model of random weights, the same every time."""
    shape = SHAPES.get(name, _TINY)
    config = LlamaConfig(
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.kv_heads,
        vocab_size=shape.vocabulary,
        tie_word_embeddings=shape.tied,
        max_position_embeddings=16_384,
        rope_theta=500_000.0,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    with torch.device(bench.device):
        model = AutoModelForCausalLM.from_config(config, dtype=bench.dtype).eval()
    yield model
    del model
    bench.free()


def engine_for(model: PagedModel, variant: str, batch: int, tokens: int) -> PagedEngine:
    """An engine with room for `batch` sequences of `tokens` tokens, whose pages hold noise."""
    pages = batch * (-(-tokens // model.layout.page_size) + 2) + 2
    config = EngineConfig(max_sequences=batch, token_budget=8192, **VARIANTS[variant][0])
    engine = PagedEngine(config, kv_bytes=int(pages * model.layout.page_bytes * 1.1))
    engine.add("m", model)
    engine.warm_up(lambda *what: None)
    assert engine.models.arena is not None
    if model.layout.kv_type is None:
        engine.models.arena.buffer.view(model.layout.dtype).normal_()
    return engine


@contextmanager
def without_prompts(engine: PagedEngine, model: PagedModel) -> Iterator[None]:
    """Steps with prompts compute nothing in the block: their hidden states are zeros, their pages stay as they are."""
    backend = engine.runner("m").backend
    forward = backend.forward

    def skipping(chunks: list[Chunk], exits: Sequence[int] = ()) -> ForwardOutput:
        if all(chunk.rows == 1 for chunk in chunks):
            return forward(chunks, exits)
        readers = [(chunk, len(chunk.read_rows)) for chunk in chunks if chunk.read_rows]
        rows = sum(count for _, count in readers)
        hidden = torch.zeros(rows, model.head_inputs, dtype=model.dtype, device=model.device)
        return ForwardOutput(readers, hidden, {})

    backend.forward = skipping  # type: ignore[method-assign]
    try:
        yield
    finally:
        backend.forward = forward  # type: ignore[method-assign]


def decoding(model: PagedModel, variant: str, batch: int, context: int, total: int, spare: int = 0) -> PagedEngine:
    """An engine of which `batch` sequences of `context` tokens, which share nothing, have their first token.

    There is room for `spare` others.
    """
    engine = engine_for(model, variant, batch + spare, context + total)
    for index, prompt in enumerate(random_prompts(batch, context, model.vocabulary)):
        engine.submit("m", GenerateRequest(prompt, (index,), SamplingParams(1.0), total))
    with without_prompts(engine, model):
        while any(sequence.drawn == 0 for sequence in sequences(engine)):
            engine.step()
    return engine


def decode_case(
    name: str,
    model: PagedModel,
    variant: str,
    batch: int,
    context: int,
    steps: Steps,
    bandwidth: float,
    bench: Bench,
) -> dict[str, Any]:
    """The median time of a decode step of `batch` sequences with `context` tokens that share nothing."""
    engine = decoding(model, variant, batch, context, steps.warmup + steps.steps + 8)
    for _ in range(steps.warmup):
        engine.step()
    times = []
    for _ in range(steps.steps):
        start = time.perf_counter()
        engine.step()
        times.append(time.perf_counter() - start)
    held = statistics.mean(len(sequence.tokens) for sequence in sequences(engine))
    del engine
    bench.free()
    read = SHAPES.get(name, _TINY).read_bytes * bench.dtype.itemsize // 2
    moved = read + batch * held * model.layout.token_bytes
    step = statistics.median(times)
    return {
        "model": name,
        "variant": variant,
        "way": way_of(variant, model),
        "kv": model.layout.kv_type or "plain",
        "sequences": batch,
        "context": context,
        "gib": round(moved / 2**30, 2),
        "ms": round(step * 1e3, 3),
        "tokens_per_s": round(batch / step),
        "of_roofline": round(moved / bandwidth / step, 3),
    }


def way_of(variant: str, model: PagedModel) -> str:
    """Which of the estimate's ways to run a step it is; other ways by the name of the variant."""
    if variant in ("overlapped", "stack") and "modules" in model.implementation:
        return "modules"
    return variant


def sequences(engine: PagedEngine) -> list[Any]:
    scheduler = engine.runner("m").scheduler
    return [*scheduler.running, *scheduler.waiting]


def search_case(name: str, steps: Steps, bench: Bench) -> dict[str, Any]:
    """Beam search as programs have it: fan-outs over a shared prompt, each scored by a read. How many steps replay."""
    problems, beams, rounds, length = steps.search
    made = []
    with model_of(name, bench) as model:
        paged = PagedModel(model, kernels=True)
        config = EngineConfig(max_sequences=max(128, problems * beams))
        tokens = problems * beams * (256 + rounds * length)
        pages = tokens // paged.layout.page_size + 4 * problems * beams
        engine = PagedEngine(config, on_step=made.append, kv_bytes=pages * paged.layout.page_bytes)
        engine.add("m", paged)
        engine.warm_up(lambda *what: None)
        texts = [tuple(prompt) for prompt in random_prompts(problems, 40 if bench.dry else 200, 1000)]
        for number in range(rounds):
            tickets = [
                engine.submit(
                    "m",
                    GenerateRequest(
                        text, tuple(range(beams)), SamplingParams(0.8), 1 + (length * (problem + 1)) // problems
                    ),
                )
                for problem, text in enumerate(texts)
            ]
            finish(engine)
            written = [
                [text + sample.tokens for sample in ticket.result().samples]
                for text, ticket in zip(texts, tickets, strict=True)
            ]
            for own in written:
                for text in own:
                    engine.submit("m", ReadRequest(text, (len(text) - 1,), (1, 2)))
            finish(engine)
            texts = [own[number % beams] for own in written]
        graphs = getattr(engine.runner("m").backend, "graphs", None)
    replayed = None if graphs is None else round(graphs.replays / len(made), 3)
    return {"model": name, "steps": len(made), "replayed": replayed, "graphs": graphs and graphs.captures}


def finish(engine: PagedEngine) -> None:
    while engine.has_work:
        engine.step()


def generate_case(name: str, batch: int, prompt: int, length: int, bench: Bench) -> dict[str, Any]:
    """Greedy tokens a second, prompts included, of this engine and of `generate`."""
    prompts = random_prompts(batch, prompt, 1000)
    rates: dict[str, float] = {}
    with model_of(name, bench) as model, torch.inference_mode():
        ids = torch.tensor(prompts, device=bench.device)

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
    with model_of(name, bench) as model:
        paged = PagedModel(model, kernels=True)
        pages = batch * (-(-(prompt + length) // 16) + 2) + 2
        engine = PagedEngine(EngineConfig(max_sequences=batch), kv_bytes=int(1.2 * pages * paged.layout.page_bytes))
        engine.add("m", paged)
        # New prompts every time: what is cached would not be read again.
        rounds = iter(range(1, 100))

        def serve() -> None:
            for tokens in random_prompts(batch, prompt, 1000, seed=next(rounds)):
                engine.submit("m", GenerateRequest(tokens, (0,), SamplingParams(0.0), length))
            finish(engine)

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
