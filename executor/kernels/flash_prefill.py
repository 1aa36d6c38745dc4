"""FlashAttention-3 for chunks of prompts, where its package is installed and fits (Shah et al., 2024).

    refusal(query, rows, batch, scoring)           why it does not compute the chunks of a batch, or None
    prefill(query, rows, batch, layer, scoring)    the chunks of a batch

It reads our pages as they lie: keys and values of a layer are views of the rows with other strides, from row `layer`
on, so that a page's id is its row there. Its bits are not those of decoding the same tokens, so deterministic steps do
without it. Not measured on a GPU.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from qpdsl.executor.kernels.data.kv_rows import KVRows
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring

# The package names its module alone, or in itself.
_MODULES = ("flash_attn_interface", "flash_attn_3.flash_attn_interface")
# With fewer tokens in chunks, they cost less in the launch of the decoding sequences than in one of their own.
MIN_TOKENS = 256


def refusal(query: torch.Tensor, rows: KVRows, batch: PagedBatch, scoring: Scoring) -> str | None:
    """Why FlashAttention-3 does not compute the chunks of `query` [T, H, D]; None where it does."""
    if capability(query.device) != (9, 0):
        return "it runs on compute capability 9.0 only"
    if interface() is None:
        return "the package flash_attn_3 is not installed"
    if rows.kind != "plain":
        return f"it has no scale for each token, as {rows.kind} pages have"
    if query.dtype not in (torch.bfloat16, torch.float16) or rows.data.dtype != query.dtype:
        return "queries, keys and values must all be bfloat16, or float16"
    if rows.dim > 256 or rows.dim % 8:
        return f"heads are {rows.dim} wide: it takes multiples of 8 up to 256"
    if scoring.sinks is not None:
        return "it has no attention sinks"
    if query.shape[0] - batch.decodes < MIN_TOKENS:
        return f"there are fewer than {MIN_TOKENS} tokens in chunks"
    return None


def prefill(query: torch.Tensor, rows: KVRows, batch: PagedBatch, layer: int, scoring: Scoring) -> torch.Tensor:
    """Attention [T, H, D] of the sequences after the first `batch.decodes`, for `query` [T, H, D].

    The last dimension of `query` is contiguous. The results of other tokens are undefined, and may be overwritten.
    """
    attend = interface()
    assert attend is not None, "refusal() says where it is not installed"
    first = batch.decodes
    result: torch.Tensor = attend(
        query,
        rows.data[layer:, :, 0],
        rows.data[layer:, :, 1],
        cache_seqlens=batch.context[first:],
        cu_seqlens_q=batch.query_start[first:],
        max_seqlen_q=batch.longest_query,
        softmax_scale=scoring.scale,
        causal=True,
        window_size=(-1, -1) if scoring.window is None else (scoring.window - 1, 0),
        softcap=scoring.softcap or 0.0,
        # Chunks fill the device unsplit; splits would need room in a captured graph.
        num_splits=1,
        **{_table_name(attend): batch.pages[first:]},
    )
    return result.contiguous()


@cache
def interface() -> Callable[..., Any] | None:
    """The package's `flash_attn_with_kvcache`; None where it is not installed, or does not load here."""
    for name in _MODULES:
        try:
            found: Callable[..., Any] = importlib.import_module(name).flash_attn_with_kvcache
        except (ImportError, OSError, AttributeError):
            continue
        return found
    return None


@cache
def _table_name(attend: Callable[..., Any]) -> str:
    """What the installed version calls the page table."""
    return "page_table" if "page_table" in inspect.signature(attend).parameters else "block_table"


@cache
def capability(device: torch.device) -> tuple[int, int]:
    """The compute capability of a CUDA device; (0, 0) for other devices."""
    return torch.cuda.get_device_capability(device) if device.type == "cuda" else (0, 0)
