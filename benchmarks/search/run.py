"""Beam search planned, against the loop that people write and against our own engine with no rules; what each rule and
the KV memory bring; and right answers against tokens spent, of every strategy.

    pip install -e '.[bench]'
    python -m benchmarks.search.run [--quick] [--only throughput rules memory splits accuracy vllm] [--repeats 3]
                                    [--show-only] [--vllm-python PATH] [--real FOLDER ...] [--problems FILE]
                                    [--ways uncached cached] [--strategies NAME ...] [--first N] [--untimed]

On the built-in models, one torch thread, float32. `--quick` takes a few problems, for minutes in all. Writes
`benchmarks/results/search.json` and `search.md`; each part writes its own figures as it ends, and leaves those of the
other parts unchanged. The accuracy part writes `search_accuracy.json`, `.md` and `.svg` beside them, and continues
where an earlier run was stopped; `--strategies` runs some alone. The part `vllm` runs search-and-learn's loop on vLLM
(`against_vllm.py`), with the Python of `--vllm-python`, on the built-in models or, with `--real`, on real ones, with
the problems of a file. The sides take turns, each time in a new session, so that no cache is warm; figures are medians.
Seconds are wall time; processor seconds of this process are given too, since other work on the machine does not count
in them.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from benchmarks.search.accuracy import STRATEGIES, accuracy, show
from benchmarks.search.against_vllm import WAYS, measure, rows_of, subjects
from benchmarks.search.loop import Loop
from benchmarks.search.planned import Run, plan_of, problems, run
from benchmarks.search.splits import split_session
from benchmarks.search.tables import page
from qpdsl.planner.rules import RULES
from qpdsl.session.session import Session

PROGRAM = "beam_search"
# Of what the search holds at once where memory is ample.
BUDGETS = (0.15, 0.25, 0.5, 0.75, 1.0, 2.0)
SPLITS = (0.3, 0.5, 0.7)


@dataclass(frozen=True)
class Sizes:
    """How many problems each part runs. `loop`: those of the loop, which are the first of the others'."""

    throughput: int = 128
    loop: int = 128
    memory: int = 48
    accuracy: int = 500
    real: int = 8
    repeats: int = 3
    budgets: tuple[float, ...] = BUDGETS
    splits: tuple[float, ...] = SPLITS
    accuracy_budgets: int = 3


QUICK = Sizes(6, 2, 4, 20, 2, 1, (0.25, 1.0), (0.5,), 3)


def throughput(sizes: Sizes) -> dict[str, Any]:
    """The loop, all problems at once with no rules, and the plan."""
    plan, naive = plan_of(PROGRAM), plan_of(PROGRAM, naive=True)
    rows = problems(plan, sizes.throughput)
    loop = Loop()
    texts = [str(row.arguments["problem"]) for row in rows[: sizes.loop]]
    sides: dict[str, Callable[[], Run | None]] = {
        "loop": lambda: _answer_all(loop, texts),
        "no rules": lambda: run(naive, rows, len(rows)),
        "planned": lambda: run(plan, rows),
    }
    runs_of = _turns(sides, sizes.repeats)
    same = [loop.answer(text, noise=True) for text in texts]
    last_runs = {name: runs[-1][2] for name, runs in runs_of.items()}
    planned_run, naive_run = last_runs["planned"], last_runs["no rules"]
    assert planned_run is not None and naive_run is not None
    figures: dict[str, Any] = {"problems": len(rows), "loop_problems": len(texts)}
    for name, runs in runs_of.items():
        count = len(texts) if name == "loop" else len(rows)
        figures[name] = {
            "seconds_a_problem": statistics.median(seconds for seconds, _, _ in runs) / count,
            "cpu_seconds_a_problem": statistics.median(cpu for _, cpu, _ in runs) / count,
        }
    for name, last_run in (("no rules", naive_run), ("planned", planned_run)):
        figures[name] |= _run_figures(last_run)
    figures["answers"] = {
        "planned as no rules": _agree(planned_run.answers, naive_run.answers),
        "planned as the loop with the same noise": _agree(planned_run.answers, [str(answer) for answer in same]),
        "near ties": planned_run.near_ties + naive_run.near_ties,
    }
    return figures


