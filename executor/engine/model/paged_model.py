"""A transformers causal model behind paged attention, checked and laid out when it is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, get_args

import torch

from qpdsl.executor.engine.batch.grouped_batch import GroupedBatch
from qpdsl.executor.engine.batch.kernel_batch import KernelBatch
from qpdsl.executor.engine.batch.staging import working_on
from qpdsl.executor.engine.memory.budget import main_memory
from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout, unsuited
from qpdsl.executor.engine.model.adapters.positions import short_positions
from qpdsl.executor.engine.model.decoder import Decoder
from qpdsl.executor.engine.model.device_stack import DeviceStack
from qpdsl.executor.engine.model.families import describe
from qpdsl.executor.engine.model.heads import LogitHead, TokenEmbedding, ValueHead, embedded_weight
from qpdsl.executor.engine.model.mixers import take_over
from qpdsl.executor.engine.model.module_stack import AttentionCall, ModuleStack, inner_model
from qpdsl.executor.engine.model.probe import (
    Probe,
    TensorMarks,
    TrialFindings,
    TrialTexts,
    check_calls,
    check_positions,
    check_windows,
    failing,
    setting,
)
from qpdsl.executor.kernels.data.kv_rows import KVShape
from qpdsl.executor.kernels.data.states import StateLayout
from qpdsl.executor.kernels.linear import PADDED_ROWS, empty, stored_parameters
from qpdsl.executor.kernels.llvm.panels import Shelf, spare
from qpdsl.executor.kernels.paged_attention import unkept
from qpdsl.executor.requests.engine import Capabilities
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.requests.request import ConstraintKind, Feature
from qpdsl.grammar.words import CPU_SPARE_ROWS, KVType

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

    from qpdsl.executor.engine.model.native_stack import NativeStack
    from qpdsl.executor.kernels.llvm.panel_head import PanelHead
    from qpdsl.executor.kernels.llvm.sample import RowSampler

# Weights may be in memory twice for a moment where main memory would hold them so many times, or what is free of a
# device's this many.
_PLENTY = 6
_DEVICE_PLENTY = 1.25
# Rotations of so many positions are compared.
_POSITIONS = 4096
# Where configurations say how many tokens a text may have.
_LIMITS = ("max_position_embeddings", "max_target_positions", "max_seq_len")
# Where configurations say how many experts a layer has.
_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


class NativeMismatch(UnsupportedModel):
    """Compiled or fused layers give other logits than the model's own, whose weights are gone: load it without them."""


