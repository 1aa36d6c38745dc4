"""Makes transformers' modules compute every row by itself on a CPU, so that a row's bits depend on that row alone.

`make_rowwise` says what is replaced in a model that keeps its own modules, and how it is known that nothing else mixes
rows. Linear layers become `PackedLinear`, and mixtures of experts run grouped by expert. Torch computes sigmoid, SiLU,
GELU and some others in whole vectors, and what is left over at the end of a thread's part by other code, which rounds
otherwise; `Uniform` gives it pieces that are whole vectors, and too small to be parted among threads.

Modules stay where they are and get another `forward`; their weights are emptied, so that memory does not double.
Nothing is taken on trust: `Audit` runs the model on a few rows and looks at every operation that torch carries out.
Modules in which it finds functions of single numbers get uniform ones. Where an operation is left whose rounding may
depend on other rows, the engine pads each forward, and a mixture of experts counts as one that mixes rows. A new
operation of torch is doubted until it is in the lists here, and what is put there needs a reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch.nn.functional import pad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations import moe
from transformers.pytorch_utils import Conv1D

from qpdsl.executor.engine.memory.kv_cache import KVLayout
from qpdsl.executor.engine.model.heads import LogitHead, ValueHead
from qpdsl.executor.engine.model.module_stack import AttentionCall, ModuleStack
from qpdsl.executor.engine.model.probe import Probe
from qpdsl.executor.kernels.data.weights import FLOATS, FloatWeight, Weight
from qpdsl.executor.kernels.linear import (
    EXPERTS_SAY,
    PackedLinear,
    StoredExperts,
    StoredLinear,
    normed_after,
    stored_parameters,
)

if TYPE_CHECKING:
    from qpdsl.executor.kernels.llvm.cache import HeadShape

# The rows of the forward that is looked at.
_ROWS = 5
# Numbers that torch's loops take at once at most: two vectors of AVX-512 in bfloat16.
_LANES = 64
# Torch gives no part of so few numbers to another thread.
_PIECE = 1 << 14
# Products of a row and a weight that are held at once.
_SUMMED_PRODUCTS = 1 << 20
# Powers that are computed by multiplying and dividing, and so alike everywhere.
EXACT_POWERS = (-2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0, 3.0)
_FUNCTIONS: dict[Any, str] = {
    function: name
    for name, functions in {
        "sigmoid": (torch.sigmoid, torch.Tensor.sigmoid, torch.special.expit),
        "silu": (torch.nn.functional.silu, torch._C._nn.silu),
        "gelu": (torch.nn.functional.gelu,),
        "softplus": (torch.nn.functional.softplus,),
        "elu": (torch.nn.functional.elu, torch._C._nn.elu),
        "celu": (torch.nn.functional.celu, torch.celu),
        "selu": (torch.nn.functional.selu, torch.selu),
        "mish": (torch.nn.functional.mish, torch._C._nn.mish),
        "log_sigmoid": (torch.nn.functional.logsigmoid,),
        "pow": (torch.pow, torch.Tensor.pow, torch.Tensor.__pow__),
    }.items()
    for function in functions
}
# By the names of torch's operations: what `Uniform` computes in whole vectors.
UNIFORM = frozenset(_FUNCTIONS.values()) | {"log_sigmoid_forward"}
# Operations by which each number of the result is rounded in one way, however many there are.
_MOVING = """
    _conj _local_scalar_dense _reshape_alias _to_copy _unsafe_index _unsafe_view alias all any arange argmax argsort
    as_strided bitwise_and bitwise_and_ bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift cat chunk clone
    constant_pad_nd contiguous copy copy_ detach embedding empty empty_like empty_strided eq equal expand expand_as fill
    fill_ flip floor floor_divide full full_like gather ge gt index index_put index_put_ index_select isfinite isin
    isinf isnan item le lift_fresh logical_and logical_not logical_or lt masked_fill masked_fill_ max min narrow ne
    new_empty new_full new_ones new_zeros nonzero one_hot ones ones_like permute remainder repeat reshape resolve_conj
    roll scalar_tensor scatter scatter_ select slice sort split split_with_sizes squeeze stack t to topk transpose tril
    triu triu_ type_as unbind unfold unsqueeze unsqueeze_ view view_as_complex view_as_real where zero_ zeros zeros_like
