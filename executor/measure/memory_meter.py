"""The memory of a run by its parts, step by step: weights, activations, other, and keys and values."""

from __future__ import annotations

from collections.abc import Mapping

from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.events.events import EngineFigures
from qpdsl.planner.cost.run_figures import MemoryPart


class MemoryMeter:
    """The peak and the mean of each part over the steps of all models; `page_bytes` is the size of a KV page of each.

    Other is what is taken beside weights, activations and the leased pages of keys and values: `kv` counts those pages
    that are held. Steps of an engine that does not tell what is taken do not count.
    """

    def __init__(self, page_bytes: Mapping[str, int]) -> None:
        self._page_bytes = page_bytes
        # By model: bytes of weights, of leased pages and of held pages after its latest step.
        self._weights: dict[str, float] = {}
        self._leased: dict[str, float] = {}
        self._held: dict[str, float] = {}
        self._sums: dict[str, float] = {}
        self._peaks: dict[str, float] = {}
        self._steps = 0

    def step(self, report: StepReport | EngineFigures) -> None:
        self._weights[report.model] = figure(report, "weight_bytes")
        self._leased[report.model] = figure(report, "leased_bytes")
        self._held[report.model] = float(report.pages_held * self._page_bytes.get(report.model, 0))
        resident, activations = figure(report, "resident_bytes"), figure(report, "activation_bytes")
        if not resident:
            return
        weights, leased = sum(self._weights.values()), sum(self._leased.values())
        parts = {
            "weights": weights,
            "activations": activations,
            "other": max(resident - weights - leased - activations, 0.0),
            "kv_leased": leased,
            "kv": sum(self._held.values()),
        }
        self._steps += 1
        for name, size in parts.items():
            self._sums[name] = self._sums.get(name, 0.0) + size
            self._peaks[name] = max(self._peaks.get(name, 0.0), size)

    def parts(self) -> dict[str, MemoryPart]:
        """By name; nothing where no step told what is taken."""
        return {name: MemoryPart(peak, self._sums[name] / self._steps) for name, peak in self._peaks.items()}


def figure(report: StepReport | EngineFigures, name: str) -> float:
    """A figure of a report by its name, whether it comes from the engine or from a trace; 0 where it has none."""
    if isinstance(report, EngineFigures):
        return report.others.get(name, 0.0)
    return float(getattr(report, name))
