"""A layer's module that mixes the tokens of a sequence otherwise than by attention, with another `forward`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, ClassVar

import torch

from qpdsl.executor.kernels.data.states import StatePart, StateStep
from qpdsl.executor.kernels.recurrences import GatedDelta

# A forward's keyword arguments do not reach the mixers of every model.
_step: ContextVar[StateStep | None] = ContextVar("state_step", default=None)


@contextmanager
def state_step(step: StateStep | None) -> Iterator[None]:
    """Mixers that run inside the block take their states from `step`; without one, modules do as they came."""
    token = _step.set(step)
    try:
        yield
    finally:
        _step.reset(token)


class Mixer(ABC):
    """One such module. Its projections stay submodules of it, which others may replace.

    A kind is made of a module, its layer's number and the type that it computes in, and raises UnsupportedModel for
    settings that are not known. `MODULES`: names of the classes of its modules.
    """

    MODULES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, module: Any, layer: int, parts: tuple[StatePart, ...] = ()) -> None:
        """`parts`: what the layer keeps."""
        self.module, self.layer, self.parts = module, layer, parts

    @abstractmethod
    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        """The module's output [T, d] for the rows `hidden` [T, d] of a step."""

    def take_over(self) -> None:
        """Has the module compute by this from now on."""
        self._own = self.module.forward
        self.module.forward = self._forward

    def own(self, *arguments: Any, **named: Any) -> Any:
        """The module's own forward."""
        return self._own(*arguments, **named)

    def undo(self) -> None:
        """The module computes as it came."""
        del self.module.forward

    def _forward(self, hidden_states: torch.Tensor, *others: Any, **named: Any) -> Any:
        step = _step.get()
        if step is None:
            return self.own(hidden_states, *others, **named)
        return self.output(self.mix(hidden_states[0], step)[None])

    def output(self, mixed: torch.Tensor) -> Any:
        """What the module's own forward returns; `mixed` [1, T, d]."""
        return mixed


class ProjectedMixer(Mixer):
    """One that projects its input, and mixes, and projects back: who runs the layer may do both projections.

    FIRST, LAST: the paths of the submodules that project its input, and of the one that projects back.
    """

    FIRST: ClassVar[tuple[str, ...]] = ("in_proj",)
    LAST: ClassVar[str] = "out_proj"

    @property
    def first(self) -> list[Any]:
        """The modules that project its input."""
        return [self.module.get_submodule(name) for name in self.FIRST]

    @property
    def last(self) -> Any:
        """The module that projects back."""
        return getattr(self.module, self.LAST)

    def rule(self, outputs: int) -> tuple[GatedDelta, torch.Tensor] | None:
        """What `between` is where it but orders what it takes, and the order int64 [outputs] of the projections."""
        return None

    @abstractmethod
    def between(self, joined: torch.Tensor, step: StateStep) -> torch.Tensor:
        """What is projected back [T, m], of the projections [T, n] of the rows of a step, one after the other."""

    def mix(self, hidden: torch.Tensor, step: StateStep) -> torch.Tensor:
        parts = [project(hidden) for project in self.first]
        mixed: torch.Tensor = self.last(self.between(torch.cat(parts, dim=1), step))
        return mixed
