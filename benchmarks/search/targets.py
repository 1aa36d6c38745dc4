"""Targets: how often `within accuracy(…)` keeps what it promises, over many splits of problems that were run once.

    python -m benchmarks.search.targets [--problems 1000] [--splits 100] [--output FOLDER] [--replay-only]

Every way of `compute_optimal` runs over the problems of the built-in task, the shipped ones first; what has ended is
kept in a journal beside the results. Then the problems are split at random, again and again: policies are learned
on some and tested on others, and what was promised is held against what the policy comes to on problems that it was not
learned from. Nothing is generated for that. Writes `targets.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from benchmarks.search.budget import PROGRAM, Way, observed, planned, ways_of
from benchmarks.search.part_runs import PartRun, PartRuns
from benchmarks.search.tables import table
from family.tasks.counting import evaluation_problems
from qpdsl.budgets.calibration import last_passing
from qpdsl.budgets.observations import Observations
from qpdsl.budgets.policy_learning import Cascade, cheaper_and_cheaper, replayed
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputRow
from qpdsl.runs.data.rows import read_rows
from qpdsl.runs.statistics import wilson
from qpdsl.session.session import Session

NAME = "targets"
TARGETS = (0.6, 0.7, 0.75)
DELTA = 0.1
# How many problems are learned from; as many others are tested on.
SIZES = (100, 250)
_PART = 500
_SEED = 35


@dataclass(frozen=True)
class Coverage:
    """What came of one target over all splits, with so many problems to learn from and as many to test on.

    First the tests are drawn, with replacement, from all problems that were not learned from: in `promised` splits a
    policy passed, which in `broken` of these has fewer right of all these problems. In `untested` splits so has the
    cheapest policy that looks good in the test. Then the tests are of one half of the problems: in `promised_half`
    splits a policy passed, which in `broken_half` has fewer right of the other half. There it takes `tokens` a problem
    on average, None without any, and the cheapest policy that reaches the target there takes `best`.
    """

    target: float
    size: int
    splits: int
    promised: int
    broken: int
    untested: int
    promised_half: int
    broken_half: int
    tokens: float | None
    best: float | None


def measure(count: int, folder: Path) -> None:
    """Runs what has not run yet, and writes the runs when all have."""
    runs = PartRuns(folder / f"{NAME}.journal", {"problems": count, "machine": describe()})
    ways = ways_of(PROGRAM)
    parts = range(0, count, _PART)
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "problems.jsonl"
        made = evaluation_problems(count)
        rows = [{"problem": problem.text, "answer": problem.answer} for problem in made]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        sessions = {start: Session(share_samples=True) for start in parts}
        ended = {
            way.label: [runs.get(way.label, start // _PART, plan, own, sessions[start]) for start, own in each]
            for way in ways
            for plan in [planned(way.program)]
            for each in [[(start, _rows(file, plan, start)) for start in parts]]
        }
    record = {
        "problems": count,
        "machine": sentence(),
        "runs": {name: _together(name, own) for name, own in ended.items()},
    }
    _write(folder, record)
    runs.path.unlink()


def _rows(file: Path, plan: PhysicalPlan, start: int) -> list[InputRow]:
    return list(read_rows(file, plan, {}).rows[start : start + _PART])


def _together(name: str, parts: Sequence[PartRun]) -> dict[str, Any]:
    """All parts as one run, short enough to be kept."""
    return {
        "correct": "".join("01"[right] for part in parts for right in part.correct),
        "tokens": [tokens for part in parts for tokens in part.tokens],
        "support": [None if sure is None else round(sure, 5) for part in parts for sure in part.support],
        "read": sum(part.read for part in parts),
    }


def replay(folder: Path, splits: int) -> None:
    """Adds what came of each target to the record in the folder, and writes the page."""
    record = json.loads((folder / f"{NAME}.json").read_text(encoding="utf-8"))
    seen = _observations(ways_of(PROGRAM), record["runs"])
    record["delta"] = DELTA
    record["coverage"] = [
        asdict(found) for size in SIZES if 4 * size <= record["problems"] for found in coverage(seen, size, splits)
    ]
    _write(folder, record)
    text = "\n".join(page(record)) + "\n"
    (folder / f"{NAME}.md").write_text(text, encoding="utf-8", newline="\n")
    print(text)


def _observations(ways: Sequence[Way], runs: Mapping[str, Mapping[str, Any]]) -> Observations:
    kept = [runs[way.label] for way in ways]
    whole = [
        PartRun(way.label, 0, [verdict == "1" for verdict in run["correct"]], run["tokens"], run["support"], 0)
        for way, run in zip(ways, kept, strict=True)
    ]
    return observed(ways, whole)


def coverage(seen: Observations, size: int, splits: int) -> Iterator[Coverage]:
    """What comes of each target over random splits, the same for the same observations."""
    random = np.random.Generator(np.random.Philox(_SEED))
    drawn = [_Split.of(seen, random, size) for _ in range(splits)]
    for target in TARGETS:
        found = [split.outcome(target) for split in drawn]
        kept = [own for own in found if own.promised_half]
        reached = [own.best for own in kept if own.best == own.best]
        yield Coverage(
            target,
            size,
            splits,
            sum(own.promised for own in found),
            sum(own.promised and own.right < target for own in found),
            sum(own.untested < target for own in found),
            len(kept),
            sum(own.right_half < target for own in kept),
            fmean(own.tokens for own in kept) if kept else None,
            fmean(reached) if reached else None,
        )


@dataclass(frozen=True)
class _Outcome:
    """Of one split: what became of each of the two tests, and of the cheapest policy that looks good in the first."""

    promised: bool
    right: float
    promised_half: bool
    right_half: float
    tokens: float
    untested: float
    best: float


@dataclass(frozen=True, eq=False)
class _Split:
    """Policies learned on some problems, and on which others they are tested: drawn of all others, or of one half."""

    policies: Sequence[Cascade]
    others: Observations
    drawn: Observations
    tests: Observations
    held_out: Observations

    @classmethod
    def of(cls, seen: Observations, random: np.random.Generator, size: int) -> _Split:
        order = random.permutation(len(seen.problems))
        half = len(order) // 2
        others = seen.rows(np.sort(order[size:]))
        drawn = others.rows(random.integers(0, len(others.problems), size))
        # Drawn with replacement, so that a problem may be in it twice: each draw counts as one.
        drawn = replace(drawn, problems=tuple(str(number) for number in range(size)))
        parts = (order[size : 2 * size], order[half:])
        policies = []
        for cascade in cheaper_and_cheaper(seen.rows(np.sort(order[:size]))):
            policies.append(cascade)
            # No target is near to those that follow.
            if replayed(cascade, others).correct.mean() < min(TARGETS) - 0.1:
                break
        return cls(policies, others, drawn, *(seen.rows(np.sort(part)) for part in parts))

    def outcome(self, target: float) -> _Outcome:
        found = last_passing(self.policies, self.drawn, target, DELTA, 0)
        halved = last_passing(self.policies, self.tests, target, DELTA, 0)
        held_out = replayed(halved.cascade, self.held_out)
        looks_good = [own for own in self.policies if replayed(own, self.drawn).correct.mean() >= target]
        reaching = [own for own in self.policies if replayed(own, self.held_out).correct.mean() >= target]
        return _Outcome(
            found.promise.kept,
            self._right(found.cascade),
            halved.promise.kept,
            float(held_out.correct.mean()),
            float(held_out.spend.mean()),
            self._right(looks_good[-1] if looks_good else self.policies[0]),
            min((float(replayed(own, self.held_out).spend.mean()) for own in reaching), default=float("nan")),
        )

    def _right(self, cascade: Cascade) -> float:
        return float(replayed(cascade, self.others).correct.mean())


def page(record: Mapping[str, Any]) -> Iterator[str]:
    """The lines of the page."""
    found = [Coverage(**line) for line in record["coverage"]]
    splits = found[0].splits
    yield f"# Targets ({record['problems']:,} problems, {splits} splits)"
    yield ""
    head = ["target", "learned from, tested on", "promised", "held (95%)", "without a test"]
    rows = [
        [
            *_asked(line),
            f"{line.promised / line.splits:.1%}",
            _share(line.splits - line.broken, line.splits),
            f"{1 - line.untested / line.splits:.1%}",
        ]
        for line in found
    ]
    yield from table(head, rows)
    yield ""
    yield (
        f"`within accuracy(…)` of `compute_optimal`, δ = {record['delta']:g}: at least {1 - record['delta']:.0%} of "
        "all calibrations are to hold. Each split learns policies on some problems, drawn at random, and tests them on "
        "problems drawn from all others, with replacement: so what a policy really has right is known, its share of "
        "these others. *Promised*: a policy passed. *Held*: nothing was promised, or the policy really reaches the "
        "target. *Without a test*: how often the cheapest policy that reaches it in the test does."
    )
    yield ""
    yield "## One half held out"
    yield ""
    head = ["target", "learned from, tested on", "promised", "held (95%)", "tokens", "least that does"]
    rows = [
        [
            *_asked(line),
            f"{line.promised_half / line.splits:.1%}",
            _share(line.splits - line.broken_half, line.splits),
            "" if line.tokens is None else f"{line.tokens:,.0f}",
            "" if line.best is None else f"{line.best:,.0f}",
        ]
        for line in found
    ]
    yield from table(head, rows)
    yield ""
    yield (
        "The same, learned and tested on one half of the problems and run on the other, as a user would. The "
        f"{record['problems'] // 2} problems of the other half are a sample themselves: a policy just over the target "
        "falls below it there by chance. *Tokens*: what a problem of the other half takes by the promised policies, "
        "beside the *least* that one of the learned policies takes which has the target right there."
    )
    yield ""
    yield "## The strategies"
    yield ""
    yield from table(
        ["strategy", "tokens", "right (95%)"],
        [
            [name, f"{fmean(run['tokens']):,.0f}", _share(run["correct"].count("1"), len(run["correct"]))]
            for name, run in record["runs"].items()
        ],
    )
    yield ""
    yield (
        "The first 500 problems are `counting-500`; the others go on with the same generator and seed "
        "(`family.tasks.counting`), held out of the training of the models like these. The splits are of one set of "
        "problems, so they are not independent of each other."
    )
    yield ""
    yield f"Written by `python -m benchmarks.search.targets`. Runs measured on: {record['machine']}."


def _asked(line: Coverage) -> tuple[str, str]:
    return f"{line.target:.0%}", f"{line.size}, {line.size}"


def _share(right: int, count: int) -> str:
    interval = wilson(right, count)
    return f"{right / count:.1%} ({interval.low:.1%} to {interval.high:.1%})"


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    """One line for each run, so that the file can be read."""
    shown = {**record, "runs": "RUNS"}
    runs = ",\n".join(f"  {json.dumps(name)}: {json.dumps(run)}" for name, run in record["runs"].items())
    text = json.dumps(shown, indent=1).replace('"RUNS"', f"{{\n{runs}\n }}")
    (folder / f"{NAME}.json").write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--splits", type=int, default=100)
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for the results")
    parser.add_argument("--replay-only", action="store_true", help="split the runs that there are, and run nothing")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.replay_only:
        measure(arguments.problems, arguments.output)
    replay(arguments.output, arguments.splits)


if __name__ == "__main__":
    main()
