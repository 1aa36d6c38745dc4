"""Hidden states for the model's own head, of rows that leave it after some layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import torch
from torch.nn.functional import linear, pad

from qpdsl.executor.engine.exit.exit_router import Expected
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.linear import PADDED_ROWS, PackedLinear
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest


class HeadWeights(Protocol):
    """An exit head: h + h @ weight.T + bias is what the last norm is given of rows h that leave after `layer` layers.

    `weight` float32 [d, d], `bias` float32 [d] (tuned lens: Belrose et al., 2023).
    """

    @property
    def layer(self) -> int: ...

    @property
    def weight(self) -> torch.Tensor: ...

    @property
    def bias(self) -> torch.Tensor: ...


class ExitCurve(Protocol):
    """What was measured of an exit head: by margin, the share of draws that leave and that of draws that change.

    `leave`: what a draw costs that leaves, in shares of a full one; `refine`: what another costs on top of it.
    """

    @property
    def leave(self) -> float: ...

    @property
    def refine(self) -> float: ...

    def at(self, margin: float) -> tuple[float, float]: ...


class ExitHeads:
    """The exit heads that an engine has, by name and layer. Of a name, the first that came is the usual one."""

    def __init__(self) -> None:
        self._heads: dict[str, dict[int, _Shift]] = {}
        self._curves: dict[tuple[str, int], ExitCurve] = {}

    def add(self, name: str, head: HeadWeights, curve: ExitCurve | None = None) -> None:
        """Adds a head, or takes it for another of its name and layer."""
        self._heads.setdefault(name, {})[head.layer] = _Shift(head)
        if curve is not None:
            self._curves[name, head.layer] = curve

    def expected(self, model: PagedModel, leave: EarlyExit) -> Expected:
        """What is expected of a settled exit: what was measured of its head, else that half of the draws leave."""
        assert leave.layer is not None
        curve = None if leave.head is None else self._curves.get((leave.head, leave.layer))
        if curve is not None:
            return Expected(*curve.at(leave.margin), curve.leave, curve.refine)
        first = leave.layer / model.depth
        return Expected(0.5, 0.0, first, 1 - first)

    def settled(self, name: str, model: PagedModel, request: GenerateRequest) -> GenerateRequest:
        """A request with an exit that says its layer, and defers only where the model and its draft let it.

        Raises EngineError where the model, which is called `name`, cannot be left so.
        """
        leave = request.exit
        if leave is None:
            return request
        layer = self.layer(name, model, leave)
        if layer >= model.depth:
            raise EngineError(f"{name} cannot be left after layer {layer}: it has {model.depth} layers")
        if leave.certify is not None and request.sampling.filtered and not request.sampling.greedy:
            raise EngineError("no early exit is certified beside top-k, top-p or min-p: what these cut is not known")
        if request.confidence is not None:
            raise EngineError("a token that may leave early has no confidence to end a sample by")
        if leave.route is not None and request.draft is not None:
            raise EngineError("a sample with drafts has no router for its early exit: all layers check its drafts")
        deferred = leave.deferred and model.runs_in_part and request.draft is None
        return replace(request, exit=replace(leave, layer=layer, deferred=deferred))

    def layer(self, name: str, model: PagedModel, leave: EarlyExit) -> int:
        """The layer of an exit from the model, which is called `name`. Raises EngineError where its head is none."""
        layer = leave.layer
        if leave.head is not None:
            own = self._of(name, leave.head)
            layer = next(iter(own)) if layer is None else layer
            if layer not in own:
                there = ", ".join(map(str, sorted(own)))
                raise EngineError(f"{leave.head} has no exit head for layer {layer}, but for: {there}")
            if (width := own[layer].width) != (wanted := model.head_inputs):
                reason = f"its hidden states are {width} wide, not {wanted}"
                raise EngineError(f"{leave.head} is no exit head for {name}: {reason}")
        return model.exit_layer if layer is None else layer

    def hidden(self, model: PagedModel, leave: EarlyExit, residual: torch.Tensor) -> torch.Tensor:
        """Hidden states [N, d] for the model's head, of rows [N, d] after the layer of a settled exit.

        No row depends on another.
        """
        if leave.head is not None:
            assert leave.layer is not None
            residual = self._heads[leave.head][leave.layer](residual)
        return model.leaving(residual)

    def _of(self, name: str, head: str) -> dict[int, _Shift]:
        if head not in self._heads:
            raise EngineError(f"{name} is to be left early by {head}, and there is no such exit head")
        return self._heads[head]


class _Shift:
    """The map of one head. On a CPU it is laid out for compiled code."""

    def __init__(self, head: HeadWeights) -> None:
        self.width = head.bias.shape[0]
        self._head = head
        self._packed: PackedLinear | None = None
        self._there: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, residual: torch.Tensor) -> torch.Tensor:
        """h + h @ weight.T + bias of rows h [N, d], in their own type."""
        rows = residual.float()
        if residual.device.type == "cpu":
            if self._packed is None:
                self._packed = PackedLinear(FloatWeight(self._head.weight.float()), self._head.bias.float())
            moved: torch.Tensor = self._packed(rows)
        else:
            if self._there is None:
                self._there = self._head.weight.to(rows), self._head.bias.to(rows)
            count = len(rows)
            moved = linear(pad(rows, (0, 0, 0, max(0, PADDED_ROWS - count))), *self._there)[:count]
        return (rows + moved).to(residual.dtype)
