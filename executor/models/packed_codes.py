"""The whole numbers of quantized safetensors checkpoints, unpacked: each layout as a `GroupedWeight`.

The layouts are those of compressed-tensors 0.20 (`compressors/pack_quantized/helpers.py`,
`compressors/naive_quantized/base.py`), GPTQModel (`nn_modules/qlinear/torch.py`), AutoAWQ (`modules/linear/gemm.py`,
`utils/packing_utils.py`) and torchao 0.18 (`workflows/int8/int8_tensor.py`). In all of them a weight is
(code - zero point) · scale.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from qpdsl.executor.checkpoint.errors import CheckpointError
from qpdsl.executor.checkpoint.quantization_config import CodeFormat
from qpdsl.executor.kernels.data.weights import GroupedWeight

# Where AWQ puts each of eight neighbouring outputs in an int32, from its lowest bits on.
_AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
# The names of codes, scales and zero points where each code has a byte of its own.
_BYTES = {
    "bytes": ("weight", "weight_scale", "weight_zero_point"),
    "torchao": ("_weight_qdata", "_weight_scale", "_weight_zero_point"),
}


class OtherOrder(Exception):
    """The inputs of a group are no neighbours."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a layer."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def stored_tensors(form: CodeFormat, outputs: int, inputs: int) -> dict[str, Stored]:
    """The tensors of a linear layer by name, without its bias; scales are float32, whatever the files have.

    Raises CheckpointError where the layer's sizes do not fit the format.
    """
    group, packed = form.group or inputs, 32 // form.bits
    if inputs % group:
        raise CheckpointError(f"{inputs} inputs are no multiple of its groups of {group}")
    groups = inputs // group
    words, float32 = torch.int32, torch.float32
    if form.layout == "packed":
        tensors = {
            "weight_packed": Stored((outputs, -(-inputs // packed)), words),
            "weight_scale": Stored((outputs, groups), float32),
            "weight_shape": Stored((2,), torch.int64),
        }
        return tensors | ({"weight_zero_point": Stored((-(-outputs // packed), groups), words)} if form.shifted else {})
    if form.layout in _BYTES:
        codes, scale, zero = _BYTES[form.layout]
        tensors = {codes: Stored((outputs, inputs), torch.int8), scale: Stored((outputs, groups), float32)}
        return tensors | ({zero: Stored((outputs, groups), torch.int8)} if form.shifted else {})
    along = outputs if form.layout == "awq" else inputs
    if along % packed or outputs % packed:
        raise CheckpointError(f"its {outputs} outputs and {inputs} inputs do not fill numbers of {packed} codes")
    shape = (inputs, outputs // packed) if form.layout == "awq" else (inputs // packed, outputs)
    tensors = {
        "qweight": Stored(shape, words),
        "qzeros": Stored((groups, outputs // packed), words),
        "scales": Stored((groups, outputs), float32),
    }
    return tensors | ({"g_idx": Stored((inputs,), words)} if form.indexed else {})


def grouped_weight(form: CodeFormat, outputs: int, inputs: int, tensors: Mapping[str, torch.Tensor]) -> GroupedWeight:
    """The weights [outputs, inputs] of a layer with the tensors that `stored_tensors` names.

    Raises CheckpointError where they hold what the format cannot, OtherOrder where groups are of scattered inputs.
    """
    for name, stored in stored_tensors(form, outputs, inputs).items():
        if tensors[name].dtype != stored.dtype:
            given, wanted = (str(dtype).removeprefix("torch.") for dtype in (tensors[name].dtype, stored.dtype))
            raise CheckpointError(f"`{name}` holds {given}, and its format has {wanted} there")
    group = form.group or inputs
    if form.layout == "packed":
        if tensors["weight_shape"].tolist() != [outputs, inputs]:
            given = "×".join(map(str, tensors["weight_shape"].tolist()))
            raise CheckpointError(f"`weight_shape` says {given}, and config.json makes it {outputs}×{inputs}")
        codes = _unpacked(tensors["weight_packed"], form.bits)[:, :inputs]
        zeros = _unpacked(tensors["weight_zero_point"].T, form.bits).T[:outputs] if form.shifted else None
        return _weight(codes, tensors["weight_scale"], zeros, form.bits, group)
    if form.layout in _BYTES:
        given, scale, zero = _BYTES[form.layout]
        # Signed numbers as those that are packed: all from 0 on. What is too small becomes too large.
        half = 1 << (form.bits - 1)
        codes = tensors[given].view(torch.uint8) + half
        if int(codes.max()) >= 2 * half:
            raise CheckpointError(f"`{given}` holds numbers of more than {form.bits} bits")
        zeros = tensors[zero].short() + half if form.shifted else None
        return _weight(codes, tensors[scale], zeros, form.bits, group)
    scales = tensors["scales"].T
    if form.layout == "awq":
        order = torch.tensor(_AWQ_ORDER).argsort()
        codes, zeros = (
            _unpacked(tensors[name], form.bits).view(-1, tensors[name].shape[1], len(order))[..., order].flatten(1).T
            for name in ("qweight", "qzeros")
        )
        return _weight(codes, scales, zeros, form.bits, group)
    if form.indexed and not torch.equal(tensors["g_idx"], torch.arange(inputs, dtype=torch.int32) // group):
        raise OtherOrder
    codes = _unpacked(tensors["qweight"].T, form.bits)
    zeros = _unpacked(tensors["qzeros"], form.bits).T
    if form.layout == "gptq":
        # The first version of the format stored zero points less one.
        zeros = zeros.short() + 1
    return _weight(codes, scales, zeros, form.bits, group)


def _unpacked(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Codes uint8 [n, m · 32 / bits] from 0 on, of int32 [n, m]; the lowest bits come first."""
    # On the machines that torch has, the lowest byte of a number comes first.
    codes = words.contiguous().view(torch.uint8)
    return codes if bits == 8 else torch.stack((codes & 15, codes >> 4), dim=2).flatten(1)


def _weight(
    codes: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor | None, bits: int, group: int
) -> GroupedWeight:
    """Weights of `codes` uint8 [out, in]. They mean 0 at the zero points [out, groups], in the middle where None."""
    scales, middle = scales.float().contiguous(), 1 << (bits - 1)
    points = torch.full_like(scales, middle) if zeros is None else zeros.float()
    if bits == 8:
        # Eight bits are held with a sign.
        codes, points = codes - middle, points - middle
    return GroupedWeight(
        codes.view(torch.int8).contiguous(), bits, scales, -points * scales if points.any() else None, group
    )
