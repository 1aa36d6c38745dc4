"""The trial that a model must pass at load: the same tokens by its own forward, and in pieces on the paged engine.

Beside it stand the reasons to refuse a model that a few tokens do not show, or do not name.
"""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import torch

from qpdsl.executor.engine.batch.grouped_batch import GroupedBatch, build
from qpdsl.executor.engine.batch.kernel_batch import DirectAssembler, KernelBatch
from qpdsl.executor.engine.memory.kv_cache import KVCache, KVLayout
from qpdsl.executor.engine.memory.sequence import Chunk, Sequence
from qpdsl.executor.engine.model.adapters.told import KEEP_ALL
from qpdsl.executor.engine.model.heads import LogitHead, ValueHead
from qpdsl.executor.engine.model.kept import KeptKV
from qpdsl.executor.engine.model.mixers import is_mixer
from qpdsl.executor.engine.model.module_stack import AttentionCall, inner_model
from qpdsl.executor.kernels.data.states import FRESH, StateLayout, StateSegment
from qpdsl.executor.requests.errors import UnsupportedModel
from qpdsl.executor.requests.request import ReadRequest
from qpdsl.executor.requests.ticket import Ticket

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Arguments that models hand to attention and that change nothing of it here.
_HARMLESS = frozenset({"cache_position", "dropout", "is_causal", "output_attentions", "position_ids", "use_cache"})
_INTERFACE = "transformers' attention interface"
# On average, layers in 16 bits lie at most so many times as far from the logits of float32 as the model's own.
# Over tiny models of 39 kinds it is 0.97 at the most, as they round less often.
_ROUNDINGS = 1.5


