"""What is learned of a model from the steps of a run."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from qpdsl.planner.cost.device import Device, ModelProfile, ModelShape, nominal
from qpdsl.planner.cost.timed_steps import TimedSteps, alike, differ

DEVICE = replace(nominal(), measured=True)
SHAPE = ModelShape(2_600_000, 4, 8, 2, 32)
SIZES = (1, 2, 3, 5, 8, 13, 21, 34, 55, 89)


def true_seconds(decoded: int, prefilled: int) -> float:
    """A device three times as slow for draws as for prompts, and with a large constant part."""
    return 2e-3 + 3e-4 * decoded + 1e-4 * prefilled


def run_of(decodes: tuple[int, ...], prefills: tuple[int, ...], *, mixed: bool = False, seed: int = 1) -> TimedSteps:
    """A noisy run: some of its steps take up to twice as long."""
    pick, times = random.Random(seed), TimedSteps()
    for _ in range(12):
        sizes = [(size, 0) for size in decodes] + [(2 if mixed else 0, size) for size in prefills]
        for decoded, prefilled in pick.sample(sizes, len(sizes)):
            late = 1 + pick.random() if pick.random() < 0.3 else 1
            times.add(decoded, prefilled, true_seconds(decoded, prefilled) * late)
    return times


def learned(times: TimedSteps, before: ModelProfile | None = None, device: Device = DEVICE) -> ModelProfile:
    assert times.tells
    return times.profile(SHAPE, device, before)


@pytest.mark.parametrize("mixed", [False, True])
def test_sizes_that_were_seen_take_what_they_took(mixed: bool) -> None:
    profile = learned(run_of(SIZES, (30, 60, 120, 240), mixed=mixed))
    for size in SIZES:
        assert profile.decode.at(size) == pytest.approx(true_seconds(size, 0), rel=0.25)
    for size in (30, 60, 120, 240):
        assert profile.prefill.at(size) == pytest.approx(true_seconds(0, size), rel=0.25)


def test_a_larger_step_takes_no_less() -> None:
    profile = learned(run_of((1, 40), (16,)))
    for curve in (profile.decode, profile.prefill):
        times = [seconds for _, seconds in curve.points]
        assert times == sorted(times) and times[0] > 0


def test_sizes_that_were_met_while_the_machine_had_other_work_do_not_look_slower_than_their_parts() -> None:
    times = run_of(SIZES, (30, 60, 120, 240))
    quiet = learned(times)
    for _ in range(12):
        times.add(48, 0, 4 * true_seconds(48, 0))
        times.add(0, 90, 4 * true_seconds(0, 90))
    disturbed = learned(times)
    for before, after in ((quiet.decode, disturbed.decode), (quiet.prefill, disturbed.prefill)):
        for size, _ in before.points:
            assert after.at(size) == pytest.approx(before.at(size), rel=0.25)


def test_a_few_steps_say_nothing() -> None:
    times = TimedSteps()
    for _ in range(3 + 2):
        times.add(1, 0, 0.01)
    assert not times.tells


def test_a_run_of_small_steps_keeps_what_a_larger_one_found() -> None:
    before = learned(run_of(SIZES, (30, 240)))
    after = learned(run_of((1, 2), (30,), seed=2), before)
    assert after.decode.at(89) == before.decode.at(89) and after.prefill.at(240) == before.prefill.at(240)
    assert after.steps > before.steps
    assert not differ(after, before) and not differ(before, after)


def test_a_run_of_one_kind_leaves_what_is_known_of_the_other() -> None:
    before = learned(run_of(SIZES, (30, 240)))
    assert learned(run_of((), (16, 32, 64), seed=4), before).decode == before.decode
    assert learned(run_of((2, 4), (), seed=4), before).prefill == before.prefill


def test_steps_that_are_passed_over_say_nothing() -> None:
    times = TimedSteps()
    for _ in range(20):
        times.add(8, 2, 0.1)
    times.add(1, 0, 0.5)
    assert not times.tells


def test_a_slower_machine_is_noticed() -> None:
    before = learned(run_of(SIZES, (30, 240)))
    slower = TimedSteps()
    for _ in range(20):
        slower.add(8, 0, 3 * true_seconds(8, 0))
    assert differ(learned(slower, before), before)


def test_a_model_that_only_reads_is_known_too() -> None:
    profile = learned(run_of((), (20, 80, 160)))
    assert profile.prefill.at(80) == pytest.approx(true_seconds(0, 80), rel=0.25)


def test_a_model_without_steps_of_its_own_is_as_much_slower_than_the_roofline_as_another() -> None:
    known = learned(run_of(SIZES, (30, 240)))
    same, larger = alike(known, SHAPE, DEVICE), alike(known, replace(SHAPE, parameters=26_000_000, layers=40), DEVICE)
    for size in (4, 16, 64):
        assert same.decode.at(size) == pytest.approx(known.decode.at(size))
        assert same.prefill.at(size) == pytest.approx(known.prefill.at(size))
        assert larger.decode.at(size) > 5 * same.decode.at(size)
    assert DEVICE.with_model("it", larger).source(["it"]) == "timed"


def test_the_source_of_its_figures_is_known() -> None:
    device = DEVICE.with_model("timed", learned(run_of(SIZES, (30,)))).with_model("profiled", DEVICE.by_roofline(SHAPE))
    assert device.source(["timed"]) == device.source(["timed", "profiled"]) == "timed"
    assert device.source(["profiled"]) == "profiled" and device.source(["timed", "other"]) == "partial"
    assert nominal().source(["timed"]) == "nominal"
