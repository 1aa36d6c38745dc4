"""Planned beam search against search-and-learn's loop on vLLM: each side in a process of its own, in turns.

    python -m benchmarks.search.run --only vllm --vllm-python PATH [--real FOLDER ...] [--problems FILE]

On the built-in generator and verifier, and on the model of FOLDER, which writes and judges (`score judge`), in the type
that it is stored in. The loop's verifier is uncached, the usual way, or the loop is the best that can be written by
hand (`vllm_loop.py` says what either is). Both sides draw with the same noise, so that they have the same work: how
many of the loop's answers are ours, word for word, is told. The loop with draws of its own searches once, since how
much work it has is chance: beside its time stand how many tokens it samples, and the ratio of the time a token takes.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.common.results import Ratio
from benchmarks.peers.peer import Found, Room
from benchmarks.peers.process import Absent, Process
from benchmarks.search.planned import DATA, plan_of, problems
from qpdsl import zoo
from qpdsl.runs.data.input_row import InputRow

PLANNED, UNCACHED, CACHED = "planned", "loop on vLLM, verifier uncached", "loop on vLLM, all cached"
OWN_DRAWS = f"{CACHED}, draws of its own"
# Over the loop with everything cached.
GOAL = 2.2
WAYS = {UNCACHED: "uncached", CACHED: "cached"}
_NUMBER = re.compile(r"-?\d[\d,]*")
_CLOCKS = ("seconds", "processor_seconds")
_SLOTS = 128
_KV_GIB = 2


@dataclass(frozen=True)
class Subject:
    """Models and how they search."""

    name: str
    program: str
    models: Mapping[str, str]
    generator: Path
    verifier: Path
    context: int
    depth: int
    step_tokens: int | None
    rubric: str | None

    @property
    def dtype(self) -> str:
        """What each side computes in: the type that the generator is stored in, float32 for float16, as sessions do."""
        config = json.loads((self.generator / "config.json").read_text(encoding="utf-8"))
        stored: str = config["dtype"]
        return "float32" if stored == "float16" else stored


def subjects(real: Sequence[Path]) -> list[Subject]:
    """The built-in models, or the real ones whose folders are given. Limits and rubric are those of the programs."""
    generator, verifier = (zoo.path(f"zoo/{name}") for name in ("counting", "counting-prm"))
    if not real:
        return [Subject("zoo/counting", "beam_search", {}, generator, verifier, 1024, 40, None, None)]
    program, rubric = str(Path(__file__).with_name("beam_search_real.qp")), "Is this solution right so far?"
    return [Subject(folder.name, program, {"llm": str(folder)}, folder, folder, 2048, 6, 64, rubric) for folder in real]


def measure(
    subject: Subject, rows: Sequence[InputRow], vllm_python: Path | None, repeats: int, ways: Sequence[str]
) -> dict[str, Any]:
    """Figures of all sides that run here: of ours and of the loop in these `ways`."""
    texts = [str(row.arguments["problem"]) for row in rows]
    absent: dict[str, str] = {}
    rounds: dict[str, list[Found]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        running = _started(subject, vllm_python, Path(scratch), absent, ways)
        try:
            for number in range(repeats):
                turns = list(running)[:: 1 if number % 2 == 0 else -1]
                for name in turns if number else (*turns, OWN_DRAWS):
                    own, side = name == OWN_DRAWS, CACHED if name == OWN_DRAWS else name
                    if side not in running:
                        continue
                    try:
                        found = running[side].search(texts, own)
                    except Absent as error:
                        if side == PLANNED:
                            raise
                        absent[side] = str(error)
                        running.pop(side).close()
                        continue
                    rounds.setdefault(name, []).append(found)
                    print(
                        f"  {name}: {found.seconds:.2f} s, {found.processor_seconds:.2f} s of the processor, "
                        f"{found.sampled:,} tokens"
                    )
        finally:
            for process in running.values():
                process.close()
    kept = {name: of for name, of in rounds.items() if name not in absent}
    return {
        "problems": len(rows),
        "repeats": repeats,
        "goals": {CACHED: GOAL},
        "absent": absent,
        "sides": {
            name: _figures(of, kept[PLANNED][: len(of)], rows, same=name != OWN_DRAWS) for name, of in kept.items()
        },
    }


def _started(
    subject: Subject, vllm_python: Path | None, scratch: Path, absent: dict[str, str], ways: Sequence[str]
) -> dict[str, Process]:
    """The sides, loaded; those that do not run here are noted in `absent`."""
    running: dict[str, Process] = {}
    room = Room(_SLOTS, subject.context)
    looped = {"verifier": str(subject.verifier), "rubric": subject.rubric, "width": 4, "expand": 4}
    looped |= {"depth": subject.depth, "step_tokens": subject.step_tokens}
    for name in (PLANNED, *(name for name, way in WAYS.items() if way in ways)):
        python = Path(sys.executable) if name == PLANNED else vllm_python or Path(sys.executable)
        side = "planned" if name == PLANNED else "vllm loop"
        options = (
            {"program": subject.program, "models": dict(subject.models)}
            if name == PLANNED
            else {**looped, "way": WAYS[name]}
        )
        try:
            process = Process(python, 1, _KV_GIB, scratch / f"{len(running)}.log")
            running[name] = process
            seconds = process.load(side, subject.generator, subject.dtype, room, options)["seconds"]
            print(f"  {name}: {seconds:.0f} s to load")
        except Absent as error:
            if name == PLANNED:
                raise
            print(f"  without {name}: {error}")
            absent[name] = str(error)
            if name in running:
                running.pop(name).close()
    return running


def _figures(
    rounds: Sequence[Found], planned: Sequence[Found], rows: Sequence[InputRow], *, same: bool
) -> dict[str, Any]:
    """`same`: the draws are those of ours, and so should the answers be."""
    right = [_answer(text) == row.reference for text, row in zip(rounds[-1].answers, rows, strict=True)]
    wall, cpu = ([getattr(found, clock) for found in rounds] for clock in _CLOCKS)
    wall_planned, cpu_planned = ([getattr(found, clock) for found in planned] for clock in _CLOCKS)
    shares = [found.duplicates / found.candidates for found in rounds if found.candidates]
    return {
        "seconds_a_problem": statistics.median(wall) / len(rows),
        "cpu_seconds_a_problem": statistics.median(cpu) / len(rows),
        "slower_by": asdict(Ratio.of([a / b for a, b in zip(wall, wall_planned, strict=True)])),
        "slower_by_cpu": asdict(Ratio.of([a / b for a, b in zip(cpu, cpu_planned, strict=True)])),
        "slower_by_token": asdict(
            Ratio.of(
                [
                    (a.processor_seconds / a.sampled) / (b.processor_seconds / b.sampled)
                    for a, b in zip(rounds, planned, strict=True)
                ]
            )
        ),
        "sampled_a_problem": statistics.median(found.sampled for found in rounds) / len(rows),
        "computed_a_problem": statistics.median(found.computed for found in rounds) / len(rows),
        "right": sum(right) / len(rows),
        "same_answers": sum(map(_is_same, rounds[-1].answers, planned[-1].answers)) / len(rows) if same else None,
        "duplicates": statistics.median(shares) if shares else None,
    }


def _is_same(text: str, planned: str) -> bool:
    """Whether the loop's text is the planned program's answer, or ends in it where that is extracted from the text."""
    return planned in (text, _answer(text))


def _answer(text: str) -> str:
    """The last number of a text, which a built-in model's solution ends in, and most others."""
    numbers = _NUMBER.findall(text)
    return numbers[-1].replace(",", "") if numbers else text


def rows_of(count: int, file: Path | None) -> list[InputRow]:
    """The first problems of a file, or of those that are shipped."""
    return problems(plan_of("beam_search"), count, DATA if file is None else str(file))
