"""Weights in panels that are kept in a file: the same ones, mapped, or none at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from qpdsl.executor.kernels.data.weights import FloatWeight, GroupedWeight, LateFloatWeight, Weight
from qpdsl.executor.kernels.llvm import panel_file
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.kernels.llvm.panel_file import CheckedPanels, KeptPanels, NotKept, PanelWriter
from qpdsl.executor.kernels.llvm.panels import PanelWeights
from qpdsl.executor.kernels.llvm.product import Product

WIDTH = vector_width() or 8
pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")


def weights() -> dict[str, Weight]:
    draw = torch.Generator().manual_seed(1)
    codes = torch.randint(0, 16, (70, 64), generator=draw, dtype=torch.int8)
    scales = torch.randn(70, 2, generator=draw).half().float()
    return {
        "floats": FloatWeight(torch.randn(100, 24, generator=draw)),
        "halves": FloatWeight(torch.randn(9000, 16, generator=draw).bfloat16()),
        "groups": GroupedWeight(codes, 4, scales, -scales, 32),
    }


def written(path: Path, key: str = "key") -> PanelWriter:
    writer = PanelWriter(path, key, 0)
    for name, weight in weights().items():
        PanelWeights(weight, WIDTH, writer, name)
    return writer


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "panels" / "model-1"


def test_kept_weights_give_the_same_bits_and_read_nothing_else(path: Path) -> None:
    writer = written(path)
    before = {name: PanelWeights(weight, WIDTH) for name, weight in weights().items()}
    assert torch.equal(writer.beside("more", lambda: torch.arange(9, dtype=torch.uint8)), torch.arange(9).byte())
    writer.keep()
    kept = KeptPanels.of(path, "key")
    assert kept is not None and [file.name for file in path.parent.iterdir()] == [path.name]
    assert torch.equal(kept.beside("more", lambda: torch.empty(0)), torch.arange(9).byte())
    for name, weight in weights().items():
        late = weight
        if isinstance(weight, FloatWeight):
            # Whoever read it would fail.
            late = LateFloatWeight(weight.select(slice(0, 0)), weight.shape[0], lambda: pytest.fail("was read"))
        own = PanelWeights(late, WIDTH, kept, name)
        assert own.data.data_ptr() % 64 == 0
        rows = torch.randn(3, weight.shape[1])
        assert torch.equal(Product(own)(rows), Product(before[name])(rows))


def test_two_processes_share_the_pages(path: Path) -> None:
    written(path).keep()
    one, two = KeptPanels.of(path, "key"), KeptPanels.of(path, "key")
    assert one is not None and two is not None
    placed = [PanelWeights(weights()["floats"], WIDTH, shelf, "floats").data for shelf in (one, two)]
    assert torch.equal(*placed) and placed[0].data_ptr() != placed[1].data_ptr()
    maps = Path("/proc/self/maps")
    if maps.is_file():
        lines = [line for line in maps.read_text().splitlines() if line.endswith(str(path))]
        assert lines and all(line.split()[1] == "r--s" for line in lines)


DAMAGES = {
    "cut off": lambda content: content[:-1],
    "longer": lambda content: content + b"\0",
    "without a head": lambda content: content[: len(content) // 2],
    "another number": lambda content: content.replace(b'"outputs": 100', b'"outputs": 104'),
    "zeros": lambda content: bytes(len(content)),
    "moved": lambda content: content[64:],
    "empty": lambda content: b"",
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_none(damage: str, path: Path) -> None:
    written(path).keep()
    path.write_bytes(DAMAGES[damage](path.read_bytes()))
    assert KeptPanels.of(path, "key") is None


def test_the_file_of_another_model_is_none(path: Path) -> None:
    written(path).keep()
    other = path.with_name("other")
    os.rename(path, other)
    assert KeptPanels.of(other, "another key") is None
    path.symlink_to(other)
    assert KeptPanels.of(path, "key") is None


def test_weights_of_another_shape_are_refused(path: Path) -> None:
    written(path).keep()
    kept = KeptPanels.of(path, "key")
    assert kept is not None
    for name, weight in (
        ("floats", torch.zeros(99, 24)),
        ("floats", torch.zeros(100, 24).half()),
        ("none", torch.ones(8, 8)),
    ):
        with pytest.raises(NotKept):
            PanelWeights(FloatWeight(weight), WIDTH, kept, name)


def test_weights_that_changed_are_found_when_they_are_laid_out_again(path: Path) -> None:
    writer = written(path)
    for name, weight in weights().items():
        PanelWeights(weight, WIDTH, CheckedPanels(writer), name)
    changed = weights()["floats"].dequantized()
    changed[99, 23] += 1
    with pytest.raises(NotKept):
        PanelWeights(FloatWeight(changed), WIDTH, CheckedPanels(writer), "floats")
    writer.drop()


def test_what_is_dropped_leaves_no_file_and_can_still_be_used(path: Path) -> None:
    writer = PanelWriter(path, "key", 1 << 20)
    own = PanelWeights(weights()["floats"], WIDTH, writer, "floats")
    writer.drop()
    assert not [*path.parent.iterdir()]
    assert torch.equal(own.rows(torch.arange(100)), weights()["floats"].dequantized())


def test_what_does_not_fit_is_not_written(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="room"):
        PanelWriter(path, "key", 1 << 60)
    writer = PanelWriter(path, "key", 1 << 20)

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(panel_file.os, "pwrite", full)
    own = PanelWeights(weights()["floats"], WIDTH, writer, "floats")
    with pytest.raises(NotKept):
        _ = own.data


def test_older_weights_of_a_model_go_and_of_all_those_that_were_not_used_for_longest(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = path.parent
    for age, name in enumerate(("model-1", "other-1", "third-1"), start=1):
        written(folder / name).keep()
        os.utime(folder / name, (10**9 - age, 10**9 - age))
    abandoned = folder / ".part-abc"
    abandoned.write_bytes(b"")
    os.utime(abandoned, (0, 0))
    written(folder / "model-2").keep()
    assert {file.name for file in folder.iterdir()} == {"model-2", "other-1", "third-1"}
    monkeypatch.setattr(panel_file, "_MAX_BYTES", 3 * (folder / "model-2").stat().st_size - 1)
    written(folder / "model-2").keep()
    assert {file.name for file in folder.iterdir()} == {"model-2", "other-1"}
