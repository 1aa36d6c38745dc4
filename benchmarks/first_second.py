"""What a user waits for before anything of theirs runs: help, checks, plans, and a model's first token from the shell.

    python -m benchmarks.first_second [--gguf FILE …] [--llama-cpp PYTHON] [--repeats N] [--output FOLDER]

Each command is a process of its own; its processor seconds, seconds and largest memory are the system's, medians of
some starts. The first start of a model has an empty cache folder, later ones what that left behind. `--llama-cpp` names
the Python of an environment with llama-cpp-python, which then takes turns with us on the same files. Writes
`first_second.json` and `.md`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from benchmarks.common.folders import RESULTS

NAME = "first_second"
_PROBLEM = "Mia has 3 boxes with 4 cards in each box. How many cards does Mia have?"
_ONE_TOKEN = """model llm = "zoo/counting"

program one_token(problem: text) -> text {
  prompt "{problem}"
  generate llm temperature=0 max_tokens=1
}
"""
_LLAMA = """import sys
from llama_cpp import Llama

Llama(sys.argv[1], n_ctx=512, n_threads=1, verbose=False)(sys.argv[2], max_tokens=1, temperature=0)
"""
# Commands of every day, and what completion asks in `qpdsl ru<Tab>`.
_PLAIN: Mapping[str, Sequence[str]] = {
    "qpdsl --help": ["--help"],
    "qpdsl check beam_search": ["check", "beam_search"],
    "qpdsl explain beam_search": ["explain", "beam_search"],
}
_COMPLETION = {"_QPDSL_COMPLETE": "bash_complete", "COMP_WORDS": "qpdsl\nru", "COMP_CWORD": "1"}


@dataclass(frozen=True)
class Start:
    """A process: its `cpu` and wall seconds, and its largest memory in MiB."""

    what: str
    cpu: float
    wall: float
    memory: float


def started(what: str, command: Sequence[str], **environment: str) -> Start:
    """Runs a command to its end. Raises RuntimeError where it fails."""
    begin = os.times().elapsed
    # As users have it: Python keeps what it compiles.
    own = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**own, **environment})
    assert process.stderr is not None
    said = process.stderr.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"`{' '.join(command)}` ended with {process.returncode}: {said.decode()}")
    wall = os.times().elapsed - begin
    return Start(what, used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024)


def middle(starts: Sequence[Start]) -> Start:
    return Start(
        starts[0].what,
        *(median(getattr(start, field) for start in starts) for field in ("cpu", "wall", "memory")),
    )


def measure(files: Sequence[Path], llama: str | None, repeats: int) -> list[Start]:
    """All commands, each started `repeats` times, the first starts of models among them once."""
    own = [sys.executable, "-m", "qpdsl"]
    found: list[Start] = []
    with tempfile.TemporaryDirectory() as place:
        kept = {"XDG_CACHE_HOME": f"{place}/cache", "QPDSL_RUNS": f"{place}/runs", "OMP_NUM_THREADS": "1"}
        program = Path(place) / "one_token.qp"
        program.write_text(_ONE_TOKEN, encoding="utf-8")
        for what, arguments in _PLAIN.items():
            started(what, [*own, *arguments], **kept)
            found.append(middle([started(what, [*own, *arguments], **kept) for _ in range(repeats)]))
        asked = [started("completion of a command", own, **kept, **_COMPLETION) for _ in range(repeats)]
        found.append(middle(asked))
        models = [("qpdsl run beam_search", ["run", "beam_search", "--set", f"problem={_PROBLEM}"], None)]
        for file in files:
            run = ["run", str(program), "--model", f"llm={file}", "--set", f"problem={_PROBLEM}"]
            models.append((f"one token of {file.name}", run, file))
        for what, arguments, model in models:
            found.append(started(f"{what}, first start", [*own, *arguments], **kept))
            later, theirs = [], []
            for _ in range(repeats):
                later.append(started(what, [*own, *arguments], **kept))
                if llama is not None and model is not None:
                    command = [llama, "-c", _LLAMA, str(model), _PROBLEM]
                    theirs.append(started("the same by llama.cpp", command, **kept))
            found += [middle(starts) for starts in (later, theirs) if starts]
    return found


def page(starts: Sequence[Start], machine: str) -> str:
    rows = [f"| {start.what} | {start.cpu:.2f} | {start.wall:.2f} | {start.memory:,.0f} |" for start in starts]
    head = ["| command | processor s | s | memory, MiB |", "| --- | ---: | ---: | ---: |"]
    written = f"Written by `python -m benchmarks.first_second`. Measured on: {machine}."
    return "\n".join(["# The first second", "", *head, *rows, "", written, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gguf", type=Path, nargs="*", default=[], help="GGUF files to take a token of")
    parser.add_argument("--llama-cpp", metavar="PYTHON", help="the Python of an environment with llama-cpp-python")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    starts = measure(given.gguf, given.llama_cpp, given.repeats)
    # It imports torch: a process begins with the memory of the one that starts it.
    from benchmarks.common.machine import sentence

    machine = sentence()
    figures = {"machine": machine, "repeats": given.repeats, "starts": [asdict(start) for start in starts]}
    (given.output / f"{NAME}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (given.output / f"{NAME}.md").write_text(page(starts, machine), encoding="utf-8")
    print(page(starts, machine))


if __name__ == "__main__":
    main()
