"""Drafts by method, temperature and batch: what is accepted, how many tokens a round brings, and how much faster it is.

    python -m benchmarks.decoding.drafts [--folder FOLDER] [--models counting SmolLM2-135M] [--eagle FOLDER]
        [--rows 1 4 16] [--temperatures 0 0.8] [--threads 1] [--repeats 2] [--clock wall] [--quick]

`counting`: the built-in generator on its problems, drafted for by the mini model, by its own first layers, by n-grams
and by a head in EAGLE's format; drafts of 2, 4 and 8 tokens, and as many as pay; trees against chains
of the same depth and of the same number of tokens. The real model, of which FOLDER holds what
`python -m benchmarks.common.real_models FOLDER` makes: n-grams where a text is repeated with a change, and where a
story is written, in which nothing repeats; and its first layers, which nobody trained to be read.

With fewer rows than prompts, the others follow as rows end. Every setting keeps one engine for all rounds of a case;
nothing but the drafts' pace is kept in it. They take turns with decoding without drafts, backwards in every other
round. All must give the same tokens. Each case is written as it ends; a run that was stopped goes on, and `--fresh`
begins anew. `--show-only` writes tables and plot of what is there.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import torch

from benchmarks.common.case_file import CaseFile, Record
from benchmarks.common.case_options import case_file, case_parser, publish
from benchmarks.common.serving import NAME, engine_of, run
from benchmarks.common.shapes import COUNTING
from benchmarks.common.subjects import FLOAT32, Missing, subjects
from benchmarks.decoding.draft_tables import NONE, draw, goals_of, page
from benchmarks.decoding.records import notes
from benchmarks.peers.peer import Tokens
from family.tasks.counting import problems
from qpdsl import zoo
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.models.eagle_checkpoint import load_head
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.text.context import Context, encode

FILE = "drafts"
PAIR, REAL = "counting", "SmolLM2-135M"
SMALL, EAGLE = "small", "eagle"
LENGTHS = (2, 4, 8)
# A tree of 2 + 4 + 8 tokens.
_BRANCHES, _LEVELS, _NODES = 2, 3, 14
_WARM_TOKENS = 8
# Prompts of a case; of the real model with few rows, which is a hundred times slower.
_MOST, _FEW = 16, 2
# Characters kept of why a setting failed.
_WHY = 300


@dataclass(frozen=True)
class Task:
    """What a model writes: up to `tokens` for each prompt, of as many prompts as there are rows, or `least`."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    tokens: int
    least: int


@dataclass(frozen=True)
class Subject:
    """A model with the models and the EAGLE head that draft for it, its tasks, and the drafts that are tried, by name.

    `alone`: those that are tried for one row only.
    """

    name: str
    model: PagedTextModel
    drafting: Mapping[str, PagedModel]
    head: EagleHead | None
    tasks: tuple[Task, ...]
    settings: Mapping[str, Drafting]
    alone: frozenset[str] = frozenset()


def pair(eagle: Path, tokens: int) -> Subject:
    """The built-in generator and its mini model."""
    model = load(NAME, zoo.path(COUNTING), "cpu", FLOAT32)
    texts = [problem.text for problem in islice(problems(seed=1, split="held-out"), _MOST)]
    prompts = tuple(encode(model.tokenizer, Context(turns=(("user", text),))) for text in texts)
    drafting = {SMALL: load(SMALL, zoo.path("zoo/counting-mini"), "cpu", FLOAT32).paged}
    settings = dict(_lengths("model", Drafting("model", SMALL)))
    chain = Drafting("model", SMALL, length=_LEVELS, fixed=True)
    settings[f"model, chain of {_LEVELS}"] = chain
    settings[f"model, tree of {_BRANCHES} x {_LEVELS}"] = replace(chain, branches=_BRANCHES)
    settings[f"model, chain of {_NODES}"] = replace(chain, length=_NODES)
    settings |= {"early_exit": Drafting("early_exit"), "ngram": Drafting("ngram")}
    settings |= dict(_lengths("eagle", Drafting("eagle", EAGLE)))
    return Subject(
        PAIR, model, drafting, load_head(EAGLE, eagle, "cpu"), (Task("problems", prompts, tokens, _MOST),), settings
    )