"""
_ROUNDING_ONCE = """
    abs abs_ add add_ amax amin clamp clamp_ clamp_max clamp_min complex div div_ hardtanh leaky_relu maximum minimum
    mul mul_ neg reciprocal relu relu6 relu_ round rsqrt rsub sgn sign sqrt square sub sub_ threshold
"""
# Computed in vectors up to the last number.
_IN_VECTORS = "cos erf exp exp2 expm1 log log1p polar sin tanh"
_SUMMING_ROWS = """
    _fused_rms_norm _log_softmax _softmax cumsum linalg_vector_norm logsumexp mean native_layer_norm norm prod rms_norm
    softmax std std_mean sum var var_mean
"""
_BY_THEMSELVES = frozenset(f"{_MOVING} {_ROUNDING_ONCE} {_IN_VECTORS} {_SUMMING_ROWS}".split())
# Products; those with an inner dimension of 1 round once.
_ROW_PRODUCTS = frozenset({"addmm", "baddbmm", "bmm", "mm", "mv", "dot", "addmv", "linear", "matmul", "einsum"})


class RowwiseModules:
    """The modules of `root` with other code in linear layers and experts, and uniform functions where it takes them.

    `run` computes a forward of a few rows, without attention. `findings`: the operations in it whose rounding may yet
    depend on other rows.
    """

    def __init__(self, root: torch.nn.Module, run: Callable[[], object]) -> None:
        """Raises whatever `run` raises; then the modules are as they were."""
        self._uniform = Uniform()
        self._changed: dict[torch.nn.Module, PackedLayer | GroupedExperts | SortedExperts] = {}
        # With the forward that a module had got before, if any.
        self._wrapped: dict[torch.nn.Module, Callable[..., Any] | None] = {}
        try:
            # One layer at a time, so that memory does not hold all weights twice.
            for module in root.modules():
                self._change(module)
            self.findings: list[Finding] = self._settled(root, run)
        except BaseException:
            self.undo()
            raise

    def keep(self) -> None:
        """Forgets what `undo` would need."""
        for change in self._changed.values():
            change.keep()

    def undo(self) -> None:
        """Puts everything back; not after `keep`."""
        for module, before in self._wrapped.items():
            if before is None:
                del module.forward
            else:
                module.forward = before
        for change in self._changed.values():
            change.undo()
        self._wrapped, self._changed = {}, {}

    def _change(self, module: torch.nn.Module) -> None:
        for change in (PackedLayer, SortedExperts, lambda module: GroupedExperts(module, self._uniform)):
            try:
                self._changed[module] = change(module)
                return
            except LookupError:
                continue

    def _settled(self, root: torch.nn.Module, run: Callable[[], object]) -> list[Finding]:
        """What the last of several audits finds; after each but the last, modules were given uniform functions."""
        while True:
            findings = Audit(root, self._changed.keys(), self._uniform).of(run)
            calling = {finding.module for finding in findings if can_be_uniform(finding.operation)}
            new = calling.difference(self._wrapped)
            if not new:
                return findings
            for module in new:
                self._wrapped[module] = vars(module).get("forward")
                module.forward = self._uniform.around(module.forward)


class RowwiseExperts:
    """Modules of a layer that hold experts or are added to them, which compute every row by itself.

    Raises LookupError where they do not; then they are as they were.
    """

    def __init__(self, modules: list[torch.nn.Module], hidden: int, dtype: torch.dtype) -> None:
        """They take rows of `hidden` numbers, in float32, whatever the `dtype` of their weights."""
        self._root = torch.nn.ModuleList(modules)
        weights = sum(parameter.numel() for parameter in self._root.parameters()) + stored_parameters(self._root)
        self.nbytes = weights * dtype.itemsize
        rows = torch.randn(_ROWS, hidden, generator=torch.Generator().manual_seed(0)).to(dtype)
        self._rows = RowwiseModules(self._root, lambda: self(rows))
        if self._rows.findings:
            self.undo()
            raise LookupError(", ".join(names(self._rows.findings)))

    def __call__(self, rows: torch.Tensor) -> torch.Tensor:
        """The sum [T, d] of what each of the modules makes of `rows` [T, d]."""
        total, *others = (module(rows[None])[0] for module in self._root)
        for other in others:
            total = total + other
        return cast(torch.Tensor, total)

    def modules(self) -> Iterable[torch.nn.Module]:
        return self._root.modules()

    def keep(self) -> None:
        self._rows.keep()

    def undo(self) -> None:
        self._rows.undo()


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
    calls: list[AttentionCall],
) -> None:
    """Gives `stack` kernels for KV of `layout`, where there are any for its attention and they give the same logits.

    In eight bits the logits are not the model's own, so the same code is tried over `plain` rows.
    """
    try:
        # The compiler need not be installed where other kernels run.
        from qpdsl.executor.kernels.llvm.layer_attention import LayerAttention
        from qpdsl.executor.kernels.llvm.sample import RowSampler

        tried, used = (
            {call.layer: made[shape] for call, shape in zip(calls, shapes, strict=True)}
            for shapes in ([_head_shape(kept, call) for call in calls] for kept in (plain, layout))
            if (made := {shape: LayerAttention(shape) for shape in set(shapes)})
        )
        sampler = RowSampler(head.width) if isinstance(head, LogitHead) else None
    except (ImportError, LookupError):
        return
    trial = probe.kernel_start(plain)
    stack.attention = tried
    hidden, _ = stack.forward(trial.batch, trial.cache)
    agrees = probe.agrees(trial, head.dense(trial.read(hidden)))
    stack.attention, stack.sampler = (used, sampler) if agrees else (None, None)


def _head_shape(layout: KVLayout, call: AttentionCall) -> HeadShape:
    """What attention of a layer is compiled for."""
    from qpdsl.executor.kernels.llvm.cache import HeadShape

    kept = layout.shape(call.layer)
    return HeadShape(
        call.shape[0] // kept.kv_heads,
        kept.kv_heads,
        kept.key,
        layout.page_size,
        layout.kind,
        value=None if kept.is_even else kept.value,
        latent=kept.latent,
        stride=None if layout.is_equal else layout.row_bytes,
    )


class PackedLayer:
    """A linear layer `module` that computes with packed weights; its own are empty as long as it does.

    Raises LookupError where the module is anything else: some that derive from a linear layer do more.
    """

    def __init__(self, module: Any) -> None:
        kind = type(module)
        if kind is not StoredLinear and (kind not in (torch.nn.Linear, Conv1D) or not _is_plain(module.weight)):
            raise LookupError(kind.__name__)
        self._module = module
        # GPT-2's layers keep their weights [in, out].
        self._transposed = kind is Conv1D
        self._stored: Weight | None = module.stored if kind is StoredLinear else None
        bias = None if module.bias is None else module.bias.detach()
        if self._stored is not None:
            self._layer = PackedLinear(self._stored, bias)
            # None of the outputs: it still says how its weights are held.
            module.stored = self._stored.select(torch.empty(0, dtype=torch.int64))
        else:
            weight = module.weight.detach()
            self._layer = PackedLinear(FloatWeight(weight.t() if self._transposed else weight), bias)
            module.weight = torch.nn.Parameter(weight.new_empty(0), requires_grad=False)
        module.forward = self._layer.forward

    def undo(self) -> None:
        """The module has its weights again, and computes with them."""
        module, layer = self._module, self._layer
        del module.forward
        if self._stored is not None:
            module.stored = self._stored
            return
        weight = layer.rows(torch.arange(layer.out_features)).to(module.weight.dtype)
        weight = weight.t().contiguous() if self._transposed else weight
        module.weight = torch.nn.Parameter(weight, requires_grad=False)

    def keep(self) -> None:
        """Forgets what `undo` would need."""
        self._stored = None


def _is_plain(weight: torch.Tensor) -> bool:
    """Whether a weight holds floats, each for itself; other libraries have tensors of their own that say they do."""
    return type(weight.data) is torch.Tensor and weight.dtype in FLOATS


class GroupedExperts:
    """A module of E experts that computes by expert, with packed weights; its own are empty as long as it does.

    Raises LookupError where the module is not built as transformers' experts are.
    """

    def __init__(self, module: Any, uniform: Uniform) -> None:
        self._stored: dict[str, list[Weight]] | None = None
        # The module that says what is computed, and has a parameter for each layer where no checkpoint's blocks are.
        own = module
        if isinstance(module, StoredExperts):
            self._stored, own = module.stored, module.own
        elif not all(hasattr(module, fact) for fact in EXPERTS_SAY):
            raise LookupError(type(module).__name__)
        first = "gate_up_proj" if own.has_gate else "up_proj"
        if self._stored is None:
            parts = (getattr(own, first), own.down_proj)
            if any(part.dim() != 3 or part.dtype not in FLOATS for part in parts):
                raise LookupError(first)
        self._module, self._own = module, own
        self._experts: int = own.num_experts
        self._layers = {name: self._packed(name) for name in (first, "down_proj")}
        self._widen, self._narrow = self._layers.values()
        self._activate = self._activation(uniform)
        module.forward = self.forward

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """The sums [T, d] of what the experts `top_k_index` int64 [T, k] make of `hidden_states` [T, d], by weight.

        `top_k_weights` [T, k]. A row's experts are added in float32 and in ascending order.
        """
        chosen: defaultdict[int, list[int]] = defaultdict(list)
        for place, expert in enumerate(top_k_index.flatten().tolist()):
            # Some routers send a row that needs one expert less to a number that none has.
            if expert < self._experts:
                chosen[expert].append(place)
        hidden, weights = hidden_states.float(), top_k_weights.float().reshape(-1, 1)
        total = torch.zeros_like(hidden)
        for expert in sorted(chosen):
            places = chosen[expert]
            if len(hidden) == 1:
                total += self._expert(expert, hidden) * weights[places[0]]
                continue
            index = torch.tensor(places)
            rows = index // top_k_index.shape[1]
            out = self._expert(expert, hidden.index_select(0, rows))
            total.index_add_(0, rows, out * weights.index_select(0, index))
        return total.to(hidden_states.dtype)

    def undo(self) -> None:
        """The module has its weights again, and computes with them."""
        module = self._module
        del module.forward
        if self._stored is not None:
            module.stored = self._stored
            return
        for name, layers in self._layers.items():
            weights = torch.stack([layer.rows(torch.arange(layer.out_features)) for layer in layers])
            if module.is_transposed:
                weights = weights.transpose(1, 2).contiguous()
            dtype = getattr(module, name).dtype
            setattr(module, name, torch.nn.Parameter(weights.to(dtype), requires_grad=False))

    def keep(self) -> None:
        """Forgets what `undo` would need."""
        self._stored = None

    def _expert(self, expert: int, rows: torch.Tensor) -> torch.Tensor:
        """What one expert makes of `rows` float32 [n, d]."""
        return normed_after(self._own, self._narrow[expert](self._activate(self._widen[expert](rows))))

    def _activation(self, uniform: Uniform) -> Callable[[torch.Tensor], torch.Tensor]:
        """What comes between the two layers of an expert."""
        module = self._own
        if not module.has_gate:
            return lambda widened: in_whole_vectors(module.act_fn, widened)
        if type(module)._apply_gate is not getattr(moe, "_default_apply_gate", None):
            return uniform.around(module._apply_gate)
        half = self._narrow[0].in_features

        def gated(widened: torch.Tensor) -> torch.Tensor:
            return in_whole_vectors(module.act_fn, widened[:, :half]) * widened[:, half:]

        return gated

    def _packed(self, name: str) -> list[PackedLinear]:
        """The layer `name` of each expert; the module's parameter is empty afterwards, or says only how it is held."""
        module = self._module
        if self._stored is not None:
            biases = module.biases.get(f"{name}_bias", [None] * self._experts)
            layers = [PackedLinear(weight, bias) for weight, bias in zip(self._stored[name], biases, strict=True)]
            nothing = torch.empty(0, dtype=torch.int64)
            module.stored = {**module.stored, name: [weight.select(nothing) for weight in self._stored[name]]}
            return layers
        weights = getattr(module, name).detach()
        biases = getattr(module, f"{name}_bias").detach() if module.has_bias else [None] * len(weights)
        layers = [
            PackedLinear(FloatWeight(weight.t() if module.is_transposed else weight), bias)
            for weight, bias in zip(weights, biases, strict=True)
        ]
        setattr(module, name, torch.nn.Parameter(weights.new_empty(0), requires_grad=False))
        return layers


