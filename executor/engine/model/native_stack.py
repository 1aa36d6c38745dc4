"""The layers of a decoder as one compiled function over weights in panels, on a CPU."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
from torch.nn.functional import pad

from qpdsl.executor.engine.batch.kernel_batch import KernelBatch
from qpdsl.executor.engine.memory.kv_cache import KVCache
from qpdsl.executor.engine.model.decoder import Decoder, DecoderShape, Layer, Norm, Projection, joined_projections
from qpdsl.executor.kernels.data.kv_rows import RowKind
from qpdsl.executor.kernels.data.paged_batch import next_power_of_two
from qpdsl.executor.kernels.data.states import StateStep
from qpdsl.executor.kernels.llvm import product as products
from qpdsl.executor.kernels.llvm.attention import NO_WINDOW, scratch_size
from qpdsl.executor.kernels.llvm.cache import HeadShape
from qpdsl.executor.kernels.llvm.compile import TEAM, Function, Library, vector_width
from qpdsl.executor.kernels.llvm.forward import (
    BARRIER_NUMBERS,
    FRAME,
    LAYER,
    OWN_NORM_ROWS,
    PRODUCTS,
    RULE,
    ForwardShape,
    HeadNorm,
    Widths,
    forward_code,
    gate_columns,
)
from qpdsl.executor.kernels.llvm.large_pages import zero_bytes
from qpdsl.executor.kernels.llvm.layer_attention import attend_library
from qpdsl.executor.kernels.llvm.panels import PanelWeights, Shelf
from qpdsl.executor.kernels.llvm.sample import RowSampler
from qpdsl.executor.kernels.recurrences import GatedDelta

_MIN_POSITIONS = 1024
# What a run of layers says of itself in a frame.
_RUN = [
    FRAME.index(name) for name in ("first", "depth", "last_norm", "opens", "stores", "resumes", "mixed", "mixed_row")
]
# From so many rows on a step is arithmetic; with fewer it reads memory.
_MANY_ROWS = 16
# With so many rows, a last layer for few of them alone saves more than its weights take to be read once more.
_LONG_ROWS, _FEW_READ = 64, 4
# How long a step is timed for each number of threads.
_TRIAL_SECONDS, _LEAST_TRIALS = 0.02, 3

# The hidden states float32 [T, d] of token ids int64 [T], before the first layer.
Embed = Callable[[torch.Tensor], torch.Tensor]


class NativeStack:
    """Embedding, layers and last norm of one model, over KV of 32, 16 or 8 bits. Sums are float32 (see `Product`).

    A row's bits depend on that row alone, whatever the batch and the number of threads.
    """

    def __init__(
        self,
        decoder: Decoder,
        embed: Embed,
        page_size: int,
        vocabulary: int | None,
        *,
        release: bool = False,
        rounds: bool = False,
        shelf: Shelf | None = None,
    ) -> None:
        """Lays the weights out layer by layer; with `release`, the modules that they come from are emptied on the way.

        With a `vocabulary`, `sampler` draws rows of as many logits. `rounds`: see `Product`; `shelf`: see
        `PanelWeights`. Raises LookupError where the kernels cannot be compiled for the model or the machine.
        """
        self._shape = _shape(decoder.shape, page_size)
        self._widths = Widths.of(self._shape.hidden, self._shape.heads)
        self._forwards: dict[tuple[RowKind, torch.dtype], Function] = {}
        self._tree_attends: dict[tuple[RowKind, torch.dtype], Library] = {}
        self._forward_over("plain", torch.float32)
        self._norm_rows = forward_code(self._shape)["norm"]
        self.rotations, self._embed = decoder.rotations, embed
        self._residual = decoder.residual_scale
        self._residual_scale = torch.tensor([decoder.residual_scale], dtype=torch.float32)
        self._one = torch.ones(1, dtype=torch.float32)
        self._barrier = torch.zeros(BARRIER_NUMBERS, dtype=torch.int32)
        self.sampler = None if vocabulary is None else RowSampler(vocabulary)
        # Where what a layer keeps begins in a block, by its name.
        places: list[dict[str, int]] = [{} for _ in range(decoder.layers)]
        for layer, part, at in () if decoder.states is None else decoder.states.places():
            places[layer][part.name] = at
        self._layers: list[_LaidOut] = []
        for index in range(decoder.layers):
            own = decoder.layer(index)
            self._layers.append(_LaidOut(own, self._shape, self._residual, places[index], shelf, str(index), rounds))
            del own
            if release:
                decoder.release(index)
        self._norm = decoder.norm
        self._tables: list[torch.Tensor] = []
        self._table = np.zeros((decoder.layers, len(LAYER)), dtype=np.int64)
        self._grow(_MIN_POSITIONS)
        self._workspace = _Workspace(self, 1, 1, 1)
        # Seconds of a step by its threads: of few rows, and of many.
        self._times: tuple[dict[int, float], dict[int, float]] = ({}, {})

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """The hidden states float32 [T, d] of `tokens` int64 [T] before the first layer."""
        return self._embed(tokens)

    @property
    def depth(self) -> int:
        """The number of layers."""
        return len(self._layers)

    @property
    def rounds(self) -> bool:
        """Whether some products round what they multiply."""
        return any(product.rounds for layer in self._layers for product in layer.products.values())

    @property
    def has_experts(self) -> bool:
        """Whether some layers have modules in place of an MLP."""
        return any(layer.experts is not None for layer in self._layers)

    @property
    def weight_bytes(self) -> int:
        """The bytes that the weights of all products take."""
        products = (laid.weights.nbytes for layer in self._layers for laid in layer.products.values())
        return sum(products) + sum(layer.experts.nbytes for layer in self._layers if layer.experts is not None)

    @property
    def shape(self) -> ForwardShape:
        return self._shape

    @property
    def widest(self) -> tuple[int, int, int, int]:
        """The most numbers of a product.

        In a row of the joined projection, of what recurrences make, of the gated values, and of what is read beside
        its inputs.
        """
        outputs, inputs = dict.fromkeys(PRODUCTS, 0), dict.fromkeys(PRODUCTS, 0)
        prepared = 0
        for layer in self._layers:
            for name, product in layer.products.items():
                outputs[name] = max(outputs[name], product.weights.outputs)
                inputs[name] = max(inputs[name], product.weights.inputs)
                prepared = max(prepared, product.prepared)
        return outputs["join"], inputs["back"], outputs["widen"] // self._shape.widened, prepared

    def forward(
        self, batch: KernelBatch, cache: KVCache, exits: Sequence[int] = (), threads: int | None = None
    ) -> tuple[torch.Tensor, dict[int, torch.Tensor]]:
        """Hidden states [T, d] after the last norm; and for each of `exits`, that after so many layers.

        Those of rows that nobody reads may not be made.
        """
        residual, states = self._embed(batch.tokens), dict[int, torch.Tensor]()
        if not exits and self._reads_few(batch):
            return self._forward_read(batch, cache, residual, threads), states
        first = 0
        for depth in (*sorted(exits), len(self._layers)):
            hidden = self.run(batch, cache, residual, first, depth, threads)
            if depth in exits:
                states[depth] = residual.clone()
            first = depth
        return hidden, states

    def _reads_few(self, batch: KernelBatch) -> bool:
        """Whether the last layer pays for the rows that are read alone, and can be made so."""
        count, read, last = len(batch.tokens), batch.read_rows, self._layers[-1]
        few = read is not None and count >= _LONG_ROWS and len(read) * _FEW_READ <= count
        return few and batch.paged.paths is None and last.products.keys() == {"join", "out", "widen", "down"}

    def _forward_read(
        self, batch: KernelBatch, cache: KVCache, residual: torch.Tensor, threads: int | None
    ) -> torch.Tensor:
        """The hidden states of rows that are read. All others have keys and values in the last layer, and no more."""
        rows, last = batch.read_rows, len(self._layers) - 1
        assert rows is not None
        hidden = self.run(batch, cache, residual, 0, last, threads, stores=True)
        if len(rows):
            hidden[rows] = self.run(batch.of_rows(rows), cache, residual[rows], last, last + 1, threads)
        return hidden

    def run(
        self,
        batch: KernelBatch,
        cache: KVCache,
        residual: torch.Tensor,
        first: int,
        depth: int,
        threads: int | None = None,
        *,
        stores: bool = False,
    ) -> torch.Tensor:
        """Runs the layers from `first` to before `depth` alone, on the `residual` float32 [T, d] before them.

        That becomes the one after them; with the last norm it is the result. Of the keys and values of the batch's
        tokens, those of these layers are in the cache after it. With `stores`, those of layer `depth` are too, in place
        of a result.
        """
        count, layers = residual.shape[0], self._layers
        hidden = torch.empty_like(residual)
        if batch.paged.longest > len(self._tables[0]):
            self._grow(batch.paged.longest)
        if threads is None:
            threads = self._threads(count)
        table = batch.paged.pages.shape[1]
        self._workspace = self._workspace.grown(self, count, threads, table)
        step = None if cache.states is None else StateStep(cache.states, batch.segments)
        frame = self._workspace.frame(self, residual, hidden, batch, cache, step)
        address, function = frame.ctypes.data, self._forward_over(cache.layout.kind, cache.layout.dtype)
        workspace = frame[_RUN[-2:]].tolist()
        mixed: torch.Tensor | None = None

        def run_to(stop: int, norm: Norm, *, opens: bool = False, stores: bool = False) -> None:
            resumed = (0, *workspace) if mixed is None else (1, mixed.data_ptr(), mixed.shape[1])
            frame[_RUN] = (first, stop, norm.weight.data_ptr(), opens, stores, *resumed)
            TEAM.run(threads, lambda thread: function(address, thread, threads))

        for index, layer in enumerate(layers[first:depth], first):
            if layer.between is not None and step is not None:
                run_to(index, self._norm, opens=True)
                joined = self._workspace.joined(count, layer.products["join"].weights.outputs)
                first, mixed = index, layer.between(joined[:, layer.begin :], step).contiguous()
            if layer.experts is not None and layer.before_experts is not None:
                run_to(index + 1, layer.before_experts)
                first, mixed = index + 1, None
                added = layer.experts(hidden)
                # Rounded after the product, in whichever vectors.
                residual += added if self._residual == 1.0 else added * self._residual
        run_to(depth, self._norm, opens=stores, stores=stores)
        return hidden

    def normed(self, residual: torch.Tensor) -> torch.Tensor:
        """The last norm of a residual float32 [N, d]."""
        residual = residual.contiguous()
        hidden = torch.empty_like(residual)
        addresses = [tensor.data_ptr() for tensor in (residual, self._norm.weight, hidden)]
        self._norm_rows(*addresses, len(residual), self._one.data_ptr())
        return hidden

    def tune(self, steps: Sequence[tuple[KernelBatch, KVCache]]) -> None:
        """Times small and large `steps` with several numbers of threads, to choose from for steps of their kind.

        Halves of the threads that torch has are tried, for a few hundredths of a second each: the first steps of each
        wake threads and touch memory.
        """
        if torch.get_num_threads() == 1:
            return
        for batch, cache in steps:
            times = self._times[len(batch.tokens) >= _MANY_ROWS]
            count = torch.get_num_threads()
            while count:
                trials: list[float] = []
                begin = time.perf_counter()
                while len(trials) < _LEAST_TRIALS or time.perf_counter() - begin < _TRIAL_SECONDS:
                    start = time.perf_counter()
                    self.forward(batch, cache, threads=count)
                    trials.append(time.perf_counter() - start)
                times[count] = min(trials)
                count //= 2

    def _forward_over(self, kind: RowKind, dtype: torch.dtype) -> Function:
        """The forward for rows of keys and values of this kind, compiled when it is first asked for."""
        if (kind, dtype) not in self._forwards:
            shape = replace(self._shape, heads=replace(self._shape.heads, kind=kind, dtype=dtype))
            self._forwards[kind, dtype] = forward_code(shape)["forward"]
        return self._forwards[kind, dtype]

    def tree_attend(self, kind: RowKind, dtype: torch.dtype) -> int:
        """The address of attention with trees over such rows, compiled when it is first asked for."""
        if (kind, dtype) not in self._tree_attends:
            heads = replace(self._shape.heads, kind=kind, dtype=dtype)
            library = attend_library(heads, self._widths.head, sinks=False, softcap=self._shape.softcap, trees=True)
            self._tree_attends[kind, dtype] = library
        return self._tree_attends[kind, dtype].address("attend")

    def _threads(self, rows: int) -> int:
        """The fastest number of threads of those that torch may have now."""
        most = torch.get_num_threads()
        times = self._times[rows >= _MANY_ROWS]
        return min((count for count in times if count <= most), key=times.__getitem__, default=most)

    def _grow(self, positions: int) -> None:
        """Tabulates the rotations of the positions below a power of two, and fills the table of layers."""
        dim = self._shape.heads.dim
        tables = [
            # What is not rotated is turned by nothing: cosine 1, sine 0.
            torch.cat((table, torch.tensor([1.0, 0.0]).expand(len(table), dim // 2 - table.shape[1], 2)), dim=1)
            for table in self.rotations(next_power_of_two(positions))
        ]
        still = torch.tensor([1.0, 0.0]).expand(next_power_of_two(positions), dim // 2, 2)
        self._tables = [table.contiguous() for table in (*tables, still)]
        numbers = accumulate((layer.attends for layer in self._layers), initial=0)
        for row, layer, number in zip(self._table, self._layers, numbers, strict=False):
            layer.describe(row, self._tables, number)

    @property
    def table(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """A row of numbers for each layer, in the order of `LAYER`."""
        return self._table

    @property
    def constants(self) -> dict[str, torch.Tensor]:
        """What all steps share, by the names of `FRAME`."""
        return {
            "factor": self._residual_scale,
            "one": self._one,
            "barrier": self._barrier,
        }


class _LaidOut:
    """One layer with its weights in panels.

    attends: whether it has a row in a page
    between: see `Recurrence`; None where it has none, or one that is compiled
    experts: see `Layer`, with the norm before them
    """

    def __init__(
        self,
        layer: Layer,
        shape: ForwardShape,
        residual_scale: float,
        places: dict[str, int],
        shelf: Shelf | None,
        number: str,
        rounds: bool,
    ) -> None:
        """`places`: see `NativeStack`; `number`: the layer's, which its weights are kept as with their product's name.

        Raises LookupError where a recurrence cannot be compiled.
        """
        attention, recurrence, mlp, width = layer.attention, layer.recurrence, layer.mlp, vector_width()
        first = [part.joined for part in (attention, recurrence) if part is not None]
        parts: dict[str, Projection] = {}
        if first:
            parts["join"] = joined_projections(first)
        if attention is not None:
            parts["out"] = attention.out
        if recurrence is not None:
            parts["back"] = recurrence.out
        if mlp is not None:
            parts |= {"widen": _in_turns(mlp.widen, gate_columns(width), shape.widened), "down": mlp.down}
        self.products = {
            name: products.Product(
                PanelWeights(part.weight, width, shelf, f"{number} {name}"), part.bias, rounds=rounds
            )
            for name, part in parts.items()
        }
        self._factors = {name: np.float32(residual_scale * part.scale) for name, part in parts.items()}
        self._norms = {
            "before_mixer": layer.before_mixer,
            "after_mixer": layer.after_mixer,
            "before_mlp": layer.before_mlp,
            "after_mlp": layer.after_mlp,
        }
        self.between = self._rule = None
        self._places = places
        if recurrence is not None:
            if not isinstance(recurrence.between, GatedDelta):
                self.between = recurrence.between
            elif recurrence.between.kernel() is None:
                raise LookupError("no vectors")
            else:
                self._rule = recurrence.between
        self.experts, self.before_experts = layer.experts, layer.before_mlp
        # Where what the recurrence takes begins in the joined projection.
        self.begin = 0 if attention is None else attention.joined.weight.shape[0]
        self.attends = attention is not None
        norms = None if attention is None else attention.norms
        self._head_norms = None if norms is None else norms.weight.contiguous()
        self._rotation = None if attention is None else attention.rotation
        self._scale = np.float32(0.0 if attention is None else attention.scale)
        window = None if attention is None else attention.window
        self._window = NO_WINDOW if window is None else window

    def describe(self, row: np.ndarray[Any, np.dtype[np.int64]], tables: list[torch.Tensor], number: int) -> None:
        """Fills the layer's row in the table. The last of `tables` is that of layers without rotations.

        `number`: its row in a page.
        """
        numbers = {
            "head_norms": 0 if self._head_norms is None else self._head_norms.data_ptr(),
            "rotations": tables[-1 if self._rotation is None else self._rotation].data_ptr(),
            "scaling": _low_half(self._scale),
            "window": self._window,
            "number": number,
        }
        numbers |= {name: 0 if norm is None else norm.weight.data_ptr() for name, norm in self._norms.items()}
        for name, product in self.products.items():
            weights, code = product.weights, product.code
            numbers |= {
                f"{name} multiply": code.library.address("multiply"),
                f"{name} prepare": code.library.address("prepare") if product.prepared else 0,
                f"{name} weights": weights.data.data_ptr(),
                f"{name} bytes": weights.panel_bytes,
                f"{name} bias": product.bias.data_ptr(),
                f"{name} inputs": weights.inputs,
                f"{name} outputs": weights.outputs,
                f"{name} prepared": product.prepared,
                f"{name} factor": _low_half(self._factors[name]),
            }
        if self._rule is not None and (kernel := self._rule.kernel()) is not None:
            conv, states = (self._places[part.name] for part in self._rule.parts)
            begins = accumulate(self._rule.widths[:-1], initial=self.begin)
            rule = (kernel.address, self._rule.constants.data_ptr(), kernel.heads, conv, states, *begins)
            numbers |= {f"rule {name}": number for name, number in zip(RULE, rule, strict=True)}
        row[:] = [numbers.get(name, 0) for name in LAYER]


class _Workspace:
    """Memory for what a step of at most `rows` rows computes on its way."""

    def __init__(self, stack: NativeStack, rows: int, threads: int, table: int) -> None:
        self._rows, self._threads, self._table = next_power_of_two(rows), threads, next_power_of_two(table)
        heads = stack.shape.heads
        joined, mixed, gated, prepared = stack.widest
        columns = stack.shape.widened * gate_columns(vector_width())
        scratch = scratch_size(heads, Widths.of(stack.shape.hidden, heads).head, self._table)

        def room(*sizes: int) -> torch.Tensor:
            return zero_bytes(4 * math.prod(sizes)).view(torch.float32).view(sizes)

        self._shared = {
            # Of few rows, each thread has its own.
            "normed": room(max(self._rows, threads * OWN_NORM_ROWS), stack.shape.hidden),
            "projected": room(self._rows, stack.shape.hidden),
            "joined": room(self._rows, joined),
            # Nor do recurrences write rows of no segment.
            "mixed": room(self._rows, mixed),
            # Attention does not write rows without a context.
            "attended": room(self._rows, heads.queries),
            "gated": room(self._rows, gated),
        }
        self._own = {
            "widened": room(threads, self._rows * columns),
            "prepared": room(threads, max(self._rows * prepared, 1)),
            "scratch": room(threads, scratch),
        }

    def grown(self, stack: NativeStack, rows: int, threads: int, table: int) -> _Workspace:
        """One that holds such a step too: it, or a larger one."""
        if rows <= self._rows and threads <= self._threads and table <= self._table:
            return self
        return _Workspace(stack, max(rows, self._rows), max(threads, self._threads), max(table, self._table))

    def joined(self, rows: int, numbers: int) -> torch.Tensor:
        """The joined projection [rows, numbers] of the layer that was the last to make one."""
        return self._shared["joined"][:rows, :numbers]

    def frame(
        self,
        stack: NativeStack,
        residual: torch.Tensor,
        hidden: torch.Tensor,
        batch: KernelBatch,
        cache: KVCache,
        step: StateStep | None,
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The numbers of a step, in the order of `FRAME`, but for those of a run of layers (`_RUN`)."""
        paged = batch.paged
        tensors = {
            **self._shared,
            **self._own,
            **stack.constants,
            "residual": residual,
            "hidden": hidden,
            "positions": batch.positions,
            "slots": paged.slots,
            "rows": cache.rows.data,
            "pages": paged.pages,
            "context": paged.context,
            "start": paged.query_start,
            "path_start": paged.context if paged.paths is None else paged.paths.start,
            "places": paged.context if paged.paths is None else paged.paths.places,
        }
        if step is not None:
            tensors |= {"states": step.rows.data, "segments": step.table, "chains": step.chains}
        numbers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        numbers |= {f"{name}_bytes": part.shape[1] * part.itemsize for name, part in self._own.items()}
        numbers |= {
            "joined_row": self._shared["joined"].shape[1],
            "mixed_row": self._shared["mixed"].shape[1],
            "block": 0 if step is None else step.rows.block_bytes,
            "chain_count": 0 if step is None else len(step.chains) - 1,
            "gated_row": self._shared["gated"].shape[1],
            "count": residual.shape[0],
            "sequences": paged.sequences,
            "table": paged.pages.shape[1],
            "tree_attend": 0 if paged.paths is None else stack.tree_attend(cache.layout.kind, cache.layout.dtype),
            "path": 0 if paged.paths is None else paged.paths.places.shape[1],
            "layers": stack.table.ctypes.data,
        }
        return np.array([numbers.get(name, 0) for name in FRAME], dtype=np.int64)


def _low_half(number: np.float32) -> int:
    """A float32 in the low half of a number."""
    return int(number.view(np.uint32))


def _in_turns(widen: Projection, columns: int, parts: int) -> Projection:
    """Gate and up in turns of so many columns each. The last turn is filled with columns that nobody reads."""
    size = widen.weight.shape[0] // parts
    turns = -(-size // columns)
    order = pad(torch.arange(size), (0, turns * columns - size)).view(turns, 1, columns)
    order = torch.cat([order + part * size for part in range(parts)], dim=1).flatten()
    return Projection(widen.weight.select(order), None if widen.bias is None else widen.bias[order])


def _shape(shape: DecoderShape, page_size: int) -> ForwardShape:
    """What a forward is compiled for that runs such layers."""
    heads = shape.heads
    return ForwardShape(
        HeadShape(heads.fold, heads.kv_heads, heads.dim, page_size),
        shape.hidden,
        shape.activation,
        shape.epsilon,
        None if shape.head_norms is None else HeadNorm(*shape.head_norms),
        shape.norms,
        shape.softcap,
        shape.gated,
        shape.gate_scale,
    )
