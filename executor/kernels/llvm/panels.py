"""Weights laid out in panels, as the compiled matrix product reads them: once through, in the order of memory.

A panel holds the weights of `width` outputs, one for each lane of a vector, for all inputs in their order. Floats come
as they are; bfloat16 in pairs of inputs, so that a lane of 32 bits holds two; four-bit codes eight inputs to a lane;
eight-bit codes one to a byte. Of grouped weights the scales and offsets stand before the codes that they belong to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, Protocol

import torch
from torch.nn.functional import pad

from qpdsl.executor.kernels.data.weights import FloatWeight, GroupedWeight, Weight, read
from qpdsl.executor.kernels.llvm.large_pages import aligned_bytes, give_back

# Inputs come in steps of so many: the nibbles of a lane.
STEP = 8
_ALIGNMENT = 64
# How scales and offsets are stored: in 16 bits where that loses nothing.
Factor = Literal["float16", "float32"]
_FACTORS = {"float16": torch.float16, "float32": torch.float32}


@dataclass(frozen=True, slots=True)
class FloatPanels:
    """Panels of floats of a type. `rounded`: bfloat16, and inputs are rounded to it before they are multiplied."""

    dtype: torch.dtype
    rounded: bool = False

    def panel_bytes(self, inputs: int, width: int) -> int:
        return inputs * width * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class GroupedPanels:
    """Panels of codes of `bits` bits; see `GroupedWeight` for the other numbers.

    scaled, shifted: whether groups have scales, and offsets, of their own beside their block's
    scale, offset:   how those of a block are stored; `offset` None for no offsets
    """

    bits: int
    group: int
    block: int
    scaled: bool
    shifted: bool
    scale: Factor
    offset: Factor | None

    def header_bytes(self, width: int) -> int:
        """What a block's scales and offsets take."""
        return sum(width * _FACTORS[factor].itemsize for factor in (self.scale, self.offset) if factor is not None)

    def group_bytes(self, width: int) -> int:
        return width * (self.scaled + self.shifted) + self.group * width * self.bits // 8

    def block_bytes(self, width: int) -> int:
        return self.header_bytes(width) + self.block // self.group * self.group_bytes(width)

    def panel_bytes(self, inputs: int, width: int) -> int:
        return inputs // self.block * self.block_bytes(width)


Panels = FloatPanels | GroupedPanels


