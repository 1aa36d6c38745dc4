"""The layers without their modules: used where they give the model's logits, and only there."""

from __future__ import annotations

import pytest
import torch
from transformers import PreTrainedModel

from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.model.probe import Probe
from tests.support.executor.models import random_model

FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma"]


def is_lean(model: PagedModel) -> bool:
    """Whether forwards run without the model's modules; those wait for more rows."""
    return model.least_rows < 16


def probe_of(model: PreTrainedModel) -> Probe:
    return Probe(model, LogitHead(model), 256)


@torch.inference_mode()
def distance(model: PagedModel, probe: Probe) -> float:
    """How far the logits of texts that are read in pieces lie from the probe's own."""
    worst = 0.0
    for trial in probe.pieces(model.layout, model.fold, model.native):
        hidden, _ = model.forward(trial.batch, trial.cache)
        worst = max(worst, probe.distance(model.logits(hidden[: len(trial.expected)]), trial.expected))
    return worst


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_gives_the_models_logits(name: str, native: bool) -> None:
    probe = probe_of(random_model(name))
    model = PagedModel(random_model(name), native=native)
    assert is_lean(model) and model.native is native
    assert distance(model, probe) < 1e-4 * probe.logits.abs().max()


@pytest.mark.parametrize("name", ["gemma2", "gpt_neox"])
def test_other_families_run_their_modules(name: str) -> None:
    assert not is_lean(PagedModel(random_model(name)))


class Louder(torch.nn.Module):
    """An MLP with the parts of the family's that computes something else."""

    def __init__(self, mlp: torch.nn.Module) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = mlp.gate_proj, mlp.up_proj
        self.down_proj, self.act_fn = mlp.down_proj, mlp.act_fn

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.down_proj(self.act_fn(self.gate_proj(hidden)) * self.up_proj(hidden)) * 1.01


def test_a_model_that_only_looks_like_its_family_runs_its_modules() -> None:
    def altered() -> PreTrainedModel:
        model = random_model("llama")
        model.model.layers[1].mlp = Louder(model.model.layers[1].mlp)
        return model

    probe = probe_of(altered())
    model = PagedModel(altered())
    assert not is_lean(model)
    assert distance(model, probe) < 1e-3


def test_a_part_that_the_family_does_not_have_runs_its_modules() -> None:
    class Wrapped(torch.nn.Module):
        def __init__(self, linear: torch.nn.Module) -> None:
            super().__init__()
            self.linear = linear

        def forward(self, hidden: torch.Tensor) -> torch.Tensor:
            return self.linear(hidden)

    model = random_model("llama")
    model.model.layers[0].self_attn.q_proj = Wrapped(model.model.layers[0].self_attn.q_proj)
    assert not is_lean(PagedModel(model))


@pytest.mark.parametrize("native", [True, False])
def test_positions_past_the_first_table_turn_as_the_model_does(native: bool) -> None:
    shape = {"max_position_embeddings": 4096}
    model = PagedModel(random_model("llama", **shape), native=native)
    reference = random_model("llama", **shape)
    tokens = torch.arange(1500) * 7 % 101
    probe = probe_of(reference)
    probe.tokens = tokens
    with torch.inference_mode():
        probe.logits = reference(input_ids=tokens[None]).logits[0]
    assert is_lean(model)
    assert distance(model, probe) < 1e-3 * probe.logits.abs().max()