def real(folder: Path, tokens: int) -> Subject:
    """SmolLM2. Raises Missing where its folder is not there."""
    model = load(NAME, subjects(folder)[REAL].weights(FLOAT32, gguf=False), "cpu", FLOAT32)

    def prompts(texts: list[str]) -> tuple[tuple[int, ...], ...]:
        return tuple(encode(model.tokenizer, Context(turns=(("user", text),))) for text in texts)

    copied = [
        f"Repeat the following text word by word, but write Rome wherever it names a city:\n\n{people} {order}"
        for people, order in notes()
    ]
    told = [f"Tell a short story that begins when {people.split('.')[0]}." for people, _ in notes()]
    tasks = (Task("copy", prompts(copied), tokens, _FEW), Task("story", prompts(told), tokens, _FEW))
    settings = {**dict(_lengths("ngram", Drafting("ngram"))), "early_exit": Drafting("early_exit")}
    return Subject(REAL, model, {}, None, tasks, settings, frozenset(settings) - {"ngram"})


def _lengths(name: str, drafting: Drafting) -> Iterator[tuple[str, Drafting]]:
    """As many tokens as pay, and fixed numbers of them."""
    yield name, drafting
    for length in LENGTHS:
        yield f"{name}, {length} tokens", replace(drafting, length=length, fixed=True)


class Side:
    """An engine that drafts in one way, or not at all."""

    def __init__(self, subject: Subject, drafting: Drafting | None, rows: int, task: Task) -> None:
        own = subject.model.paged
        models = {NAME: own}
        if drafting is not None and drafting.model in subject.drafting:
            models[drafting.model] = subject.drafting[drafting.model]
        longest = max(map(len, task.prompts)) + task.tokens + 64
        size = 2 * rows * longest * max(model.layout.token_bytes for model in models.values()) * len(models)
        self._steps: list[StepReport] = []
        self._engine = engine_of(models, size, EngineConfig(max_sequences=rows), self._steps.append)
        if subject.head is not None:
            self._engine.add_head(EAGLE, subject.head)
        self._eos = subject.model.eos
        self._drafting = drafting

    def run(self, prompts: Tokens, temperature: float, tokens: int) -> tuple[Tokens, Record]:
        """The tokens of each prompt, and figures: seconds by both clocks, and what the drafts came to."""
        self._steps.clear()
        start, cpu = time.perf_counter(), time.process_time()
        requests = [
            GenerateRequest(
                prompt,
                (number,),
                SamplingParams(temperature),
                tokens,
                self._eos,
                cached=False,
                draft=self._drafting,
                logprobs=False,
            )
            for number, prompt in enumerate(prompts)
        ]
        tickets = [self._engine.submit(NAME, request) for request in requests]
        run(self._engine)
        seconds = [time.perf_counter() - start, time.process_time() - cpu]
        samples = [ticket.result().samples[0] for ticket in tickets]
        decoding = [step for step in self._steps if step.model == NAME and step.prefill_tokens == 0]
        figures: Record = {
            "seconds": seconds,
            "step_seconds": sum(step.seconds for step in decoding),
            "draft_seconds": sum(step.draft_seconds for step in self._steps),
            "near_ties": sum(sample.near_ties for sample in samples),
        }
        for name in ("draws", "rounds", "drafted", "accepted"):
            figures[name] = sum(getattr(sample.steps, name) for sample in samples)
        return [sample.tokens for sample in samples], figures


