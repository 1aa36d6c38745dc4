"""How cost grows: with rows, prompt length, beam width, problems, programs and replicas; each beside the linear ideal.

    python -m benchmarks.engine.growth [--folder FOLDER] [--threads 2] [--seconds 60] [--only rows prompt ...] [--quick]

Rows and prompts are SmolLM2-135M's in float32 where FOLDER has it (`python -m benchmarks.common.real_models FOLDER`),
else the built-in generator's; the rest are built-in models, and replicas are simulated (`benchmarks.cluster`). Each
curve is fitted by a + b·x + c·x², none of them negative, and what bends it is said by the x at which one part overtakes
another. A curve ends early where its next point would take it past `--seconds`.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cluster.driver_costs import measured as driver_costs
from benchmarks.cluster.simulation import Simulation
from benchmarks.common.folders import RESULTS
from benchmarks.common.real_models import DEFAULT
from benchmarks.common.results import machine_line, write
from benchmarks.common.serving import NAME, engine_of, greedy
from benchmarks.common.shapes import COUNTING, random_prompts
from benchmarks.common.subjects import subjects
from benchmarks.search.planned import plan_of
from family.tasks.counting import problems as counting_problems
from qpdsl import zoo
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.models.quick_load import load
from qpdsl.executor.requests import engine_loop
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputRow, NumberedRow
from qpdsl.runs.data.rows import read_rows
from qpdsl.runs.job import Job
from qpdsl.runs.row_outcome import FinishedRow
from qpdsl.runs.runner import LocalRunner
from qpdsl.session.session import Session

MODEL = "SmolLM2-135M"
_SHORT = 16
_STEPS = 8
# Simulated replicas run so many rows a slot.
_ROWS_A_SLOT = 20


@dataclass(frozen=True)
class Point:
    """`x` of something, the seconds that it took, and `done` tokens or rows in these."""

    x: int
    seconds: float
    done: float


@dataclass(frozen=True)
class Curve:
    """Points in order. `flat`: ideally the seconds stay as they are, so that the rate grows; else they grow with x."""

    name: str
    x: str
    what: str
    rate: str
    flat: bool
    parts: tuple[str, ...]
    points: list[Point]

    def ideal(self, point: Point) -> float:
        """The seconds of the linear ideal: those of the first point, or as many times them as x has grown."""
        first = self.points[0]
        return first.seconds * (1.0 if self.flat else point.x / first.x)


@dataclass(frozen=True)
class Given:
    """What is measured on: a model for rows and prompts, its name, seconds a curve, and whether this is a trial."""

    model: PagedModel
    name: str
    seconds: float
    quick: bool
    output: Path

    def points(self, xs: Sequence[int], point: Callable[[int], Point]) -> list[Point]:
        """Those of `xs`, as long as the next one, if it takes as much longer as x is larger, fits the seconds."""
        found: list[Point] = []
        begin, last, before = time.perf_counter(), 0.0, 1
        for x in xs:
            spent = time.perf_counter() - begin
            if found and spent + last * x / before > self.seconds:
                break
            start = time.perf_counter()
            found.append(point(x))
            last, before = time.perf_counter() - start, x
        return found

    def prompts(self, count: int, length: int) -> list[tuple[int, ...]]:
        return random_prompts(count, length, self.model.vocabulary)


def rows(given: Given) -> Curve:
    """A step's seconds by its rows, each of a prompt of its own."""

    def point(count: int) -> Point:
        steps = _timed(given, count, _SHORT, _STEPS)[1]
        return Point(count, sorted(steps)[len(steps) // 2], count)

    xs = (1, 8, 32) if given.quick else (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    parts = ("reading the weights, whatever the rows", "each row's arithmetic")
    return Curve("rows", "rows", f"a decode step of {given.name}", "tokens/s", True, parts, given.points(xs, point))


def prompt(given: Given) -> Curve:
    """Seconds to the first token by the length of the prompt."""
    longest = min(8192, given.model.max_positions) - 2

    def point(length: int) -> Point:
        return Point(length, min(_timed(given, 1, length, 1)[0] for _ in range(1 if length > 1000 else 3)), length)

    xs = (64, 256, 512) if given.quick else (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    fitting = list(dict.fromkeys(min(x, longest) for x in xs))
    parts = ("a step's own costs", "products, each token's", "attention, each token over all before it")
    return Curve(
        "prompt", "tokens of the prompt", f"the first token of {given.name}", "tokens/s", False, parts,
        given.points(fitting, point),
    )  # fmt: skip


def _timed(given: Given, count: int, length: int, steps: int) -> tuple[float, list[float]]:
    """Seconds until `count` prompts are read, and of each of the steps after that."""
    reports: list[StepReport] = []
    layout = given.model.layout
    config = EngineConfig(max_sequences=count)
    # The first ones decode while others are read, and all are to be there then.
    most = steps + 2 + 2 * count * length // config.token_budget
    room = count * (length + most + 2 * layout.page_size)
    engine = engine_of({NAME: given.model}, 2 * room * layout.token_bytes, config, reports.append)
    for number, tokens in enumerate(given.prompts(count, length)):
        engine.submit(NAME, greedy((number + 100, *tokens[1:]), most))
    begin, unread = time.perf_counter(), count * length
    while unread > 0:
        engine.step()
        unread -= sum(report.prefill_tokens + report.cached_tokens for report in reports)
        reports.clear()
    first, seconds = time.perf_counter() - begin, list[float]()
    for _ in range(steps):
        start = time.perf_counter()
        engine.step()
        seconds.append(time.perf_counter() - start)
    return first, seconds


def _problems(count: int) -> list[str]:
    return [problem.text for problem in islice(counting_problems(seed=7, split="held-out"), count)]


def _rows(plan: PhysicalPlan, texts: Sequence[str], arguments: Mapping[str, Any]) -> Sequence[InputRow]:
    """Problems as rows of data, with what the plan's parameters are otherwise."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "problems.jsonl"
        file.write_text("".join(json.dumps({"problem": text}) + "\n" for text in texts), encoding="utf-8")
        return read_rows(file, plan, arguments).rows


def _run(plans: Sequence[tuple[PhysicalPlan, int]], texts: Sequence[str], arguments: Mapping[str, Any]) -> Point:
    """Runs each plan, with its seed, over the problems, all in one session: seconds after loading, and tokens."""
    session = Session()
    for plan, _ in plans:
        session.load(plan)
    jobs = [Job(plan, None, seed) for plan, seed in plans]
    rows = []
    for run, (plan, _) in enumerate(plans):
        rows += [NumberedRow(len(rows) + number, row, run) for number, row in enumerate(_rows(plan, texts, arguments))]
    ended: list[FinishedRow] = []
    begin = time.perf_counter()
    engine_loop.run(LocalRunner(session, jobs, None).run(rows, ended.extend))
    seconds = time.perf_counter() - begin
    assert len(ended) == len(rows)
    failed = [row.outcome.error for row in ended if row.outcome.error is not None]
    assert not failed, failed[0]
    return Point(1, seconds, sum(row.outcome.tokens_out for row in ended))


def beams(given: Given) -> Curve:
    """Beam search by its width, four children a beam."""
    plan, texts = plan_of("beam_search"), _problems(2 if given.quick else 8)

    def point(width: int) -> Point:
        run = _run([(plan, 0)], texts, {"width": width})
        return Point(width, run.seconds, run.done)

    xs = (1, 4) if given.quick else (1, 2, 4, 8, 16, 32)
    parts = ("what each problem has once", "each beam's tokens and scores")
    what = f"{len(texts)} problems by `beam_search`"
    return Curve("beams", "beams, of four children each", what, "tokens/s", False, parts, given.points(xs, point))


def problems(given: Given) -> Curve:
    """One greedy sample a problem, by the number of problems."""
    plan = plan_of("greedy")

    def point(count: int) -> Point:
        return Point(count, _run([(plan, 0)], _problems(count), {}).seconds, count)

    xs = (1, 10, 50) if given.quick else (1, 10, 100, 1000, 10_000)
    parts = ("the first problem, alone in its steps", "each problem, in full batches")
    return Curve("problems", "problems", "`greedy` over problems", "problems/s", False, parts, given.points(xs, point))


def programs(given: Given) -> Curve:
    """Runs of one program with seeds of their own, at once in one session."""
    plan, texts = plan_of("self_consistency"), _problems(2 if given.quick else 8)

    def point(count: int) -> Point:
        run = _run([(plan, seed) for seed in range(count)], texts, {})
        return Point(count, run.seconds, run.done)

    xs = (1, 2) if given.quick else (1, 2, 4, 8, 16, 32)
    parts = ("what all share: steps that are not full", "each program's samples")
    what = f"`self_consistency` over {len(texts)} problems, each program with a seed of its own"
    return Curve("programs", "programs in one session", what, "tokens/s", False, parts, given.points(xs, point))


def replicas(given: Given) -> Curve:
    """A saved run on simulated replicas, with twenty rows a slot."""
    times = json.loads((RESULTS / "cluster_simulation.json").read_text(encoding="utf-8"))["recorded"]
    costs, slots = driver_costs(), times["in_flight"]

    def point(count: int) -> Point:
        rows = count * slots * _ROWS_A_SLOT
        return Point(count, Simulation(rows, count, slots, times["seconds"], costs, math.inf).run().seconds, rows)

    xs = (1, 10) if given.quick else (1, 3, 10, 30, 100, 300, 1000)
    parts = ("the rows of a slot", "the driver, for each replica's rows")
    what = f"{_ROWS_A_SLOT} rows a slot, {slots} slots a replica"
    return Curve("replicas", "replicas", what, "rows/s", True, parts, given.points(xs, point))


CURVES = {
    "rows": rows,
    "prompt": prompt,
    "beams": beams,
    "problems": problems,
    "programs": programs,
    "replicas": replicas,
}


def fitted(points: Sequence[Point], most: int) -> tuple[float, float, float]:
    """The a, b and c of a + b·x + c·x² that lie nearest to the seconds, relative to them; none is negative.

    Those after the first `most` are 0.
    """
    x, y = (np.array([getattr(point, name) for point in points], dtype=float) for name in ("x", "seconds"))
    powers = np.stack([np.ones_like(x), x, x * x], axis=1) / y[:, None]
    best, least = (float(y[0]), 0.0, 0.0), math.inf
    for size in range(1, min(most, len(points)) + 1):
        for chosen in combinations(range(most), size):
            found, *_ = np.linalg.lstsq(powers[:, chosen], np.ones_like(y), rcond=None)
            error = float(((powers[:, chosen] @ found - 1) ** 2).sum())
            if (found >= 0).all() and error < least - 1e-9:
                numbers = [0.0, 0.0, 0.0]
                for place, value in zip(chosen, found, strict=True):
                    numbers[place] = float(value)
                best, least = (numbers[0], numbers[1], numbers[2]), error
    return best


def bends(curve: Curve) -> str:
    """What bends a curve, in words."""
    a, b, c = fitted(curve.points, len(curve.parts))
    last = curve.points[-1]
    shares = [part / (a + b * last.x + c * last.x**2) for part in (a, b * last.x, c * last.x**2)]
    said = [
        f"{name} {value:.3g} s{each}, {share:.0%} at {last.x:,}"
        for name, value, each, share in zip(
            curve.parts, (a, b, c), ("", " each", " each, squared"), shares, strict=False
        )
        if value > 0
    ]
    crossings = []
    if a and b:
        crossings.append(f"the second overtakes the first at {a / b:,.0f}")
    if b and c:
        crossings.append(f"the last overtakes the second at {b / c:,.0f}")
    return "; ".join(said) + (f". So {', and '.join(crossings)}." if crossings else ".")


def page(curves: Sequence[Curve]) -> str:
    lines = ["# Cost as work grows", "", "![Rates and seconds beside the linear ideal](growth.svg)", ""]
    for curve in curves:
        lines += [f"## By {curve.x}: {curve.what}", ""]
        lines += [f"| {curve.x} | seconds | linear ideal | {curve.rate} |", "|---:|---:|---:|---:|"]
        lines += [
            f"| {point.x:,} | {point.seconds:.4g} | {curve.ideal(point):.4g} | {point.done / point.seconds:,.1f} |"
            for point in curve.points
        ]
        lines += ["", f"What bends it: {bends(curve)}", ""]
    return "\n".join([*lines, "Written by `python -m benchmarks.engine.growth`.", "", machine_line(), ""])


def draw(curves: Sequence[Curve], path: Path) -> None:
    """Rates above, seconds below, a column for each curve; the linear ideal is dashed."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 8, "axes.grid": True, "grid.alpha": 0.3})
    size = (3.1 * len(curves), 5.6)
    picture, axes = plt.subplots(2, len(curves), figsize=size, layout="constrained", squeeze=False)
    for column, curve in enumerate(curves):
        xs, seconds = [point.x for point in curve.points], [point.seconds for point in curve.points]
        ideal = [curve.ideal(point) for point in curve.points]
        for row, values in enumerate((_rates(curve, seconds), seconds)):
            axes[row][column].loglog(xs, values, marker="o", markersize=3)
            axes[row][column].loglog(xs, _rates(curve, ideal) if row == 0 else ideal, linestyle="--", color="0.5")
            axes[row][column].set_ylabel("seconds" if row else curve.rate)
        axes[0][column].set_title(curve.name)
        axes[1][column].set_xlabel(curve.x)
    picture.savefig(path, format="svg", metadata={"Date": None}, facecolor="white")
    plt.close(picture)


def _rates(curve: Curve, seconds: Sequence[float]) -> list[float]:
    return [point.done / each for point, each in zip(curve.points, seconds, strict=True)]


def given_of(arguments: argparse.Namespace) -> Given:
    folder = subjects(arguments.folder)[MODEL].float32
    name, place = (MODEL, folder) if folder.exists() and not arguments.quick else (COUNTING, zoo.path(COUNTING))
    model = load(name, place, "cpu", None).paged
    return Given(model, name, arguments.seconds, arguments.quick, arguments.output)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=DEFAULT, help=f"where the models are (default: {DEFAULT})")
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--seconds", type=float, default=60, help="of each curve")
    options.add_argument("--only", nargs="+", choices=list(CURVES), default=list(CURVES))
    options.add_argument("--quick", action="store_true", help="a few points of each: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    given = given_of(arguments)
    curves = list(_measured(given, arguments.only))
    record = {"curves": [{**asdict(curve), "fit": fitted(curve.points, len(curve.parts))} for curve in curves]}
    write(arguments.output, "growth", page(curves), record)
    draw(curves, arguments.output / "growth.svg")


def _measured(given: Given, names: Sequence[str]) -> Iterator[Curve]:
    for name in names:
        print(f"{name} …", flush=True)
        yield CURVES[name](given)


if __name__ == "__main__":
    main()
