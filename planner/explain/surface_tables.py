"""The batch surface of a program, as text and as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from qpdsl.grammar.printable import printable
from qpdsl.planner.cost.device import SOURCE_WORDS, Device
from qpdsl.planner.explain.quantities import byte_count, per_cent
from qpdsl.planner.optimize.batch_surface import BatchSurface


def surface_text(name: str, surface: BatchSurface, device: Device) -> str:
    """A table for each model, the optimum, and what bounds each model there."""
    best = surface.optimum
    parts = ", ".join(f"{model} {per_cent(share)}" for model, share in best.shares.items())
    lines = [
        f"{name}: problems a second that each model alone would come to, by sequences side by side (rows) and tokens "
        "of a step (columns)",
        f"KV memory {byte_count(surface.kv_bytes)}: {parts}",
    ]
    for model in surface.rates:
        lines += ["", f"{model}   {byte_count(surface.held[model])} of keys and values a sequence"]
        lines += _table(surface, model)
    lines += [
        "",
        f"min-max: {best.sequences} sequences and {best.token_budget:,} tokens a step; the slowest is {best.slowest}, "
        f"with {best.rate:.3g} problems a second ({best.in_turns:.3g} where the models take turns)",
    ]
    lines += [f"  {line}" for line in _bounds(surface, device)]
    lines.append(f"estimates: {surface.source}; {SOURCE_WORDS[surface.device]}")
    return "\n".join(printable(line) for line in lines)


def surface_json(name: str, surface: BatchSurface) -> dict[str, Any]:
    """The same as data, with stable keys."""
    return {"program": name, **asdict(surface)}


def _table(surface: BatchSurface, model: str) -> Iterator[str]:
    yield " " * 8 + "".join(f"{budget:>10,}" for budget in surface.budgets)
    best = surface.optimum
    for sequences, row in zip(surface.sequences, surface.rates[model], strict=True):
        cells = []
        for budget, rate in zip(surface.budgets, row, strict=True):
            mark = "*" if (sequences, budget) == (best.sequences, best.token_budget) else ""
            cells.append(f"{mark}{rate:.3g}".rjust(10))
        yield f"{sequences:>8}" + "".join(cells)


def _bounds(surface: BatchSurface, device: Device) -> Iterator[str]:
    """Whether memory or arithmetic bounds a model's step at the optimum, by the roofline, and what that means."""
    ridge = device.peak / device.bandwidth
    for model, step in surface.steps.items():
        shape = device.profile(model).shape
        rows = step.drawing + step.computed
        moved = shape.weight_bytes + shape.read_bytes(step.reading * step.context, step.reading)
        intensity = rows * shape.flops(step.context) / moved
        bound = (
            "memory; drafts, more sequences and fewer bits a weight help"
            if intensity < ridge
            else "compute; fewer tokens help, and a smaller model"
        )
        yield (
            f"{model}: a step draws {step.drawing:.3g} and reads {step.computed:.3g} tokens, {intensity:.3g} "
            f"operations for each byte, where the device turns at {ridge:.3g}: bound by {bound}"
        )
