"""Experts by expert against transformers' own loop over them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from qpdsl.executor.engine.model.rowwise import GroupedExperts, Uniform
from tests.support.executor.families import families, tiny

# Gate and up one after the other; transposed; interleaved with biases and a clamp.
FAMILIES = ("mixtral", "aria_text", "gpt_oss")


def experts_of(name: str) -> Any:
    model = tiny(families()[name])
    model.set_experts_implementation("eager")
    return next(module for module in model.modules() if type(module).__name__.endswith("Experts"))


def case(module: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Rows, the experts that they choose, and the weights of these."""
    generator = torch.Generator().manual_seed(1)
    rows = 3.0 * torch.randn(40, 48, generator=generator)
    scores, chosen = torch.randn(40, module.num_experts, generator=generator).topk(2)
    return rows, chosen, scores.softmax(-1)


@torch.inference_mode()
@pytest.mark.parametrize("name", FAMILIES)
def test_rows_get_what_transformers_gives_them_by_themselves(name: str) -> None:
    module = experts_of(name)
    if not hasattr(module, "num_experts"):
        pytest.skip("this release of transformers builds them otherwise")
    rows, chosen, weights = case(module)
    expected = module(rows, chosen, weights)
    before = {key: value.clone() for key, value in module.state_dict().items()}
    grouped = GroupedExperts(module, Uniform())
    assert module.down_proj.numel() == 0
    together = module(rows, chosen, weights)
    torch.testing.assert_close(together, expected, rtol=1e-4, atol=1e-4 * expected.abs().max().item())
    for part in (slice(0, 1), slice(5, 12), slice(39, 40)):
        assert torch.equal(module(rows[part], chosen[part], weights[part]), together[part])
    # Nor does it matter in which order a row's experts come.
    assert torch.equal(module(rows, chosen.flip(1), weights.flip(1)), together)
    grouped.undo()
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    assert torch.equal(module(rows, chosen, weights), expected)


def test_what_is_not_built_so_is_left_alone() -> None:
    model = tiny(families()["dbrx"])
    for module in model.modules():
        with pytest.raises(LookupError):
            GroupedExperts(module, Uniform())
    assert all(parameter.numel() for parameter in model.parameters())
