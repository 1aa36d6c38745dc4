"""Models behind the engine, as the benchmarks use it: greedy or sampled requests in, tokens out."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from benchmarks.peers.peer import Tokens
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.requests.ticket import Ticket

transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()

NAME = "model"
GREEDY = SamplingParams(0.0)


def engine_of(
    models: Mapping[str, PagedModel],
    kv_bytes: int,
    config: EngineConfig | None = None,
    on_step: Callable[[StepReport], None] | None = None,
) -> PagedEngine:
    """A new engine with an empty prefix cache over `models`, all in one budget of `kv_bytes`.

    The one place in the benchmarks where the budget is set.
    """
    engine = PagedEngine(config, on_step, kv_bytes=kv_bytes)
    for name, model in models.items():
        engine.add(name, model)
    return engine


def paged(model: PreTrainedModel) -> PagedModel:
    """The model behind paged attention; its own attention is gone from it."""
    return PagedModel(model)


def checkpoint(folder: Path, positions: int | None = None) -> PreTrainedModel:
    """The model of a folder, float32, on the CPU; `positions` raises the length that its configuration allows."""
    config = AutoConfig.from_pretrained(folder)
    if positions is not None:
        config.max_position_embeddings = max(positions, config.max_position_embeddings)
    return AutoModelForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32).eval()


def greedy(prompt: Sequence[int], tokens: int) -> GenerateRequest:
    """Exactly `tokens` greedy tokens: no id ends them. Like other engines by default, without log-probabilities."""
    return GenerateRequest(tuple(prompt), (0,), GREEDY, tokens, logprobs=False)


def run(engine: PagedEngine) -> None:
    """Steps until nothing is left."""
    while engine.has_work:
        engine.step()


def samples(tickets: Sequence[Ticket]) -> Tokens:
    """The tokens of every sample, request by request."""
    return [sample.tokens for ticket in tickets for sample in ticket.result().samples]
