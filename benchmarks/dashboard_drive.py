"""Every shipped program and idiom driven as its user would, and what the screens say beside what its commands print.

    python -m benchmarks.dashboard_drive [--only WORD] [--rows 2] [--jobs 2] [--output benchmarks/results]

Each is swept (`eval`), and runs over rows here, on a server that fails now and then, and on two replicas. Each of these
is watched from the start, by somebody who comes late, and replayed; a run here is set beside one of the sweep. What
differs is printed, and what is refused with its reason; the exit code says whether anything differs. `dashboard_drive`
in the results holds what a run of all of them came to.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import cache
from io import StringIO
from itertools import islice, repeat
from multiprocessing import get_context
from pathlib import Path
from unittest.mock import patch

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import write
from family.tasks.counting import problems
from qpdsl.cli import main as qpdsl
from qpdsl.cluster.backends.process_backend import ProcessBackend
from qpdsl.session import user_cache
from tests.support.cluster.threaded_replicas import ThreadedBackend
from tests.support.paths import ROOT
from tests.support.remote.stub_server import StubServer, stub
from tests.support.shipped_programs import PROBLEM, Case, cases
from tests.support.tui.driven import Driven, drive, faults_of

SCORERS = """\
import qpdsl as qp


@qp.scorer(rows="all")
def likeness(text: list[str]) -> list[float]:
    return [sum(len(set(one) & set(other)) for other in text) / 100 for one in text]
