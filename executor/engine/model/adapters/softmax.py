"""Modules that compute softmax(QKᵀ)V by themselves."""

from __future__ import annotations

from functools import partial
from types import MethodType
from typing import Any

import torch

from qpdsl.executor.engine.model.adapters.attend import Attend


def _gpt_neo(module: Any, attend: Attend) -> None:
    """Scores are not scaled; layers see all tokens and a window in turns."""
    module.layer_idx = module.layer_id
    window = module.config.window_size if module.attention_type == "local" else None

    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: object = None) -> Any:
        return attend(module, query, key, value, None, 1.0, window)[0].transpose(1, 2), None

    module._attn = attention


def _gpt_neox_japanese(module: Any, attend: Attend) -> None:
    _scaled(module, attend, 1.0 / module.norm_factor)


def _gptj(module: Any, attend: Attend) -> None:
    """Newer releases of transformers use the interface."""
    if hasattr(module, "_attn"):
        _scaled(module, attend, 1.0 / float(module.scale_attn))


def _scaled(module: Any, attend: Attend, scale: float) -> None:
    def attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: object = None) -> Any:
        return attend(module, query, key, value, None, scale)[0].transpose(1, 2), None

    module._attn = attention


def _xglm(module: Any, attend: Attend) -> None:
    module.forward = MethodType(partial(_xglm_forward, attend=attend), module)


def _xglm_forward(module: Any, hidden_states: torch.Tensor, *, attend: Attend, **_: object) -> Any:
    """Queries are scaled, not scores."""
    query, key, value = (
        projection(hidden_states).unflatten(-1, (module.num_heads, module.head_dim)).transpose(1, 2)
        for projection in (module.q_proj, module.k_proj, module.v_proj)
    )
    attended, _weights = attend(module, query, key, value, None, module.scaling)
    return module.out_proj(attended.flatten(2)), None


ADAPTERS = {
    "CodeGenAttention": _gptj,
    "GPTJAttention": _gptj,
    "GPTNeoSelfAttention": _gpt_neo,
    "GPTNeoXJapaneseAttention": _gpt_neox_japanese,
    "XGLMAttention": _xglm,
}