@contextmanager
def failing(what: str) -> Iterator[None]:
    """Makes an UnsupportedModel of whatever a model's own code raises in the block."""
    try:
        yield
    except (UnsupportedModel, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        lines = str(error).strip().splitlines()
        raise UnsupportedModel(f"{what} ({type(error).__name__}{f': {lines[0]}' if lines else ''})") from error


def setting(config: PretrainedConfig, name: str) -> Any:
    """A value of the configuration; None where it has none, or another one for each layer."""
    try:
        return getattr(config, name, None)
    except Exception:  # newer releases of transformers have an error of their own for the second
        return None


def check_calls(calls: list[AttentionCall], layers: int, mixed: bool = False) -> None:
    """Refuses a model whose attention does more, or less, than paged attention does.

    Where layers are `mixed`, some may not attend at all.
    """
    times = Counter(call.layer for call in calls)
    if mixed and not times:
        return
    if not times:
        raise UnsupportedModel(f"its layers compute attention by themselves, not through {_INTERFACE}")
    if repeated := [layer for layer, count in times.items() if count > 1]:
        first = min(repeated)
        raise UnsupportedModel(f"its layers attend more than once in a forward (layer {first}: {times[first]} times)")
    if sorted(times) != [*range(layers)] and not mixed:
        raise UnsupportedModel(f"not all of its layers attend through {_INTERFACE} ({len(times)} of {layers} do)")
    if any(call.masked for call in calls):
        raise UnsupportedModel("it builds an attention mask of its own")
    if not all(call.causal for call in calls):
        raise UnsupportedModel("its attention is not causal")
    if unknown := sorted({name for call in calls for name in call.others} - _HARMLESS):
        raise UnsupportedModel(f"it gives attention what paged attention does not know ({', '.join(unknown)})")
    if any(call.shape[0] % call.shape[1] for call in calls):
        raise UnsupportedModel("its query heads do not share its KV heads evenly")


def check_windows(config: PretrainedConfig, windows: dict[int, int | None], calls: list[AttentionCall]) -> None:
    """Refuses a model whose attention has another sliding window than what it keeps (`KeptKV.windows`)."""
    kinds = setting(config, "layer_types")
    for call in calls:
        if config.model_type in KEEP_ALL:
            continue
        if call.layer in windows:
            window = windows[call.layer]
        else:
            # It reads what another layer keeps.
            window = setting(config, "sliding_window") if kinds and kinds[call.layer] == "sliding_attention" else None
        if window != (call.chunk or call.window):
            raise UnsupportedModel(
                f"its layers do not tell attention of their window of {window or call.window} tokens"
            )


def check_positions(model: PreTrainedModel, inner: torch.nn.Module, calls: list[AttentionCall]) -> None:
    """Refuses a model that takes no positions, unless its attention has them all."""
    if all(call.alibi for call in calls):
        return
    for module in (inner, model.get_decoder()):
        if "position_ids" in inspect.signature(module.forward).parameters:
            return
    raise UnsupportedModel(
        "it numbers the tokens of each forward itself, from 0, so no text can be read in pieces or beside others"
    )


@dataclass(frozen=True, slots=True)
class TrialFindings:
    """What a model's trial found that its configuration does not say: what it keeps, and how its layers attend."""

    kept: KeptKV
    calls: list[AttentionCall]


class TensorMarks:
    """Remembers the buffers of a model, and the tensors in plain attributes of its modules."""

    def __init__(self, model: torch.nn.Module) -> None:
        self._model = model
        self._seen = dict(self._tensors())

    def changed(self) -> list[str]:
        """The names of those that are new, others, or written since."""
        names = []
        for name, (tensor, version) in self._tensors():
            before = self._seen.get(name)
            if before is None or before[0] is not tensor or before[1] != version:
                names.append(name)
        return names

    def _tensors(self) -> Iterator[tuple[str, tuple[torch.Tensor, int]]]:
        for path, module in self._model.named_modules():
            for name, value in (*module._buffers.items(), *vars(module).items()):
                if isinstance(value, torch.Tensor):
                    # What inference mode made does not count how often it was written.
                    yield f"{path}.{name}", (value, 0 if value.is_inference() else value._version)


_TOKENS = 64
# Every so many logits are compared, and all of the first few after a forward begins: what one forward does not hand on
# to the next shows there first.
_STRIDE = 4
_FIRST = 8
# The head is also tried on a few hidden states that are larger by this factor, where a cap on its logits shows.
_LARGER = 30.0
_LARGE_ROWS = 4
# Two ways to sum the same float32 products differ by about this much of the largest logit.
_SAME = 1e-4
_HEAD = "its logits are more than a projection of its last hidden states, a scale and a soft cap"
_Batch = TypeVar("_Batch", bound="GroupedBatch | KernelBatch", covariant=True)


@dataclass(frozen=True, slots=True)
class Trial(Generic[_Batch]):
    """A forward of tokens of the probe, and which of the own logits the rows that it reads must give."""

    batch: _Batch
    cache: KVCache
    expected: list[int]

    def read(self, hidden: torch.Tensor) -> torch.Tensor:
        """Those rows of the forward's hidden states [T, d]."""
        rows = self.batch.read_rows
        return hidden[: len(self.expected)] if rows is None else hidden.index_select(0, rows)


class TrialTexts:
    """A few tokens of a vocabulary, in batches that try how a model runs. `states`: what its layers keep besides."""

    def __init__(
        self,
        vocabulary: int,
        max_positions: int,
        device: str | torch.device = "cpu",
        states: StateLayout | None = None,
    ) -> None:
        self.states = states
        rows = torch.arange(min(_TOKENS, max_positions), device=device)
        self.tokens: torch.Tensor = (rows * 7 + 3) % vocabulary
        self._begin = max(1, len(rows) * 5 // 8)

    def start(self, layout: KVLayout, fold: int) -> Trial[GroupedBatch]:
        """The first 40 tokens. `fold`: query heads to a KV head."""
        sequence, _, cache = self._sequences(layout)
        return self._grouped([self._chunk(sequence, self._begin)], cache, fold)

    def kernel_start(self, layout: KVLayout) -> Trial[KernelBatch]:
        """The same for the attention kernels."""
        sequence, _, cache = self._sequences(layout)
        return self._packed([self._chunk(sequence, self._begin)], cache)

    def one_row(self, layout: KVLayout) -> Trial[KernelBatch]:
        """The first token alone."""
        sequence, _, cache = self._sequences(layout)
        return self._packed([self._chunk(sequence, 1)], cache)

    def pieces(self, layout: KVLayout, fold: int, kernels: bool) -> list[Trial[GroupedBatch | KernelBatch]]:
        """Two forwards: 40 of 64 tokens, then the rest, packed with a second sequence of the first 8.

        A sequence's logits do not depend on what comes later, so the second must have those of the first.
        """
        sequence, other, cache = self._sequences(layout)
        count = len(self.tokens)
        trials: list[Trial[GroupedBatch | KernelBatch]] = []
        for parts in ([(sequence, self._begin)], [(sequence, count - self._begin), (other, len(other.tokens))]):
            # A context of one token has no second piece.
            chunks = [self._chunk(text, rows) for text, rows in parts if rows]
            trials.append(self._packed(chunks, cache) if kernels else self._grouped(chunks, cache, fold))
            sequence.computed = self._begin
        return trials

    def _sequences(self, layout: KVLayout) -> tuple[Sequence, Sequence, KVCache]:
        """All the tokens, and the first few of them, each with pages of its own in one cache."""
        count, begin = len(self.tokens), self._begin
        read = {*range(_FIRST), *range(begin, begin + _FIRST), *range(_STRIDE - 1, count, _STRIDE)}
        pages = 1
        sequences = []
        for part in (tuple(self.tokens.tolist()), tuple(self.tokens[:_FIRST].tolist())):
            request = ReadRequest(part, tuple(sorted(place for place in read if place < len(part))), (0,))
            sequence = Sequence.of(Ticket(request, lambda ticket: None), request)
            first, pages = pages, pages - (-len(part) // layout.page_size)
            sequence.pages = [page * layout.rows for page in range(first, pages)]
            sequences.append(sequence)
        size = pages * layout.page_bytes
        if self.states is not None:
            # The blocks follow the pages; one more is for texts without pages.
            first = -(-size // self.states.block_bytes)
            size = (first + 3) * self.states.block_bytes
            for number, sequence in enumerate(sequences):
                sequence.states.target = first + number
        buffer = torch.zeros(size, dtype=torch.uint8, device=self.tokens.device)
        return sequences[0], sequences[1], KVCache(buffer, layout, 0, self.states)

    def _chunk(self, sequence: Sequence, count: int) -> Chunk:
        """The next tokens of one of them."""
        states = sequence.states
        if states.target is None:
            return Chunk(sequence, count)
        source = states.target if sequence.computed else FRESH
        return Chunk(sequence, count, segments=(StateSegment(source, states.target, 0, count),))

    def _grouped(self, chunks: list[Chunk], cache: KVCache, fold: int) -> Trial[GroupedBatch]:
        batch = build(chunks, cache.layout, fold, cache.scratch, str(self.tokens.device))
        return Trial(batch, cache, _read(batch.readers))

    def _packed(self, chunks: list[Chunk], cache: KVCache) -> Trial[KernelBatch]:
        step = DirectAssembler(cache.layout.page_size, cache.scratch).step(chunks, 1)
        numbers = torch.from_numpy(step.numbers).to(self.tokens.device)
        batch = KernelBatch.of(numbers, step.sizes, segments=step.segments)
        return Trial(batch, cache, _read(step.readers))


class Probe(TrialTexts):
    """The `logits` float32 [T, V] that a model gives these tokens by its own attention.

    `kept` is what its forward keeps for the next one; other logits of the same tokens must lie within `tolerance`.
    """

    @torch.inference_mode()
    def __init__(
        self,
        model: PreTrainedModel,
        head: LogitHead | ValueHead,
        max_positions: int,
        states: StateLayout | None = None,
    ) -> None:
        """Runs the model as it came, once and whole. Raises UnsupportedModel."""
        marks = TensorMarks(model)
        with failing("its own forward fails"), _attending(model, model.config._attn_implementation):
            super().__init__(model.config.get_text_config().vocab_size, max_positions, model.device, states)
            if isinstance(head, LogitHead):
                output, hidden = _widened(model, self.tokens)
            else:
                output, hidden = model(input_ids=self.tokens[None], use_cache=True), None
        self.kept = KeptKV.of(output, marks.changed(), states is not None)
        count = len(self.tokens)
        self.logits: torch.Tensor = (
            _own_logits(output, hidden, head, count) if isinstance(head, LogitHead) else head.dense(output[0][0])
        )
        self.tolerance = _tolerance(self.logits, model.dtype)
        self._exact = model.dtype == torch.float32

    @torch.inference_mode()
    def wide_logits(self, model: PreTrainedModel, head: LogitHead | ValueHead) -> torch.Tensor:
        """The logits float32 [T, V] that the model's own forward gives if it computes in float32, with its own weights.

        Embeddings are rounded as always. `model` has its own attention interface set back meanwhile.
        """
        if model.dtype == torch.float32:
            return self.logits
        attention = "sdpa" if model._supports_sdpa else "eager"
        with failing("its own forward fails in float32"), _attending(model, attention), _in_float32(model):
            output = model(input_ids=self.tokens[None], use_cache=False)
            logits: torch.Tensor = output.logits[0] if isinstance(head, LogitHead) else head.dense(output[0][0])
        return logits.float()

    def keeping(self, states: StateLayout | None) -> Probe:
        """The same for layers that keep such states."""
        other = copy(self)
        other.states = states
        return other

    def distance(self, logits: torch.Tensor, expected: list[int]) -> float:
        """The largest difference from the `expected` rows of the own logits; infinite where a logit is no number."""
        return _distance(logits, self.logits[expected])

    def agrees(self, trial: Trial[Any], logits: torch.Tensor, wide: torch.Tensor | None = None) -> bool:
        """Whether the logits that a trial gives are the model's own, up to the order of their sums.

        `wide`: those of `wide_logits`, for a trial that computes in float32 whatever the type of the weights.
        """
        own = self.logits if wide is None else wide
        bound = self.rounding(own) if self._exact or wide is not None else self.tolerance
        return _distance(logits, own[trial.expected]) <= bound

    def rounds_alike(self, trial: Trial[Any], logits: torch.Tensor, wide: torch.Tensor) -> bool:
        """Whether logits that a trial gives in the model's own type lie about as near to `wide` as the own ones."""
        exact = wide[trial.expected]
        own, given = ((some - exact).abs().mean() for some in (self.logits[trial.expected], logits))
        # What is no number is not less either.
        return bool(given <= _ROUNDINGS * own + self.rounding(exact))

    @staticmethod
    def rounding(logits: torch.Tensor) -> float:
        """How far two ways to sum products in float32 may lie apart at such `logits`."""
        return _SAME * max(1.0, logits.abs().max().item())


@contextmanager
def _attending(model: PreTrainedModel, attention: str) -> Iterator[None]:
    """The model attends by that interface inside the block, or by one that leaves no soft cap out.

    Transformers 5.17 lets Gemma 2 attend by SDPA, which knows none.
    """
    own = model.config._attn_implementation
    capped = getattr(model.config.get_text_config(), "attn_logit_softcapping", None)
    wanted = "eager" if capped and attention == "sdpa" else attention
    if wanted != own:
        model.set_attn_implementation(wanted)
    try:
        yield
    finally:
        if wanted != own:
            model.set_attn_implementation(own)


@contextmanager
def _in_float32(model: PreTrainedModel) -> Iterator[None]:
    """Modules compute in float32 inside the block: each widens its weights while it runs, so memory does not double.

    An embedding runs as it is, and its output is widened. Layers of a model with mixers look at weights of their parts,
    and at their types, and widen all of them.
    """
    kept: dict[torch.nn.Parameter, torch.Tensor] = {}
    mixes = any(is_mixer(module) for module in model.modules())
    lists = [module for module in model.modules() if mixes and isinstance(module, torch.nn.ModuleList)]
    whole = {layer for layers in lists for layer in layers}
    parts = {part for layer in whole for part in layer.modules() if part is not layer}

    def widen(module: torch.nn.Module, inputs: Any) -> Any:
        for parameter in module.parameters(recurse=module in whole):
            if parameter.is_floating_point():
                kept[parameter] = parameter.data
                parameter.data = parameter.data.float()
        # Some heads round what they are given to the type of their weights.
        is_tensor = len(inputs) == 1 and isinstance(inputs[0], torch.Tensor) and inputs[0].is_floating_point()
        return inputs[0].float() if is_tensor else None

    def restore(module: torch.nn.Module, inputs: object, output: Any) -> None:
        for parameter in module.parameters(recurse=module in whole):
            if parameter in kept:
                parameter.data = kept.pop(parameter)

    handles: list[Any] = []
    try:
        for module in model.modules():
            if isinstance(module, torch.nn.Embedding):
                handles.append(module.register_forward_hook(lambda module, inputs, output: output.float()))
            elif module not in parts and (module._parameters or module in whole):
                handles.append(module.register_forward_pre_hook(widen))
                handles.append(module.register_forward_hook(restore, always_call=True))
        yield
    finally:
        for handle in handles:
            handle.remove()


def _read(readers: list[tuple[Chunk, int]]) -> list[int]:
    return [chunk.sequence.computed + row for chunk, _ in readers for row in chunk.read_rows]


def _widened(model: PreTrainedModel, tokens: torch.Tensor) -> tuple[Any, torch.Tensor | None]:
    """What the model's forward returns where its last hidden states have got a few more rows, and these [T + n, d].

    None for them where no inner model makes them. The rows are for `_own_logits`.
    """
    seen: list[torch.Tensor] = []

    def widen(module: torch.nn.Module, inputs: object, output: Any) -> Any:
        hidden = output[0]
        seen.append(torch.cat((hidden, hidden[:, :_LARGE_ROWS] * _LARGER), dim=1))
        if isinstance(output, tuple):
            return (seen[-1], *output[1:])
        output["last_hidden_state"] = seen[-1]
        return output

    output = None
    # A few models run their decoder past the inner model that it is a part of.
    for inner in (inner_model(model), model.get_decoder()):
        handle = inner.register_forward_hook(widen)
        try:
            output = model(input_ids=tokens[None], use_cache=True)
        finally:
            handle.remove()
        if seen:
            break
    return output, seen[0][0] if len(seen) == 1 else None


def _own_logits(output: Any, hidden: torch.Tensor | None, head: LogitHead, count: int) -> torch.Tensor:
    """The model's logits float32 [`count`, V]. Raises UnsupportedModel where `head` gives others of `hidden`."""
    logits: torch.Tensor = output.logits[0].float()
    if hidden is None or hidden.shape[-1] != head.in_features:
        raise UnsupportedModel(_HEAD)
    if logits.shape != (hidden.shape[0], head.width):
        raise UnsupportedModel(_HEAD)
    for rows in (slice(0, count, _STRIDE), slice(count, None)):
        own = logits[rows]
        if not _distance(head.dense(hidden[rows]), own) <= _tolerance(own, hidden.dtype):
            raise UnsupportedModel(_HEAD)
    return logits[:count]


def _distance(logits: torch.Tensor, own: torch.Tensor) -> float:
    worst = (logits - own).abs().max().item()
    return worst if worst == worst else float("inf")


def _tolerance(logits: torch.Tensor, dtype: torch.dtype) -> float:
    """How far two ways to compute in `dtype` may lie apart."""
    return (1e-3 if dtype == torch.float32 else 0.1) * max(1.0, logits.abs().max().item())
