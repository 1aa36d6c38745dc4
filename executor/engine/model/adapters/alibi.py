"""Modules that add a penalty for distance to their scores, and compute the softmax by themselves."""

from __future__ import annotations

import sys
from functools import partial
from types import MethodType
from typing import Any

import torch

from qpdsl.executor.engine.model.adapters.attend import Attend
from qpdsl.executor.kernels.data.paged_batch import Alibi


def _own(module: Any) -> Any:
    """The file of transformers that a module's class is in: it has the function that makes the slopes."""
    return sys.modules[type(module).__module__]


def _slopes(module: Any) -> torch.Tensor:
    """Those of Bloom's and Falcon's heads, float32 [H]: what is made of two tokens is they times 0 and 1."""
    made: torch.Tensor = _own(module).build_alibi_tensor(
        torch.ones(1, 2, dtype=torch.int64), module.num_heads, torch.float32
    )
    return made[:, 0, 1]


def _bloom(module: Any, attend: Attend) -> None:
    alibi = Alibi(_slopes(module))
    module.forward = MethodType(partial(_bloom_forward, attend=attend, bias=alibi), module)


def _bloom_forward(
    module: Any, hidden_states: torch.Tensor, residual: torch.Tensor, *, attend: Attend, bias: Alibi, **_: object
) -> Any:
    query, key, value = module._reshape(module.query_key_value(hidden_states))
    attended, _weights = attend(module, query, key, value, None, module.inv_norm_factor, alibi=bias)
    return module.dense(attended.flatten(2)) + residual, None


def _mpt(module: Any, attend: Attend) -> None:
    # Slopes times -1 and 0.
    alibi = Alibi(-_own(module).build_mpt_alibi_tensor(module.n_heads, 2)[:, 0, 0])
    module.forward = MethodType(partial(_mpt_forward, attend=attend, bias=alibi), module)


def _mpt_forward(module: Any, hidden_states: torch.Tensor, *, attend: Attend, bias: Alibi, **_: object) -> Any:
    mixed = module.Wqkv(hidden_states)
    if module.clip_qkv:
        mixed = mixed.clamp(min=-module.clip_qkv, max=module.clip_qkv)
    shape = (module.n_heads, module.head_dim)
    query, key, value = (part.unflatten(-1, shape).transpose(1, 2) for part in mixed.chunk(3, dim=2))
    attended, _weights = attend(module, query, key, value, None, module.softmax_scale, alibi=bias)
    return module.out_proj(attended.flatten(2)), None


def _mpt_model(module: Any, attend: Attend) -> None:
    """It makes a table of all distances in each forward, which nobody reads now."""
    module.build_mpt_alibi_tensor = lambda *sizes, **named: None


def _falcon_model(module: Any, attend: Attend) -> None:
    """The same."""
    module.use_alibi = False


def _falcon_linear(module: Any, attend: Attend) -> None:
    """It computes what it derives from computes, with a product and a sum."""
    module.__class__ = torch.nn.Linear


def _falcon(module: Any, attend: Attend) -> None:
    alibi = None
    if module.config.alibi:
        # It rounds them.
        alibi = Alibi(_slopes(module), module.inv_norm_factor, rounded=True)
    module.forward = MethodType(partial(_falcon_forward, attend=attend, bias=alibi), module)


def _falcon_forward(
    module: Any,
    hidden_states: torch.Tensor,
    *,
    attend: Attend,
    bias: Alibi | None,
    position_embeddings: tuple[torch.Tensor, torch.Tensor],
    **_: object,
) -> Any:
    """Of keys and values that query heads share, each is kept once."""
    groups = module.query_key_value(hidden_states).unflatten(-1, (module.num_kv_heads, -1, module.head_dim))
    query, key, value = groups[..., :-2, :].flatten(2, 3), groups[..., -2, :], groups[..., -1, :]
    query, key, value = (part.transpose(1, 2) for part in (query, key, value))
    if bias is None:
        query, key = _own(module).apply_rotary_pos_emb(query, key, *position_embeddings)
    attended, _weights = attend(module, query, key, value, None, module.inv_norm_factor, alibi=bias)
    return module.dense(attended.flatten(2)), None


ADAPTERS = {
    "BloomAttention": _bloom,
    "FalconAttention": _falcon,
    "FalconLinear": _falcon_linear,
    "FalconModel": _falcon_model,
    "MptAttention": _mpt,
    "MptModel": _mpt_model,
}
