"""Recurrences over the segments of a step, in torch: the twins of `llvm/recurrence.py`. See `kernels/recurrences.py`.

Tokens are taken one by one, or all at once where each number of the result is computed by itself, so that a token's
bits do not depend on how a text is cut into segments.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from qpdsl.executor.kernels.data.states import FRESH, StateSegment
from qpdsl.executor.kernels.plain.functions import sigmoid, silu, softplus


def convolved(
    rows: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    activated: bool,
    kept: torch.Tensor,
    segments: Iterable[StateSegment],
) -> torch.Tensor:
    """As `ShortConvolution`; `weight` float32 [K, C], `bias` float32 [C], `kept` [blocks, K - 1, C]."""
    out = torch.zeros_like(rows)
    taps = weight.shape[0]
    for segment, before in _begun(kept, segments):
        part = slice(segment.row, segment.row + segment.rows)
        inputs = torch.cat((before, rows[part]))
        wide = inputs.float()
        total = wide[: segment.rows] * weight[0]
        for tap in range(1, taps):
            total = total + wide[tap : tap + segment.rows] * weight[tap]
        if bias is not None:
            total = total + bias
        out[part] = silu(total) if activated else total
        _keep(kept, segment, inputs[segment.rows :])
    return out


def matrices(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    decay: torch.Tensor,
    beta: torch.Tensor | None,
    kept: torch.Tensor,
    segments: Iterable[StateSegment],
) -> torch.Tensor:
    """As `MatrixState`; `kept` float32 [blocks, Hv, dv / C, dk, C]."""
    value = value.float()
    out = torch.zeros_like(value, memory_format=torch.contiguous_format)
    shared = value.shape[1] // key.shape[1]
    query, key = (part.repeat_interleave(shared, dim=1)[..., None] for part in (query, key))
    decay = decay.view(*decay.shape[:2], -1, 1)
    for segment, before in _begun(kept, segments):
        blocks = before.transpose(1, 2)
        state = blocks.flatten(2)
        for row in range(segment.row, segment.row + segment.rows):
            state = state * decay[row]
            update = value[row]
            if beta is not None:
                update = (update - (state * key[row]).sum(1)) * beta[row, :, None]
            state = state + key[row] * update[:, None]
            out[row] = (state * query[row]).sum(1)
        _keep(kept, segment, state.view(blocks.shape).transpose(1, 2))
    return out


def selected(
    logarithm: torch.Tensor,
    rate: torch.Tensor,
    update: torch.Tensor,
    into: torch.Tensor,
    out_of: torch.Tensor,
    kept: torch.Tensor,
    segments: Iterable[StateSegment],
) -> torch.Tensor:
    """As `SelectiveState`; `logarithm` [N, I], `kept` float32 [blocks, N, I]."""
    out = torch.zeros_like(update)
    for segment, state in _begun(kept, segments):
        for row in range(segment.row, segment.row + segment.rows):
            state = state * (logarithm * rate[row]).exp() + into[row, :, None] * update[row]
            out[row] = (state * out_of[row, :, None]).sum(0)
        _keep(kept, segment, state)
    return out


def delta_gates(
    joined: torch.Tensor,
    write: torch.Tensor,
    inputs: torch.Tensor,
    bias: torch.Tensor,
    rate: torch.Tensor,
    factors: torch.Tensor,
    bounded: bool,
    rounds: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As `DeltaGates`; `joined` [T, 2, Hk, dk], `bias` and `rate` float32 [n], `factors` float32 [5]."""
    wide = joined.float()
    scales, (largest, epsilon, bound) = factors[:2].view(2, 1, 1), factors[2:]
    unit = wide * (scales / torch.sqrt((wide * wide).sum(-1, keepdim=True) + epsilon))
    inner = inputs.float() + bias
    logarithm = bound * sigmoid(rate * inner) if bounded else rate * softplus(inner)
    decay = torch.exp(logarithm.to(inputs.dtype).float() if rounds else logarithm)
    return unit, decay, sigmoid(write.float()).to(write.dtype).float() * largest


def gated_norm(
    values: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    epsilon: float,
    activation: str,
    gate_first: bool,
    rounds_input: bool,
    rounds_normed: bool,
) -> torch.Tensor:
    """As `GatedNorm`; `weight` float32 [groups, size]."""
    dtype = gate.dtype
    factor = sigmoid(gate.float()) if activation == "sigmoid" else silu(gate.float())
    values = values.to(dtype).float() if rounds_input else values
    values = values * factor if gate_first else values
    normed = values / torch.sqrt(values.square().mean(-1, keepdim=True) + epsilon)
    if rounds_normed:
        normed = normed.to(dtype).float()
    normed = normed * weight
    if rounds_normed:
        normed = normed.to(dtype).float()
    return (normed if gate_first else normed * factor).to(dtype)


def _begun(kept: torch.Tensor, segments: Iterable[StateSegment]) -> Iterator[tuple[StateSegment, torch.Tensor]]:
    """Each segment with the states that it goes on from."""
    for segment in segments:
        yield segment, torch.zeros_like(kept[0]) if segment.source == FRESH else kept[segment.source]


def _keep(kept: torch.Tensor, segment: StateSegment, state: torch.Tensor) -> None:
    # What inference mode made can only be written in it.
    with torch.inference_mode(kept.is_inference()):
        kept[segment.target] = state
