"""Everything that a user waits for, in one run: starts, memory, two threads, long prompts, search and serving.

    python -m benchmarks.every_core [--folder FOLDER] [--vllm-python PATH] [--llama-python PATH]
        [--only start memory threads long two search serving growth] [--show-only] [--quick]

Each part is a benchmark of its own, in a process of its own, one after the other; what it writes stays when a later one
fails. Then one table of all goals, met or missed. FOLDER holds what `python -m benchmarks.common.real_models FOLDER`
makes. It wants the machine to itself.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.folders import RESULTS, ROOT
from benchmarks.common.real_models import DEFAULT
from benchmarks.common.results import machine_line, write
from benchmarks.common.subjects import subjects
from benchmarks.engine.real_tables import OURS, cases_of
from benchmarks.obstacles import StepObstacles, of_memory, of_search, of_serving
from benchmarks.search.against_vllm import CACHED, GOAL, OWN_DRAWS

SMALL, LARGE = "SmolLM2-135M", "Gemma-3-270M"
_SEARCHES = 4
# With the draws of ours a side has the same work; with its own how much it has is chance, so a token's time is told.
_SEARCH_SIDES = {
    CACHED: {"slower_by": "wall time", "slower_by_cpu": "processor time"},
    OWN_DRAWS: {"slower_by_token": "processor time a token"},
}


@dataclass(frozen=True)
class Measure:
    """A figure and its goal. `most`: what it may be at the most; else it is to be reached at least.

    obstacle: what stands in the way, as far as it was recorded
    """

    what: str
    goal: float
    reached: float
    unit: str = "times"
    most: bool = False
    obstacle: str = ""

    @property
    def met(self) -> bool:
        return self.reached <= self.goal if self.most else self.reached >= self.goal

    def __str__(self) -> str:
        sign = "≤" if self.most else "≥"
        verdict = "met" if self.met else "**missed**"
        return f"| {self.what} | {self.reached:.2f} {self.unit} | {sign} {self.goal:g} | {verdict} |"


class Parts:
    """The parts: what to run, and what it has come to."""

    def __init__(self, given: argparse.Namespace) -> None:
        self._given = given
        self._small, self._large = (subjects(given.folder)[name] for name in (SMALL, LARGE))
        self._own = given.output / "every_core"

    def commands(self) -> Mapping[str, list[list[str]]]:
        """The commands of each part."""
        given, own = self._given, ["--output", str(self._own)]
        out, folder = ["--output", str(given.output)], ["--folder", str(given.folder)]
        quick = ["--quick"] if given.quick else []
        vllm = [] if given.vllm_python is None else ["--vllm-python", str(given.vllm_python)]
        llama = [] if given.llama_python is None else ["--llama-python", str(given.llama_python)]
        start = [] if given.llama_python is None else ["--llama-cpp", str(given.llama_python)]
        ggufs = [str(subject.quantized) for subject in (self._small, self._large)]
        real = ["benchmarks.engine.real", *folder, "--models", SMALL, "--dtypes", "float32", *vllm, *llama, *quick]
        real += own
        both = ["--peers", "vllm", "llama.cpp"]
        search = ["--only", "vllm", "--ways", "cached", "--repeats", "1" if given.quick else "2"]
        problems = self._own / "problems.jsonl"
        serving = ["benchmarks.serving.load", "--model", str(self._small.float32), "--prompt", "32", "--tokens", "32"]
        serving += [] if given.vllm_python is None else ["--vllm", str(given.vllm_python)]
        return {
            "start": [["benchmarks.first_second", "--gguf", *ggufs, *start, "--repeats", "3", *out]],
            "memory": [["benchmarks.resident", *ggufs, str(self._large.float32), *start, *out]],
            "threads": [["benchmarks.engine.threads", *folder, *quick, *out]],
            "two": [
                [*real, *both, "--rows", "1", "8", "64", "--prompts", "64", "--threads", threads]
                for threads in ("2", "1")
            ],
            "long": [
                [*real, *both, "--rows", "1", "--prompts", "1024", "4096", "--threads", "2", "--repeats", "2"],
            ],
            "search": [
                ["benchmarks.search.run", *search, *vllm, "--real", str(self._small.float32), "--problems",
                 str(problems), *quick, *own],
            ],
            "serving": [[*serving, "--clients", "64", "--repeats", "1", *quick, *own]],
            "growth": [["benchmarks.engine.growth", *folder, *quick, *out]],
        }  # fmt: skip

    def run(self, name: str) -> str | None:
        """Runs a part; says what failed, None where nothing did."""
        self._own.mkdir(parents=True, exist_ok=True)
        if name == "search":
            self._write_problems()
        for module, *options in self.commands()[name]:
            print(f"\n== {name}: python -m {module} {' '.join(options)}", flush=True)
            begin = time.monotonic()
            code = subprocess.run([sys.executable, "-m", module, *options], cwd=ROOT, check=False).returncode
            print(f"== {name}: {time.monotonic() - begin:.0f} s", flush=True)
            if code:
                return f"{name} ended with {code}"
        return None

    def _write_problems(self) -> None:
        """Some shipped problems, for a model that did not learn them."""
        shipped = (ROOT / "programs" / "data" / "counting-500.jsonl").read_text(encoding="utf-8").splitlines()
        (self._own / "problems.jsonl").write_text("\n".join(shipped[:_SEARCHES]) + "\n", encoding="utf-8")

    def measures(self) -> Iterator[Measure]:
        """What all parts have written, against the goals, as far as it is there."""
        places: list[tuple[Path, Callable[[Any], Iterator[Measure]]]] = [
            (self._given.output / "first_second.json", self._starts),
            (self._given.output / "resident.json", self._memories),
            (self._own / "real.json", self._reals),
            (self._own / "search.json", self._searches),
            (self._own / "serving_load.json", self._servings),
        ]
        for file, read in places:
            if file.is_file():
                yield from read(_read(file))

    def _starts(self, record: Any) -> Iterator[Measure]:
        goals = {
            "qpdsl --help": 0.2,
            "qpdsl check beam_search": 0.3,
            "qpdsl explain beam_search": 0.4,
            "completion of a command": 0.15,
            "qpdsl run beam_search": 2.0,
            f"one token of {self._small.quantized.name}": 1.5,
            f"one token of {self._large.quantized.name}": 3.0,
        }
        for start in record["starts"]:
            if start["what"] in goals:
                yield Measure(f"`{start['what']}`, processor time", goals[start["what"]], start["cpu"], "s", most=True)

    def _memories(self, record: Any) -> Iterator[Measure]:
        empty = record["found"][0]
        for memory in record["found"]:
            goals = {"second": {"resident": 1.3, "peak": 1.3}, "first": {"peak": 1.5}}.get(memory["start"], {})
            for part, goal in goals.items():
                name = f"memory of {memory['model']}, {memory['start']} start"
                name += ", after a token" if part == "resident" else ", peak"
                why = of_memory(memory, empty, part)
                yield Measure(name, goal, memory[part] / memory["file"], "files", most=True, obstacle=why)
                name += ", beyond a process without a model"
                beyond = (memory[part] - empty[part]) / memory["file"]
                yield Measure(name, goal, beyond, "files", most=True, obstacle=why)

    def _reals(self, record: Any) -> Iterator[Measure]:
        cases = [case for case in cases_of(record, "wall") if case.shape[2] == "equal"]
        threads_file = self._given.output / "threads.json"
        obstacles = StepObstacles(_read(threads_file) if threads_file.is_file() else None)
        own = {(case.entry["threads"], *case.shape): case for case in cases}
        for (threads, prompt, rows, _), case in own.items():
            if threads == 2 and prompt == 64:
                for peer, least in (("vllm", 1.3), ("llama.cpp", 1.1)):
                    if peer in case:
                        ratio, name = case.ratio(peer).median, f"two threads, {rows} row(s), tokens a second over"
                        why = obstacles.step(rows, ratio)
                        yield Measure(f"{name} {peer}'s", least, ratio, obstacle=why)
                alone = own.get((1, prompt, rows, "equal"))
                if alone is not None:
                    gain, least = case.speed(OURS) / alone.speed(OURS), 1.8 if rows == 64 else 1.2
                    why = obstacles.second_thread(rows)
                    yield Measure(f"two threads, {rows} row(s), over one thread", least, gain, obstacle=why)
            if threads == 2 and "vllm" in case:
                ratio = min(case.first("vllm")) / min(case.first(OURS))
                why = obstacles.read(rows, prompt, ratio)
                name = f"first token, {rows} × {prompt} tokens, over vllm's, two threads"
                yield Measure(name, 1.2, ratio, obstacle=why)

    def _searches(self, record: Any) -> Iterator[Measure]:
        for model, figures in record.get("vllm", {}).items():
            sides = figures["sides"]
            for side, clocks in _SEARCH_SIDES.items():
                if "same_answers" in (found := sides.get(side, {})):
                    why, name = of_search(sides, side), f"beam search of {model} over the {side}"
                    name += f", same draws ({found['same_answers']:.0%} of answers equal)" if side == CACHED else ""
                    for clock, told in clocks.items():
                        yield Measure(f"{name}: {told}", GOAL, found[clock]["median"], obstacle=why)

    def _servings(self, record: Any) -> Iterator[Measure]:
        sides = ("qpdsl serve, bare model", "engine without HTTP", "vllm serve")
        ours, bare, theirs = (record["runs"].get(side, {}).get("64") for side in sides)
        for goal in record.get("goals", []):
            yield Measure(goal["what"], 0.97, goal["reached"], obstacle=of_serving(ours, bare))
        if ours is not None and theirs is not None:
            ratio, name = ours["first_p99"] / theirs["first_p99"], "p99 of the first token of 64 clients, over vLLM's"
            yield Measure(name, 1.0, ratio, most=True, obstacle=of_serving(ours, theirs))


def _read(file: Path) -> Any:
    return json.loads(file.read_text(encoding="utf-8"))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--folder", type=Path, default=DEFAULT, help=f"where the models are (default: {DEFAULT})")
    options.add_argument("--vllm-python", type=Path, help="a Python that has vLLM")
    options.add_argument("--llama-python", type=Path, help="a Python that has llama-cpp-python")
    options.add_argument("--only", nargs="+", help="parts to run, all without it")
    options.add_argument("--show-only", action="store_true", help="write the table of what is there")
    options.add_argument("--quick", action="store_true", help="reduced sizes: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    given = options.parse_args()
    given.folder = given.folder.resolve()
    parts = Parts(given)
    wrong = set(given.only or ()) - set(parts.commands())
    if wrong:
        options.error(f"--only takes {', '.join(parts.commands())}")
    names = [] if given.show_only else given.only or list(parts.commands())
    failed = [why for name in names if (why := parts.run(name)) is not None]
    measures = list(parts.measures())
    lines = ["# Every core, the first second, and long prompts", ""]
    lines += ["| what | reached | goal | |", "|---|---:|---:|---|", *map(str, measures)]
    missed: dict[str, list[str]] = {}
    for measure in measures:
        if not measure.met and measure.obstacle:
            missed.setdefault(measure.obstacle, []).append(measure.what)
    if missed:
        lines += ["", "## What stands in the way", "", "| what | where it goes |", "|---|---|"]
        lines += [f"| {'<br>'.join(names)} | {obstacle} |" for obstacle, names in missed.items()]
    lines += ["", "Written by `python -m benchmarks.every_core`.", "", machine_line(), ""]
    write(given.output, "every_core", "\n".join(lines), {"measures": [vars(measure) for measure in measures]})
    if failed:
        raise SystemExit("; ".join(failed))


if __name__ == "__main__":
    main()
