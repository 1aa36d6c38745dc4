"""The thesis' protocol: problems spread evenly over levels, KV memory split between generator and verifier.

    python -m benchmarks.search.thesis --memory 16MiB
    python -m benchmarks.search.thesis --input math.jsonl --dataset math --model llm=FOLDER --model prm=FOLDER
                                       [--programs beam_search ...] [--problems 128] [--spread level]
                                       [--shares 0.08 0.16 0.3 0.4 0.5] [--memory 24GiB] [--device cuda]
    python -m benchmarks.search.thesis --page-only

A share is the part of `--memory` that is the verifier's; the generator has the rest, and an engine of its own. Each
program also runs with both models in one budget, as every session does. Each run has a session of its own, so that no
cache is warm, and writes a trace, from which the figures of the models come; a short one before is not measured.
Last, the sequences and tokens of a step are varied for one model at a time. `--memory` is by default as much as is
safe; for shares to differ it has to be less than the problems at work would take: 16MiB for the built-in models.

Only answered problems count for tokens and problems a second. Tokens are those sampled. A processor second is one of
this process, in which other work on the machine does not count. Writes `thesis.json`, `thesis.md` and its pictures, the
figures after each run; `--page-only` makes page and pictures of the figures that are there.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.common.folders import RESULTS
from benchmarks.common.machine import describe, sentence
from benchmarks.search.planned import DATA, Run, plan_of, run
from benchmarks.search.splits import split_session
from benchmarks.search.thesis_record import Line, forwards_in, line_of
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.events.trace import TraceWriter
from qpdsl.executor.requests.errors import EngineError
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.runs.data.input_row import InputData
from qpdsl.runs.data.rows import read_rows
from qpdsl.runs.graders.grader import Grader
from qpdsl.runs.graders.known_graders import grader_named
from qpdsl.session.programs import input_path
from qpdsl.session.session import Session
from qpdsl.session.settings import DataSettings

NAME = "thesis"
SHARES = (0.08, 0.16, 0.3, 0.4, 0.5)
PROGRAMS = ("beam_search", "best_of_n", "dvts", "sal_beam_search", "sal_dvts")
# Figures 6.4 and 6.5: sequences and tokens of a step, at the share that is best in figure 6.1.
SEQUENCES, TOKENS, BATCH_SHARE = (8, 32, 128), (64, 256, 1024), 0.3


@dataclass(frozen=True)
class Protocol:
    """A plan over problems; `verifier` is the name of the model that has the share, `traces` a folder for them."""

    plan: PhysicalPlan
    data: InputData
    grader: Grader
    verifier: str
    memory: str | int | None
    settings: dict[str, Any]
    traces: Path

    def one_budget(self) -> tuple[Line, Run]:
        """Both models in one budget, after one problem that is not measured."""
        run(self.plan, self.data.rows[:1], session=Session(kv_bytes=self.memory, **self.settings))
        session = Session(kv_bytes=self.memory, **self.settings)
        return self._measured(session, "one-budget", None, {})

    def split(self, share: float, kv_bytes: int, first: Run) -> Line:
        """The verifier with this share of the memory. Raises EngineError where it holds no page of a model."""
        return self._split(share, kv_bytes, first, f"{share:.2f}")

    def batches(self, kv_bytes: int, count: int) -> Iterator[dict[str, Any]]:
        """Tokens a processor second of each model, by its sequences and tokens of a step."""
        rows = self.data.rows[:: max(1, len(self.data.rows) // count)]
        fewer = replace(self, data=replace(self.data, rows=rows))
        for name, id_ in self.plan.models.items():
            for sequences in SEQUENCES:
                for tokens in TOKENS:
                    config = EngineConfig(max_sequences=sequences, token_budget=tokens)
                    what = f"{name}-{sequences}-{tokens}"
                    line = fewer._split(BATCH_SHARE, kv_bytes, None, what, {id_: config})
                    own = line.forwards[name]
                    # Wall time goes with whatever else the machine does; its parts go with each other.
                    part = own.seconds / sum(forwards.seconds for forwards in line.forwards.values())
                    yield {
                        "share": BATCH_SHARE,
                        "model": name,
                        "sequences": sequences,
                        "tokens": tokens,
                        "rate": own.tokens / (part * line.cpu_seconds),
                        "forwards": own.steps,
                        "problems": line.total,
                    }

    def _split(
        self,
        share: float,
        kv_bytes: int,
        first: Run | None,
        what: str,
        configs: dict[str, EngineConfig] | None = None,
    ) -> Line:
        others = [name for name in self.plan.models if name != self.verifier]
        shares = {self.verifier: share, **dict.fromkeys(others, (1 - share) / len(others))}
        by_id = {self.plan.models[name]: part for name, part in shares.items()}
        session = split_session(self.plan, kv_bytes, by_id, configs, **self.settings)
        parts = {name: int(kv_bytes * part) for name, part in shares.items()}
        return self._measured(session, what, share, parts, first)[0]

    def _measured(
        self, session: Session, what: str, share: float | None, parts: dict[str, int], first: Run | None = None
    ) -> tuple[Line, Run]:
        trace = self.traces / f"{self.plan.name}-{what}.jsonl"
        writer = TraceWriter(session.events, trace.open("wb", buffering=0))
        try:
            done = run(self.plan, self.data.rows, session=session, grader=self.grader)
        finally:
            writer.close()
        by_id = forwards_in(trace)
        forwards = {name: by_id[id_] for name, id_ in self.plan.models.items() if id_ in by_id}
        kept = parts or {"": session.kv_budget}
        outcomes = None if first is None else first.outcomes
        line = line_of(self.plan.name, share, kept, done.outcomes, done.seconds, done.cpu_seconds, forwards, outcomes)
        return line, done


def _lean(line: Line, shown: str | None = None) -> dict[str, Any]:
    """A line as data. Pages after each forward are many: they are kept of the model alone that a figure shows."""
    data = asdict(line)
    for name, own in line.forwards.items():
        data["forwards"][name]["hit_rate"] = own.hit_rate
        if name != shown:
            del data["forwards"][name]["held"]
    return data


def measure(arguments: argparse.Namespace, traces: Path, write: Callable[[dict[str, Any]], None]) -> None:
    """All runs; what is known so far is written after each."""
    models = dict(text.split("=", 1) for text in arguments.model)
    record: dict[str, Any] = {"data": Path(arguments.input).name, "field": arguments.spread, "lines": [], "batches": []}
    record |= {"verifier": arguments.verifier, "unfit": [], "machine": {**describe(), "sentence": sentence()}}
    for number, program in enumerate(arguments.programs):
        own = plan_of(program).models
        plan = plan_of(program, models={name: id_ for name, id_ in models.items() if name in own})
        if arguments.verifier not in plan.models or len(set(plan.models.values())) < 2:
            raise SystemExit(f"{plan.name}: no model `{arguments.verifier}` beside another, so no memory to split")
        data = _read(arguments, plan)
        grader = grader_named(arguments.grader or data.grader or "equal")
        settings = {"device": arguments.device}
        protocol = Protocol(plan, data, grader, arguments.verifier, arguments.memory, settings, traces)
        line, first = protocol.one_budget()
        if not number:
            spread = Counter(str(row.fields.get(arguments.spread)) for row in data.rows if arguments.spread)
            ids = {name: Path(id_).name if Path(id_).exists() else id_ for name, id_ in plan.models.items()}
            record |= {"problems": len(data.rows), "spread": dict(sorted(spread.items())), "models": ids}
            parts = {name: asdict(part) for name, part in first.figures.memory.items()}
            pages = {name: first.figures.models[id_].page_bytes for name, id_ in plan.models.items()}
            record |= {"memory": parts, "page_bytes": pages, "kv_bytes": first.figures.kv_budget}
        kv_bytes = first.figures.kv_budget
        assert kv_bytes is not None
        record["lines"].append(_lean(line))
        write(record)
        for share in arguments.shares:
            try:
                line = protocol.split(share, kv_bytes, first)
            except EngineError as error:
                record["unfit"].append({"program": plan.name, "share": share, "reason": str(error)})
            else:
                record["lines"].append(_lean(line, None if number else arguments.verifier))
            write(record)
        if not number and arguments.batch_problems:
            for cell in protocol.batches(kv_bytes, arguments.batch_problems):
                record["batches"].append(cell)
                write(record)


def _read(arguments: argparse.Namespace, plan: PhysicalPlan) -> InputData:
    dataset = arguments.dataset or ("counting" if arguments.input == DATA else None)
    options = DataSettings(
        dataset=dataset, maps=tuple(arguments.map), spread=arguments.spread or None, limit=arguments.problems
    )
    return read_rows(input_path(arguments.input), plan, {}, options)


def _write(folder: Path, record: dict[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{NAME}.json").write_text(json.dumps(record) + "\n", encoding="utf-8")
    print(f"  {len(record['lines'])} runs, {len(record['batches'])} of other batches", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--input", default=DATA, help="a file of problems, in any format that qpdsl reads")
    parser.add_argument("--dataset", help="the benchmark that the file is, as of `qpdsl run --dataset`")
    parser.add_argument("--map", action="append", default=[], metavar="NAME=SOURCE", help="as of `qpdsl run --map`")
    parser.add_argument("--spread", default="level", help="the field that problems are spread over; '': the first ones")
    parser.add_argument("--problems", type=int, default=128)
    parser.add_argument("--programs", nargs="+", default=PROGRAMS)
    parser.add_argument("--model", action="append", default=[], metavar="NAME=ID", help="a model of the programs")
    parser.add_argument("--verifier", default="prm", help="the name of the model that has the share")
    parser.add_argument("--shares", nargs="+", type=float, default=SHARES)
    parser.add_argument("--memory", help="for the KV of both models, such as 24GiB; by default as much as is safe")
    parser.add_argument("--batch-problems", type=int, default=24, help="problems of a run that varies steps; 0: none")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--grader", help="by default that of --dataset")
    parser.add_argument("--traces", type=Path, help="a folder in which to keep the traces")
    parser.add_argument("--output", type=Path, default=RESULTS, help="the folder for the results")
    parser.add_argument("--page-only", action="store_true", help="page and pictures of the figures that are there")
    arguments = parser.parse_args()
    if not arguments.page_only:
        with tempfile.TemporaryDirectory() as scratch:
            traces = arguments.traces or Path(scratch)
            traces.mkdir(parents=True, exist_ok=True)
            measure(arguments, traces, lambda record: _write(arguments.output, record))
    # Only now, as the page needs what the figures do not.
    from benchmarks.search.thesis_page import publish

    publish(json.loads((arguments.output / f"{NAME}.json").read_text(encoding="utf-8")), arguments.output)
    print((arguments.output / f"{NAME}.md").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