def rules(sizes: Sizes) -> dict[str, Any]:
    """The plan with one rule switched off, each in turn."""
    rows = problems(plan_of(PROGRAM), sizes.throughput)
    names = [rule.name for rule in RULES]
    plans = {name: plan_of(PROGRAM, [name]) for name in names}
    whole = plan_of(PROGRAM)
    # A rule that decides nothing about this program makes the same plan.
    used = [name for name in names if name in whole.rules]
    sides: dict[str, Callable[[], Run | None]] = {"all rules": lambda: run(whole, rows)}
    sides |= {name: (lambda name=name: run(plans[name], rows)) for name in used}  # type: ignore[misc]
    runs_of = _turns(sides, sizes.repeats)
    base = runs_of["all rules"][-1][2]
    assert base is not None
    figures: dict[str, Any] = {"problems": len(rows), "unused": [name for name in names if name not in used]}
    for name, runs in runs_of.items():
        last_run = runs[-1][2]
        assert last_run is not None
        figures[name] = {
            "seconds": statistics.median(seconds for seconds, _, _ in runs),
            "cpu_seconds": statistics.median(cpu for _, cpu, _ in runs),
            "same answers": _agree(last_run.answers, base.answers),
            **_run_figures(last_run),
        }
    return figures


def memory(sizes: Sizes) -> dict[str, Any]:
    """KV budgets from tight to ample."""
    plan = plan_of(PROGRAM)
    rows = problems(plan, sizes.memory)
    ample = run(plan, rows)
    peak = ample.figures.peak_kv or 0
    figures: dict[str, Any] = {"problems": len(rows), "peak_bytes": peak, "budgets": []}
    for part in sizes.budgets:
        kv_bytes = int(peak * part)
        budget_run = run(plan, rows, session=Session(kv_bytes=kv_bytes))
        figures_of = budget_run.figures.models
        models = figures_of.values()
        figures["budgets"].append(
            {
                "part": part,
                "bytes": kv_bytes,
                "seconds": budget_run.seconds,
                "cpu_seconds": budget_run.cpu_seconds,
                "prefix hit rate": budget_run.cached,
                "hits by model": {name: model.hit_rate for name, model in figures_of.items()},
                "evicted": sum(model.evictions for model in models),
                "thrashed": sum(model.thrashed for model in models),
                "preempted": sum(model.preemptions for model in models),
                "computed tokens": budget_run.computed,
                "same answers": _agree(budget_run.answers, ample.answers),
            }
        )
        print("  budget", figures["budgets"][-1])
    return figures


def splits(sizes: Sizes) -> dict[str, Any]:
    """Fixed parts of a tight budget for generator and verifier, against the session's own way."""
    plan = plan_of(PROGRAM)
    rows = problems(plan, sizes.memory)
    kv_bytes = (run(plan, rows).figures.peak_kv or 0) // 3
    generator, verifier = (plan.models[name] for name in ("llm", "prm"))
    sides: dict[str, Callable[[], Run | None]] = {
        "one budget": lambda: run(plan, rows, session=Session(kv_bytes=kv_bytes))
    }
    for share in sizes.splits:
        parts = {generator: share, verifier: 1 - share}
        sides[f"{share:.0%} for the generator"] = lambda parts=parts: run(  # type: ignore[misc]
            plan, rows, session=split_session(plan, kv_bytes, parts)
        )
    runs_of = _turns(sides, sizes.repeats)
    figures: dict[str, Any] = {"problems": len(rows), "bytes": kv_bytes}
    for name, runs in runs_of.items():
        last_run = runs[-1][2]
        assert last_run is not None
        figures[name] = {
            "seconds": statistics.median(seconds for seconds, _, _ in runs),
            "cpu_seconds": statistics.median(cpu for _, cpu, _ in runs),
            "computed tokens": last_run.computed,
            "preempted": sum(model.preemptions for model in last_run.figures.models.values()),
        }
    return figures


def _answer_all(loop: Loop, texts: list[str]) -> None:
    for text in texts:
        loop.answer(text)


