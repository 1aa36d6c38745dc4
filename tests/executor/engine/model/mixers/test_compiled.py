"""Layers that keep states as compiled code: the model's logits, and bits that depend on no thread and no piece."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel

from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model.probe import Probe
from qpdsl.executor.kernels.llvm import delta, gates, product, recurrence
from qpdsl.executor.kernels.llvm.compile import vector_width
from tests.executor.engine.model.mixers.test_families import (
    CONV,
    DELTA,
    EXPERTS,
    FALCON,
    GRANITE,
    MAMBA2,
    NEMOTRON,
    SCAN,
    SHARED,
)
from tests.executor.engine.model.test_native_stack import distance
from tests.support.executor.mixed_texts import tiny_model

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

DENSE = {**GRANITE, "num_local_experts": 0, "shared_intermediate_size": 32, "residual_multiplier": 0.3}
MULTIPLIED = {
    **FALCON,
    "projectors_bias": True,
    "attention_in_multiplier": 0.7,
    "attention_out_multiplier": 1.3,
    "key_multiplier": 0.6,
    "ssm_in_multiplier": 0.8,
    "ssm_out_multiplier": 1.2,
    "mlp_multipliers": [0.9, 1.1],
    "ssm_multipliers": [0.9, 1.1, 1.2, 0.8, 0.7],
    "embedding_multiplier": 2.0,
    "lm_head_multiplier": 0.5,
}
BLOCKS = ["mamba", "attention", "mamba", "mlp"]
CASES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], **SCAN},
    "falcon_h1": MULTIPLIED,
    "granitemoehybrid": DENSE,
    "granitemoehybrid that rotates": {**DENSE, "position_embedding_type": "rope"},
    "granitemoehybrid with experts": {**DENSE, "num_local_experts": 4},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "conv_bias": True},
    "lfm2_moe": {**EXPERTS, "layer_types": CONV, "num_dense_layers": 2},
    "mamba2": MAMBA2,
    "nemotron_h": {**NEMOTRON, "layers_block_type": BLOCKS, "num_hidden_layers": 4},
    "nemotron_h with experts": NEMOTRON,
    "qwen3_5_moe_text": {**SHARED, **DELTA},
    "qwen3_5_text": DELTA,
    "qwen3_next": {**SHARED, **DELTA},
}


def model_of(case: str, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    return tiny_model(case.partition(" ")[0], dtype, **CASES[case])


@pytest.mark.parametrize("case", CASES)
def test_gives_the_models_logits(case: str) -> None:
    own = model_of(case)
    model = PagedModel(model_of(case))
    assert model.implementation == "compiled layers"
    # The delta rule of transformers goes by chunks, which round otherwise.
    most = 1e-4 if case.startswith("qwen") else 2e-5
    assert distance(model, Probe(own, LogitHead(own), 256, model.states)) < most


def test_weights_of_16_bits_are_computed_with_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(product, "multiplies_pairs", lambda: False)
    own, model = (model_of("bamba", torch.bfloat16) for _ in range(2))
    paged, head = PagedModel(model), LogitHead(own)
    assert paged.implementation == "compiled layers"
    probe = Probe(own, head, 256, paged.states)
    wide = probe.wide_logits(own, head)
    assert {parameter.dtype for parameter in own.parameters()} == {torch.bfloat16}
    assert distance(paged, probe, wide) < 1e-5 < probe.distance(wide, [*range(64)])


@pytest.mark.parametrize("case", ["falcon_h1", "granitemoehybrid with experts", "lfm2", "qwen3_5_text", "qwen3_next"])
def test_bits_depend_on_no_thread(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (delta, gates, recurrence):
        monkeypatch.setattr(module, "_WORK", 1)
    own, threads = model_of(case), torch.get_num_threads()
    model = PagedModel(model_of(case))
    probe = Probe(own, LogitHead(own), 256, model.states)
    read = []
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            trials = probe.pieces(replace(model.layout, dtype=torch.float32), model.fold, kernels=True)
            read.append([model.forward(trial.batch, trial.cache)[0] for trial in trials])
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(one, other) for one, other in zip(*read, strict=True))


@torch.inference_mode()
def test_modules_of_experts_are_as_they_came_where_layers_cannot_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Probe, "agrees", lambda *arguments: False)
    model = model_of("qwen3_next")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(input_ids=torch.arange(9)[None], use_cache=False).logits
    paged = PagedModel(model)
    assert paged.implementation.startswith("transformers' modules")
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.set_attn_implementation("eager")
    assert torch.equal(model(input_ids=torch.arange(9)[None], use_cache=False).logits, expected)
