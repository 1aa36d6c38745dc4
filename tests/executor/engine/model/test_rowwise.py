"""What is replaced in modules, what is found in them, and that all of it can be put back."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from qpdsl.executor.engine.model.rowwise import RowwiseModules, names
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.linear import StoredLinear


class Gated(torch.nn.Module):
    """A product with a parameter, and a gate: what routers are made of."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(24, 24))

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(linear(rows, self.weight)) * rows


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.parts = torch.nn.Sequential(
            torch.nn.Linear(24, 24),
            torch.nn.LayerNorm(24),
            Conv1D(24, 24),
            torch.nn.SiLU(),
            StoredLinear(FloatWeight(torch.randn(24, 24))),
            Gated(),
        )
        self.rows = torch.randn(33, 24)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.parts(rows)

    @property
    def settled(self) -> torch.Tensor:
        with torch.inference_mode():
            return self(self.rows)


class Mixing(Model):
    """Ends with a product of the rows and a tensor, which nothing replaces."""

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return super().forward(rows) @ torch.ones(24, 24)


def test_every_row_is_computed_by_itself() -> None:
    model = Model()
    before = model.settled
    rows = RowwiseModules(model, lambda: model(model.rows[:5]))
    assert rows.findings == []
    after = model.settled
    torch.testing.assert_close(after, before)
    with torch.inference_mode():
        assert torch.equal(torch.cat([model(row[None]) for row in model.rows]), after)


def test_what_mixes_rows_is_found_and_named() -> None:
    model = Mixing()
    assert names(RowwiseModules(model, lambda: model(model.rows[:5])).findings) == ["mm in Mixing"]


def test_it_can_be_undone() -> None:
    model = Model()
    before, weights = model.settled, {name: value.clone() for name, value in model.state_dict().items()}
    rows = RowwiseModules(model, lambda: model(model.rows[:5]))
    assert model.parts[0].weight.numel() == 0
    rows.undo()
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert torch.equal(model.settled, before)


def test_a_model_that_fails_with_it_is_put_back() -> None:
    model = Model()
    before = model.settled

    def run() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        RowwiseModules(model, run)
    assert torch.equal(model.settled, before)
