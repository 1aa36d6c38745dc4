"""Real models against vLLM, llama.cpp and transformers' `generate`, each in a process of its own, in one run.

    python -m benchmarks.engine.real [--folder FOLDER] [--vllm-python PATH] [--llama-python PATH]
        [--models SmolLM2-135M Gemma-3-270M 0.5B] [--dtypes float32 bfloat16 quantized] [--rows 1 2 8 64]
        [--prompts 64 1024] [--peers generate vllm llama.cpp] [--threads 1] [--repeats 3] [--clock wall] [--quick]

FOLDER holds what `python -m benchmarks.common.real_models FOLDER` makes; the random model is made there, too. A peer
that this Python lacks runs with another: `--vllm-python`, `--llama-python`. Without it the table says so.

All sides decode greedily from the same token ids, none reuses a prompt's keys and values, and all have the same number
of threads. They take turns, backwards in every other round. What a side takes for its prompts (until every row has its
first token) and for the tokens after that is told apart. "ragged": lengths from an eighth of the mean to nearly twice
as many. Each case is written down as it ends; a run that was stopped goes on with the cases that are missing, and
`--fresh` begins anew. `--show-only` writes the tables of what is there, by another `--clock` if need be.
"""

from __future__ import annotations

import argparse
import operator
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.common.case_file import Record, holds
from benchmarks.common.case_options import add_peers, case_file, case_parser, publish
from benchmarks.common.roofline import rates
from benchmarks.common.subjects import DTYPES, QUANTIZED, Missing, Subject, make_half_billion, subjects
from benchmarks.engine.decode import lengths_of
from benchmarks.engine.real_tables import OURS, goals_of, page
from benchmarks.peers.peer import Room, Tokens
from benchmarks.peers.process import Absent, Process

GENERATE, VLLM, LLAMA = "generate", "vllm", "llama.cpp"
PEERS = (GENERATE, VLLM, LLAMA)
_PACKAGES = {GENERATE: "transformers", VLLM: "vllm", LLAMA: "llama_cpp"}
MODELS = tuple(subjects(Path()))
ROWS = (1, 2, 8, 64)
PROMPTS = (64, 1024)
# A case whose prompts are longer in sum runs once, without a round to warm up: it takes minutes a side.
_LONG = 16_384
_WARM_TOKENS = 2
# For the threads of the side before to fall asleep.
_PAUSE_SECONDS = 0.2
_GIB = 2**30
# Tokens of the largest page of keys and values that a side has.
_PAGE = 32
# Characters kept of why a side failed.
_WHY = 300


@dataclass(frozen=True)
class Case:
    """`rows` prompts of `prompt` tokens, and `tokens` tokens for each, on average."""

    prompt: int
    rows: int
    lengths: str
    tokens: int

    @property
    def long(self) -> bool:
        return self.prompt * self.rows > _LONG

    @property
    def context(self) -> int:
        return self.prompt + 2 * self.tokens


@dataclass(frozen=True)
class Group:
    """Cases of one model in one type of weights with so many threads: its sides stay loaded for all of them."""

    subject: Subject
    dtype: str
    threads: int

    @property
    def key(self) -> dict[str, str | int]:
        return {"model": self.subject.name, "dtype": self.dtype, "threads": self.threads}


