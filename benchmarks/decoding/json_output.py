"""JSON held to a schema: decode plans against each other, and against `generate`, llama.cpp and vLLM, in one run.

    python -m benchmarks.decoding.json_output [--folder FOLDER] [--vllm-python PATH] [--llama-python PATH]
        [--models Gemma-3-270M SmolLM2-135M] [--dtypes float32] [--rows 1 4 16] [--alone 2] [--limit 96]
        [--peers generate llama.cpp vllm] [--threads 1] [--repeats 1] [--clock wall] [--quick]

FOLDER holds what `python -m benchmarks.common.real_models FOLDER` makes. Each system is a process of its own. All get
the same token ids of the same notes and the same schemas, decode greedily to the end of the record or to `--limit`
tokens, and write `", "` and `": "` between the parts of a record and nothing else. llama.cpp holds to a grammar that it
converts from the schema, and reads a GGUF file of the same floats.

One at a time, the first `--alone` records are a round each. The sides take turns, backwards in every other round. Every
output is checked. Each case is written down as it ends; a run that was stopped goes on, and `--fresh` begins anew.
`--show-only` writes tables and plot of what is there.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from transformers import AutoTokenizer

from benchmarks.common.case_file import CaseFile, Record
from benchmarks.common.case_options import add_peers, case_file, case_parser, publish
from benchmarks.common.subjects import BFLOAT16, FLOAT32, Missing, Subject, subjects
from benchmarks.decoding.json_tables import ALL, draw, goals_of, page
from benchmarks.decoding.records import Task, is_record, tasks
from benchmarks.peers.peer import Room, Tokens
from benchmarks.peers.process import Absent, Process
from qpdsl.executor.text.constraint import Constrainer

NAME = "json_output"
GENERATE, LLAMA, VLLM = "generate", "llama.cpp", "vllm"
PEERS = (GENERATE, LLAMA, VLLM)
MODELS = ("Gemma-3-270M", "SmolLM2-135M")
# Our sides: everything on, each thing off, and a mask for every step of a dense head.
_ON: Mapping[str, Any] = MappingProxyType({"jump": True, "sparse": True, "screened": True, "draft": "ngram"})
PLANS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        ALL: _ON,
        "without jump": {**_ON, "jump": False},
        "without sparse": {**_ON, "sparse": False},
        "without screen": {**_ON, "screened": False},
        "without draft": {**_ON, "draft": None},
        "masked dense": {"jump": False, "sparse": False, "screened": False, "draft": None},
    }
)
_WARM_TOKENS = 4
_MOST = 16
# For the threads of the side before to fall asleep.
_PAUSE_SECONDS = 0.2
_GIB = 2**30
_PAGE = 32
# Characters kept of why a side failed.
_WHY = 300


class Checker:
    """Tells a model's prompts, and whether its outputs are records."""

    def __init__(self, folder: Path, wanted: Sequence[Task]) -> None:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        self._tokenizer = AutoTokenizer.from_pretrained(folder)
        self.eos: tuple[int, ...] = (int(self._tokenizer.eos_token_id),)
        self._constrainer = Constrainer(self._tokenizer, int(config["vocab_size"]), self.eos)
        self.prompts: Tokens = [tuple(self._tokenizer(task.prompt)["input_ids"]) for task in wanted]

    def verdict(self, task: Task, tokens: Sequence[int], limit: int) -> str:
        """One of "valid", "cut" for the beginning of a record, which the limit ended, and "wrong"."""
        if is_record(self.text(tokens), task.schema):
            return "valid"
        mask = self._constrainer.masks("json_schema", task.schema)()
        return "cut" if len(tokens) == limit and mask.admits(tokens) == limit else "wrong"

    def without_end(self, row: Sequence[int]) -> tuple[int, ...]:
        """Some sides end where nothing but the end may follow, others draw it first."""
        return tuple(row[:-1] if row and row[-1] in self.eos else row)

    def text(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=True)
        return text


