"""The profile of a device: measured with models on it, and kept for later plans."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from qpdsl.executor.measure.device import measure_device, measure_model
from qpdsl.executor.models.load import load
from qpdsl.model_location import locate, locate_adapter
from qpdsl.planner.cost.device import Device
from qpdsl.session.settings import SessionSettings
from qpdsl.session.timed_models import keep_device
from qpdsl.session.user_cache import check_devices_kept, read_device
from qpdsl.threads import usual_threads


def measure_models(
    models: Sequence[str],
    settings: SessionSettings,
    *,
    tables: bool = True,
    force: bool = False,
    tell: Callable[[str], None] = lambda model: None,
) -> Device:
    """The device with the profiles of these models on it. What was measured before is measured again with `force` only.

    `tell` is called with the id of each model before it is measured.
    Raises ModelError, and UsageError where the profile cannot be written.
    """
    device, dtype = settings.device, settings.dtype
    profile: Device | None = None
    for model in models:
        reload = partial(load, model, locate(model), device, dtype, adapter=locate_adapter(model))
        loaded = reload()
        # Small models take one thread (see Session); a device is known by the threads that it was measured with.
        count = settings.threads or usual_threads(loaded.paged.parameters)
        if count is not None:
            torch.set_num_threads(count)
        type_name = str(loaded.paged.dtype).removeprefix("torch.")
        known = read_device(device, type_name, torch.get_num_threads())
        if not known.measured or (force and profile is None):
            known = measure_device(device, loaded.paged.dtype)
        timed = known.models.get(model)
        if force or timed is None or timed.steps:
            check_devices_kept()
            tell(model)
            known = known.with_model(model, measure_model(loaded, tables=tables, reload=reload if tables else None))
            keep_device(known)
        profile = known
    assert profile is not None
    return profile
