"""Exit heads come back from their folder as they were, and are refused with a reason where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.exit_heads.exit_head import ExitHead, save_heads
from qpdsl.exit_heads.exit_record import (
    RECORD,
    WEIGHTS,
    ExitAgreement,
    ExitFigures,
    ExitRecord,
    LogitBound,
)

WIDTH, LAYERS, DIGEST = 8, 6, "a digest"
BOUND = LogitBound(3.0, {"0.5": 1.0}, 0.5, {"0.5": 2.0, "0.9": 4.0, "1": 9.0})
AMONG = {"1": 0.5, "8": 0.9}


def figures(layer: int, *curve: tuple[float, float, float, float]) -> ExitFigures:
    points = tuple(ExitAgreement(*point) for point in curve or ((0.0, 1.0, 0.5, 0.5), (0.9, 0.4, 1.0, 0.995)))
    return ExitFigures(layer, 100, (2.0, 0.5), layer / LAYERS, 1 - layer / LAYERS, 0.25, AMONG, BOUND, points)


def written(folder: Path, *layers: int) -> list[ExitHead]:
    draw = torch.Generator().manual_seed(1)
    heads = [
        ExitHead(layer, torch.randn(WIDTH, WIDTH, generator=draw), torch.randn(WIDTH, generator=draw), figures(layer))
        for layer in layers
    ]
    folder.mkdir(exist_ok=True)
    record = ExitRecord("the model", DIGEST, LAYERS, WIDTH, 50, 1000, 0, tuple(head.figures for head in heads))
    save_heads(folder, record, heads)
    return heads


def load(folder: Path, layer: int | None = None, digest: str = DIGEST, width: int = WIDTH) -> ExitHead:
    return ExitHead.load("m", folder, layer, digest, LAYERS, width)


def test_heads_come_back_as_they_were(tmp_path: Path) -> None:
    for head in written(tmp_path, 2, 4):
        loaded = load(tmp_path, head.layer)
        assert torch.equal(loaded.weight, head.weight) and torch.equal(loaded.bias, head.bias)
        assert (loaded.layer, loaded.figures, loaded.bound) == (head.layer, head.figures, 3.0)
        hidden = torch.randn(3, WIDTH)
        assert torch.allclose(loaded(hidden), hidden + hidden @ head.weight.T + head.bias)


def test_the_head_that_saves_most_is_the_usual_one(tmp_path: Path) -> None:
    written(tmp_path, 4, 2, 5)
    assert load(tmp_path).layer == 2
    sure, never = figures(3), figures(1, (0.0, 1.0, 0.5, 0.5), (0.9, 0.0, 1.0, 1.0))
    assert never.smallest_margin() is None
    record = ExitRecord.read("m", tmp_path)
    assert replace(record, heads=(never, sure)).usual is sure
    assert replace(record, heads=(never,)).usual is never


def test_the_smallest_margin_and_what_it_costs() -> None:
    curve = ((0.0, 1.0, 0.9, 0.8), (0.5, 0.8, 0.98, 0.9), (0.9, 0.5, 0.99, 0.97), (0.95, 0.1, 1.0, 0.98))
    head = figures(3, *curve)
    assert head.smallest_margin() == ExitAgreement(*curve[2])
    assert head.smallest_margin(0.98) == ExitAgreement(*curve[1])
    assert head.smallest_margin(0.9) == ExitAgreement(*curve[0])
    assert head.smallest_margin(1.0) == ExitAgreement(*curve[3])
    assert head.cost(ExitAgreement(*curve[1])) == pytest.approx(0.5 + 0.2 * 0.5)
    assert head.cost(ExitAgreement(*curve[1]), rerank=True) == pytest.approx(0.5 + 0.2 * 0.25)
    assert (head.bound.leading(1.0), head.bound.leading(2.0), head.bound.leading(9.0)) == pytest.approx((0.5, 0.1, 0.0))
    assert ExitAgreement(*curve[2]).loss == pytest.approx(0.5 * 0.03)


def edit_record(folder: Path, **changes: object) -> None:
    data = json.loads((folder / RECORD).read_text())
    (folder / RECORD).write_text(json.dumps({**data, **changes}))


def edit_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


NAN = float("nan")
DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "no weights": (lambda folder: (folder / WEIGHTS).unlink(), f"has no {WEIGHTS}"),
    "no record": (lambda folder: (folder / RECORD).unlink(), f"has no {RECORD}"),
    "another JSON file": (lambda folder: (folder / RECORD).write_text('{"a": 1}'), "no record of exit heads"),
    "no JSON": (lambda folder: (folder / RECORD).write_text("{"), "cannot be read"),
    "no heads": (lambda folder: edit_record(folder, heads=[]), "damaged"),
    "a word for a number": (lambda folder: edit_record(folder, width="wide"), "damaged"),
    "no number": (lambda folder: edit_record(folder, heads=[{"layer": NAN}]), "damaged"),
    "not a number": (
        lambda folder: edit_weights(folder, lambda t: t.update({"2.bias": torch.full((WIDTH,), NAN)})), "finite"
    ),
    "a tensor is missing": (lambda folder: edit_weights(folder, lambda t: t.pop("2.weight")), "lacks `2.weight`"),
    "another shape": (
        lambda folder: edit_weights(folder, lambda t: t.update({"2.weight": torch.zeros(3, WIDTH)})), "is [3, 8]"
    ),
    "half a file": (lambda folder: (folder / WEIGHTS).write_bytes(b"{}"), "safetensors"),
}  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_refused(tmp_path: Path, damage: str) -> None:
    written(tmp_path, 2)
    change, message = DAMAGES[damage]
    change(tmp_path)
    with pytest.raises(ModelError) as caught:
        load(tmp_path)
    assert message in str(caught.value) and str(tmp_path) in str(caught.value)


def test_heads_of_another_model_are_refused(tmp_path: Path) -> None:
    written(tmp_path, 2)
    for options, message in (
        ({"digest": "another"}, "other weights than these, those of `the model`"),
        ({"width": 16}, "8 wide, and the model's are 16"),
        ({"layer": 3}, "no head for layer 3, but for: 2"),
    ):
        with pytest.raises(ModelError, match=message):
            load(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match="a model of 6 layers, and this one has 7"):
        ExitHead.load("m", tmp_path, None, DIGEST, 7, WIDTH)
    with pytest.raises(ModelError, match="no such folder"):
        load(tmp_path / "none")
