"""The `with` blocks of a program: each collects the stages that are written in it."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, final

from qpdsl.api.compose.stage_call import StageCall, stage_call
from qpdsl.api.compose.symbols import Symbol
from qpdsl.api.compose.targets import Model
from qpdsl.grammar import ast

Stages = tuple[ast.Stage, ...]


class WithBlock:
    """Hands its stages to `done` when it ends. `what` is its name in messages."""

    may_be_empty = False

    def __init__(self, call: StageCall, what: str, done: Callable[[Stages], None]) -> None:
        self._composition, self._span = call.composition, call.span
        self._what, self._done = what, done
        self._stages: list[ast.Stage] = []
        self._composition.unopened.append((what, self._span))

    def __enter__(self) -> Self:
        self._composition.unopened.remove((self._what, self._span))
        self._composition.blocks.append(self._stages)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: object, traceback: TracebackType | None) -> None:
        self._composition.blocks.pop()
        if kind is None:
            self._close()

    def _close(self) -> None:
        if not self._stages and not self.may_be_empty:
            raise self._composition.refuse("QP121", f"{self._what} has no stages to run", self._span)
        self._done(tuple(self._stages))


@final
class EachBlock(WithBlock):
    """The block of an `each`, which may be empty; `with … as item` gives the column of the element, or the model."""

    may_be_empty = True

    def __init__(self, call: StageCall, element: Symbol | Model, done: Callable[[Stages], None]) -> None:
        self._element = element
        super().__init__(call, "`each`", done)

    def __enter__(self) -> Any:
        super().__enter__()
        return self._element


@final
class BranchBlock(WithBlock):
    """The block of a `branch` or a `strategy`, which holds its arms; `least` are how many there must be."""

    def __init__(
        self, call: StageCall, done: Callable[[tuple[Stages, ...]], None], word: str = "branch", least: int = 1
    ) -> None:
        self._arms: list[Stages] = []
        self._word, self._least = word, least
        super().__init__(call, f"`{word}`", lambda _: done(tuple(self._arms)))

    def arm(self) -> WithBlock:
        """One arm: the stages of its own `with` block."""
        block = WithBlock(stage_call("arm"), "this arm", self._arms.append)
        block.may_be_empty = self._word == "branch"
        return block

    def _close(self) -> None:
        if self._stages:
            help = f"write `with {self._word}.arm():` around it"
            message, span = f"a stage of a `{self._word}` stands in one of its arms", self._stages[0].span
            raise self._composition.refuse("QP504", message, span, help=help)
        if len(self._arms) < self._least or not any(self._arms):
            has = "has no arm with stages" if self._least == 1 else "chooses among two arms at least"
            raise self._composition.refuse("QP121", f"`{self._word}` {has}", self._span)
        self._done(())
