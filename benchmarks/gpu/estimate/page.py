"""The estimate as markdown, and as figures; measured figures stand beside it where there are some."""

from __future__ import annotations

from typing import Any

from benchmarks.gpu.estimate.assumptions import ASSUMED, usual
from benchmarks.gpu.estimate.cases import (
    CASES,
    MIXED,
    WAYS,
    Case,
    at_best,
    attention_case,
    caused,
    estimate,
    fits,
    floor,
    launches_of,
    mixed_seconds,
    sensitivity,
)
from benchmarks.gpu.estimate.devices import Device, devices
from benchmarks.gpu.estimate.instructions import source
from benchmarks.gpu.estimate.shapes import KVKind
from benchmarks.gpu.estimate.step import Machine, Part
from benchmarks.gpu.estimate.verdicts import GOAL, measured_steps

# The device and the case whose parts and whose sensitivity are shown.
_SHOWN = "H100"
_TAKEN = Case("8B", CASES[2].batch)
_PARTS: tuple[Part, ...] = ("products", "attention", "small", "head")
_KINDS: tuple[KVKind, ...] = ("plain", "int8", "fp8")
Results = dict[str, Any]


def figures() -> dict[str, Any]:
    """All estimates as plain data."""
    return {
        "instructions": source(),
        "assumptions": {name: [assumed.best, assumed.usual, assumed.worst] for name, assumed in ASSUMED.items()},
        "steps": [
            {
                "device": device.name,
                "case": case.name,
                "floor_ms": _ms(floor(case, device)),
                **{
                    way: {
                        "ms": _ms(made.seconds),
                        "share": round(made.share, 3),
                        "range": [round(made.least, 3), round(made.most, 3)],
                        "launches": made.launches,
                    }
                    for way in WAYS
                    for made in [estimate(case, way, device)]
                },
            }
            for device in devices().values()
            for case in CASES
            if fits(case, device)
        ],
    }


def page(results: Results | None = None) -> str:
    """Everything, for `benchmarks/results/gpu_estimate.md`."""
    sections = [
        "# What a step should take on a GPU",
        "Derived on paper by `python -m benchmarks.gpu.estimate`. Nothing here was measured on a GPU"
        + (" but the column that says so." if results else "."),
    ]
    for device in devices().values():
        sections += [f"## {device.name}", described(device), steps_table(device, results)]
    sections += ["## Decode attention", attention_note(), attention_table()]
    sections += ["## Steps with prompts", mixed_note(), mixed_table()]
    sections += [f"## Where the time of {_TAKEN.name} goes on {_SHOWN}", parts_table()]
    sections += [f"## What 8B takes beyond its floor on {_SHOWN}", bounds_table(devices()[_SHOWN])]
    sections += ["## Assumptions", assumptions_table()]
    return "\n\n".join(sections) + "\n"


def described(device: Device) -> str:
    """The device's numbers that the estimate uses."""
    rate = Machine(device, usual()).bandwidth
    return (
        f"{device.memory >> 30} GiB, {device.bandwidth / 1e12:.3g} TB/s of which a copy is taken to move "
        f"{rate / 1e12:.3g}, {device.flops / 1e12:.4g} TFLOP/s in bfloat16, {device.multiprocessors} multiprocessors "
        f"at {device.clock / 1e9:.2f} GHz."
    )


