"""Small random-weight models of the supported architectures."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma2Config,
    GemmaConfig,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
)

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, Sample

VOCABULARY = 101
_SHAPE = {
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 256,
    # Large enough that greedy decoding does not fall into one repeated token.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}
# Blocks of states beside the pages.
_BLOCKS = 8
_GROUPED = {**_SHAPE, "num_key_value_heads": 2}

CONFIGS: dict[str, PretrainedConfig] = {
    "llama": LlamaConfig(**_GROUPED),
    "qwen2": Qwen2Config(**_GROUPED),
    "qwen3": Qwen3Config(**_GROUPED, head_dim=12),
    "mistral": MistralConfig(**_GROUPED, sliding_window=24),
    "gemma": GemmaConfig(**_GROUPED, head_dim=12),
    "gemma2": Gemma2Config(**_GROUPED, head_dim=12, sliding_window=24),
    "gpt_neox": GPTNeoXConfig(**_SHAPE),
}


def random_model(name: str, seed: int = 0, **changes: int) -> PreTrainedModel:
    """A float32 model of the named architecture; seed and changes to its configuration decide the weights."""
    torch.manual_seed(seed)
    config = CONFIGS[name].__class__.from_dict({**CONFIGS[name].to_dict(), **changes})
    # Older releases of transformers give Gemma 2 an attention that leaves its soft-cap out.
    attention = "eager" if name == "gemma2" else None
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation=attention).eval()


def paged(name: str, page_size: int = 16, seed: int = 0, native: bool = True, **changes: int) -> PagedModel:
    """The same model behind paged attention."""
    return PagedModel(random_model(name, seed, **changes), page_size, native=native)


def engine_of(
    model: PagedModel,
    pages: int = 400,
    config: EngineConfig | None = None,
    on_step: Callable[[StepReport], None] | None = None,
) -> PagedEngine:
    """An engine that serves the model as "m", with a KV budget of `pages` pages and one for scratch.

    Where its layers keep states, those of some texts fit besides.
    """
    states = 0 if model.states is None else _BLOCKS * model.states.block_bytes
    engine = PagedEngine(config, on_step, (pages + 1) * model.layout.page_bytes + states)
    engine.add("m", model)
    return engine


def served(engine: PagedEngine, batch: tuple[GenerateRequest, ...]) -> list[tuple[Sample, ...]]:
    """The samples of every request, stepping the engine until it is done and checking its accounts on the way."""
    tickets = [engine.submit("m", request) for request in batch]
    while engine.has_work:
        engine.step()
        engine.check_integrity()
    return [ticket.result().samples for ticket in tickets]
