"""Filter decoding over thresholds (CALID, figure 3): right answers against what the large model never saw, and speed.

    python -m benchmarks.decoding.filter_sweep [--problems 500] [--in-flight 32 1] [--few 60] [--temperature 0]
        [--repeats 3] [--quick] [--real SMALL LARGE [MIDDLE]] [--data FILE] [--answer REGEX] [--output FOLDER]

Sides: the small model alone, a mid-size one, the large one alone, and both by `via filter` at thresholds of each of
the three confidences and at adaptive shares. The built-in pair is `zoo/counting-mini` and `zoo/counting`; the mid-size
model is the first half of the large one's layers with its head: `via amortized(0, layer=2)` trusts every exit.

With the first number in flight all problems are run, and with the others the first `--few`. The sides take turns, each
in a session of its own that has been warmed up, and backwards in every other round. All rounds of a side must give the
same answers, and so must all numbers in flight. Times are the process's own. `--real` takes folders of models with one
tokenizer; FILE has a `problem` and an `answer` a line, and REGEX reads the answer out of the text. Written as it goes:
a run that was stopped goes on, and `--fresh` begins anew; `--show-only` writes the page of what is there.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.case_file import CaseFile, Record
from benchmarks.common.folders import RESULTS
from benchmarks.decoding.filter_tables import draw, goals_of, page
from benchmarks.search.planned import DATA, Run, problems, run
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.usage import FilterFigures
from qpdsl.session.planning import reads_of
from qpdsl.session.programs import load_program
from qpdsl.session.session import Session
from qpdsl.session.surroundings import Surroundings

FILE = "filter"
SMALL, MIDDLE, LARGE, FILTER = "small", "middle", "large", "filter"
THRESHOLDS: Mapping[str, Sequence[float]] = {
    "probability": (0.2, 0.4, 0.5, 0.7, 0.8, 0.9, 0.99),
    "margin": (0.05, 0.2, 0.4, 0.5, 0.6, 0.7, 0.9),
    "entropy": (0.7, 0.8, 0.85, 0.9, 0.95, 0.99),
}
SHARES = (0.02, 0.05, 0.2)
_BUILTIN = {"slm": "zoo/counting-mini", "llm": "zoo/counting"}
_HALF = "via amortized(0, layer=2)"
_ANSWER = r"The answer is (-?\d+)"
_WARM = 4


@dataclass(frozen=True)
class Side:
    """A way to answer: `model` is the one that the program generates with, by its name in the program."""

    name: str
    model: str
    via: str = ""

    def plan(self, models: Mapping[str, str], temperature: float, answer: str) -> PhysicalPlan:
        text = (
            f"chat user=problem | generate {self.model} {self.via} temperature={temperature:g} max_tokens=256 "
            f"| extract answer = /{answer}/ | return answer"
        )
        named = {name: place for name, place in models.items() if name in f"{self.model} {self.via}"}
        program = load_program(None, text, None, Surroundings(models=named))
        return planned(program, reads_of(program))


def sides(models: Mapping[str, str], quick: bool) -> Iterator[Side]:
    """All of them, the large model alone first: the others are held against it."""
    yield Side(LARGE, "llm")
    yield Side(SMALL, "slm")
    if "mlm" in models:
        yield Side(MIDDLE, "mlm")
    elif models == _BUILTIN:
        yield Side(MIDDLE, "llm", _HALF)
    for by, thresholds in THRESHOLDS.items():
        for threshold in thresholds[::3] if quick else thresholds:
            yield Side(f"{FILTER}, {by} > {threshold:g}", "llm", f"via filter(slm, {threshold:g}, by={by})")
    for share in SHARES[:1] if quick else SHARES:
        yield Side(f"{FILTER}, share {share:g}", "llm", f"via filter(slm, share={share:g})")


def measure(
    file: CaseFile,
    sides: Sequence[Side],
    plans: Mapping[str, PhysicalPlan],
    rows: Sequence[InputRow],
    in_flight: int,
    repeats: int,
) -> None:
    """Runs what has not run yet with so many problems in flight, the sides in turn."""
    for repeat in range(repeats):
        for side in sides if repeat % 2 == 0 else sides[::-1]:
            key = {"side": side.name, "in_flight": in_flight}
            known = file.find("sides", key)
            if known is not None and len(known["cpu_seconds"]) > repeat:
                continue
            session = Session(threads=1)
            run(plans[side.name], rows[:_WARM], in_flight, session)
            figures = _figures(run(plans[side.name], rows, in_flight, session))
            before = file.find("sides", {"side": side.name})
            if before is not None and before["answers"][: len(rows)] != figures["answers"][: len(before["answers"])]:
                raise SystemExit(f"{side.name}: other answers than before")
            if known is not None:
                for clock in ("cpu_seconds", "seconds"):
                    figures[clock] = known[clock] + figures[clock]
            file.put("sides", key, figures)
            file.write()
            print(f"{side.name}, {in_flight} in flight: {figures['right']:.1%}, {figures['cpu_seconds'][-1]:.2f} s")


def _figures(done: Run) -> Record:
    failed = [outcome for outcome in done.outcomes if outcome.error is not None]
    if failed:
        raise SystemExit(f"{failed[0].id}: {failed[0].error}")
    counts: dict[str, int] = {}
    for outcome in done.outcomes:
        for name, count in outcome.filtered.items():
            counts[name] = counts.get(name, 0) + count
    filtered = FilterFigures.of(counts)
    computed = {name: model.prefill_tokens + model.decode_tokens for name, model in done.figures.models.items()}
    return {
        "problems": len(done.outcomes),
        "right": done.right,
        "tokens": sum(outcome.tokens_out for outcome in done.outcomes),
        "computed": computed,
        "filter": None if filtered is None else filtered.to_json(timing=True),
        "near_ties": done.near_ties,
        "answers": done.answers,
        "cpu_seconds": [done.cpu_seconds],
        "seconds": [done.seconds],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=500)
    parser.add_argument("--in-flight", type=int, nargs="+", default=[32, 1])
    parser.add_argument("--few", type=int, default=60, help="problems with the later numbers in flight")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="few problems and thresholds: does it work?")
    parser.add_argument("--real", type=Path, nargs="+", metavar="FOLDER", help="small, large and maybe mid-size model")
    parser.add_argument("--data", default=DATA, help="shipped data, or a file of JSON lines")
    parser.add_argument("--answer", default=_ANSWER, help="reads the answer out of the text, in its first group")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--show-only", action="store_true")
    parser.add_argument("--output", type=Path, default=RESULTS)
    options = parser.parse_args()
    models = dict(_BUILTIN)
    if options.real is not None:
        if len(options.real) not in (2, 3):
            parser.error("--real takes a small and a large model, and may take one between them")
        models = dict(zip(("slm", "llm", "mlm"), map(str, options.real), strict=False))
    name = FILE if options.real is None else f"{FILE}_real"
    count, few, repeats = options.problems, options.few, options.repeats
    if options.quick:
        count, few, repeats = min(count, 40), min(few, 10), 1
    facts: dict[str, Any] = {
        "models": {name: Path(place).name if options.real else place for name, place in models.items()},
        "temperature": options.temperature,
        "problems": count,
    }
    file = CaseFile(
        options.output / f"{name}.json", {**facts, "sides": []}, fresh=options.fresh, show_only=options.show_only
    )
    if not options.show_only:
        if any(file.record[fact] != value for fact, value in facts.items()):
            raise SystemExit(f"{file.path} has other models, problems or temperatures: --fresh, or another --output")
        all_sides = list(sides(models, options.quick))
        plans = {side.name: side.plan(models, options.temperature, options.answer) for side in all_sides}
        rows = problems(plans[LARGE], count, options.data)
        for number, in_flight in enumerate(options.in_flight):
            measure(file, all_sides, plans, rows if number == 0 else rows[:few], in_flight, repeats)
    draw(file.record, options.output / f"{name}.svg")
    text = page(file.record, name, goals_of(file.record))
    (options.output / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