class Group:
    """The cases of one model in one type of weights: its processes stay loaded for all of them."""

    def __init__(self, arguments: argparse.Namespace, file: CaseFile, subject: Subject, dtype: str) -> None:
        self.arguments = arguments
        self.file = file
        self.subject = subject
        self.dtype = dtype
        self.key: Record = {"model": subject.name, "dtype": dtype, "threads": arguments.threads}
        self.key["limit"] = arguments.limit
        self.tasks = tasks(_MOST)
        self.processes: dict[str, Process] = {}

    def left(self) -> list[int]:
        """The numbers of rows whose case lacks a side that did not fail before."""
        failed = {row["side"] for row in self.file.record["absent"] if {**row, **self.key} == row}
        wanted = {*PLANS, *self.arguments.peers} - failed
        found = {rows: self.file.find("cases", {**self.key, "rows": rows}) for rows in self.arguments.rows}
        return [rows for rows, case in found.items() if case is None or not wanted <= set(case["rounds"])]

    def run(self) -> None:
        """Measures what is left. Raises Missing where the model's files are not there."""
        left = self.left()
        if not left:
            return
        print(f"\n== {self.subject.name}, {self.dtype}, {self.arguments.threads} thread(s)", flush=True)
        checker = Checker(self.subject.weights(self.dtype, gguf=False), self.tasks)
        context = max(map(len, checker.prompts)) + self.arguments.limit + 1
        with tempfile.TemporaryDirectory() as scratch:
            try:
                for system in ("qpdsl", *self.arguments.peers):
                    self._start(system, Room(max(left), context, self.arguments.threads), checker, Path(scratch))
                for rows in left:
                    self._case(rows, checker)
                    write(self.file, self.arguments.clock)
            finally:
                for process in self.processes.values():
                    process.close()

    def _start(self, system: str, room: Room, checker: Checker, scratch: Path) -> None:
        """Loads and warms a system, or says why it is absent."""
        pythons = {VLLM: self.arguments.vllm_python, LLAMA: self.arguments.llama_python}
        python = pythons.get(system) or Path(sys.executable)
        most = room.slots * (room.context + _PAGE) * self.subject.token_bytes
        try:
            weights = self.subject.weights(self.dtype, gguf=system == LLAMA)
            process = Process(python, room.threads, 1 + most // _GIB, scratch / f"{system}.log")
            self.processes[system] = process
            loaded = process.load(f"{system} json", weights, self.dtype, room, {"eos": checker.eos})
            for plan in PLANS.values() if system == "qpdsl" else [{}]:
                process.write(checker.prompts[:2], [task.schema for task in self.tasks[:2]], _WARM_TOKENS, plan)
        except (Absent, ImportError) as error:
            self._failed(system, system, str(error))
            return
        print(f"{system} {loaded['about']}: loaded in {loaded['seconds']:.1f} s", flush=True)
        self.file.put("sides", {"side": system}, {"version": loaded["about"]})

    def _case(self, rows: int, checker: Checker) -> None:
        alone = [[number] for number in range(self.arguments.alone)]
        groups = (alone if rows == 1 else [list(range(rows))]) * self.arguments.repeats
        rounds: dict[str, list[Record]] = {}
        outputs: dict[str, list[Tokens]] = {}
        for number, group in enumerate(groups):
            sides = [side for side in (*PLANS, *self.arguments.peers) if self._system(side) in self.processes]
            for side in sides[:: 1 if number % 2 == 0 else -1]:
                time.sleep(_PAUSE_SECONDS)
                reply = self._turn(side, group, checker)
                if reply is not None:
                    outputs.setdefault(side, []).append(reply.pop("tokens"))
                    rounds.setdefault(side, []).append(reply)
        kept = {side: of for side, of in rounds.items() if len(of) == len(groups)}
        same = {side: _same(outputs[side], outputs[ALL]) for side in kept} if ALL in kept else {}
        sample = checker.text(outputs[ALL][0][0]) if ALL in kept else ""
        self.file.put("cases", {**self.key, "rows": rows}, {"rounds": kept, "same": same, "sample": sample})
        for side, of in kept.items():
            verdicts = [verdict for reply in of for verdict in reply["verdicts"]]
            seconds = sum(reply["total"][0] for reply in of) / len(verdicts)
            print(f"{rows} row(s), {side}: {seconds:.2f} s a record, {verdicts.count('wrong')} wrong", flush=True)

    def _turn(self, side: str, group: Sequence[int], checker: Checker) -> Record | None:
        """The reply of a side with what was checked; None where it failed."""
        prompts = [checker.prompts[number] for number in group]
        wanted = [self.tasks[number] for number in group]
        schemas = [task.schema for task in wanted]
        system = self._system(side)
        try:
            reply = self.processes[system].write(prompts, schemas, self.arguments.limit, PLANS.get(side, {}))
        except Absent as error:
            self._failed(side, system, str(error))
            return None
        self.file.drop("absent", {**self.key, "side": side})
        reply["tokens"] = [checker.without_end(row) for row in reply["tokens"]]
        reply["count"] = sum(map(len, reply["tokens"]))
        rows = zip(wanted, reply["tokens"], strict=True)
        reply["verdicts"] = [checker.verdict(task, tokens, self.arguments.limit) for task, tokens in rows]
        return reply

    def _system(self, side: str) -> str:
        return "qpdsl" if side in PLANS else side

    def _failed(self, side: str, system: str, why: str) -> None:
        """Leaves a side out; a peer's process is ended."""
        print(f"without {side}: {why}", flush=True)
        if system != "qpdsl" and system in self.processes:
            self.processes.pop(system).close()
        self.file.put("absent", {**self.key, "side": side}, {"why": " ".join(why.split())[:_WHY]})


def _same(outputs: Iterable[Tokens], ours: Iterable[Tokens]) -> list[int]:
    """How many rows have the same tokens, of how many."""
    pairs = [pair for a, b in zip(outputs, ours, strict=True) for pair in zip(a, b, strict=True)]
    return [sum(a == b for a, b in pairs), len(pairs)]


def write(file: CaseFile, clock: str) -> None:
    """The record as it is, with its goals, tables and plot."""
    publish(file, clock, goals_of, page, draw)


def parser() -> argparse.ArgumentParser:
    options = case_parser(__doc__, "two minutes", 1, rounds="rounds over the same records")
    add_peers(options, PEERS)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--dtypes", nargs="+", choices=(FLOAT32, BFLOAT16), default=[FLOAT32])
    options.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16], help="records side by side, at most 16")
    options.add_argument("--alone", type=int, default=2, help="records that are written one at a time, at most 16")
    options.add_argument("--limit", type=int, default=96, help="tokens of a record")
    return options


def main() -> None:
    options = parser()
    arguments = options.parse_args()
    if not all(1 <= rows <= _MOST for rows in (*arguments.rows, arguments.alone)):
        options.error(f"there are {_MOST} notes")
    if arguments.quick:
        # vLLM compiles for a minute a model.
        arguments.models, arguments.peers = ["SmolLM2-135M"], [GENERATE, LLAMA]
        arguments.rows, arguments.alone, arguments.limit = [1, 4], 1, 24
    empty: Record = {"sides": [], "cases": [], "absent": []}
    file = case_file(arguments, NAME, empty)
    if not arguments.show_only:
        for name in arguments.models:
            for dtype in arguments.dtypes:
                try:
                    Group(arguments, file, subjects(arguments.folder)[name], dtype).run()
                except Missing as error:
                    raise SystemExit(str(error)) from error
    write(file, arguments.clock)
    print(page(file.record, arguments.clock))


if __name__ == "__main__":
    main()
