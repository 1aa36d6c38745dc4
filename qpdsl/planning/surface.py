"""The batch surface of a program, by the measured device and the statistics of its earlier runs."""

from __future__ import annotations

from qpdsl.executor.engine.memory.budget import main_memory, parse
from qpdsl.grammar.model_id import is_remote
from qpdsl.planner.cost.cardinality import cardinalities
from qpdsl.planner.cost.demand import demands
from qpdsl.planner.cost.device import Device, nominal
from qpdsl.planner.cost.timing import Load
from qpdsl.planner.optimize.batch_surface import BatchSurface, batch_surface
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.planning.target import Target
from qpdsl.planning.user_cache import measured_device, read_statistics


def surface_of(plan: PhysicalPlan, target: Target, kv_memory: str | None = None) -> tuple[BatchSurface, Device] | None:
    """The surface of a plan, and the device that it is estimated for.

    The device is nominal where it was not measured. What servers run is no part of it: None where the plan calls no
    model of this machine. Raises ValueError for what is no amount of memory.
    """
    dtype = target.computes_in(plan.models.values())
    device = None if dtype is None else measured_device(target.kind, dtype, target.threads)
    device = device or nominal(target.kind)
    load = Load() if kv_memory is None else Load(kv_bytes=parse(kv_memory, main_memory))
    cards = cardinalities(plan, read_statistics())
    here = [demand for demand in demands(plan, cards) if not is_remote(demand.model)]
    surface = batch_surface(here, device, load, cards.source)
    return None if surface is None else (surface, device)
