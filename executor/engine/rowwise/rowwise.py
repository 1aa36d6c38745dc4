"""What is replaced in a model that keeps transformers' modules on a CPU, so that each row is computed by itself."""

from __future__ import annotations

from collections.abc import Callable

import torch

from qpdsl.executor.engine.rowwise.audit import Audit, Finding, can_be_uniform
from qpdsl.executor.engine.rowwise.experts import GroupedExperts
from qpdsl.executor.engine.rowwise.products import PackedLayer
from qpdsl.executor.engine.rowwise.uniform import Uniform


class RowwiseModules:
    """The modules of `root` with other code in linear layers and experts, and uniform functions where it takes them.

    `run` computes a forward of a few rows, without attention. `findings`: the operations in it whose rounding may yet
    depend on other rows.
    """

    def __init__(self, root: torch.nn.Module, run: Callable[[], object]) -> None:
        """Raises whatever `run` raises; then the modules are as they were."""
        self._uniform = Uniform()
        self._changed: dict[torch.nn.Module, PackedLayer | GroupedExperts] = {}
        self._wrapped: list[torch.nn.Module] = []
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
            if isinstance(change, PackedLayer):
                change.keep()

    def undo(self) -> None:
        """Puts everything back; not after `keep`."""
        for module in self._wrapped:
            del module.forward
        for change in self._changed.values():
            change.undo()
        self._wrapped, self._changed = [], {}

    def _change(self, module: torch.nn.Module) -> None:
        for change in (PackedLayer, lambda module: GroupedExperts(module, self._uniform)):
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
                module.forward = self._uniform.around(module.forward)
                self._wrapped.append(module)
