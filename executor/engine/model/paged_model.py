"""A transformers causal model behind paged attention, checked and laid out when it is loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers import PretrainedConfig, PreTrainedModel

from qpdsl.executor.engine.batch.grouped_batch import GroupedBatch
from qpdsl.executor.engine.batch.kernel_batch import KernelBatch
from qpdsl.executor.engine.batch.staging import working_on
from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout, KVType
from qpdsl.executor.engine.model.heads import LogitHead, ValueHead
from qpdsl.executor.engine.model.lean_stack import AttentionScale, LeanStack
from qpdsl.executor.engine.model.module_stack import ModuleStack
from qpdsl.executor.engine.model.probe import Probe, check_calls, check_windows, refuse_batch_dependent
from qpdsl.executor.kernels.plain.linear import PADDED_ROWS, safe_rows
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.requests.request import Feature

if TYPE_CHECKING:
    from qpdsl.executor.engine.model.native_stack import NativeStack
    from qpdsl.executor.kernels.llvm.sample import RowSampler

# Two ways to sum the same float32 products differ by about this much of the largest logit.
_LEAN_TOLERANCE = 1e-4
# Where configurations say how many experts a layer has.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


class PagedModel:
    """A loaded model behind paged attention. Raises UnsupportedModel where that cannot reproduce it.

    Its KV lies in pages of `page_size` tokens, in whichever `KVCache` of `layout` a forward is given, in the model's
    type or in eight bits (`kv_type`). The model must not be used elsewhere afterwards: on a CPU in float32 its weights
    may be laid out anew, and then its own modules are empty. `kernels`: whether attention runs by the Triton kernels;
    always on CUDA, and elsewhere, for tests, by their interpreter or their torch twins. `native`: whether layers run
    code compiled for this CPU where they can. With a `head`, `model` is a base model, which has none of its own, and
    nothing can be generated with it.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        page_size: int = 16,
        kv_type: KVType | None = None,
        kernels: bool | None = None,
        head: ValueHead | None = None,
        native: bool = True,
    ) -> None:
        config = model.config.get_text_config()
        self.device = str(model.device)
        self.kernels: bool = model.device.type == "cuda" if kernels is None else kernels
        self.dtype: torch.dtype = model.dtype
        self.parameters: int = model.num_parameters()
        self.vocabulary: int = model.get_input_embeddings().num_embeddings
        self.max_positions: int = getattr(config, "max_position_embeddings", None) or 1 << 30
        layers, heads, kv_heads, dim = _attention_shape(config)
        self.fold = heads // kv_heads
        self.head: LogitHead | ValueHead = LogitHead(model) if head is None else head
        plain = KVLayout(layers, page_size, kv_heads, dim, self.dtype)
        self.layout = KVLayout(layers, page_size, kv_heads, dim, self.dtype, kv_type)
        refuse_batch_dependent(config)
        probe = Probe(model, self.max_positions, head)
        self._stack: ModuleStack | LeanStack | NativeStack = ModuleStack(model, layers, is_base=head is not None)
        with working_on(self.device):
            scales = _probed(self._stack, self.head, probe, plain, config, self.kernels)
        # True where the layers run code compiled for this CPU; `forward` then takes a `KernelBatch`.
        self.native = False
        # Experts compute several tokens together, so a token's bits depend on the others.
        self.mixes_rows: bool = any(getattr(config, name, None) for name in _EXPERTS)
        if self.device == "cpu" and self.dtype == torch.float32 and not self.kernels:
            lean = _lean(self._stack, self.head, probe, plain, config, scales)
            if lean is not None:
                self._stack = lean
                compiled = _native(lean, self.head, probe, plain, self.layout) if native else None
                if compiled is not None:
                    self._stack, self.native = compiled, True
            if isinstance(self.head, LogitHead):
                self.head.pack()
        self._least: dict[int, int] = {}

    @property
    def capabilities(self) -> Capabilities:
        """What the model can be asked for: a value head has no vocabulary, so it is only read."""
        features: set[Feature] = {"logits", "forks"}
        if isinstance(self.head, LogitHead):
            features |= {"sampling", "seeds", "masks", "logprobs"}
            features |= {"early_exit"} if self._stack.exit_depth > 0 else set()
        return Capabilities(frozenset(features))

    @property
    def sampler(self) -> RowSampler | None:
        """The compiled kernel that samples from rows of logits; None where there is none."""
        return None if isinstance(self._stack, ModuleStack | LeanStack) else self._stack.sampler

    @property
    def least_rows(self) -> int:
        """The rows that a forward must have, at this thread count, for a row's bits not to depend on their number."""
        threads = torch.get_num_threads()
        if threads not in self._least:
            self._least[threads] = self._measure_least_rows()
        return self._least[threads]

    def compile(self) -> None:
        """Has the layers compiled when they first run; without effect where attention is not by kernels."""
        if self.kernels and isinstance(self._stack, ModuleStack):
            self._stack.compile()

    @torch.inference_mode()
    def forward(
        self, batch: GroupedBatch | KernelBatch, cache: KVCache, *, early_exit: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Runs one batch and returns the hidden states [W, d] of the rows that are read; its KV is in `cache` after it.

        With `early_exit`, also those after the exit layer, with the last norm over them.
        """
        if isinstance(batch, GroupedBatch):
            assert isinstance(self._stack, ModuleStack | LeanStack)
            hidden, exit_hidden = self._stack.forward(batch, cache, early_exit)
        else:
            assert not isinstance(self._stack, LeanStack)
            hidden, exit_hidden = self._stack.forward(batch, cache, early_exit)
        rows = batch.read_rows
        if rows is None:
            return hidden, exit_hidden
        return hidden.index_select(0, rows), None if exit_hidden is None else exit_hidden.index_select(0, rows)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, V] of hidden states [N, d]: one row's bits do not depend on N."""
        assert isinstance(self.head, LogitHead), "a reward model's head has no vocabulary"
        return self.head.dense(hidden, self.least_rows)

    def _measure_least_rows(self) -> int:
        if isinstance(self._stack, ModuleStack):
            return PADDED_ROWS
        linears = self._stack.linears
        if isinstance(self.head, ValueHead):
            return safe_rows(linears)
        return PADDED_ROWS if self.head.packed is None else safe_rows([*linears, self.head.packed])


def _attention_shape(config: PretrainedConfig) -> tuple[int, int, int, int]:
    """Layers, query heads, KV heads, head width. Raises UnsupportedModel where layers differ or have no attention."""
    try:
        heads = config.num_attention_heads
        kv_heads = getattr(config, "num_key_value_heads", None) or heads
        dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return config.num_hidden_layers, heads, kv_heads, dim
    except AttributeError as error:
        raise UnsupportedModel(f"its configuration names no attention shape common to all layers: {error}") from error


@torch.inference_mode()
def _probed(
    stack: ModuleStack,
    head: LogitHead | ValueHead,
    probe: Probe,
    layout: KVLayout,
    config: PretrainedConfig,
    kernels: bool,
) -> list[AttentionScale] | None:
    """Refuses the model unless paged attention reproduces its logits. The scale of each layer; None with soft-caps."""
    try:
        hidden, calls = stack.probe(*(probe.kernel_batch(layout) if kernels else probe.batch(layout)))
    except UnsupportedModel:
        raise
    except Exception as error:  # whatever a model's own forward may raise
        raise UnsupportedModel(f"a trial run failed: {type(error).__name__}: {error}") from error
    check_calls(calls, layout.layers, kernels)
    worst = probe.distance(head.dense(hidden))
    if not worst <= probe.tolerance:
        raise UnsupportedModel(f"it computes more than paged attention and a projection: logits differ by {worst:.3g}")
    check_windows(config, calls)
    if any(call["softcap"] is not None for call in calls):
        return None
    return [
        AttentionScale(call["scaling"], call["window"]) for call in sorted(calls, key=lambda call: int(call["layer"]))
    ]


@torch.inference_mode()
def _lean(
    stack: ModuleStack,
    head: LogitHead | ValueHead,
    probe: Probe,
    layout: KVLayout,
    config: PretrainedConfig,
    scales: list[AttentionScale] | None,
) -> LeanStack | None:
    """The model's layers without its modules, where they give its logits; None where they do not."""
    if scales is None:
        return None
    batch, cache = probe.batch(layout)
    try:
        lean = LeanStack(stack.inner, config, scales)
        hidden = lean.check(batch, cache)
    except (LookupError, AttributeError, RuntimeError, TypeError):
        # Some part of the model is not what its family has.
        return None
    if not _agrees(probe, head.dense(hidden)):
        return None
    lean.pack()
    return lean


@torch.inference_mode()
def _native(
    lean: LeanStack, head: LogitHead | ValueHead, probe: Probe, plain: KVLayout, layout: KVLayout
) -> NativeStack | None:
    """The layers with compiled kernels, where that can be and they give the model's logits; None where not."""
    try:
        # The compiler need not be installed where other kernels run.
        from qpdsl.executor.engine.model.native_stack import NativeStack

        # In eight bits the logits are not the model's own, so the same code is checked over plain rows.
        vocabulary = head.width if isinstance(head, LogitHead) else None
        checked = NativeStack(lean, plain, vocabulary)
        native = checked if layout == plain else NativeStack(lean, layout, vocabulary)
    except (ImportError, LookupError, RuntimeError):
        return None
    hidden, _ = checked.forward(*probe.kernel_batch(plain), early_exit=False)
    return native if _agrees(probe, head.dense(hidden)) else None


def _agrees(probe: Probe, logits: torch.Tensor) -> bool:
    return probe.distance(logits) <= _LEAN_TOLERANCE * max(1.0, probe.logits.abs().max().item())
