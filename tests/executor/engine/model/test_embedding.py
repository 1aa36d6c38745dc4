"""Embeddings as the compiled layers read them: those of the model's own module, whoever holds the weights."""

from __future__ import annotations

from math import sqrt

import pytest
import torch

from qpdsl.executor.engine.model.heads import TokenEmbedding, embedded_weight
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.linear import PackedLinear, StoredEmbedding
from tests.support.executor.weights import made

TOKENS = torch.tensor([6, 0, 6, 100])


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_are_scaled_and_rounded_as_the_module_does(dtype: torch.dtype, tied: bool) -> None:
    module = torch.nn.Embedding(101, 24).to(dtype)
    head = PackedLinear(FloatWeight(module.weight.detach())) if tied else None
    # Granite scales in its model, which computes in float32; Gemma in the module, in the type of the weights.
    for scale in (1.0, 12.3, float(torch.tensor(sqrt(24), dtype=dtype))):
        expected = (module(TOKENS).float() * scale).detach()
        if scale not in (1.0, 12.3):
            module.embed_scale = torch.tensor(scale)
            expected = (module(TOKENS) * scale).detach().float()
        rows = TokenEmbedding(module, scale, head)(TOKENS)
        assert rows.dtype == torch.float32 and torch.equal(rows, expected)


@pytest.mark.parametrize("form", ["Q8_0", "Q4_K"])
@pytest.mark.parametrize("tied", [False, True])
def test_rows_of_a_quantized_checkpoint_are_what_its_numbers_stand_for(form: str, tied: bool) -> None:
    module = StoredEmbedding(made(form, 101, 256))
    rows = TokenEmbedding(module, 1.0, PackedLinear(module.stored) if tied else None)(TOKENS)
    assert torch.equal(rows, module(TOKENS))


def test_weights_in_another_librarys_form_are_refused() -> None:
    for module in (torch.nn.Identity(), torch.nn.Embedding(5, 8, dtype=torch.float64)):
        with pytest.raises(LookupError):
            embedded_weight(module)
