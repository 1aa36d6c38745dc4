"""Whether the engine on a GPU does what it does on a CPU: tokens, bits, and no waiting in between."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedModel

from benchmarks.common.shapes import random_prompts
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.record import Record, reason
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.rule_mask import RuleMask

SAMPLING = (SamplingParams(0.8), SamplingParams(1.0, top_p=0.8), SamplingParams(0.0), SamplingParams(1.3, top_k=9))


def run(record: Record, bench: Bench) -> None:
    """Each check with its name, whether it passed, and what went wrong, into the table `checks`."""
    device, batch = bench.device, requests(2, 3) if bench.dry else requests()
    plain, fused = model("cpu", kernels=False), model(device)
    wanted = tokens(serve(engine(plain), batch))
    variants = {"eager": EngineConfig(graphs=False), "graphs": EngineConfig()}
    variants["deterministic"] = EngineConfig(deterministic=True)
    variants["one step at a time"] = EngineConfig(overlap=False)
    check(record, "layers are fused", lambda: layers_are_fused(fused))
    for name, config in variants.items():
        check(
            record,
            f"{name}: the CPU's tokens in float32",
            lambda config=config: same(fused, config, batch, wanted),
        )
    modules = "modules: the CPU's tokens in float32"
    check(record, modules, lambda: same(model(device, fused=False), EngineConfig(), batch, wanted))
    masked = [replace(request, mask=RuleMask) for request in batch]
    held = tokens(serve(engine(plain), masked))
    check(record, "under a mask: the CPU's tokens", lambda: same(fused, EngineConfig(), masked, held))
    ending = fed(batch)
    ended = tokens(serve(engine(plain), ending))
    check(record, "fed steps: the CPU's tokens", lambda: same(fused, EngineConfig(), ending, ended))
    check(record, "deterministic: the same bits in any batch", lambda: same_bits(fused, batch))
    if device == "cuda":
        check(record, "graphs: steps are captured and replayed", captures)
        check(record, "no step waits but for its results", waits_for_results_only)


def check(record: Record, name: str, holds: Callable[[], str | None]) -> None:
    """`holds` says what is wrong, None where nothing is."""

    def line() -> dict[str, Any]:
        try:
            why = holds()
        except Exception as error:  # A check that breaks is a check that failed.
            why = reason(error)
        return {"check": name, "passed": why is None, "why": why or ""}

    record.case("checks", name, line)


def layers_are_fused(paged: PagedModel) -> str | None:
    """Falling back to modules would go unseen in the tokens."""
    return paged.implementation if "modules" in paged.implementation else None


def same(
    paged: PagedModel, config: EngineConfig, batch: list[GenerateRequest], wanted: list[list[tuple[int, ...]]]
) -> str | None:
    drawn = tokens(serve(engine(paged, config), batch))
    differ = sum(a != b for mine, theirs in zip(drawn, wanted, strict=True) for a, b in zip(mine, theirs, strict=True))
    return f"{differ} samples of {sum(map(len, wanted))} differ" if differ else None


def captures() -> str | None:
    """So would steps that run as they are."""
    made = engine(model("cuda"))
    serve(made, requests())
    graphs = made.runner("m").backend.graphs
    assert graphs is not None
    if graphs.refused:
        return next(iter(graphs.refused.values()))
    return None if graphs.replays else f"{graphs.captures} captures, no replay"


def same_bits(paged: PagedModel, batch: list[GenerateRequest]) -> str | None:
    """Log-probabilities too: a sum taken in another order shows there first."""
    config = EngineConfig(deterministic=True)
    alone = [serve(engine(paged, config), [request])[0] for request in batch]
    return None if serve(engine(paged, config), batch) == alone else "log-probabilities differ"


def waits_for_results_only() -> None:
    """torch raises where an operator would wait; the wait for an event is not one of those."""
    served = engine(model("cuda"))
    serve(served, requests())
    torch.cuda.set_sync_debug_mode("error")
    try:
        serve(served, requests())
        serve(served, fed(requests()))
    finally:
        torch.cuda.set_sync_debug_mode("default")


def model(device: str, kernels: bool = True, fused: bool = True) -> PagedModel:
    """The same random weights on any device. `fused`: without transformers' modules where that can be."""
    config = LlamaConfig(
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=1000,
        max_position_embeddings=512,
        # Large enough that greedy decoding does not fall into one repeated token.
        initializer_range=0.15,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=0,
    )
    torch.manual_seed(0)
    made: PreTrainedModel = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    return PagedModel(made.to(device), kernels=kernels, native=fused)


def requests(most: int = 7, length: int = 20) -> list[GenerateRequest]:
    """Prompts that share prefixes long enough to be read once, some that share nothing, and a fan-out."""
    stem, *others = random_prompts(7, 150, 1000)
    prompts = [stem + other[: 3 * index + 1] for index, other in enumerate(others[:3])]
    prompts += [other[:40] for other in others]
    return [
        GenerateRequest(prompt, tuple(range(index, index + (7 if index == 2 else 2))), SAMPLING[index % 4], length)
        for index, prompt in enumerate(prompts[:most])
    ]


def fed(batch: list[GenerateRequest]) -> list[GenerateRequest]:
    """The same for tokens alone, of which one in forty ends a sample: their steps are fed, and rows dropped."""
    eos = frozenset(range(0, 1000, 40))
    return [replace(request, sampling=SamplingParams(0.8), eos=eos) for request in batch]


def engine(paged: PagedModel, config: EngineConfig | None = None) -> PagedEngine:
    made = PagedEngine(config, kv_bytes=300 * paged.layout.page_bytes)
    made.add("m", paged)
    made.warm_up(lambda *what: None)
    return made


def serve(made: PagedEngine, batch: list[GenerateRequest]) -> list[tuple[Sample, ...]]:
    tickets = [made.submit("m", request) for request in batch]
    while made.has_work:
        made.step()
    return [ticket.result().samples for ticket in tickets]


def tokens(results: list[tuple[Sample, ...]]) -> list[list[tuple[int, ...]]]:
    return [[sample.tokens for sample in samples] for samples in results]
