"""A measured device as text."""

from __future__ import annotations

from collections.abc import Iterator

from qpdsl.planner.device import Curve, Device, ModelProfile, Table
from qpdsl.planner.quantities import byte_count, count, seconds


def profile_text(device: Device) -> str:
    """Rates of the device, then of each model: steps by their size, and throughput by memory and batch."""
    lines = [
        f"{device.name} ({device.kind}, {device.dtype}, {device.threads} thread{'s' if device.threads != 1 else ''})",
        f"  copies {device.bandwidth / 1e9:.1f} GB/s, multiplies {device.peak / 1e9:,.0f} GFLOP/s",
    ]
    for name, profile in device.models.items():
        lines += ["", name, *_model(profile)]
    return "\n".join(lines)


def _model(profile: ModelProfile) -> Iterator[str]:
    shape = profile.shape
    yield (
        f"  {count(shape.parameters)} parameters, {byte_count(shape.kv_bytes)} of KV a token, "
        f"{seconds(profile.overhead)} a step before any work"
    )
    yield f"  a step that decodes      {_curve(profile.decode, 'sequences')}"
    yield f"  a step of prompts        {_curve(profile.prefill, 'tokens')}"
    for word, table in (("generated", profile.generate), ("scored", profile.score)):
        if table is not None:
            yield f"  tokens/s {word}, by tokens of KV memory (rows) and sequences side by side"
            yield from _table(table)


def _curve(curve: Curve, noun: str) -> str:
    return ", ".join(f"{size:g}: {seconds(time)}" for size, time in curve.points) + f"   ({noun})"


def _table(table: Table) -> Iterator[str]:
    yield " " * 12 + "".join(f"{batch:>9}" for batch in table.batches)
    for tokens, rates in zip(table.kv_tokens, table.rates, strict=True):
        yield f"{count(tokens):>12}" + "".join(f"{rate:>9,.0f}" for rate in rates)