class Run:
    """The cases of a command line, and the record that they are written to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        empty: Record = {"cases": [], "absent": []}
        self.file = case_file(arguments, FILE, empty)

    def all(self) -> None:
        """Every case that an earlier run left."""
        torch.set_num_threads(self.arguments.threads)
        for name in self.arguments.models:
            try:
                tokens = self.arguments.tokens
                subject = pair(self.arguments.eagle, tokens) if name == PAIR else real(self.arguments.folder, tokens)
            except Missing as error:
                raise SystemExit(str(error)) from error
            for task in subject.tasks:
                for temperature in self.arguments.temperatures:
                    for rows in self.arguments.rows:
                        self._case(subject, task, temperature, rows)

    def _case(self, subject: Subject, task: Task, temperature: float, rows: int) -> None:
        key: Record = {"model": subject.name, "task": task.name, "temperature": temperature, "rows": rows}
        key |= {"tokens": task.tokens, "threads": self.arguments.threads}
        wanted = {name: how for name, how in subject.settings.items() if rows == 1 or name not in subject.alone}
        known = self.file.find("cases", key)
        absent = {row["side"] for row in self.file.record["absent"] if {**row, **key} == row}
        if known is not None and set(wanted) - absent <= set(known["rounds"]):
            return
        print(f"\n== {subject.name}, {task.name}, temperature {temperature:g}, {rows} row(s)", flush=True)
        prompts = list(task.prompts[: max(rows, task.least)])
        sides: dict[str, Side] = {}
        rounds: dict[str, list[Record]] = {}
        written: dict[str, Tokens] = {}
        for name, drafting in {NONE: None, **wanted}.items():
            try:
                sides[name] = Side(subject, drafting, rows, task)
                sides[name].run(prompts, temperature, _WARM_TOKENS)
            except Exception as error:  # a way to draft that this model does not have
                if name == NONE:
                    raise
                sides.pop(name, None)
                self._absent(key, name, f"{type(error).__name__}: {error}")
        for number in range(self.arguments.repeats):
            for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
                written[name], figures = sides[name].run(prompts, temperature, task.tokens)
                rounds.setdefault(name, []).append(figures)
        for name in sides:
            equal = written[name] == written[NONE]
            ties = sum(reply["near_ties"] for reply in (*rounds[name], *rounds[NONE]))
            assert equal or ties, f"{name} gives other tokens than decoding without drafts, without a near tie"
        same = {name: sum(a == b for a, b in zip(written[name], written[NONE], strict=True)) for name in sides}
        kept = {name: rounds[name] for name in sides}
        self.file.put(
            "cases", key, {"prompts": len(prompts), "count": sum(map(len, written[NONE])), "rounds": kept, "same": same}
        )
        write(self.file, self.arguments.clock)
        for name, of in kept.items():
            seconds = [reply["seconds"][0] for reply in of]
            print(f"{name}: {min(seconds):.2f} s, {of[-1]['accepted']}/{of[-1]['drafted']} accepted", flush=True)

    def _absent(self, key: Record, side: str, why: str) -> None:
        print(f"without {side}: {why}", flush=True)
        self.file.put("absent", {**key, "side": side}, {"why": why[:_WHY]})


def write(file: CaseFile, clock: str) -> None:
    """The record as it is, with its goals, tables and plot."""
    publish(file, clock, goals_of, page, draw)


def parser() -> argparse.ArgumentParser:
    options = case_parser(__doc__, "two minutes", 2)
    options.add_argument("--models", nargs="+", choices=(PAIR, REAL), default=[PAIR, REAL])
    options.add_argument(
        "--eagle", type=Path, default=zoo.head_path(zoo.HEADS[0]), help="a head for the built-in generator"
    )
    options.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16], help="at most 16")
    options.add_argument("--temperatures", nargs="+", type=float, default=[0.0, 0.8])
    options.add_argument("--tokens", type=int, default=48, help="of a row, unless it ends before")
    return options


def main() -> None:
    options = parser()
    arguments = options.parse_args()
    if not all(1 <= rows <= _MOST for rows in arguments.rows):
        options.error(f"there are {_MOST} prompts")
    if arguments.quick:
        arguments.rows, arguments.temperatures, arguments.tokens, arguments.repeats = [1], [0.0], 24, 1
    run_ = Run(arguments)
    if not arguments.show_only:
        run_.all()
    write(run_.file, arguments.clock)
    print(page(run_.file.record, arguments.clock))


if __name__ == "__main__":
    main()