def steps_table(device: Device, results: Results | None = None) -> str:
    """A line for each case that fits: the floor, and each way with its share of it."""
    lines = [
        "| case | floor ms | modules ms | | stack ms | | overlapped ms | | range | measured |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    there = measured_steps(results or {}, device.name)
    for case in CASES:
        if not fits(case, device):
            lines.append(f"| {case.name} | does not fit | | | | | | | | |")
            continue
        cells = [f"{floor(case, device) * 1e3:.2f}"]
        for way in WAYS:
            made = estimate(case, way, device)
            cells += [f"{made.seconds * 1e3:.2f}", f"{made.share:.0%}"]
        last = estimate(case, "overlapped", device)
        found = there.get(case.name)
        cells += [f"{last.least:.0%} to {last.most:.0%}", "no" if found is None else f"{found:.0%}"]
        lines.append(f"| {case.name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def goal_line(device: Device) -> str:
    """What the 8B cases reach of the goal, in a sentence."""
    reached: list[str] = []
    missed: list[str] = []
    for case in CASES:
        if case.model == "8B" and case.batch.kind == "plain" and fits(case, device):
            made = estimate(case, "overlapped", device)
            (reached if made.share >= GOAL else missed).append(f"{case.name} ({made.share:.1%})")
    said = f"The goal is {GOAL:.0%} of the roofline for 8B in bfloat16. "
    said += f"On paper {', '.join(reached) or 'no case'} reach{'' if len(reached) > 1 else 'es'} it"
    return said + (f", and {', '.join(missed)} do{'' if len(missed) > 1 else 'es'} not." if missed else ".")


def bounds_table(device: Device) -> str:
    """What the 8B cases take beyond their floors, by cause, and the shares that they reach at best."""
    lines = [
        "| case | beyond the floor ms | starts of launches | reading slower than a copy | host | rest | all at best |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for case in CASES:
        if case.model == "8B" and case.batch.kind == "plain" and fits(case, device):
            made = estimate(case, "overlapped", device)
            beyond = made.seconds - floor(case, device)
            causes = [caused(case, device, cause) for cause in ("launches", "rates", "host")]
            cells = [f"{seconds * 1e3:.2f}" for seconds in (beyond, *causes, beyond - sum(causes))]
            cells[1] += f" ({made.launches})"
            lines.append(f"| {case.name} | {' | '.join(cells)} | {at_best(case, device):.0%} |")
    return "\n".join(lines)


def kinds_line(device: Device) -> str:
    """What a step takes by what keys and values are kept as, in sentences."""
    alike = [case for case in CASES if (case.model, case.batch.sequences, case.batch.context) == ("8B", 64, 4096)]
    times = {case.batch.kind: estimate(case, "overlapped", device).seconds * 1e3 for case in alike}
    told = ", ".join(f"{'bfloat16' if kind == 'plain' else kind} {time:.1f} ms" for kind, time in times.items())
    slower = [kind for kind, time in times.items() if time > times["plain"]]
    said = f"A step of 8B 64 × 4096 takes with keys and values in {told}."
    if slower:
        said += f" {' and '.join(slower)} saves memory, not time, here: widening it takes more instructions than loads."
    return said


def attention_note() -> str:
    return (
        "One layer of 8B, 64 sequences of 4,096 tokens. A block of keys takes so many clocks of its multiprocessor's "
        "share of the bandwidth, and its schedulers issue for so many. Share: of the copy's bandwidth. Instructions: "
        f"{source()}."
    )


def attention_table() -> str:
    lines = [
        "| GPU | KV | clocks to read a block | clocks to issue it | µs | share | bound by |",
        "|---|---|---:|---:|---:|---:|---|",
    ]
    for device in devices().values():
        for kind in _KINDS:
            made = attention_case(kind, device)
            if made is not None:
                lines.append(
                    f"| {device.name} | {kind} | {made.read:.0f} | {made.issued:.0f} | {made.seconds * 1e6:.0f} "
                    f"| {made.share:.0%} | {'memory' if made.read >= made.issued else 'instructions'} |"
                )
    return "\n".join(lines)


def mixed_note() -> str:
    return (
        "Steps in which some sequences decode and others read prompts or are scored. `eager`: as modules, launched one "
        "by one, which such steps were before they were captured; `captured`: one graph for shapes rounded up."
    )


def mixed_table() -> str:
    lines = ["| GPU | step | eager ms | captured, modules | captured, stack |", "|---|---|---:|---:|---:|"]
    for device in devices().values():
        for step in MIXED:
            shown = (f"{mixed_seconds(step, way, device) * 1e3:.1f}" for way in ("eager", "modules", "stack"))
            lines.append(f"| {device.name} | {step.name} | {' | '.join(shown)} |")
    return "\n".join(lines)


def parts_table() -> str:
    device = devices()[_SHOWN]
    lines = ["| part | modules: launches | ms | stack: launches | ms |", "|---|---:|---:|---:|---:|"]
    made = {way: launches_of(_TAKEN, way, device) for way in ("modules", "stack")}
    for part in _PARTS:
        cells = []
        for launches in made.values():
            mine = [launch for launch in launches if launch.part == part]
            cells += [f"{sum(launch.times for launch in mine)}"]
            cells += [f"{sum(launch.times * launch.seconds for launch in mine) * 1e3:.2f}"]
        lines.append(f"| {part} | {' | '.join(cells)} |")
    return "\n".join(lines)


def assumptions_table() -> str:
    """Each with its range, and what it moves of the share of one case."""
    moved = sensitivity(_TAKEN, "overlapped", devices()[_SHOWN])
    lines = [
        f"| assumption | taken | worst to best | what it is | moves {_TAKEN.name} on {_SHOWN} by, points |",
        "|---|---:|---:|---|---:|",
    ]
    for name, assumed in ASSUMED.items():
        worse, better = moved[name]
        unit = f" {assumed.unit}" if assumed.unit == "µs" else ""
        meaning = assumed.why if unit else f"{assumed.unit}: {assumed.why}"
        lines.append(
            f"| `{name}` | {assumed.usual:g}{unit} | {assumed.worst:g} to {assumed.best:g} | {meaning} "
            f"| {worse * 100:+.1f} to {better * 100:+.1f} |"
        )
    return "\n".join(lines)


def _ms(seconds: float) -> float:
    return round(seconds * 1e3, 3)