class SortedExperts:
    """A module of E experts that each get their own rows [E · T, d] (Llama 4), with packed weights; its own are empty.

    Rows that are zero were sent to no expert, and stay zero. Raises LookupError where the module is another one.
    """

    def __init__(self, module: Any) -> None:
        if type(module).__name__ != "Llama4TextExperts":
            raise LookupError(type(module).__name__)
        self._module = module
        self._layers: dict[str, list[PackedLinear]] = {}
        for name in ("gate_up_proj", "down_proj"):
            weights = getattr(module, name).detach()
            self._layers[name] = [PackedLinear(FloatWeight(weight.t())) for weight in weights]
            setattr(module, name, torch.nn.Parameter(weights.new_empty(0), requires_grad=False))
        module.forward = self.forward

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """What the experts make of `hidden_states` [E · T, d]."""
        pairs = list(zip(*self._layers.values(), strict=True))
        given = torch.unflatten(hidden_states, 0, (len(pairs), -1))
        made = torch.zeros_like(given)
        for expert, (widen, narrow) in enumerate(pairs):
            rows = given[expert].any(dim=-1).nonzero().flatten()
            if not len(rows):
                continue
            gate, up = widen(given[expert].index_select(0, rows)).chunk(2, dim=-1)
            made[expert, rows] = narrow(up * in_whole_vectors(self._module.act_fn, gate.contiguous()))
        return made.flatten(0, 1)

    def undo(self) -> None:
        """The module has its weights again, and computes with them."""
        module = self._module
        del module.forward
        for name, layers in self._layers.items():
            weights = [layer.rows(torch.arange(layer.out_features)).t() for layer in layers]
            dtype = getattr(module, name).dtype
            setattr(module, name, torch.nn.Parameter(torch.stack(weights).to(dtype), requires_grad=False))

    def keep(self) -> None:
        """What `undo` needs is what it computes with."""


