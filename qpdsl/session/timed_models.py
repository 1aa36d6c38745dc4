"""What is known of the models of this device from the runs on it, without a measurement that anybody asked for."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.measure.device import measure_device, shape_of
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.statistics import clock_key
from qpdsl.planner.cost.timed_steps import TimedSteps, alike, differ
from qpdsl.session.user_cache import changing_statistics, check_devices_kept, read_device, write_device


def keep_times(times: Mapping[str, TimedSteps], models: Mapping[str, PagedModel], kind: str, dtype: str) -> None:
    """Keeps what a run's steps took, for those of its `models` that `qpdsl profile` did not measure, by their ids.

    They ran on the device `kind` and computed in `dtype`. A few steps say nothing: of a model that only had such, and
    is not known yet, the steps of the others are kept in its shape. A device that is not known yet is measured first,
    which takes half a second. Raises UsageError where nothing can be written.
    """
    known = read_device(kind, dtype, torch.get_num_threads())
    ran = {model: steps for model, steps in times.items() if model in models and not _profiled(known, model)}
    seen = {model: steps for model, steps in ran.items() if steps.tells}
    if not seen:
        return
    check_devices_kept()
    learned = known if known.measured else measure_device(kind, getattr(torch, dtype))
    for model, steps in seen.items():
        before = learned.models.get(model)
        profile = steps.profile(shape_of(models[model]), learned, before)
        if before is None or differ(profile, before):
            learned = learned.with_model(model, profile)
    for model in ran.keys() - learned.models.keys():
        learned = learned.with_model(model, alike(learned.models[next(iter(seen))], shape_of(models[model]), learned))
    if learned is not known:
        keep_device(learned)


def _profiled(device: Device, model: str) -> bool:
    """Whether `qpdsl profile` measured a model."""
    profile = device.models.get(model)
    return profile is not None and not profile.steps


def keep_device(device: Device) -> None:
    """Writes a device with new figures, for which the clocks of the old ones do not hold. Raises UsageError."""
    write_device(device)
    with changing_statistics() as statistics:
        statistics.forget_clock(clock_key(device))