class PagedModel:
    """A loaded model behind paged attention. Raises UnsupportedModel where that cannot reproduce it.

    Its KV lies in pages of `page_size` tokens, in whichever `KVCache` of `layout` a forward is given, in the model's
    type or in eight or four bits (`kv_type`). The model must not be used elsewhere afterwards: its weights may be laid
    out anew, and then its own modules are empty. `kernels`: whether attention runs by the Triton kernels; always on
    CUDA, and elsewhere, for tests, by their interpreter or their torch twins. `native`: whether layers run without
    transformers' modules where they can: by code compiled for this CPU, or fused for the kernels' device. With a
    `head`, `model` is a base model, which has none of its own, and nothing can be generated with it. What an earlier
    trial of the same weights `found` has its compiled layers taken as they are: modules without code will do then.
    Compiled layers keep their weights on a `shelf`, if there is one.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        page_size: int = 16,
        kv_type: KVType | None = None,
        kernels: bool | None = None,
        head: ValueHead | None = None,
        native: bool = True,
        found: TrialFindings | None = None,
        shelf: Shelf | None = None,
    ) -> None:
        with failing("it is not built as a language model is"):
            config = model.config.get_text_config()
            self.vocabulary: int = model.get_input_embeddings().num_embeddings
            self.head: LogitHead | ValueHead = LogitHead(model) if head is None else head
        self.device = str(model.device)
        self.kernels: bool = model.device.type == "cuda" if kernels is None else kernels
        self.dtype: torch.dtype = model.dtype
        self.parameters: int = model.num_parameters() + stored_parameters(model)
        limits = [limit for name in _LIMITS if (limit := setting(config, name)) and limit > 0]
        most = min(limits, default=1 << 30)
        self.max_positions: int = min(most, short_positions(config) or most)
        # What its user may want to know.
        self.notes: tuple[str, ...] = ()
        if self.max_positions < most:
            told = f"a text has at most {self.max_positions:,} tokens here, of {most:,}"
            self.notes = (f"{told}: with one more, the positions of the whole would change (longrope)",)
        base = model if head is not None else inner_model(model)
        with failing("its layers that keep states are not built as is known here"):
            mixers = take_over(base, config) if found is None else None
        # What its layers keep besides keys and values.
        self.states: StateLayout | None = None if mixers is None else mixers.layout
        trial = found or Probe(model, self.head, self.max_positions, self.states)
        kept = trial.kept
        layers = setting(config, "num_hidden_layers")
        if layers is None:
            raise UnsupportedModel("its configuration names no number of layers")
        stack = None if isinstance(trial, TrialFindings) else ModuleStack(model, layers, is_base=head is not None)
        mixed = self.states is not None
        calls = trial.calls if isinstance(trial, TrialFindings) else _calls(stack, trial, layers, mixed)
        plain = _layout(calls, layers, page_size, torch.float32 if self.device == "cpu" else self.dtype)
        self.layout = plain
        if kv_type is not None and (reason := self.unkept(kv_type)):
            raise UnsupportedModel(reason)
        if self.kernels and (reason := _beyond_kernels(calls, plain, mixed)):
            raise UnsupportedModel(f"{reason}, and there are no kernels for that on a GPU yet: it runs on a CPU")
        self.layout = replace(plain, kv_type=kv_type)
        # Query heads to a KV head, in the layer with the fewest.
        self.fold: int = min([call.shape[0] // call.shape[1] for call in calls], default=1)
        hidden, gated = setting(config, "hidden_size"), setting(config, "intermediate_size")
        widths = [(call.shape[0] + call.shape[1]) * (call.shape[3] + call.shape[4]) for call in calls]
        self._joined = max(widths, default=0)
        self._hidden = hidden if isinstance(hidden, int) else max(call.shape[0] * call.shape[4] for call in calls)
        # Several widths stand in a list.
        self._gated = 2 * max(gated if isinstance(gated, list) else [gated or 4 * self._hidden])
        self._stack: ModuleStack | NativeStack | DeviceStack
        # Why the kernels' layers are modules, in words.
        self._unfused: str | None = None
        # True where steps take a `KernelBatch` on a CPU: layers, or at least attention, are compiled for it.
        self.native = self._rowwise = False
        if isinstance(trial, TrialFindings):
            self.found = trial
            decoder = describe(base, config, trial.calls)
            self.states = decoder.states
            texts = TrialTexts(config.vocab_size, self.max_positions, states=self.states)
            self._stack = _known(model, decoder, self.head, texts, plain, shelf)
            self.native = self._rowwise = True
        else:
            assert stack is not None
            self._stack = stack
            with working_on(self.device):
                calls = self._tried(model, stack, trial, plain, config)
                self.found = TrialFindings(kept, calls)
                if self.kernels and native:
                    fused = _fused(model, stack, self.head, trial, plain, self.fold, config, calls, self.max_positions)
                    if isinstance(fused, str):
                        self._unfused = fused
                    else:
                        self._stack = fused
            if self.device == "cpu" and not self.kernels:
                self._compile_rows(model, stack, trial, plain, config, native, shelf)
        if self.is_compiled:
            # Compiled attention reads any float; torch's computes in the type of the cache.
            self.layout = replace(self.layout, dtype=self.dtype)
        # Experts compute several tokens together, so a token's bits depend on the others.
        self.mixes_rows: bool = not self._rowwise and (
            any(setting(config, name) for name in _EXPERTS)
            or any("Expert" in type(module).__name__ for module in model.modules())
        )

    def _compile_rows(
        self,
        model: PreTrainedModel,
        stack: ModuleStack,
        probe: Probe,
        layout: KVLayout,
        config: PretrainedConfig,
        native: bool,
        shelf: Shelf | None,
    ) -> None:
        """Has a CPU compute every row by itself: by compiled layers, or else by modules that are made to."""
        if native and self._compiles(model, stack, probe, layout, config, shelf):
            self.native = self._rowwise = True
            return
        # It imports transformers' modules, which a known model does without.
        from qpdsl.executor.engine.model.rowwise import compile_attention, make_rowwise

        if isinstance(self.head, LogitHead):
            self.head.pack()
        make_rowwise(stack, self.head, probe, layout, self.fold)
        if native and self.found.calls:
            compile_attention(stack, self.head, probe, layout, self.layout, self.found.calls)
        self.native, self._rowwise = stack.attention is not None, stack.rowwise

    def _compiles(
        self,
        model: PreTrainedModel,
        stack: ModuleStack,
        probe: Probe,
        layout: KVLayout,
        config: PretrainedConfig,
        shelf: Shelf | None,
    ) -> bool:
        """Has compiled code run the layers; False where that cannot be, or gives other logits than the model's own."""
        try:
            decoder = describe(stack.inner, config, self.found.calls)
        except LookupError:
            return False
        compiled = _native(model, decoder, stack, self.head, probe.keeping(decoder.states), layout, shelf)
        if compiled is not None:
            self._stack, self.states = compiled, decoder.states
        return compiled is not None

    def unkept(self, kv_type: KVType) -> str | None:
        """Why its keys and values cannot be kept in that type here, in words; None where they can."""
        if self.layout.is_empty:
            return None
        reason = unsuited(kv_type, self.layout.shapes)
        return unkept(kv_type, torch.device(self.device)) if reason is None and self.kernels else reason

    @property
    def is_compiled(self) -> bool:
        """Whether compiled code runs its layers, which another load of the same weights may take as they are."""
        return not isinstance(self._stack, ModuleStack | DeviceStack)

    @property
    def runs_modules(self) -> bool:
        """Whether its layers, or a part of them, are transformers' modules."""
        stack = self._stack
        return isinstance(stack, ModuleStack) or (not isinstance(stack, DeviceStack) and stack.has_experts)

    @property
    def capabilities(self) -> Capabilities:
        """What the model can be asked for: a value head has no vocabulary, so it is only read."""
        features: set[Feature] = {"logits", "forks"}
        if isinstance(self.head, LogitHead):
            features |= {"sampling", "seeds", *get_args(ConstraintKind)}
            features |= {"confidence", "figures", "contrast", "logprobs"}
            if self.states is None:
                # What a token did to a state cannot be taken back.
                features |= {"drafts"}
                features |= {"early_exit"} if self._stack.depth > 1 else set()
            features |= {"routing"} if not self.kernels and self.panel_head is not None else set()
        return Capabilities(frozenset(features), CPU_SPARE_ROWS if self.device == "cpu" else None)

    @property
    def implementation(self) -> str:
        """Which code runs the layers, for people."""
        if isinstance(self._stack, DeviceStack):
            return "fused layers, Triton attention"
        if not isinstance(self._stack, ModuleStack):
            return "compiled layers"
        if self._unfused is not None:
            return f"transformers' modules, Triton attention; its layers are not fused: {self._unfused}"
        attention = "Triton" if self.kernels else "compiled" if self.native else "torch"
        products = ", compiled products" if self._rowwise else ""
        return f"transformers' modules, {attention} attention{products}"

    @property
    def weight_bytes(self) -> float:
        """The bytes of the weights that a step reads."""
        if isinstance(self._stack, ModuleStack | DeviceStack):
            return self.parameters * self.dtype.itemsize
        packed = self.head.packed if isinstance(self.head, LogitHead) else None
        return self._stack.weight_bytes + (0 if packed is None else packed.nbytes)

    @property
    def row_bytes(self) -> int:
        """What a row of a step takes on its way through a layer at the most, by the model's shape.

        The residual, what is normed, and then either queries, keys, values and what was attended, or the gated MLP.
        """
        numbers = 2 * self._hidden + max(self._joined, self._gated)
        return int(numbers * (torch.float32 if self.native else self.dtype).itemsize)

    @property
    def sampler(self) -> RowSampler | None:
        """The compiled kernel that samples from rows of logits; None where there is none."""
        return None if isinstance(self._stack, DeviceStack) else self._stack.sampler

    @cached_property
    def panel_head(self) -> PanelHead | None:
        """The compiled head that draws from hidden states; None where there is none.

        It computes in float32, so modules whose own type is another one have none.
        """
        wide = not isinstance(self._stack, ModuleStack | DeviceStack) or self.dtype is torch.float32
        return self.head.drawing() if wide and isinstance(self.head, LogitHead) else None

    @torch.inference_mode()
    def is_same(self, other: PagedModel, shelf: Shelf | None) -> bool:
        """Whether compiled layers of two loads of one model give the same bits for a few tokens, anywhere.

        `shelf`: where both keep their weights.
        """
        one, two = self._stack, other._stack
        if isinstance(one, ModuleStack | DeviceStack) or isinstance(two, ModuleStack | DeviceStack):
            return False
        if (self.layout, self.parameters, self.max_positions) != (other.layout, other.parameters, other.max_positions):
            return False
        turned = zip(one.rotations(_POSITIONS), two.rotations(_POSITIONS), strict=True)
        texts = TrialTexts(self.vocabulary, self.max_positions, states=self.states)
        trial = texts.kernel_start(replace(self.layout, kv_type=None))
        results = []
        for model in (self, other):
            hidden, _ = model.forward(trial.batch, trial.cache)
            spare(shelf)
            results.append((model.embed(trial.batch.tokens), hidden, model.head.dense(hidden)))
            spare(shelf)
        return all(torch.equal(mine, its) for mine, its in [*turned, *zip(*results, strict=True)])

    def prefer_sparse(self, share: float) -> None:
        """Has a step read the allowed ids alone up to this share of the head, as it was measured on this device."""
        if self.panel_head is not None:
            self.panel_head.planner.share = share

    @property
    def least_rows(self) -> int:
        """The rows that a forward must have for a row's bits not to depend on their number."""
        return 1 if self._rowwise else PADDED_ROWS

    @property
    def depth(self) -> int:
        """The number of layers; 0 where the model cannot be left after one of them."""
        return self._stack.depth

    @property
    def head_inputs(self) -> int:
        """The width of the hidden states that its head reads."""
        return self.head.in_features if isinstance(self.head, LogitHead) else 0

    @property
    def exit_layer(self) -> int:
        """The number of layers after which it is left where nothing says another: the half of them."""
        return self.depth // 2

    @torch.inference_mode()
    def forward(
        self, batch: GroupedBatch | KernelBatch, cache: KVCache, exits: Sequence[int] = ()
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Runs one batch and returns the hidden states [W, d] of the rows that are read; its KV is in `cache` after it.

        And of each of `exits`, those of these rows after so many layers, for `leaving`.
        """
        if isinstance(batch, GroupedBatch):
            assert isinstance(self._stack, ModuleStack)
            hidden, states = self._stack.forward(batch, cache, exits)
        else:
            hidden, states = self._stack.forward(batch, cache, exits)
        rows = batch.read_rows
        if rows is None:
            return hidden, states
        return hidden.index_select(0, rows), {layer: state.index_select(0, rows) for layer, state in states.items()}

    @torch.inference_mode()
    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The embeddings [T, d] of `tokens` int64 [T]."""
        return self._stack.embed(tokens)

    @property
    def runs_in_part(self) -> bool:
        """Whether some of its layers can run without the others."""
        return not isinstance(self._stack, ModuleStack | DeviceStack) and self._stack.depth > 1

    @torch.inference_mode()
    def run_layers(
        self, batch: KernelBatch, cache: KVCache, residual: torch.Tensor | None, first: int, depth: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Runs the layers from `first` to before `depth` alone. Only where the model `runs_in_part`.

        `residual` float32 [T, d] is what comes before them, None where `first` is 0; it is changed. Returns it as it is
        after them, and the same with the last norm.
        """
        assert not isinstance(self._stack, ModuleStack | DeviceStack)
        if residual is None:
            residual = self._stack.embed(batch.tokens)
        hidden = self._stack.run(batch, cache, residual, first, depth)
        return residual, hidden

    @torch.inference_mode()
    def leaving(self, residual: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, d] for the head, of rows that leave after some layer: the last norm of their residual."""
        return self._stack.normed(residual)

    @torch.inference_mode()
    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits float32 [N, V] of hidden states [N, d]: one row's bits do not depend on N."""
        assert isinstance(self.head, LogitHead), "a reward model's head has no vocabulary"
        return self.head.dense(hidden)

    @torch.inference_mode()
    def _tried(
        self, model: PreTrainedModel, stack: ModuleStack, probe: Probe, layout: KVLayout, config: PretrainedConfig
    ) -> list[AttentionCall]:
        """The calls of attention in a forward, by layer. Raises UnsupportedModel where it gives other logits."""
        marks = TensorMarks(model)
        worst = 0.0
        calls: list[AttentionCall] = []
        for trial in probe.pieces(layout, self.fold, self.kernels):
            with failing("its layers fail on a batch of pieces of texts"):
                hidden, calls = stack.probe(trial.batch, trial.cache)
            check_calls(calls, layout.layers, self.states is not None)
            worst = max(worst, probe.distance(self.head.dense(trial.read(hidden)), trial.expected))
        check_windows(config, probe.kept.windows, calls)
        check_positions(model, stack.inner, calls)
        if changed := marks.changed():
            raise UnsupportedModel(f"each forward changes what the next one computes with (`{changed[0]}`)")
        if not worst <= probe.tolerance:
            raise UnsupportedModel(
                f"a text that is read in pieces gets other logits than a whole one (they differ by {worst:.3g})"
            )
        return sorted(calls, key=lambda call: call.layer)


@torch.inference_mode()
def _calls(stack: ModuleStack | None, probe: Probe, layers: int, mixed: bool) -> list[AttentionCall]:
    """What attention is given in a forward, by layer, before there is a place for keys and values."""
    assert stack is not None
    with failing("its layers fail where they do not attend"):
        calls = stack.calls(probe.tokens)
    check_calls(calls, layers, mixed)
    return sorted(calls, key=lambda call: call.layer)


def _layout(calls: list[AttentionCall], layers: int, page_size: int, dtype: torch.dtype) -> KVLayout:
    """What the layers must keep, so that each attends to what it is given."""
    kept: list[KVShape | int | None] = [None] * layers
    for call in calls:
        kept[call.layer] = call.kept if call.owner == call.layer else call.owner
    if not calls:
        kept[0] = KVShape(1, 1, 1)
    return KVLayout(tuple(kept), page_size, dtype, is_empty=not calls)


def _beyond_kernels(calls: list[AttentionCall], layout: KVLayout, mixed: bool) -> str | None:
    """What the Triton kernels do not do of what a model needs; None where that is nothing."""
    if mixed:
        return "its layers keep a state"
    if any(call.latent for call in calls):
        return "its keys and values are latent vectors"
    if any(not shape.is_even for shape in layout.shapes):
        return "its keys and values differ in width"
    if any(call.chunk for call in calls):
        return "its layers attend within chunks"
    if any(call.alibi for call in calls):
        return "its scores have a penalty for distance (ALiBi)"
    return None


@torch.inference_mode()
def _native(
    model: PreTrainedModel,
    decoder: Decoder,
    stack: ModuleStack,
    head: LogitHead | ValueHead,
    probe: Probe,
    layout: KVLayout,
    shelf: Shelf | None,
) -> NativeStack | None:
    """The layers as compiled code; None where that cannot be, or gives other logits than the model's own.

    Memory holds the weights twice until the logits agree, if there is plenty. If not, modules are emptied on the way,
    and NativeMismatch is raised where it turns out too late.
    """
    try:
        embedded_weight(model.get_input_embeddings())
        # The compiler need not be installed where other kernels run.
        import qpdsl.executor.engine.model.native_stack  # noqa: F401
    except (ImportError, LookupError):
        return None
    expected = probe.wide_logits(model, head)
    weights = sum(parameter.numel() * parameter.itemsize for parameter in stack.inner.parameters())
    sparing = weights * _PLENTY > main_memory()
    try:
        native = _laid_out(decoder, model, head, layout.page_size, shelf, release=sparing)
    except LookupError as error:
        if sparing:
            raise NativeMismatch("its layers cannot be compiled") from error
        decoder.undo()
        return None
    plain = replace(layout, dtype=torch.float32)
    trial = probe.kernel_start(plain)
    hidden, _ = native.forward(trial.batch, trial.cache)
    spare(shelf)
    logits = head.dense(trial.read(hidden))
    agrees = (probe.rounds_alike if native.rounds else probe.agrees)(trial, logits, expected)
    spare(shelf)
    if not agrees:
        if sparing:
            raise NativeMismatch("its compiled layers give other logits than its own")
        decoder.undo()
        return None
    for index in range(decoder.layers):
        decoder.release(index)
    native.tune([(step.batch, step.cache) for step in (probe.one_row(plain), trial)])
    return native


def _laid_out(
    decoder: Decoder,
    model: PreTrainedModel,
    head: LogitHead | ValueHead,
    page_size: int,
    shelf: Shelf | None,
    *,
    release: bool,
) -> NativeStack:
    """Both ends and the layers of a model as compiled code. Raises LookupError where that cannot be."""
    from qpdsl.executor.engine.model.native_stack import NativeStack

    embeddings = model.get_input_embeddings()
    tied = isinstance(head, LogitHead) and head.shares(embedded_weight(embeddings))
    if isinstance(head, LogitHead):
        head.pack(shelf)
    packed = head.packed if tied and isinstance(head, LogitHead) else None
    embed = TokenEmbedding(embeddings, decoder.embedding_scale, packed)
    if release and packed is not None:
        empty(embeddings)
        empty(model.get_output_embeddings())
    vocabulary = head.width if isinstance(head, LogitHead) else None
    rounds = model.dtype is torch.bfloat16
    return NativeStack(decoder, embed, page_size, vocabulary, release=release, rounds=rounds, shelf=shelf)


@torch.inference_mode()
def _known(
    model: PreTrainedModel,
    decoder: Decoder,
    head: LogitHead | ValueHead,
    texts: TrialTexts,
    layout: KVLayout,
    shelf: Shelf | None,
) -> NativeStack:
    """The compiled layers of a model that had the same logits by them as by its own modules before."""
    native = _laid_out(decoder, model, head, layout.page_size, shelf, release=True)
    plain = replace(layout, dtype=torch.float32)
    native.tune([(trial.batch, trial.cache) for trial in (texts.one_row(plain), texts.kernel_start(plain))])
    return native


@torch.inference_mode()
def _fused(
    model: PreTrainedModel,
    stack: ModuleStack,
    head: LogitHead | ValueHead,
    probe: Probe,
    layout: KVLayout,
    fold: int,
    config: PretrainedConfig,
    calls: list[AttentionCall],
    max_positions: int,
) -> DeviceStack | str:
    """The layers as few launches of a device; or in words why that cannot be, or gives other logits than the model's.

    Raises NativeMismatch as `_native` does.
    """
    try:
        decoder = describe(stack.inner, config, calls)
        embedding = embedded_weight(model.get_input_embeddings())
    except LookupError as error:
        return f"what they compute is not known ({error})"
    wide = _wide_logits(model, head, probe)
    weights = sum(parameter.numel() * parameter.itemsize for parameter in stack.inner.parameters())
    sparing = _is_scarce(weights, model.device)
    try:
        fused = DeviceStack(decoder, embedding, model.device, max_positions, release=sparing)
    except LookupError as error:
        if any(not parameter.numel() for parameter in stack.inner.parameters()):
            raise NativeMismatch("its layers cannot be fused") from error
        return str(error)
    for trial in probe.pieces(layout, fold, kernels=True):
        assert isinstance(trial.batch, KernelBatch)
        logits = head.dense(trial.read(fused.forward(trial.batch, trial.cache)[0]))
        if wide is None or model.dtype is torch.float32:
            fits, apart = probe.agrees(trial, logits), probe.distance(logits, trial.expected)
        else:
            fits = probe.rounds_alike(trial, logits, wide)
            apart = (logits - wide[trial.expected]).abs().max().item()
        if not fits:
            if sparing:
                raise NativeMismatch("its fused layers give other logits than its own")
            return f"they give other logits (they differ by {apart:.3g})"
    for index in range(decoder.layers):
        decoder.release(index)
    return fused


def _wide_logits(model: PreTrainedModel, head: LogitHead | ValueHead, probe: Probe) -> torch.Tensor | None:
    """The logits of `Probe.wide_logits`, which tell roundings from a mistake; None where memory is too small."""
    try:
        return probe.wide_logits(model, head)
    except (UnsupportedModel, torch.OutOfMemoryError):
        return None


def _is_scarce(weights: int, device: torch.device) -> bool:
    """Whether memory had better not hold `weights` bytes once more."""
    if device.type != "cuda":
        return weights * _PLENTY > main_memory()
    return weights * _DEVICE_PLENTY > torch.cuda.mem_get_info(device)[0]