def cases(arguments: argparse.Namespace, subject: Subject) -> Iterator[Case]:
    """Those that were asked for; of the random model, four times slower, short prompts alone and no ragged lengths."""
    for prompt in arguments.prompts:
        for rows in arguments.rows:
            tokens = 8 if arguments.quick else 32 if rows > 1 else 64
            for lengths in ("equal", "ragged"):
                case = Case(prompt, rows, lengths, tokens)
                ragged = lengths == "ragged"
                if (ragged and (rows < 8 or case.long)) or (not subject.prose and (ragged or prompt > 64)):
                    continue
                yield replace(case, tokens=tokens // 2) if not subject.prose else case


def takers(dtype: str, peers: Sequence[str]) -> list[str]:
    """Those of the peers that take weights of this type: of quantized ones, only llama.cpp leaves them so on a CPU."""
    return [peer for peer in peers if dtype != QUANTIZED or peer == LLAMA]


class Run:
    """The cases of a command line, and the record that they are written to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.pythons = {VLLM: arguments.vllm_python, LLAMA: arguments.llama_python}
        empty: Record = {"sides": {}, "models": {}, "rooflines": [], "loads": [], "cases": [], "absent": []}
        self.file = case_file(arguments, "real", empty)
        self.record = self.file.record

    def all(self) -> None:
        """Every group of cases that an earlier run left."""
        missing = {peer: self._not_installed(peer) for peer in self.arguments.peers}
        peers = [peer for peer, why in missing.items() if why is None]
        for name in self.arguments.models:
            subject = subjects(self.arguments.folder)[name]
            for dtype in self.arguments.dtypes:
                group = Group(subject, dtype, self.arguments.threads)
                for peer, why in missing.items():
                    if why is not None and peer in takers(dtype, [peer]):
                        self.file.put("absent", {**group.key, "side": peer}, {"why": why})
                wanted = [OURS, *takers(dtype, peers)]
                left = [case for case in cases(self.arguments, subject) if not self._known(group, case, wanted)]
                if left:
                    try:
                        self._group(group, left, wanted)
                    except Missing as error:
                        self.file.put("absent", {**group.key, "side": "all sides"}, {"why": str(error)})
                self.write()

    def write(self) -> None:
        """The record as it is, and its tables."""
        publish(self.file, self.arguments.clock, goals_of, page)

    def _group(self, group: Group, left: list[Case], wanted: list[str]) -> None:
        subject = group.subject
        print(f"\n== {subject.name}, {group.dtype}, {group.threads} thread(s)", flush=True)
        if not subject.prose:
            make_half_billion(subject)
        size = subject.step_bytes(group.dtype)
        model = self.record["models"].setdefault(subject.name, {"bytes": {}})
        model["multiply_adds"] = subject.multiply_adds
        model["bytes"][group.dtype] = size
        self.file.put("rooflines", group.key, rates(group.threads, size))
        with tempfile.TemporaryDirectory() as scratch:
            running: dict[str, Process] = {}
            try:
                for side in wanted:
                    self._start(group, side, left, Path(scratch), running)
                for case in left:
                    self._case(group, case, running)
                    self.write()
            finally:
                for process in running.values():
                    process.close()

    def _start(self, group: Group, side: str, left: Sequence[Case], scratch: Path, running: dict[str, Process]) -> None:
        """Adds the side to `running`, or to the absent ones."""
        slots, context = max(case.rows for case in left), max(case.context for case in left)
        most = max(case.rows * (case.context + _PAGE) for case in left) * group.subject.token_bytes
        python = self.pythons.get(side) or Path(sys.executable)
        try:
            weights = group.subject.weights(group.dtype, gguf=side == LLAMA)
            process = Process(python, group.threads, 1 + most // _GIB, scratch / f"{side}.log")
            running[side] = process
            loaded = process.load(side, weights, group.dtype, Room(slots, context, group.threads))
        except (Absent, ImportError) as error:
            self._failed(group, side, str(error), running)
            return
        print(f"{side} {loaded['about']}: loaded in {loaded['seconds']:.1f} s", flush=True)
        self.record["sides"][side] = loaded.pop("about")
        self.file.put("loads", {**group.key, "side": side}, loaded)
        self.file.drop("absent", {**group.key, "side": side})

    def _case(self, group: Group, case: Case, running: dict[str, Process]) -> None:
        prompts = group.subject.prompts(case.rows, case.prompt)
        lengths = lengths_of(case.lengths, case.rows, case.tokens)
        order = list(running)
        if not case.long:
            for side in order:
                self._turn(group, side, running, prompts, [_WARM_TOKENS] * case.rows)
        rounds: dict[str, list[Record]] = {side: [] for side in order}
        tokens: dict[str, Tokens] = {}
        for number in range(1 if case.long else self.arguments.repeats):
            for side in order[:: 1 if number % 2 == 0 else -1]:
                time.sleep(_PAUSE_SECONDS)
                reply = self._turn(group, side, running, prompts, lengths)
                if reply is not None:
                    tokens[side] = reply.pop("tokens")
                    rounds[side].append(reply)
        kept = {side: rounds[side] for side in running}
        same = {side: sum(map(operator.eq, tokens[side], tokens[OURS])) for side in running if side != OURS}
        self.file.put("cases", {**group.key, **vars(case)}, {"asked": sum(lengths), "rounds": kept, "same": same})
        speeds = (f"{side} {sum(lengths) / min(r['total'][0] for r in of):.1f}" for side, of in kept.items())
        print(f"{case.rows} x {case.prompt} tokens, {case.lengths}, tok/s: {', '.join(speeds)}", flush=True)

    def _turn(
        self, group: Group, side: str, running: dict[str, Process], prompts: Tokens, lengths: list[int]
    ) -> Record | None:
        """The reply of a side; None where it failed, now or before."""
        if side not in running:
            return None
        try:
            return running[side].run(prompts, lengths)
        except Absent as error:
            self._failed(group, side, str(error), running)
            return None

    def _failed(self, group: Group, side: str, why: str, running: dict[str, Process]) -> None:
        """Leaves a peer out of the group from here on. Raises SystemExit for our own side."""
        if side in running:
            running.pop(side).close()
        print(f"without {side}: {why}", flush=True)
        if side == OURS:
            raise SystemExit(f"qpdsl does not run {group.subject.name} in {group.dtype}: {why}")
        self.file.put("absent", {**group.key, "side": side}, {"why": why[:_WHY]})

    def _not_installed(self, peer: str) -> str | None:
        """Why a peer cannot run at all; None where it may."""
        python = self.pythons.get(peer) or Path(sys.executable)
        looked = f"import importlib.util as u, sys; sys.exit(u.find_spec({_PACKAGES[peer]!r}) is None)"
        try:
            found = subprocess.run([str(python), "-c", looked], check=False).returncode == 0
        except OSError as error:
            raise SystemExit(f"{python}: {error.strerror}") from error
        return None if found else f"{_PACKAGES[peer]} is not installed; --vllm-python and --llama-python name others"

    def _known(self, group: Group, case: Case, wanted: Sequence[str]) -> bool:
        """Whether the record has the case with every side that is `wanted`, but for those that failed."""
        failed = {entry["side"] for entry in self.record["absent"] if holds(entry, group.key)}
        found = [entry for entry in self.record["cases"] if holds(entry, {**group.key, **vars(case)})]
        return bool(found) and set(wanted) - failed <= set(found[0]["rounds"])


def parser() -> argparse.ArgumentParser:
    options = case_parser(__doc__, "two minutes", 3, rounds="rounds; one where prompts are long in sum")
    add_peers(options, PEERS)
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    options.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    options.add_argument("--prompts", nargs="+", type=int, default=list(PROMPTS), help="tokens of a prompt")
    return options


def main() -> None:
    arguments = parser().parse_args()
    if arguments.quick:
        # vLLM compiles for a minute a model.
        arguments.models, arguments.dtypes, arguments.prompts = ["SmolLM2-135M"], ["float32", QUANTIZED], [64]
        arguments.rows, arguments.peers, arguments.repeats = [1, 8], [GENERATE, LLAMA], 1
    run = Run(arguments)
    if not arguments.show_only:
        run.all()
    run.write()
    print(page(run.record, arguments.clock))


if __name__ == "__main__":
    main()
