"""FlashAttention-3 for chunks: what it is given, by a module that has its signature, and when it is refused."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from types import ModuleType
from typing import Any

import pytest
import torch

from qpdsl.executor.kernels import flash_prefill, paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.paged_batch import PagedBatch, Scoring
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.plain import reference
from tests.support.executor.paged_case import DEVICE, make_batch, make_query, make_rows, page_tables

F16, PAGE = torch.float16, 16


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: Any = None,
    v: Any = None,
    qv: Any = None,
    rotary_cos: Any = None,
    rotary_sin: Any = None,
    cache_seqlens: torch.Tensor | None = None,
    cache_batch_idx: Any = None,
    cache_leftpad: Any = None,
    page_table: torch.Tensor | None = None,
    cu_seqlens_q: torch.Tensor | None = None,
    cu_seqlens_k_new: Any = None,
    max_seqlen_q: int | None = None,
    rotary_seqlens: Any = None,
    q_descale: Any = None,
    k_descale: Any = None,
    v_descale: Any = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    attention_chunk: int = 0,
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    scheduler_metadata: Any = None,
    num_splits: int = 0,
    pack_gqa: Any = None,
    sm_margin: int = 0,
    return_softmax_lse: bool = False,
) -> torch.Tensor:
    """The signature of flash_attn_3, in torch: what its documentation says of a paged cache and of chunks."""
    assert cache_seqlens is not None and page_table is not None and cu_seqlens_q is not None and softmax_scale
    for whole in (cache_seqlens, page_table, cu_seqlens_q):
        assert whole.dtype == torch.int32 and whole.stride(-1) == 1
    assert q.stride(-1) == k_cache.stride(-1) == v_cache.stride(-1) == 1 and q.dtype == k_cache.dtype == v_cache.dtype
    assert len(cu_seqlens_q) == len(cache_seqlens) + 1 == len(page_table) + 1 and causal and num_splits == 1
    starts = cu_seqlens_q.tolist()
    assert isinstance(max_seqlen_q, int)
    assert max_seqlen_q >= max(end - begin for begin, end in pairwise(starts))
    out = torch.full_like(q, float("nan"), memory_format=torch.contiguous_format)
    fold = q.shape[1] // k_cache.shape[2]
    for index, length in enumerate(cache_seqlens.tolist()):
        begin, end = starts[index], starts[index + 1]
        pages = page_table[index, : -(-length // k_cache.shape[1])].long()
        keys, values = (cache[pages].flatten(0, 1)[:length].float() for cache in (k_cache, v_cache))
        scores = torch.einsum("qhd,khd->hqk", q[begin:end].float(), keys.repeat_interleave(fold, 1)) * softmax_scale
        if softcap:
            scores = torch.tanh(scores / softcap) * softcap
        back = torch.arange(length - (end - begin), length)[:, None] - torch.arange(length)
        hidden = (back < 0) | ((back > window_size[0]) if window_size[0] >= 0 else torch.zeros_like(back) > 0)
        weights = scores.masked_fill(hidden.to(scores.device), float("-inf")).softmax(-1)
        out[begin:end] = torch.einsum("hqk,khd->qhd", weights, values.repeat_interleave(fold, 1)).to(out.dtype)
    return out


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    module = ModuleType("flash_attn_interface")
    module.flash_attn_with_kvcache = flash_attn_with_kvcache  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "flash_attn_interface", module)
    monkeypatch.setattr(flash_prefill, "capability", lambda device: (9, 0))
    flash_prefill.interface.cache_clear()
    yield
    flash_prefill.interface.cache_clear()


def step(queries: list[int], decodes: int, kind: RowKind = "plain") -> tuple[torch.Tensor, KVRows, PagedBatch]:
    generator = torch.Generator().manual_seed(sum(queries))
    contexts = [count + 20 for count in queries]
    tables, count = page_tables(contexts, PAGE, generator, [(1, 0, 1)] if decodes > 1 else [])
    rows = make_rows(count, PAGE, 2, 32, F16, kind, generator)
    batch = make_batch(contexts, queries, tables, PAGE, decodes)
    if decodes > 1:
        shared = plan(tables[:decodes], contexts[:decodes], PAGE, DEVICE, least=PAGE)
        batch = replace(batch, cascade=shared)
    return make_query(sum(queries), 4, 32, F16, generator), rows, batch


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("decodes", [0, 1, 2])
@pytest.mark.parametrize("scoring", [Scoring(0.2), Scoring(0.2, window=21, softcap=4.0)], ids=str)
def test_chunks_are_read_from_our_pages(decodes: int, scoring: Scoring, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr(flash_prefill, "MIN_TOKENS", 8)
    query, rows, batch = step([1] * decodes + [9, 17], decodes)
    assert (batch.cascade is not None) == (decodes == 2)
    calls: list[Any] = []
    inner = flash_prefill.prefill
    monkeypatch.setattr(flash_prefill, "prefill", lambda *given: calls.append(given) or inner(*given))
    for layer in range(2):
        out = paged_attention.attention(query, rows, batch, layer, scoring)
        assert out.is_contiguous()
        wanted = reference.attention(query, rows, batch, layer, scoring)
        torch.testing.assert_close(out, wanted, rtol=0, atol=3e-3)
    assert len(calls) == 2


@pytest.mark.usefixtures("installed")
def test_it_is_refused_with_a_reason() -> None:
    query, rows, batch = step([1, 300], 1)
    scoring = Scoring(0.2)
    assert flash_prefill.refusal(query, rows, batch, scoring) is None
    assert "sinks" in str(flash_prefill.refusal(query, rows, batch, scoring._replace(sinks=torch.zeros(4))))
    assert "bfloat16" in str(flash_prefill.refusal(query.float(), rows, batch, scoring))
    assert "256" in str(flash_prefill.refusal(query[:200], rows, batch, scoring))
    query, rows, batch = step([1, 300], 1, "fp8")
    assert "fp8" in str(flash_prefill.refusal(query, rows, batch, scoring))


def test_without_the_package_or_the_device_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    query, rows, batch = step([1, 300], 1)
    assert "9.0" in str(flash_prefill.refusal(query, rows, batch, Scoring(0.2)))
    monkeypatch.setattr(flash_prefill, "capability", lambda device: (9, 0))
    for name in ("flash_attn_interface", "flash_attn_3"):
        monkeypatch.setitem(sys.modules, name, None)
    flash_prefill.interface.cache_clear()
    assert "not installed" in str(flash_prefill.refusal(query, rows, batch, Scoring(0.2)))
    flash_prefill.interface.cache_clear()


@pytest.mark.usefixtures("installed")
def test_older_builds_name_the_table_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(*given: torch.Tensor, block_table: torch.Tensor, **named: Any) -> torch.Tensor:
        return flash_attn_with_kvcache(*given, page_table=block_table, **named)

    monkeypatch.setattr(sys.modules["flash_attn_interface"], "flash_attn_with_kvcache", older)
    query, rows, batch = step([40], 0)
    out = flash_prefill.prefill(query, rows, batch, 1, Scoring(0.2))
    torch.testing.assert_close(out, reference.attention(query, rows, batch, 1, Scoring(0.2)), rtol=0, atol=3e-3)
