"""Every variant that the cases launch, each once, and the figures of some of them."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.gpu.compiled import sass
from benchmarks.gpu.compiled.cases import CAPABILITIES, CASES, LATER, Case
from benchmarks.gpu.compiled.figures import Figures, main_loop, named, resident_blocks, units_of, unrolled
from benchmarks.gpu.compiled.launches import Launch, compiled, launches_of


@dataclass(frozen=True, slots=True)
class Variant:
    """A launch of a case. `form` is the case's, with a number where it launches variants of one kernel."""

    case: Case
    form: str
    launch: Launch

    @property
    def name(self) -> str:
        return named(self.launch.capability, self.launch.kernel, self.case.name, self.form)

    @property
    def quick(self) -> bool:
        """Whether tests compile it."""
        return self.case.quick and self.launch.capability in LATER


def variants(cases: Iterable[Case] = CASES) -> list[Variant]:
    """What the cases launch, by capability. What several launch counts for the first."""
    found: list[Variant] = []
    keys: set[tuple[int, str]] = set()
    cases = tuple(cases)
    for capability in CAPABILITIES:
        for case in cases:
            if capability not in case.capabilities:
                continue
            times: dict[str, int] = {}
            for launch in launches_of(capability, case.launch):
                if (capability, launch.key) not in keys:
                    keys.add((capability, launch.key))
                    times[launch.kernel] = time = times.get(launch.kernel, 0) + 1
                    found.append(Variant(case, case.form if time == 1 else f"{case.form}, {time}", launch))
    return found


def figures_of(variant: Variant) -> Figures:
    """Compiles a variant, and counts."""
    launch = variant.launch
    made = compiled(launch)
    program = sass.read(made.code)
    unit, units = units_of(launch.kernel, launch.constants)
    return Figures(
        capability=launch.capability,
        kernel=launch.kernel,
        case=variant.case.name,
        form=variant.form,
        key=launch.key,
        warps=made.warps,
        registers=made.registers,
        shared=made.shared,
        local=made.local,
        blocks=resident_blocks(launch.capability, made.warps, made.registers, made.shared),
        whole=program.whole,
        unit=unit,
        units=units * unrolled(program.loops, made.commits),
        loop=main_loop(program.loops),
    )


# What the processes of a pool compile: a launch cannot be sent to another process, but a fork has it.
_waiting: list[Variant] = []


def _figures_at(place: int) -> Figures:
    return figures_of(_waiting[place])


def all_figures(waiting: Sequence[Variant], jobs: int) -> list[Figures]:
    """The figures of the variants in their order, compiled by so many processes; a dot on stderr for each."""
    if not waiting:
        return []
    _waiting[:] = waiting
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        found = []
        for figures in pool.imap(_figures_at, range(len(waiting))):
            found.append(figures)
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found
