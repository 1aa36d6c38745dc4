"""Measuring the device and models on it, and keeping what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from qpdsl.executor.measure.device import measure_device, measure_model
from qpdsl.executor.models.load import load
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.statistics import clock_key
from qpdsl.planning.store import changing_statistics, check_devices_kept, read_device, write_device
from qpdsl.session import locate, usual_threads


def measured(
    models: Sequence[str],
    device: str = "cpu",
    dtype: str | None = None,
    threads: int | None = None,
    *,
    tables: bool = True,
    force: bool = False,
    tell: Callable[[str], None] = lambda model: None,
) -> Device:
    """The device with these models on it; what is known already is measured anew with `force` only.

    `tell` is called with each model before it is measured. Raises ModelError, and UsageError where nothing can be kept.
    """
    found: Device | None = None
    for model in models:
        loaded = load(model, locate(model), device, dtype)
        # Small models take one thread (see Session); a device is known by the threads that it was measured with.
        wanted = threads or usual_threads(loaded.paged.parameters)
        if wanted is not None:
            torch.set_num_threads(wanted)
        short = str(loaded.paged.dtype).removeprefix("torch.")
        known = read_device(device, short, torch.get_num_threads())
        if not known.measured or (force and found is None):
            known = measure_device(device, loaded.paged.dtype)
        if force or model not in known.models:
            check_devices_kept()
            tell(model)
            again = partial(load, model, locate(model), device, dtype) if tables else None
            known = known.with_model(model, measure_model(loaded, tables=tables, again=again))
            write_device(known)
            # By how much the figures of before were off says nothing of these.
            with changing_statistics() as statistics:
                statistics.forget_clock(clock_key(known))
        found = known
    assert found is not None
    return found