"""
# What a program needs beside its rows; of a file with several, `eval` takes all that are not left out.
OPTIONS = {
    "minimum_bayes_risk": ("--python", "scorers.py"),
    "code_repair": ("--allow-code",),
    "code_with_tests": ("--allow-code",),
    "compute_optimal": ("--budget", "tokens=400"),
    "chain_of_verification": ("--program", "chain_of_verification"),
}
SHOTS = [{"question": "Bo has 2.", "answer": "It is 2."}] * 2
# One that takes processes of its own on a cluster. Others take threads, which are there sooner.
ON_PROCESSES = "programs/beam_search"


class Drive:
    """Programs over the same rows in one place after another: `PLACES` are the names of the methods that do so."""

    PLACES = ("under_eval", "here", "on_a_server", "on_a_cluster")

    def __init__(self, folder: Path, server: StubServer, rows: int) -> None:
        self._folder, self._server, self._rows = folder, server, rows
        self._model = f"vllm:{server.url}#{server.model}"
        self._python = folder / "scorers.py"
        self._python.write_text(SCORERS, "utf-8")

    def under_eval(self, case: Case) -> Driven:
        """In two widths, where it has one."""
        small = _small(case)
        return self._drive("eval", case, *_sets({**small, **({"n": "2,4"} if "n" in small else {})}), "--fresh")

    def here(self, case: Case) -> Driven:
        return self._run(case)

    def on_a_server(self, case: Case) -> Driven:
        """Its models that write are there, those that judge here. Two requests fail."""
        models = [name for name, model in case.plan.models.items() if not model.endswith("-prm")]
        self._server.mend()
        for fault in ("too_many", "overloaded"):
            self._server.fail(fault, 1, seconds=0.01)
        there = [part for name in models for part in ("--model", f"{name}={self._model}")]
        return self._run(case, *there, "--completions", "none")

    def on_a_cluster(self, case: Case) -> Driven:
        backend = ProcessBackend(2) if case.name.startswith(f"{ON_PROCESSES} ") else ThreadedBackend()
        with patch("qpdsl.cluster.fleet._backend", lambda address: backend):
            return self._run(case, "--cluster", "local:2")

    def know_the_server(self) -> None:
        """Has the server asked what it can, before it fails."""
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            qpdsl(["run", "greedy", PROBLEM, "--model", f"llm={self._model}", "--completions", "none"])

    def _run(self, case: Case, *more: str) -> Driven:
        return self._drive("run", case, *_sets(_small(case)), *more)

    def _drive(self, command: str, case: Case, *more: str) -> Driven:
        options = [str(self._python) if part == "scorers.py" else part for part in OPTIONS.get(case.path.stem, ())]
        return drive(self._folder, command, str(case.path), "--input", str(self._input(case)), *options, *more)

    def _input(self, case: Case) -> Path:
        """Rows for a program: what it has no value for, and another problem in each."""
        rows = []
        for number, problem in enumerate(islice(problems(5, "held-out"), self._rows)):
            given = {name: value for name, value in case.given.items() if name not in _small(case)}
            own = {name: problem.text if value == PROBLEM else value for name, value in given.items()}
            if case.path.stem == "few_shot_table":
                own["shots"] = SHOTS
            rows.append({"id": f"row-{number}", "answer": problem.answer, **own})
        path = self._folder / "rows.jsonl"
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), "utf-8")
        return path


def _small(case: Case) -> dict[str, int]:
    """How much of a program is run."""
    return {name: value for name, value in case.given.items() if isinstance(value, int)}


def _sets(values: Mapping[str, object]) -> list[str]:
    return [part for name, value in values.items() for part in ("--set", f"{name}={value}")]


def all_cases() -> Iterator[Case]:
    """Those of the shipped programs, each in one width, and the family of programs, under a budget."""
    yield from (case for case in cases() if not case.name.endswith(" n=2"))
    # It has the models of beam search.
    plan = next(case.plan for case in cases() if case.path.stem == "beam_search")
    given = {"problem": PROBLEM, "expand": 2, "depth": 2}
    yield Case("programs/compute_optimal", plan, {}, ROOT / "programs" / "compute_optimal.qp", given)


@dataclass(frozen=True)
class Step:
    """A program in one of the places: why it was refused there, or where screens and commands differ."""

    program: str
    place: str
    refusal: str
    faults: Sequence[str]

    @property
    def sign(self) -> str:
        return "–" if self.refusal else "✖" if self.faults else "✔"

    def __str__(self) -> str:
        told = [f"refused: {self.refusal}"] if self.refusal else self.faults
        return "\n    ".join((f"{self.sign} {self.program} {self.place}", *told))


@cache
def _known_cases() -> dict[str, Case]:
    return {case.name: case for case in all_cases()}


# What a process holds until it ends.
_OPEN = ExitStack()


@cache
def _driver(parent: Path, rows: int) -> Drive:
    """What this process drives with: a folder and a server of its own, until it ends."""
    folder = parent / str(os.getpid())
    # Nothing of the user's is read or written but compiled kernels.
    kernels = user_cache.folder() / "kernels"
    (folder / "cache" / "qpdsl").mkdir(parents=True)
    (folder / "cache" / "qpdsl" / "kernels").symlink_to(kernels)
    for variable, part in (("QPDSL_RUNS", "runs"), ("QPDSL_RUNTIME_DIR", "rt"), ("XDG_CACHE_HOME", "cache")):
        os.environ[variable] = str(folder / part)
    driver = Drive(folder, _OPEN.enter_context(stub("vllm")), rows)
    driver.know_the_server()
    return driver


def driven_steps(name: str, parent: Path, rows: int) -> list[Step]:
    """A program in all places, one after the other."""
    driver, case, swept, steps = _driver(parent, rows), _known_cases()[name], False, []
    for place in Drive.PLACES:
        refusal, faults = "", list[str]()
        # Who watches how is compared where candidates are there too.
        how = {"beside": swept} if place == "here" else {"ways": ("replayed",)}
        try:
            driven = getattr(driver, place)(case)
            refusal = driven.refusal
            faults += [] if refusal else faults_of(driven, **how)
        except Exception as error:
            faults.append(f"{type(error).__name__}: {error}")
        swept = swept or not (refusal or faults)
        steps.append(Step(name.split(" ")[0], place.replace("_", " "), refusal, faults))
    return steps


def record(steps: Sequence[Step], rows: int) -> dict[str, object]:
    """What the steps came to; those that were refused by the reason."""
    refused: dict[str, list[str]] = defaultdict(list)
    for step in steps:
        if step.refusal:
            refused[step.refusal].append(f"{step.program} {step.place}")
    signs = Counter(step.sign for step in steps)
    return {
        "programs": len({step.program for step in steps}),
        "rows": rows,
        "steps": len(steps),
        "agree": signs["✔"],
        "differ": signs["✖"],
        "refused": signs["–"],
        "refusals": dict(sorted(refused.items())),
        "differences": {f"{step.program} {step.place}": list(step.faults) for step in steps if step.faults},
    }


def page(steps: Sequence[Step]) -> str:
    """The table of the places, and of the reasons of refusals."""
    lines = ["# Screens beside commands", "", "`python -m benchmarks.dashboard_drive`: " + __doc__.split("\n")[0], ""]
    lines += ["| place | driven | agree | differ | refused |", "|---|--:|--:|--:|--:|"]
    for place in (*dict.fromkeys(step.place for step in steps), "all places"):
        own = [step.sign for step in steps if place in (step.place, "all places")]
        lines.append(f"| {place} | {len(own)} | {own.count('✔')} | {own.count('✖')} | {own.count('–')} |")
    lines += ["", "| refused, as the command says | times |", "|---|--:|"]
    reasons = Counter(step.refusal for step in steps if step.refusal)
    lines += [f"| {reason} | {times} |" for reason, times in sorted(reasons.items())]
    return "\n".join((*lines, ""))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", metavar="WORD", help="Those alone whose names have WORD; kept nowhere.")
    parser.add_argument("--rows", type=int, default=2, metavar="N", help="Rows for each program (2).")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="Programs that are driven side by side (2).")
    parser.add_argument("--output", type=Path, default=RESULTS, help="Where a run of all programs is recorded.")
    args = parser.parse_args()
    began, steps = time.monotonic(), list[Step]()
    names = [name for name in _known_cases() if args.only in name]
    with (
        tempfile.TemporaryDirectory() as folder,
        ProcessPoolExecutor(args.jobs, mp_context=get_context("spawn")) as pool,
    ):
        for own in pool.map(driven_steps, names, repeat(Path(folder)), repeat(args.rows)):
            print(*own, sep="\n", flush=True)
            steps += own
    if not args.only:
        write(args.output, "dashboard_drive", page(steps), record(steps, args.rows))
    signs = Counter(step.sign for step in steps)
    print(f"{signs['✔']} agree, {signs['✖']} differ, {signs['–']} refused; {time.monotonic() - began:.0f} s")
    raise SystemExit(bool(signs["✖"]))


if __name__ == "__main__":
    main()
