"""This machine as hardware, by what `qpdsl profile` measured of it."""

from __future__ import annotations

from qpdsl.executor.engine.memory.budget import main_memory
from qpdsl.planner.capacity.hardware import Hardware
from qpdsl.planner.cost.device import nominal
from qpdsl.planning.user_cache import measured_device

HERE = "here"


def hardware_here() -> Hardware:
    """The processor with the threads that it was measured with last; nominal figures where it never was."""
    measured = measured_device("cpu", "float32")
    device = measured or nominal()
    source = (
        "nominal figures; `qpdsl profile` measures this machine"
        if measured is None
        else f"measured by `qpdsl profile` with {device.threads} thread{'' if device.threads == 1 else 's'}"
    )
    return Hardware(HERE, main_memory(), device.bandwidth, {"fp32": device.peak}, f"{device.name}: {source}")
