"""What DeepConf online saves: tokens and right answers of its idiom, with and without `until`, and of a plain vote.

    python -m benchmarks.search.deepconf [--model ID] [--problems 100] [--samples 16] [--output FOLDER]

All programs are the idiom `deepconf_online` with something left out, and draw with the same noise, so what two of them
have in common is drawn once; tokens are counted as if each ran alone. Writes `deepconf.json` and `deepconf.md`.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path

import torch

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from benchmarks.search.planned import Run, problems, run
from qpdsl.arguments import with_defaults
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.session.planning import reads_of
from qpdsl.session.session import Session

NAME = "deepconf"
IDIOM = files("qpdsl.programs") / "idioms" / "sampling" / "deepconf_online.qp"
MODEL = "zoo/counting"
KEPT = (0.9, 0.5, 0.1)
# What each program leaves out of the idiom.
VOTE = "vote of all"
PROGRAMS: dict[str, tuple[str, ...]] = {
    "samples under the bar left out": (" until confidence(window=8) < bar",),
    "the same with `until`": (),
    VOTE: (" until confidence(window=8) < bar", "\n  where lowest >= bar", " weight=lowest"),
}


@dataclass(frozen=True)
class Line:
    """A program at one share of warm-up samples over the bar; tokens are a problem's mean."""

    program: str
    kept: float | None
    right: float
    tokens: float


def measured(name: str, model: str, kept: float, samples: int, count: int, session: Session) -> tuple[Line, Run]:
    text = IDIOM.read_text(encoding="utf-8").replace(MODEL, model)
    for part in PROGRAMS[name]:
        assert part in text, f"the idiom has no `{part}`"
        text = text.replace(part, "")
    program = lower(parse_file(Source(f"{NAME}.qp", text)), None, Environment())
    plan = planned(with_defaults(program, {"n": samples, "warmup": samples // 4, "kept": kept}), reads_of(program))
    done = run(plan, problems(plan, count), session=session)
    return Line(name, None if name == VOTE else kept, done.right, done.tokens), done


def page(lines: list[Line], model: str, samples: int, count: int, machine: str) -> Iterator[str]:
    whole = next(line.tokens for line in lines if line.program == VOTE)
    yield f"# DeepConf online ({count} problems)"
    yield ""
    yield (
        f"The program [`deepconf_online`](../../programs/idioms/sampling/deepconf_online.qp) with `{model}`: {samples} "
        f"samples a problem, of which the first {samples // 4} set the bar. Kept: the share of these whose least "
        "certain window is over the bar."
    )
    yield ""
    yield "| | kept | right | tokens a problem | saved |"
    yield "|---|---|---|---|---|"
    for line in lines:
        error = math.sqrt(line.right * (1 - line.right) / count)
        kept = "" if line.kept is None else f"{line.kept:.0%}"
        shown = f"{line.right:.1%} ± {error:.1%} | {line.tokens:,.0f} | {1 - line.tokens / whole:.1%}"
        yield f"| {line.program} | {kept} | {shown} |"
    yield ""
    yield (
        "With `until` every answer is that of the same vote without it: samples under the bar have no vote in either."
    )
    yield ""
    yield f"Written by `python -m benchmarks.search.deepconf`. Measured on: {machine}."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=MODEL, metavar="ID")
    parser.add_argument("--problems", type=int, default=100)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    session = Session(share_samples=True)
    lines: list[Line] = []
    answers: dict[tuple[str, float], list[str]] = {}
    for name in PROGRAMS:
        for kept in KEPT if name != VOTE else KEPT[:1]:
            line, done = measured(name, arguments.model, kept, arguments.samples, arguments.problems, session)
            lines.append(line)
            answers[name, kept] = done.answers
            print(f"  {line}")
    after, during, _ = PROGRAMS
    assert all(answers[after, kept] == answers[during, kept] for kept in KEPT)
    lines.sort(key=lambda line: (line.kept is not None, -(line.kept or 0)))
    file, machine = arguments.output / f"{NAME}.json", {**describe(), "sentence": sentence()}
    record = {"problems": arguments.problems, "samples": arguments.samples, "machine": machine}
    file.write_text(json.dumps({**record, "lines": list(map(asdict, lines))}, indent=1) + "\n")
    text = "\n".join(page(lines, arguments.model, arguments.samples, arguments.problems, machine["sentence"])) + "\n"
    file.with_suffix(".md").write_text(text, encoding="utf-8", newline="\n")


if __name__ == "__main__":
    main()