def _turns(
    sides: Mapping[str, Callable[[], Run | None]], repeats: int
) -> dict[str, list[tuple[float, float, Run | None]]]:
    """Wall and process seconds of each side, which take turns, and what it came to."""
    runs_of: dict[str, list[tuple[float, float, Run | None]]] = {name: [] for name in sides}
    for _ in range(repeats):
        for name, side in sides.items():
            start, cpu = time.perf_counter(), time.process_time()
            side_run = side()
            seconds = side_run.seconds if side_run is not None else time.perf_counter() - start
            runs_of[name].append(
                (seconds, side_run.cpu_seconds if side_run is not None else time.process_time() - cpu, side_run)
            )
            print(f"  {name}: {seconds:.2f} s")
    return runs_of


def _run_figures(side_run: Run) -> dict[str, Any]:
    return {
        "prompt tokens cached": side_run.cached,
        "computed tokens": side_run.computed,
        "run-ahead samples used": side_run.share("run_ahead_used", "run_ahead"),
        "score cache hits": side_run.share("steps_known", "steps"),
        "near ties": side_run.near_ties,
    }


def _agree(answers: list[str], other: list[str]) -> str:
    return f"{sum(a == b for a, b in zip(answers, other, strict=False))}/{min(len(answers), len(other))}"


def record(folder: Path, measured: Mapping[str, Any]) -> None:
    """Writes what was measured into the results as they are now: another run may have written its own meanwhile."""
    file = folder / "search.json"
    results: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    if measured:
        results |= measured
        folder.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(results, indent=1) + "\n")
    if results:
        text = page(results)
        (folder / "search.md").write_text(text, encoding="utf-8", newline="\n")
        print(text)


def against_vllm(sizes: Sizes, arguments: argparse.Namespace) -> None:
    """Each model's figures are written as they come."""
    for subject in subjects(arguments.real):
        print(f" {subject.name}")
        real = subject.name != "zoo/counting"
        rows = rows_of(sizes.real if real else sizes.throughput, arguments.problems if real else None)
        figures = measure(subject, rows, arguments.vllm_python, sizes.repeats, arguments.ways)
        file = arguments.output / "search.json"
        before = json.loads(file.read_text()).get("vllm", {}) if file.is_file() else {}
        record(arguments.output, {"vllm": {**before, subject.name: figures}, **_machine()})


def _machine() -> dict[str, Any]:
    return {"machine": {**describe(), "sentence": sentence()}}


PARTS = {"throughput": throughput, "rules": rules, "memory": memory, "splits": splits}
# Parts that write for themselves.
_OWN_OPTIONS = ("accuracy", "vllm")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="a few problems of each, once")
    parser.add_argument("--only", nargs="+", choices=[*PARTS, *_OWN_OPTIONS], default=[*PARTS, *_OWN_OPTIONS])
    parser.add_argument("--repeats", type=int)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for the results")
    parser.add_argument("--show-only", action="store_true", help="write tables and picture from the results there are")
    parser.add_argument("--strategies", nargs="+", choices=[*STRATEGIES], help="those whose accuracy is measured; all")
    parser.add_argument("--first", type=int, help="measure accuracy on so many problems, the first ones")
    parser.add_argument("--untimed", action="store_true", help="keep no seconds of accuracy: the machine is shared")
    parser.add_argument("--vllm-python", type=Path, help="a Python that has vLLM; this one without it")
    parser.add_argument(
        "--real", type=Path, nargs="+", default=[], help="folders of chat models that write and judge, each in turn"
    )
    ways = [*WAYS.values()]
    parser.add_argument("--ways", nargs="+", choices=ways, default=ways, help="the loop's verifier on vLLM")
    parser.add_argument("--problems", type=Path, help="JSON lines with problems for the real model")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    sizes = QUICK if arguments.quick else Sizes()
    if arguments.repeats is not None:
        sizes = Sizes(**{**sizes.__dict__, "repeats": arguments.repeats})
    for name in arguments.only if not arguments.show_only else ():
        print(name)
        if name == "accuracy":
            only, untimed = arguments.strategies, arguments.untimed
            accuracy(arguments.first or sizes.accuracy, sizes.accuracy_budgets, arguments.output, only, untimed=untimed)
        elif name == "vllm":
            against_vllm(sizes, arguments)
        else:
            record(arguments.output, {name: PARTS[name](sizes), **_machine()})
    if arguments.show_only:
        record(arguments.output, {})
        show(arguments.output)


if __name__ == "__main__":
    main()
