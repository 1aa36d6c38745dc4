"""Estimates against the clock: does the planner know which of two plans is faster, and how long one takes?

    python -m benchmarks.estimates [--quick] [--problems 5] [--repeats 3] [--clock process]

Over the shipped programs and three sizes of generator. Of every program the plan, the naive plan, the plan without each
rule that changes it and the plan chosen by cost, where that is another one, run on the same problems, in turns; the
figure of a plan is the median. Before that one ANALYZE run of the plan tells the statistics what the program comes to.
Then every plan is estimated. Counted are the pairs of plans of one program and size whose times differ by more than a
fifth: in how many the estimates have the same order (goal 90%), and in how many plans the estimate is within twice the
time (goal all). `--clock process` counts this process's time alone, for a machine that others use too.

The third size computes what `zoo/counting` does, through layers put in between that add nothing: the same tokens for
several times the work. Writes `benchmarks/results/estimates.json` and `estimates.md`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from benchmarks.search.planned import DATA, problems, run
from qpdsl import zoo
from qpdsl.arguments import with_defaults
from qpdsl.executor.measure.device import measure_device, measure_model
from qpdsl.executor.models.load import load
from qpdsl.model_location import locate
from qpdsl.planner.cost.device import Device
from qpdsl.planner.cost.estimate import estimate_cost
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.explain.analyze import Analysis
from qpdsl.planner.optimize.by_cost import choice_of
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.analysis import learn
from qpdsl.session.planning import reads_of
from qpdsl.session.programs import load_program
from qpdsl.session.session import Session
from qpdsl.session.surroundings import Surroundings

PROGRAMS: Mapping[str, Mapping[str, int | str]] = {
    "greedy": {},
    "self_consistency": {"n": 16},
    "best_of_n": {"n": 16},
    "weighted_best_of_n": {"n": 16},
    "beam_search": {},
    "dvts": {},
    "lookahead": {},
    "rebase": {},
    "sal_best_of_n": {"n": 8, "system": ""},
    "sal_beam_search": {"system": ""},
    "sal_dvts": {"system": ""},
    "filter_decoding": {},
    "constrained_json": {},
    "outline_then_write": {},
}
# Where the rows come from, if not from the counting problems.
DATA_OF = {"constrained_json": "person-100"}
TOPICS = ("rivers", "the moon", "bread", "old maps", "bees", "glass", "tides", "chess")
MINI = "zoo/counting-mini"
SIZES = (MINI, "zoo/counting", "deep")
DEPTH = 12
# Plans whose times differ by less are as good as each other.
APART = 1.2
WITHIN = 2.0


@dataclass(frozen=True)
class Line:
    """One plan: what was estimated and measured, in seconds."""

    program: str
    size: str
    plan: str
    estimated: float
    measured: float


def plans(name: str, models: Mapping[str, str]) -> Iterator[tuple[str, PhysicalPlan]]:
    """The plan of a program, that of no rules, and that without each rule which changes it."""
    lowered = load_program(name, None, None, Surroundings(models=dict(models)))
    lowered = with_defaults(lowered, dict(PROGRAMS[name]))
    reads = reads_of(lowered)
    whole = planned(lowered, reads)
    yield "planned", whole
    yield "naive", planned(lowered, reads, naive=True)
    for rule in whole.rules:
        yield f"without {rule}", planned(lowered, reads, [rule])


def measure(
    size: str, model: str, names: Sequence[str], count: int, repeats: int, clock: str, topics: str
) -> list[Line]:
    """Every plan of every program with a generator."""
    verifier = "zoo/counting-prm"
    device = _device(
        dict.fromkeys([model, verifier, MINI]), time.process_time if clock == "process" else time.perf_counter
    )
    lines: list[Line] = []
    for name in names:
        by_name = dict(plans(name, {"llm": model}))
        rows = problems(by_name["planned"], count, topics if name == "outline_then_write" else DATA_OF.get(name, DATA))
        load_ = RunLoad(count, kv_bytes=_budget(by_name["planned"]))
        known = Statistics()
        # What is imported and compiled in the first run of a process is no plan's cost.
        run(by_name["planned"], rows[:1])
        first = run(by_name["planned"], rows)
        seconds = first.cpu_seconds if clock == "process" else first.seconds
        figures = replace(first.figures, seconds=seconds)
        before = estimate_cost(by_name["planned"], device, known, load_)
        learn(known, Analysis(by_name["planned"], figures, before), device, load_)
        choice = choice_of(by_name["planned"], device, known, load_)
        if choice.seconds != choice.ruled_seconds:
            by_name["chosen by cost"] = choice.plan
        taken: dict[str, list[float]] = {plan: [] for plan in by_name}
        for _ in range(repeats):
            for plan, physical in by_name.items():
                one = run(physical, rows)
                taken[plan].append(one.cpu_seconds if clock == "process" else one.seconds)
        for plan, physical in by_name.items():
            estimated = estimate_cost(physical, device, known, load_).seconds
            lines.append(Line(name, size, plan, estimated, statistics.median(taken[plan])))
            print(lines[-1])
    return lines


def _device(models: Iterable[str], clock: Callable[[], float]) -> Device:
    device = measure_device("cpu", torch.float32, clock)
    for model in models:
        profile = measure_model(load(model, locate(model), "cpu", None), tables=False, clock=clock)
        device = device.with_model(model, profile)
    return device


def _budget(plan: PhysicalPlan) -> int:
    session = Session()
    session.load(plan)
    return session.kv_budget


def deepened(folder: Path) -> str:
    """`zoo/counting` with layers in between whose outputs are zero: residual streams pass them unchanged."""
    source = zoo.path("zoo/counting")
    model = AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    weights = model.state_dict()
    config = model.config
    layers = config.num_hidden_layers
    config.num_hidden_layers = DEPTH
    deep = AutoModelForCausalLM.from_config(config)
    filled = deep.state_dict()
    for name, value in weights.items():
        if ".layers." not in name:
            filled[name].copy_(value)
    for layer in range(DEPTH):
        origin = layer * layers // DEPTH
        first = layer == -(-origin * DEPTH // layers)
        for name, value in weights.items():
            if f".layers.{origin}." in name:
                own = filled[name.replace(f".layers.{origin}.", f".layers.{layer}.")]
                own.copy_(value)
                if not first and name.endswith(("o_proj.weight", "down_proj.weight")):
                    own.zero_()
    deep.generation_config = model.generation_config
    deep.save_pretrained(folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
    return str(folder)


def judged(lines: Sequence[Line]) -> dict[str, float | int]:
    """Pairs of plans of one program and size that are apart, those in the right order, and plans within twice."""
    apart = right = 0
    for one, other in combinations(lines, 2):
        if (one.program, one.size) != (other.program, other.size):
            continue
        slow, fast = sorted((one, other), key=lambda line: -line.measured)
        if slow.measured > APART * fast.measured:
            apart += 1
            right += slow.estimated > fast.estimated
    within = sum(1 / WITHIN <= line.estimated / line.measured <= WITHIN for line in lines)
    return {"pairs": apart, "in order": right, "plans": len(lines), "within twice": within}


def page(lines: Sequence[Line]) -> str:
    judgement = judged(lines)
    rows = [
        f"| {line.program} | {line.size} | {line.plan} | {line.estimated:.2f} | {line.measured:.2f} "
        f"| {line.estimated / line.measured:.2f} |"
        for line in lines
    ]
    order = f"{judgement['in order']} of {judgement['pairs']}"
    share = f" ({judgement['in order'] / judgement['pairs']:.0%}, goal 90%)" if judgement["pairs"] else ""
    return "\n".join(
        [
            "# Estimates against the clock",
            "",
            f"Pairs of plans more than a fifth apart that the estimates have in order: {order}{share}.",
            f"Plans whose estimate is within twice the time: {judgement['within twice']} of {judgement['plans']}.",
            "",
            "| program | generator | plan | estimated, s | measured, s | ratio |",
            "|---|---|---|---:|---:|---:|",
            *rows,
            "",
            f"Measured on: {sentence()}.",
            "",
        ]
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="two programs, one size, three problems, once")
    parser.add_argument("--problems", type=int, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "process"), default="wall")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes, names, count, repeats = SIZES, list(PROGRAMS), arguments.problems, arguments.repeats
    if arguments.quick:
        sizes, names, count, repeats = ("zoo/counting",), ["best_of_n", "beam_search"], 3, 1
    lines: list[Line] = []
    with tempfile.TemporaryDirectory() as scratch:
        topics = Path(scratch) / "topics.jsonl"
        topics.write_text("".join(json.dumps({"topic": topic}) + "\n" for topic in TOPICS))
        for size in sizes:
            model = deepened(Path(scratch) / "deep") if size == "deep" else size
            lines += measure(size, model, names, count, repeats, arguments.clock, str(topics))
    text = page(lines)
    arguments.output.mkdir(parents=True, exist_ok=True)
    record = {
        "machine": describe(),
        "clock": arguments.clock,
        **judged(lines),
        "lines": [asdict(line) for line in lines],
    }
    (arguments.output / "estimates.json").write_text(json.dumps(record, indent=1) + "\n")
    (arguments.output / "estimates.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
