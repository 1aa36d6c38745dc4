"""Throughput of a search's models over sequences, tokens of a step and memory: the planner's estimate, measured.

    python -m benchmarks.engine.batch_surface [--program beam_search] [--problems 24] [--kv-memory 16MiB] [--clock cpu]

A program runs over some problems once, one at a time, and what it asks of each model is written down. Then each model
alone is given those requests again, of all problems at once, in an engine with so much of the KV memory, so many
sequences and so many tokens a step: a round of a problem when its round before is done. That is the surface, in
problems a second. The min-max optimum is where the slowest model is fastest; the estimate's optimum, which
`qpdsl profile --surface` prints, is measured too, and what it loses against the best that was measured is the first
figure. Last the program itself runs with those settings for both models, in the whole memory, and must answer the same.
`--clock cpu` counts the process's processor time instead of the wall's, for a machine that others use.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import Goal, goal_table, machine_line, write
from benchmarks.search.planned import plan_of, problems, run
from qpdsl.executor.engine.memory.budget import amount_text, parse
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.measure.device import measure_device, measure_model
from qpdsl.executor.measure.loads import Timer
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Request
from qpdsl.executor.requests.ticket import Ticket
from qpdsl.model_location import locate
from qpdsl.planner.cost.cardinality import cardinalities
from qpdsl.planner.cost.demand import Demand, demands
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.explain.plan import in_words
from qpdsl.planner.optimize.batch_surface import Work, usual_step
from qpdsl.planner.plan.physical import PhysicalPlan, everything
from qpdsl.runs.data.input_row import InputRow
from qpdsl.session.session import Session

SEQUENCES, BUDGETS, PARTS = (4, 16, 64), (64, 256, 1024), (0.25, 0.5, 0.75)
PICTURE = "batch_surface.svg"
# Samples that run ahead may be given up, and are then no work that another run has to do.
_DISABLED = ("speculative_expansion",)

CLOCKS: dict[str, Timer] = {"wall": time.perf_counter, "cpu": time.process_time}

# What one problem asked of one model: rounds of requests, each after all of the round before.
Rounds = list[list[Request]]
# The part of the memory that is the first model's, sequences, and tokens of a step.
Cell = tuple[float, int, int]


@dataclass(frozen=True)
class Surfaces:
    """Problems a second of each model by cell, measured and estimated."""

    models: tuple[str, ...]
    measured: Mapping[str, Mapping[Cell, float]]
    estimated: Mapping[str, Mapping[Cell, float]]

    def slowest(self, cell: Cell, *, measured: bool = True) -> float:
        table = self.measured if measured else self.estimated
        return min(table[model][cell] for model in self.models)

    def optimum(self, *, measured: bool) -> Cell:
        """Of cells that come to nearly the same the first: the smallest batch."""
        cells = list((self.measured if measured else self.estimated)[self.models[0]])
        best = max(self.slowest(cell, measured=measured) for cell in cells)
        return next(cell for cell in cells if self.slowest(cell, measured=measured) * 1.001 >= best)


@contextmanager
def recorded(requests: dict[str, Rounds]) -> Iterator[None]:
    """Adds all that engines are asked meanwhile to `requests`, by model; a new round begins where none is under way."""
    submit = PagedEngine.submit

    def recording(engine: PagedEngine, model: str, request: Request) -> Ticket:
        if not engine.has_work:
            for rounds in requests.values():
                rounds.append([])
        requests[model][-1].append(request)
        return submit(engine, model, request)

    PagedEngine.submit = recording  # type: ignore[method-assign]
    try:
        yield
    finally:
        PagedEngine.submit = submit  # type: ignore[method-assign]


def asked(plan: PhysicalPlan, rows: Sequence[InputRow]) -> tuple[dict[str, list[Rounds]], tuple[Demand, ...]]:
    """What each problem asks of each model, and what the planner expects of a problem after having seen these."""
    session, statistics = Session(), Statistics()
    by_model: dict[str, list[Rounds]] = {model: [] for model in plan.models.values()}
    for row in rows:
        requests: dict[str, Rounds] = {model: [] for model in by_model}
        with recorded(requests):
            done = run(plan, [row], 1, session)
        statistics.add(plan, done.figures, {node.id: in_words(node.op) for node in everything(plan.ops)})
        for model, rounds in requests.items():
            by_model[model].append([own for own in rounds if own])
    return by_model, demands(plan, cardinalities(plan, statistics))


def rate(
    model: PagedTextModel, traces: Sequence[Rounds], kv_bytes: int, sequences: int, budget: int, clock: Timer
) -> float:
    """Problems a second of one model that is given all problems at once; 0 where a request does not fit the memory."""
    engine = PagedEngine(EngineConfig(max_sequences=sequences, token_budget=budget), kv_bytes=kv_bytes)
    waiting: list[tuple[Rounds, list[Ticket]]] = [(list(reversed(trace)), []) for trace in traces]
    start = clock()
    try:
        engine.add(model.name, model.paged)
        while waiting:
            for rounds, tickets in waiting:
                if rounds and all(ticket.done for ticket in tickets):
                    tickets[:] = [engine.submit(model.name, request) for request in rounds.pop()]
            if engine.has_work:
                engine.step()
            waiting = [(rounds, tickets) for rounds, tickets in waiting if rounds or not all(t.done for t in tickets)]
    except EngineError:
        return 0.0
    return len(traces) / (clock() - start)


def surfaces(
    traces: Mapping[str, Sequence[Rounds]],
    work: Mapping[str, Work],
    device: Device,
    loaded: Mapping[str, PagedTextModel],
    kv_bytes: int,
    cells: Sequence[Cell],
    repeats: int,
    clock: Timer,
) -> Surfaces:
    """Both surfaces over these cells; of several measurements of a cell the best counts."""
    names = tuple(traces)
    measured: dict[str, dict[Cell, float]] = {name: {} for name in names}
    estimated: dict[str, dict[Cell, float]] = {name: {} for name in names}
    for name, cell in product(names, cells):
        part, sequences, budget = cell
        share = part if name == names[0] else (1 - part) / max(len(names) - 1, 1)
        own = int(kv_bytes * (share if len(names) > 1 else 1.0))
        trials = [rate(loaded[name], traces[name], own, sequences, budget, clock) for _ in range(repeats)]
        measured[name][cell] = max(trials)
        estimated[name][cell] = usual_step(work[name], device.profile(name), device, own, sequences, budget).rate
    return Surfaces(names, measured, estimated)


def whole(
    plan: PhysicalPlan, rows: Sequence[InputRow], kv_bytes: int, cell: Cell, clock: str
) -> tuple[float, list[str]]:
    """Problems a second of the program itself, and its answers."""
    config = EngineConfig(max_sequences=cell[1], token_budget=cell[2])
    done = run(plan, rows, len(rows), Session(config=config, kv_bytes=kv_bytes))
    return len(rows) / (done.seconds if clock == "wall" else done.cpu_seconds), done.answers


def text_of(program: str, count: int, kv_bytes: int, found: Surfaces, runs: Mapping[str, Any]) -> str:
    chosen, best = found.optimum(measured=False), found.optimum(measured=True)
    lines = [f"# Throughput over sequences, tokens of a step and memory: `{program}`, {count} problems", ""]
    for part in dict.fromkeys(cell[0] for cell in found.measured[found.models[0]]):
        cells = [cell for cell in found.measured[found.models[0]] if cell[0] == part]
        budgets, sequences = sorted({cell[2] for cell in cells}), sorted({cell[1] for cell in cells})
        lines += [f"{part:.0%} of {amount_text(kv_bytes)} of KV memory for `{found.models[0]}`:", ""]
        lines += ["| model | sequences | " + " | ".join(f"{budget:,} tokens" for budget in budgets) + " |"]
        lines += ["|---|---:|" + "---:|" * len(budgets)]
        for model, most in product(found.models, sequences):
            own = [(part, most, budget) for budget in budgets]
            shown = [f"{found.measured[model][cell]:.2f} (est {found.estimated[model][cell]:.2f})" for cell in own]
            lines.append(f"| `{model}` | {most} | {' | '.join(shown)} |")
        lines.append("")
    lines += ["| | memory | sequences | tokens | slowest model alone | estimated |", "|---|---:|---:|---:|---:|---:|"]
    for name, cell in (("best of the estimate", chosen), ("best measured", best)):
        rates = f"{found.slowest(cell):.2f} | {found.slowest(cell, measured=False):.2f}"
        lines.append(f"| {name} | {cell[0]:.0%} | {cell[1]} | {cell[2]:,} | {rates} |")
    lines += ["", "| the program itself, its models in turn | problems a second | same answers |", "|---|---:|---:|"]
    lines += [f"| {name} | {found_['rate']:.2f} | {found_['same']}/{count} |" for name, found_ in runs.items()]
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--program", default="beam_search")
    options.add_argument("--problems", type=int, default=24)
    options.add_argument("--kv-memory", default="16MiB", help="of both models together")
    options.add_argument("--repeats", type=int, default=2, help="measurements of a cell, of which the best counts")
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--clock", choices=tuple(CLOCKS), default="wall", help="cpu: processor time of the process")
    options.add_argument("--quick", action="store_true", help="few problems and cells: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    given = options.parse_args()
    torch.set_num_threads(given.threads)
    plan = plan_of(given.program, _DISABLED)
    count = 4 if given.quick else given.problems
    sequences, budgets, parts = ((4, 32), (64, 512), (0.5,)) if given.quick else (SEQUENCES, BUDGETS, PARTS)
    bench(
        given.program, plan, problems(plan, count), parse(given.kv_memory), list(product(parts, sequences, budgets)),
        1 if given.quick else given.repeats, given.clock, given.output,
    )  # fmt: skip


def bench(
    program: str,
    plan: PhysicalPlan,
    rows: Sequence[InputRow],
    kv_bytes: int,
    cells: Sequence[Cell],
    repeats: int,
    clock: str,
    output: Path,
) -> None:
    traces, expected = asked(plan, rows)
    loaded = {name: load(name, locate(name), "cpu", None) for name in traces}
    device = measure_device("cpu", torch.float32, CLOCKS[clock])
    for name, model in loaded.items():
        device = device.with_model(name, measure_model(model, tables=False, clock=CLOCKS[clock]))
    work = {name: Work.of([demand for demand in expected if demand.model == name]) for name in traces}
    found = surfaces(traces, work, device, loaded, kv_bytes, cells, repeats, CLOCKS[clock])
    chosen, best = found.optimum(measured=False), found.optimum(measured=True)
    settings: dict[str, Cell] = {
        "the usual 128 sequences and 2,048 tokens": (0.0, 128, 2048),
        "best of the estimate": chosen,
        "best measured": best,
        "least of both": (0.0, cells[0][1], cells[0][2]),
    }
    done = {name: whole(plan, rows, kv_bytes, cell, clock) for name, cell in settings.items()}
    answers = next(iter(done.values()))[1]
    runs = {
        name: {"rate": speed, "same": sum(a == b for a, b in zip(own, answers, strict=True))}
        for name, (speed, own) in done.items()
    }
    reached = found.slowest(chosen) / found.slowest(best) if found.slowest(best) else 0.0
    same = min(entry["same"] for entry in runs.values()) / len(rows)
    goals = [
        Goal("the estimate's optimum, of the best measured", 0.8, reached),
        Goal("share of problems with the same answer at every setting", 1.0, same),
    ]
    text = (
        f"{text_of(program, len(rows), kv_bytes, found, runs)}\n\n{goal_table(goals)}\n\n"
        f"Problems a second of each model alone, given the requests of all problems at once; est: as "
        f"`qpdsl profile --surface` estimates it. A cell is the best of {repeats}, by the {clock} clock.\n\n"
        f"{machine_line()}\n"
    )
    record = {
        "program": program,
        "problems": len(rows),
        "kv_bytes": kv_bytes,
        "clock": clock,
        "work": {name: asdict(own) for name, own in work.items()},
        "cells": [
            {
                "model": model, "part": cell[0], "sequences": cell[1], "tokens": cell[2],
                "measured": found.measured[model][cell], "estimated": found.estimated[model][cell],
            }
            for model, cell in product(found.models, cells)
        ],
        "optimum": {"estimated": chosen, "measured": best},
        "runs": runs,
    }  # fmt: skip
    write(output, "batch_surface", text, record, goals)
    # Only now, as the picture needs what the figures do not.
    from benchmarks.engine.surface_picture import draw

    draw(found.models, found.measured, found.estimated, (best, chosen), output / PICTURE)


if __name__ == "__main__":
    main()
