"""Gives a model that keeps transformers' modules on a CPU compiled attention, and rows that do not depend on others."""

from __future__ import annotations

import torch

from qpdsl.executor.engine.memory.kv_cache import KVLayout
from qpdsl.executor.engine.model.heads import LogitHead, ValueHead
from qpdsl.executor.engine.model.module_stack import ModuleStack
from qpdsl.executor.engine.model.probe import Probe
from qpdsl.executor.engine.rowwise.rowwise import RowwiseModules

# The rows of the forward that is looked at.
_ROWS = 5


@torch.inference_mode()
def make_rowwise(stack: ModuleStack, head: LogitHead | ValueHead, probe: Probe, plain: KVLayout, fold: int) -> None:
    """Replaces what mixes rows in the modules of `stack`, unless the model then gives other logits.

    `plain`: the layout of the model's keys and values in full; `fold`: query heads to a KV head.
    """
    trial = probe.start(plain, fold)
    try:
        rows = RowwiseModules(stack.inner, lambda: stack.without_attention(probe.tokens[:_ROWS], trial.cache))
    except (MemoryError, torch.OutOfMemoryError):
        raise
    except Exception:
        # Its own code wants something of the parts that were replaced.
        return
    hidden, _ = stack.forward(trial.batch, trial.cache)
    if probe.agrees(trial, head.dense(trial.read(hidden))):
        stack.rowwise = not rows.findings
        rows.keep()
    else:
        rows.undo()


@torch.inference_mode()
def compile_attention(
    stack: ModuleStack,
    head: LogitHead | ValueHead,
    probe: Probe,
    plain: KVLayout,
    layout: KVLayout,
    fold: int,
) -> None:
    """Gives `stack` kernels for KV of `layout`, where there are any for its attention and they give the same logits.

    In eight bits the logits are not the model's own, so the same code is tried over `plain` rows.
    """
    try:
        # The compiler need not be installed where other kernels run.
        from qpdsl.executor.kernels.llvm.cache import HeadShape
        from qpdsl.executor.kernels.llvm.layer_attention import LayerAttention
        from qpdsl.executor.kernels.llvm.sample import RowSampler

        tried, used = (
            LayerAttention(HeadShape(fold, kept.kv_heads, kept.head_dim, kept.page_size, kept.kind))
            for kept in (plain, layout)
        )
        sampler = RowSampler(head.width) if isinstance(head, LogitHead) else None
    except (ImportError, LookupError):
        return
    trial = probe.kernel_start(plain)
    stack.attention = tried
    hidden, _ = stack.forward(trial.batch, trial.cache)
    agrees = probe.agrees(trial, head.dense(trial.read(hidden)))
    stack.attention, stack.sampler = (used, sampler) if agrees else (None, None)
