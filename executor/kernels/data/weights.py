"""The weights of a linear layer as a checkpoint holds them: floats, or whole numbers in groups that share a scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch

# What floats may be stored in; all are computed with in float32.
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_NONE = torch.empty(0, dtype=torch.int64)
# In smaller groups, scales would take as much memory as what they scale.
_MIN_GROUP = 8


@dataclass(frozen=True, slots=True)
class FloatWeight:
    """`values` [out, in], float32, bfloat16 or float16. `mapped`: they lie in a file's own pages, as they are there."""

    values: torch.Tensor
    mapped: bool = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.values.shape[0], self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        return self.values.dtype

    @property
    def kind(self) -> str:
        """The name of the type, for people."""
        return str(self.dtype).removeprefix("torch.")

    def select(self, outputs: torch.Tensor | slice) -> FloatWeight:
        """The weights of the given `outputs` int64 [n] alone, in that order; those of a slice are not copied."""
        return FloatWeight(self.values[outputs], self.mapped and isinstance(outputs, slice))

    def select_inputs(self, inputs: torch.Tensor) -> FloatWeight:
        """The weights of the given `inputs` int64 [n] alone, in that order."""
        return FloatWeight(self.values[:, inputs])

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in]."""
        return self.values.float()


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """Weights [out, in] as whole numbers in groups along the input: w = scale · code + offset, in float32.

    codes:        int8 [out, in]; from 0 to 15 where `bits` is 4, from -128 to 127 where it is 8
    scales:       float32 [out, in / block], the scale of each block of neighbouring inputs
    offsets:      float32 [out, in / block]; None where they are 0
    group:        inputs that share a scale, a divisor of `block`; in the simple formats both are the same
    scale_codes:  int8 [out, in / group]: the scale of a group is its block's times this number; None for 1
    offset_codes: int8 [out, in / group], likewise for the offsets

    These are the blocks of GGUF (Q8_0, Q4_0, Q4_1, Q4_K, Q6_K) and the groups or channels of other quantized
    checkpoints. A code times a scale of a group is exact or rounded once, as ggml's reference code does it.
    """

    codes: torch.Tensor
    bits: int
    scales: torch.Tensor
    offsets: torch.Tensor | None
    group: int
    scale_codes: torch.Tensor | None = None
    offset_codes: torch.Tensor | None = None

    def __post_init__(self) -> None:
        """Raises ValueError where the parts do not fit together."""
        outputs, inputs = self.codes.shape
        groups, blocks = inputs // self.group, self.scales.shape[1]
        parts = [(self.scales, blocks), (self.offsets, blocks), (self.scale_codes, groups), (self.offset_codes, groups)]
        fits = all(part is None or part.shape == (outputs, columns) for part, columns in parts)
        if not fits or self.bits not in (4, 8) or groups * self.group != inputs or groups % blocks:
            raise ValueError("these are no groups of whole numbers")
        if self.scale_codes is None and groups != blocks:
            raise ValueError("a block of several groups needs a number for the scale of each")

    @property
    def parts(self) -> dict[str, Any]:
        """The tensors that there are, by name; each has a row for each output."""
        names = ("codes", "scales", "offsets", "scale_codes", "offset_codes")
        return {name: part for name in names if (part := getattr(self, name)) is not None}

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1]

    @property
    def block(self) -> int:
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def kind(self) -> str:
        """How the numbers are stored, for people."""
        by_channel = self.group == self.codes.shape[1] and self.scale_codes is None
        return f"int{self.bits} by channel" if by_channel else f"int{self.bits} in groups of {self.group}"

    def select(self, outputs: torch.Tensor | slice) -> GroupedWeight:
        """The weights of the given `outputs` int64 [n] alone, in that order; those of a slice are not copied."""
        return replace(self, **{name: part[outputs] for name, part in self.parts.items()})

    def select_inputs(self, inputs: torch.Tensor) -> GroupedWeight:
        """The same for `inputs` int64 [n]. What comes apart is split: blocks into groups, groups into smaller ones.

        Raises ValueError where a group would have less than 8 inputs.
        """
        sizes = (size for size in range(self.group, _MIN_GROUP - 1, -1) if self.group % size == 0)
        group = next((size for size in sizes if _sources(inputs, size) is not None), None)
        if group is None:
            raise ValueError(f"these inputs take groups of {self.group} apart")
        weight = self.split(group)
        if _sources(inputs, weight.block) is None:
            weight = weight.folded()
        blocks, groups = _sources(inputs, weight.block), _sources(inputs, group)
        columns = {"codes": inputs, "scales": blocks, "offsets": blocks, "scale_codes": groups, "offset_codes": groups}
        return replace(weight, group=group, **{name: part[:, columns[name]] for name, part in weight.parts.items()})

    def split(self, group: int) -> GroupedWeight:
        """The same values in groups of `group` inputs. A block that is one group is split with it.

        Raises ValueError where `group` is no divisor of today's.
        """
        times, left = divmod(self.group, group)
        if left:
            raise ValueError(f"groups of {self.group} cannot be split into groups of {group}")

        whole = {"codes"} if self.scale_codes is None else {"codes", "scales", "offsets"}
        apart = {name: part.repeat_interleave(times, 1) for name, part in self.parts.items() if name not in whole}
        return replace(self, group=group, **apart)

    def folded(self) -> GroupedWeight:
        """The same values with every group a block of its own."""
        return GroupedWeight(self.codes, self.bits, self.group_scales(), self.group_offsets(), self.group)

    def group_scales(self) -> torch.Tensor:
        """The scale of each group, float32 [out, in / group]."""
        return self._spread(self.scales, self.scale_codes)

    def group_offsets(self) -> torch.Tensor | None:
        """The offset of each group, float32 [out, in / group]; None where they are 0."""
        return None if self.offsets is None else self._spread(self.offsets, self.offset_codes)

    def dequantized(self) -> torch.Tensor:
        """float32 [out, in]."""
        outputs, inputs = self.codes.shape
        values = self.codes.view(outputs, inputs // self.group, self.group).float()
        values *= self.group_scales()[:, :, None]
        offsets = self.group_offsets()
        if offsets is not None:
            values += offsets[:, :, None]
        return values.view(outputs, inputs)

    def _spread(self, factors: torch.Tensor, codes: torch.Tensor | None) -> torch.Tensor:
        groups = self.block // self.group
        spread = factors if groups == 1 else factors.repeat_interleave(groups, dim=1)
        return spread if codes is None else spread * codes.float()


class _Late:
    """Weights [outputs, in] that are read when their numbers are asked for, and kept then.

    `form` is weights like these with fewer outputs: what can be said of them without reading them. What is made of them
    is late too, but for a slice of their outputs.
    """

    form: Any
    outputs: int
    read: Callable[[], Any]

    def __init__(self, form: Any, outputs: int, read: Callable[[], Any]) -> None:
        vars(self).update(form=form, outputs=outputs, read=read)

    @cached_property
    def whole(self) -> Any:
        """All of them, read."""
        return self.read()

    @property
    def shape(self) -> tuple[int, int]:
        return self.outputs, self.form.shape[1]

    @property
    def kind(self) -> str:
        return str(self.form.kind)

    def select(self, outputs: torch.Tensor | slice) -> Any:
        if isinstance(outputs, slice):
            return self.whole.select(outputs)
        return type(self)(self.form.select(_NONE), len(outputs), lambda: self.read().select(outputs))

    def select_inputs(self, inputs: torch.Tensor) -> Any:
        return type(self)(self.form.select_inputs(inputs), self.outputs, lambda: self.read().select_inputs(inputs))


class LateFloatWeight(_Late, FloatWeight):
    """See `_Late`."""

    values = property(lambda self: self.whole.values)
    mapped = property(lambda self: self.form.mapped)

    @property
    def dtype(self) -> torch.dtype:
        return self.form.dtype  # type: ignore[no-any-return]


class LateGroupedWeight(_Late, GroupedWeight):
    """See `_Late`."""

    codes = property(lambda self: self.whole.codes)
    scales = property(lambda self: self.whole.scales)
    offsets = property(lambda self: self.whole.offsets)
    scale_codes = property(lambda self: self.whole.scale_codes)
    offset_codes = property(lambda self: self.whole.offset_codes)
    bits = property(lambda self: self.form.bits)
    group = property(lambda self: self.form.group)

    @property
    def block(self) -> int:
        return int(self.form.block)

    def split(self, group: int) -> GroupedWeight:
        return self.whole.split(group)  # type: ignore[no-any-return]


Weight = FloatWeight | GroupedWeight


def no_number(weight: Weight) -> str | None:
    """What the floats of a weight hold that is no number, in words; None where all are numbers."""
    floats = (weight.values,) if isinstance(weight, FloatWeight) else (weight.scales, weight.offsets)
    for part in floats:
        if part is not None and not (ends := torch.stack(part.aminmax()).float()).isfinite().all():
            return "NaN" if ends.isnan().any() else "infinity"
    return None


def read(weight: Weight) -> Weight:
    """The weights with their numbers; late ones are read, and do not keep them."""
    return weight.read() if isinstance(weight, _Late) else weight


def stacked(pieces: Iterable[GroupedWeight], outputs: int) -> GroupedWeight:
    """Pieces of one weight, one after the other, with `outputs` in all; each is dropped before the next is made."""
    parts: dict[str, Any] = {}
    place = 0
    for piece in pieces:
        if not parts:
            like = piece
            parts = {name: part.new_empty(outputs, part.shape[1]) for name, part in piece.parts.items()}
        after = place + piece.shape[0]
        for name, part in piece.parts.items():
            parts[name][place:after] = part
        place = after
    return replace(like, **parts)


def joined(weights: Sequence[Weight]) -> Weight:
    """Weights of the same inputs as one, whose outputs follow each other; every value stays the same.

    Floats of several types become float32. Groups get a size that fits all; they become blocks where the blocks differ.
    4-bit codes become 8-bit codes where some are. Raises ValueError where some are floats and some in groups, and where
    the numbers of inputs differ.
    """
    if len({weight.shape[1] for weight in weights}) != 1:
        raise ValueError("these weights have different inputs")
    if len(weights) == 1:
        return weights[0]
    if any(isinstance(weight, _Late) for weight in weights):
        form = joined([weight.form if isinstance(weight, _Late) else weight for weight in weights])
        late = LateFloatWeight if isinstance(form, FloatWeight) else LateGroupedWeight
        outputs = sum(weight.shape[0] for weight in weights)
        return late(form, outputs, lambda: joined([read(weight) for weight in weights]))
    floats = [weight for weight in weights if isinstance(weight, FloatWeight)]
    grouped = [weight for weight in weights if isinstance(weight, GroupedWeight)]
    if floats and grouped:
        raise ValueError("floats and groups of whole numbers have no common form")
    return FloatWeight(torch.cat([weight.values for weight in floats])) if floats else _joined_groups(grouped)


def _joined_groups(weights: Sequence[GroupedWeight]) -> GroupedWeight:
    if len({weight.block for weight in weights}) > 1 or any(weight.scale_codes is None for weight in weights):
        weights = [weight.folded() for weight in weights]
    group = math.gcd(*(weight.group for weight in weights))
    weights = [weight.split(group) for weight in weights]
    scales = [weight.scales for weight in weights]
    # int8 [out, in / group], for the shapes.
    groups = [weight.codes[:, ::group] for weight in weights]
    return GroupedWeight(
        torch.cat([weight.codes for weight in weights]),
        max(weight.bits for weight in weights),
        torch.cat(scales),
        _stacked([weight.offsets for weight in weights], scales, 0),
        group,
        _stacked([weight.scale_codes for weight in weights], groups, 1),
        _stacked([weight.offset_codes for weight in weights], groups, 1),
    )


def _stacked(parts: Sequence[torch.Tensor | None], like: Sequence[torch.Tensor], fill: int) -> torch.Tensor | None:
    """The parts one after another, with `fill` for those that are None; None where all are."""
    if all(part is None for part in parts):
        return None
    pairs = zip(parts, like, strict=True)
    return torch.cat([torch.full_like(shape, fill) if part is None else part for part, shape in pairs])


def _sources(inputs: torch.Tensor, size: int) -> torch.Tensor | None:
    """For each run of `size` of the `inputs`, which run of so many it comes from; None where one comes from several."""
    if len(inputs) % size:
        return None
    runs = inputs.view(-1, size) // size
    return runs[:, 0] if torch.equal(runs, runs[:, :1].expand_as(runs)) else None