class Uniform(TorchFunctionMode):
    """While it is entered, such functions, and `linear` with a parameter of a module, give each row its own bits."""

    def __init__(self) -> None:
        super().__init__()
        self.active = False
        # Whether torch is called from here.
        self.computing = False
        self._packed: dict[int, tuple[torch.nn.Parameter, PackedLinear]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _FUNCTIONS and _is_meant(func, args, kwargs):
            return self._alone(lambda: in_whole_vectors(func, args[0], args[1:], kwargs))
        if func is torch.nn.functional.linear:
            return self._alone(lambda: self._linear(*args, **kwargs))
        return func(*args, **kwargs)

    def around(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """A module's `forward` with this entered."""

        def uniform_forward(*args: Any, **kwargs: Any) -> Any:
            if self.active:
                return forward(*args, **kwargs)
            self.active = True
            try:
                with self:
                    return forward(*args, **kwargs)
            finally:
                self.active = False

        return uniform_forward

    def _alone(self, compute: Callable[[], torch.Tensor]) -> torch.Tensor:
        self.computing = True
        try:
            return compute()
        finally:
            self.computing = False

    def _linear(
        self,
        input: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        if not isinstance(weight, torch.nn.Parameter) or weight.dtype not in FLOATS:
            return sum_of_products(input, weight, bias)
        if id(weight) not in self._packed:
            # The parameter is kept too, so that no other one gets its number.
            self._packed[id(weight)] = weight, PackedLinear(FloatWeight(weight.detach()), bias)
        packed: torch.Tensor = self._packed[id(weight)][1](input)
        return packed


def _is_meant(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether the call computes new floats of a tensor, in a way that needs whole vectors."""
    if not args or not isinstance(args[0], torch.Tensor) or not args[0].is_floating_point():
        return False
    if kwargs.get("inplace") or kwargs.get("out") is not None:
        return False
    if _FUNCTIONS[func] != "pow":
        return True
    exponent = args[1] if len(args) > 1 else kwargs.get("exponent")
    return isinstance(exponent, int | float) and exponent not in EXACT_POWERS


def in_whole_vectors(
    function: Callable[..., torch.Tensor], values: torch.Tensor, others: tuple[Any, ...] = (), named: Any = None
) -> torch.Tensor:
    """`function` of single numbers over `values` of any shape, whose bits depend on neither shape nor threads."""
    named = named or {}
    count = values.numel()
    if count <= _PIECE and count % _LANES == 0 and values.is_contiguous():
        return function(values, *others, **named)
    flat = values.reshape(-1)
    if count % _LANES:
        flat = pad(flat, (0, -count % _LANES))
    parts = [function(part, *others, **named) for part in torch.split(flat, _PIECE)]
    whole = parts[0] if len(parts) == 1 else torch.cat(parts)
    return whole[:count].view(values.shape)


def sum_of_products(rows: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x·Wᵀ + b of `rows` [..., in] and `weight` [out, in], in their dtype, each output a sum by itself in float32."""
    flat = rows.reshape(-1, rows.shape[-1]).float()
    wide = weight.float()
    out = torch.empty((len(flat), len(weight)), dtype=torch.float32)
    step = max(1, _SUMMED_PRODUCTS // max(1, weight.numel()))
    for begin in range(0, len(flat), step):
        part = flat[begin : begin + step]
        out[begin : begin + step] = (part[:, None, :] * wide).sum(dim=-1)
    if bias is not None:
        out += bias
    return out.to(rows.dtype).view(*rows.shape[:-1], len(weight))


@dataclass(frozen=True, slots=True)
class Finding:
    """An operation whose rounding may depend on other rows, and the module that called it."""

    operation: str
    module: torch.nn.Module


class Audit(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """An audit of the modules of `root`, of which the `trusted` ones are known to compute rows by themselves."""

    def __init__(self, root: torch.nn.Module, trusted: Collection[torch.nn.Module], uniform: Uniform) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._findings: list[Finding] = []
        self._root, self._trusted, self._uniform = root, trusted, uniform
        self._running: list[torch.nn.Module] = []

    def of(self, run: Callable[[], object]) -> list[Finding]:
        """The findings in what `run` computes."""
        handles: list[Any] = []
        for module in self._root.modules():
            handles.append(module.register_forward_pre_hook(lambda module, inputs: self._running.append(module)))
            handles.append(module.register_forward_hook(lambda module, inputs, output: self._left()))
        try:
            # Inference mode would show operations that torch makes of others.
            with torch.inference_mode(False), torch.no_grad(), self:
                run()
        finally:
            for handle in handles:
                handle.remove()
        return self._findings

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        known = name in _BY_THEMSELVES or self._uniform.computing
        if not known and not any(module in self._trusted for module in self._running):
            exact = _is_outer(name, args) or (name == "pow" and _is_exact_power(args))
            if not exact:
                self._findings.append(Finding(name, self._running[-1] if self._running else self._root))
        return func(*args, **kwargs)

    def _left(self) -> None:
        self._running.pop()


def can_be_uniform(operation: str) -> bool:
    """Whether `Uniform` can compute it so that it depends on its own row only."""
    return operation in UNIFORM or operation in ("addmm", "mm", "linear")


def names(findings: Iterable[Finding]) -> list[str]:
    """For people: the operations, each with the module that called it."""
    return sorted({f"{finding.operation} in {type(finding.module).__name__}" for finding in findings})


def _is_outer(name: str, args: Any) -> bool:
    """Whether an operation is a product whose sums have a single part."""
    tensors = [part for part in args if isinstance(part, torch.Tensor)]
    return name in _ROW_PRODUCTS and name in ("bmm", "mm", "matmul") and tensors[0].shape[-1] == 1


def _is_exact_power(args: Any) -> bool:
    """Or a number to the powers of an int32 series: slopes of heads (ALiBi), as positions are int64."""
    if len(args) < 2:
        return False
    if isinstance(args[1], torch.Tensor):
        return args[1].dtype == torch.int32 and isinstance(args[0], torch.Tensor) and args[0].dim() == 0
    return isinstance(args[1], int | float) and args[1] in EXACT_POWERS