@dataclass(frozen=True, slots=True)
class PanelForm:
    """What panels of weights [outputs, inputs] are, without their bytes. `kind`: that of the weights, for people."""

    outputs: int
    inputs: int
    width: int
    kind: str
    panels: Panels

    @classmethod
    def of(cls, weight: Weight, width: int) -> PanelForm:
        """Raises LookupError where the inputs, or a group of them, are no multiple of `STEP`."""
        outputs, inputs = weight.shape
        if inputs % STEP:
            raise LookupError("inputs")
        if isinstance(weight, FloatWeight):
            return cls(outputs, inputs, width, weight.kind, FloatPanels(weight.dtype))
        if weight.group % STEP:
            raise LookupError("group")
        return cls(outputs, inputs, width, weight.kind, _grouped(weight))

    @property
    def count(self) -> int:
        """How many panels there are."""
        return -(-self.outputs // self.width)

    @property
    def panel_bytes(self) -> int:
        """Those of each."""
        return aligned(self.panels.panel_bytes(self.inputs, self.width))

    @property
    def nbytes(self) -> int:
        return self.count * self.panel_bytes

    def pieces(self, weight: Weight, data: torch.Tensor | None = None) -> Iterator[torch.Tensor]:
        """The weights in panels uint8 [n, bytes], some after the other; in `data` [panels, bytes], if it is given.

        A few thousand outputs at a time: what is laid out anew passes through memory twice. The last panel is padded
        with 0.
        """
        size, step = self.panels.panel_bytes(self.inputs, self.width), 256
        for first in range(0, self.count, step):
            last = min(first + step, self.count)
            rows = torch.zeros(last - first, self.panel_bytes, dtype=torch.uint8) if data is None else data[first:last]
            piece = weight.select(slice(first * self.width, min(last * self.width, self.outputs)))
            if isinstance(self.panels, FloatPanels):
                _fill_floats(piece, self.panels, rows[:, :size], self.width)
            else:
                assert isinstance(piece, GroupedWeight)
                _fill_grouped(piece, self.panels, rows[:, :size], self.width)
            yield rows
            if isinstance(piece, FloatWeight) and piece.mapped:
                give_back(piece.values)


class Shelf(Protocol):
    """Where weights in panels are kept, by names."""

    def place(self, name: str, weight: Weight, width: int) -> tuple[PanelForm, Callable[[], torch.Tensor]]:
        """What the panels of a weight are, and what gives their bytes [panels, bytes], once all have their place.

        Late weights are read only where they are not kept yet. Raises LookupError as `PanelForm.of` does.
        """
        ...

    def beside(self, name: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """Bytes uint8 [n] that can be kept beside the weights, or are made."""
        ...

    def spare(self) -> None:
        """Gives back the memory of what was read so far, where it can be read again."""
        ...


def spare(shelf: Shelf | None) -> None:
    """See `Shelf.spare`."""
    if shelf is not None:
        shelf.spare()


class PanelWeights:
    """The weights [outputs, inputs] of a layer in panels: in memory, or on a `shelf`, by their `name` there.

    Raises LookupError where the inputs, or a group of them, are no multiple of `STEP`.
    """

    def __init__(self, weight: Weight, width: int, shelf: Shelf | None = None, name: str = "") -> None:
        if shelf is None:
            weight = read(weight)
            form = PanelForm.of(weight, width)
            data = aligned_bytes(form.nbytes).view(form.count, -1)
            for _ in form.pieces(weight, data):
                pass
            self.data = data
        else:
            form, self._place = shelf.place(name, weight, width)
        self.outputs, self.inputs, self.width = form.outputs, form.inputs, form.width
        self.kind, self.panels = form.kind, form.panels
        # How many panels there are, and the bytes of each.
        self.count, self.panel_bytes = form.count, form.panel_bytes
        self._shelf, self._name = shelf, name

    @cached_property
    def data(self) -> torch.Tensor:
        """uint8 [panels, bytes]."""
        return self._place()

    def beside(self, part: str, make: Callable[[], torch.Tensor]) -> torch.Tensor:
        """See `Shelf.beside`."""
        return make() if self._shelf is None else self._shelf.beside(f"{self._name} {part}", make)

    @property
    def nbytes(self) -> int:
        return self.count * self.panel_bytes

    def rows(self, outputs: torch.Tensor) -> torch.Tensor:
        """The weights float32 [n, inputs] of the given `outputs` int64 [n], dequantized."""
        panels, lanes = outputs // self.width, outputs % self.width
        if isinstance(self.panels, FloatPanels):
            return self._float_rows(panels, lanes)
        return self._grouped_rows(self.panels, panels, lanes)

    def _float_rows(self, panels: torch.Tensor, lanes: torch.Tensor) -> torch.Tensor:
        assert isinstance(self.panels, FloatPanels)
        dtype = self.panels.dtype
        values = self.data[:, : self.panels.panel_bytes(self.inputs, self.width)].view(dtype)
        if dtype is torch.bfloat16:
            return values.view(self.count, -1, self.width, 2)[panels, :, lanes].float().view(-1, self.inputs)
        return values.view(self.count, self.inputs, self.width)[panels, :, lanes].float()

    def _grouped_rows(self, form: GroupedPanels, panels: torch.Tensor, lanes: torch.Tensor) -> torch.Tensor:
        width, rows = self.width, len(panels)
        size, blocks = form.panel_bytes(self.inputs, width), self.inputs // form.block
        data = self.data[panels, :size].view(rows, blocks, form.block_bytes(width))
        index = torch.arange(rows)
        scale_bytes = width * _FACTORS[form.scale].itemsize

        def lane(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
            """Of bytes [rows, ..., width · n], the lane of each row as numbers of `dtype` [rows, ...]."""
            return part.contiguous().view(dtype).movedim(-1, 1)[index, lanes]

        scales = lane(data[..., :scale_bytes], _FACTORS[form.scale]).float()
        offsets = None
        if form.offset is not None:
            offsets = lane(data[..., scale_bytes : form.header_bytes(width)], _FACTORS[form.offset]).float()
        groups = data[..., form.header_bytes(width) :]
        groups = groups.reshape(rows, blocks, form.block // form.group, form.group_bytes(width))
        scale_codes = lane(groups[..., :width], torch.int8) if form.scaled else None
        start = width * form.scaled
        offset_codes = lane(groups[..., start : start + width], torch.int8) if form.shifted else None
        packed = groups[..., start + width * form.shifted :]
        if form.bits == 4:
            words = lane(packed.reshape(*packed.shape[:-1], form.group // STEP, 4 * width), torch.int32)
            shifts = torch.arange(0, 32, 4, dtype=torch.int32)
            codes = ((words[..., None] >> shifts) & 15).flatten(-2).to(torch.int8)
        else:
            codes = lane(packed.reshape(*packed.shape[:-1], form.group, width), torch.int8)
        return GroupedWeight(
            codes.reshape(rows, self.inputs),
            form.bits,
            scales,
            offsets,
            form.group,
            None if scale_codes is None else scale_codes.reshape(rows, self.inputs // form.group),
            None if offset_codes is None else offset_codes.reshape(rows, self.inputs // form.group),
        ).dequantized()


def aligned(size: int) -> int:
    """The bytes of a panel, rounded up, so that every panel begins with a line of the cache."""
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _grouped(weight: GroupedWeight) -> GroupedPanels:
    return GroupedPanels(
        weight.bits,
        weight.group,
        weight.block,
        weight.scale_codes is not None,
        weight.offset_codes is not None,
        _factor(weight.scales),
        None if weight.offsets is None else _factor(weight.offsets),
    )


def _factor(factors: torch.Tensor) -> Factor:
    return "float16" if torch.equal(factors.half().float(), factors) else "float32"


def _lanes(part: torch.Tensor, width: int) -> torch.Tensor:
    """[out, n] as [panels, n, width], padded with zeros."""
    missing = -part.shape[0] % width
    # Padding copies, even where there is nothing to add.
    padded = pad(part, (0, 0, 0, missing)) if missing else part
    return padded.reshape(-1, width, part.shape[1]).transpose(1, 2)


def _fill_floats(weight: Weight, form: FloatPanels, target: torch.Tensor, width: int) -> None:
    """Writes panels to `target` uint8 [panels, bytes]."""
    lanes = _lanes(weight.values, width)  # type: ignore[union-attr]
    if form.dtype is torch.bfloat16:
        count, inputs, _ = lanes.shape
        lanes = lanes.reshape(count, inputs // 2, 2, width).transpose(2, 3)
    target.view(form.dtype).view(lanes.shape).copy_(lanes)


def _fill_grouped(weight: GroupedWeight, form: GroupedPanels, target: torch.Tensor, width: int) -> None:
    """Writes panels to `target` uint8 [panels, bytes]."""
    panels, blocks = target.shape[0], weight.scales.shape[1]
    by_block = target.view(panels, blocks, form.block_bytes(width))
    scale_bytes, header = width * _FACTORS[form.scale].itemsize, form.header_bytes(width)

    def put(part: torch.Tensor, dtype: torch.dtype, place: torch.Tensor) -> None:
        place.copy_(_lanes(part, width).to(dtype).contiguous().view(torch.uint8).view(place.shape))

    put(weight.scales, _FACTORS[form.scale], by_block[..., :scale_bytes])
    if weight.offsets is not None and form.offset is not None:
        put(weight.offsets, _FACTORS[form.offset], by_block[..., scale_bytes:header])
    groups = by_block[..., header:].view(panels, blocks, -1, form.group_bytes(width))
    at = 0
    for codes in (weight.scale_codes, weight.offset_codes):
        if codes is not None:
            put(codes, torch.int8, groups[..., at : at + width])
            at += width
    codes = weight.codes
    if form.bits == 4:
        # The second of two codes goes above the first, into the byte that is kept.
        pairs = codes.contiguous().view(torch.int16)
        put((pairs | pairs >> 4).to(torch.uint8).view(torch.int32), torch.int32, groups[..., at:])
    else:
        put(codes, torch.int8, groups[..., at:])
