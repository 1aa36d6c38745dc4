"""Paged attention as a layer calls it: mixed batches, one operator for the compiler, and no Triton on a CPU."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from tests.support.paths import ROOT

pytest.importorskip("triton")

from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.data.kv_rows import KVRows, RowKind
from qpdsl.executor.kernels.data.paged_batch import Heads, PagedBatch, Scoring
from qpdsl.executor.kernels.data.shared_prefixes import plan
from qpdsl.executor.kernels.plain import reference
from tests.support.executor.paged_case import DEVICE, TOLERANCE, make_batch, make_query, make_rows, page_tables

CONTEXTS, QUERIES = [40, 50, 17, 30], [1, 1, 9, 30]
F32 = torch.float32


def mixed(kind: RowKind = "plain", cascade: bool = False) -> tuple[KVRows, PagedBatch, torch.Generator]:
    """Two sequences that decode over two shared pages, a later chunk, and a whole prompt."""
    generator = torch.Generator().manual_seed(11)
    tables, count = page_tables(CONTEXTS, 16, generator, [(2, 0, 1)])
    rows = make_rows(count, 16, 2, 32, F32, kind, generator)
    batch = make_batch(CONTEXTS, QUERIES, tables, 16, 2)
    if cascade:
        batch = replace(batch, cascade=plan(tables[:2], CONTEXTS[:2], 16, DEVICE, least=16))
        assert batch.cascade is not None
    return rows, batch, generator


@pytest.mark.parametrize(("kind", "cascade"), [("plain", False), ("plain", True), ("fp8", True)])
def test_a_mixed_batch_is_stored_and_attended(kind: RowKind, cascade: bool) -> None:
    rows, batch, generator = mixed(kind, cascade)
    query = make_query(41, 4, 32, F32, generator)
    key, value = (make_query(41, 2, 32, F32, generator) for _ in range(2))
    scoring = Scoring(0.2, window=25)
    out = paged_attention.attend(Heads(query, key, value), rows, batch, 1, scoring)
    # The keys and values are stored: writing them again changes nothing.
    before = rows.data.clone()
    reference.store(rows, key, value, batch.slots, 1)
    assert torch.equal(rows.data.view(torch.uint8), before.view(torch.uint8))
    wanted = reference.attention(query, rows, batch, 1, scoring)
    torch.testing.assert_close(out, wanted, rtol=0, atol=TOLERANCE[F32])
    same = paged_attention.attention(query, rows, batch, 1, scoring, deterministic=True)
    torch.testing.assert_close(same, wanted, rtol=0, atol=TOLERANCE[F32])


def test_a_cpu_never_loads_triton() -> None:
    code = """
import sys, torch
from qpdsl.executor.kernels import paged_attention
from qpdsl.executor.kernels.data.paged_batch import Heads, PagedBatch, Scoring
from qpdsl.executor.kernels.data.kv_rows import KVRows
rows = KVRows.plain(torch.randn(4, 16, 2, 1, 32))
one = torch.ones(1, dtype=torch.int32)
batch = PagedBatch(one[:, None] * 2, one, one.long() * 32, torch.tensor([0, 1]), 1, 1)
new = torch.randn(1, 1, 32)
out = paged_attention.attend(Heads(new, new, new), rows, batch, 1, Scoring(1.0))
assert torch.allclose(out, new), "one token attends to itself"
assert torch.equal(rows.data[3, 0, 0], new[0])
assert "triton" not in sys.modules
"""
    environment = {"PATH": "", "PYTHONPATH": ":".join(entry for entry in sys.path if entry), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
