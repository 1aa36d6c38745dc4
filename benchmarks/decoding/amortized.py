"""Early exits against the full model: how much faster, how many draws are refined, and how many tokens are the same.

    python -m benchmarks.decoding.amortized [--folder FOLDER] [--heads FOLDER] [--models counting SmolLM2-135M
        Gemma-3-270M] [--layers 15 20 25] [--margins 0.5 0.9 0.98] [--tokens 64 256] [--rows 1]
        [--threads 1] [--repeats 2] [--clock cpu] [--quick]

FOLDER has what `python -m benchmarks.common.real_models FOLDER` makes. Exit heads are fitted as `qpdsl calibrate` fits
them, once, and kept in `--heads`: to what the model itself writes on other prompts, half of it records for the real
ones. Tasks: stories (free text), records held to a schema (few allowed ids) and counting problems.

Each setting decodes the same prompts greedily, in turns with the full model and backwards in every other round, in the
variant `deferred`: with and without the exit head, and with it by `rerank=32`. Agreement is measured twice: along the
full model's own tokens, draw by draw, by transformers' modules; and by the texts that come out. Each case is written as
it ends; a run that was stopped goes on, and `--fresh` begins anew. `--show-only` writes tables and plot of it.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import torch

from benchmarks.common.case_file import CaseFile, Record
from benchmarks.common.case_options import case_file, case_parser, publish
from benchmarks.common.real_models import DEFAULT
from benchmarks.common.serving import GREEDY, NAME, engine_of, run
from benchmarks.common.shapes import COUNTING
from benchmarks.common.subjects import FLOAT32, Missing, subjects
from benchmarks.decoding.exit_tables import draw, goals_of, page
from benchmarks.decoding.records import notes, tasks
from benchmarks.peers.peer import Tokens
from family.tasks.counting import problems
from qpdsl import zoo
from qpdsl.executor.checkpoint.errors import ModelError
from qpdsl.executor.checkpoint.model_digest import location_digest
from qpdsl.executor.models.load import load, load_modules
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import GenerateRequest, Mask, SamplingParams
from qpdsl.executor.text.context import Context, encode
from qpdsl.exit_heads.exit_head import ExitHead, save_heads
from qpdsl.exit_heads.head_fitting import fit_heads
from qpdsl.exit_heads.text_states import StateReader

FILE = "amortized"
BUILTIN = "counting"
MODELS = (BUILTIN, "SmolLM2-135M", "Gemma-3-270M")
FULL = "full"
# How an exit is read, and what becomes of the draws that go on: by the model's own norm and head; by an exit head; by
# one, and then among its best ids alone.
PLAIN, HEAD, RERANKED = "plain", "head", "head, reranked"
KINDS = (HEAD, RERANKED, PLAIN)
_BEST_IDS = 32
_MOST = 8
_WARM_TOKENS = 4
# Of the model's own texts that heads are fitted to: prompts, tokens of each, and how freely they are drawn.
_OWN_PROMPTS, _OWN_TOKENS, _OWN_TEMPERATURE = 64, 160, 0.7
_WHY = 300

_PLACES = ("harbour", "library", "mountain village", "railway station", "bakery", "desert town", "school", "garden")
_PEOPLE = ("a young doctor", "an old sailor", "two sisters", "a painter", "a lost dog", "a quiet engineer")


@dataclass(frozen=True)
class Task:
    """What a model writes greedily for each prompt; `masks` makes what holds each output to its schema."""

    name: str
    prompts: tuple[tuple[int, ...], ...]
    masks: tuple[Callable[[], Mask] | None, ...]


@dataclass(frozen=True)
class Subject:
    """A model, where it lies, its tasks, the layers that exits are tried after, and the exit heads of these."""

    name: str
    place: Path
    model: PagedTextModel
    tasks: tuple[Task, ...]
    layers: tuple[int, ...]
    heads: dict[int, ExitHead]


def _free(name: str, prompts: Sequence[tuple[int, ...]]) -> Task:
    return Task(name, tuple(prompts), (None,) * len(prompts))


def subject_of(name: str, arguments: argparse.Namespace) -> Subject:
    """A model with its heads, which are fitted first where they are not there. Raises Missing."""
    place = zoo.path(COUNTING) if name == BUILTIN else subjects(arguments.folder)[name].weights(FLOAT32, gguf=False)
    model = load(NAME, place, "cpu", FLOAT32)

    def chat(text: str) -> tuple[int, ...]:
        if model.tokenizer.chat_template is None:
            return tuple(model.tokenizer(text)["input_ids"])
        return tuple(encode(model.tokenizer, Context(turns=(("user", text),))))

    if name == BUILTIN:
        held_out = [problem.text for problem in islice(problems(seed=1, split="held-out"), _MOST)]
        found: list[Task] = [_free("problems", [chat(text) for text in held_out])]
    else:
        told = [f"Tell a short story that begins when {people.split('.')[0]}." for people, _ in notes()[:_MOST]]
        records = tasks(_MOST)
        masks = [model.constrainer.masks("json_schema", task.schema) for task in records]
        prompts = [tuple(model.tokenizer(task.prompt)["input_ids"]) for task in records]
        found = [_free("story", [chat(text) for text in told]), Task("record", tuple(prompts), tuple(masks))]
    count = model.paged.layout.layers
    layers = tuple(arguments.layers or sorted({max(1, round(share * count)) for share in (1 / 2, 2 / 3, 5 / 6)}))
    layers = tuple(layer for layer in layers if layer < count)
    heads = _heads(name, place, model, chat, layers, arguments)
    return Subject(name, place, model, tuple(found), layers, heads)


def _heads(
    name: str,
    place: Path,
    model: PagedTextModel,
    chat: Callable[[str], tuple[int, ...]],
    layers: tuple[int, ...],
    arguments: argparse.Namespace,
) -> dict[int, ExitHead]:
    folder = arguments.heads / name
    digest = location_digest(place)
    width = int(model.paged.head.in_features)  # type: ignore[union-attr]

    def loaded() -> dict[int, ExitHead]:
        count = model.paged.layout.layers
        return {layer: ExitHead.load(name, folder, layer, digest, count, width) for layer in layers}

    try:
        return loaded()
    except ModelError as error:
        print(f"fitting exit heads of {name}: {error}", flush=True)
    texts = _own_texts(name, model, chat)
    record, heads = fit_heads(str(place), texts, layers, tokens=arguments.fit_tokens, seed=0, dtype=FLOAT32)
    folder.mkdir(parents=True, exist_ok=True)
    save_heads(folder, record, heads)
    return loaded()


def _own_texts(name: str, model: PagedTextModel, chat: Callable[[str], tuple[int, ...]]) -> list[str]:
    """What the model writes on prompts that no case has, prompts included; half of it records, for a real model."""
    asked: list[tuple[tuple[int, ...], Callable[[], Mask] | None]]
    if name == BUILTIN:
        asked = [(chat(one.text), None) for one in islice(problems(seed=11, split="train"), 4 * _OWN_PROMPTS)]
    else:
        asked = [
            (
                chat(
                    f"Write a short text, number {number}, about {_PEOPLE[number % 6]} in a {_PLACES[number // 6 % 8]}."
                ),
                None,
            )
            for number in range(_OWN_PROMPTS // 2)
        ]
        for task in tasks(2 * _MOST)[_MOST:]:
            prompt = tuple(model.tokenizer(task.prompt)["input_ids"])
            mask = model.constrainer.masks("json_schema", task.schema)
            asked += [(prompt, mask)] * (_OWN_PROMPTS // (2 * _MOST))
    engine = engine_of({NAME: model.paged}, 1 << 30)
    params = SamplingParams(_OWN_TEMPERATURE)
    requests = [
        GenerateRequest(prompt, (number,), params, _OWN_TOKENS, model.eos, mask=mask, jump=True, sparse=True)
        for number, (prompt, mask) in enumerate(asked)
    ]
    tickets = [engine.submit(NAME, request) for request in requests]
    run(engine)
    written = [ticket.result().samples[0].tokens for ticket in tickets]
    return [model.tokenizer.decode([*prompt, *text]) for (prompt, _), text in zip(asked, written, strict=True)]


class Side:
    """An engine that leaves early in one way, or never."""

    def __init__(self, subject: Subject, task: Task, leave: EarlyExit | None, rows: int, tokens: int) -> None:
        self._subject, self._task, self._leave = subject, task, leave
        longest = max(map(len, task.prompts)) + tokens + 64
        self._engine = engine_of(
            {NAME: subject.model.paged}, 2 * rows * longest * subject.model.paged.layout.token_bytes
        )
        for layer, head in subject.heads.items():
            self._engine.add_exit_head(str(layer), head)

    def run(self, rows: int, tokens: int) -> tuple[Tokens, Record]:
        """The tokens of each prompt, and figures: seconds by both clocks, and what became of the draws."""
        pairs = list(zip(self._task.prompts, self._task.masks, strict=True))[:rows]
        start, cpu = time.perf_counter(), time.process_time()
        requests = [
            GenerateRequest(
                prompt, (number,), GREEDY, tokens, self._subject.model.eos, mask=mask, cached=False, jump=True,
                sparse=True, exit=self._leave,
            )
            for number, (prompt, mask) in enumerate(pairs)
        ]  # fmt: skip
        tickets = [self._engine.submit(NAME, request) for request in requests]
        run(self._engine)
        seconds = [time.perf_counter() - start, time.process_time() - cpu]
        samples = [ticket.result().samples[0] for ticket in tickets]
        figures: Record = {"seconds": seconds}
        for name in ("exits", "refined", "late", "skipped"):
            figures[name] = sum(getattr(sample.steps, name) for sample in samples)
        return [sample.tokens for sample in samples], figures


class Forced:
    """Exits along the full model's tokens, whatever an exit would have drawn: by transformers' modules."""

    def __init__(self, subject: Subject) -> None:
        modules, _ = load_modules(subject.name, subject.place, "cpu", FLOAT32)
        self._reader = StateReader(subject.name, modules)
        self._subject = subject

    @torch.no_grad()
    def margins(self, task: Task, written: Tokens) -> dict[tuple[int, bool], list[tuple[float, int]]]:
        """The margin of every draw, and how many ids the exit likes better than the full model's likeliest one.

        By layer and whether the exit has its head. Where one id is allowed nothing is drawn.
        """
        found: dict[tuple[int, bool], list[tuple[float, int]]] = {}
        head = self._reader.head
        for prompt, mask, tokens in zip(task.prompts, task.masks, written, strict=False):
            states = self._reader.read([[*prompt, *tokens]], self._subject.layers, lambda share: None)
            # The first token is read off the prompt's last place, and the states begin at the second.
            places = slice(len(prompt) - 2, len(prompt) - 2 + len(tokens))
            allowed = _allowed(mask, tokens, head.vocabulary)
            drawn = torch.ones(len(tokens), dtype=torch.bool) if allowed is None else allowed.sum(dim=1) > 1
            full = _held(head.logits(states.read[places]), allowed).argmax(dim=1, keepdim=True)
            for layer in self._subject.layers:
                own = self._subject.heads[layer]
                for fitted in (True, False):
                    residual = states.after[layer][places]
                    logits = _held(head.logits(head.normed(own(residual) if fitted else residual)), allowed)
                    top = logits.softmax(dim=1).topk(2, dim=1).values
                    better = (logits > logits.gather(1, full)).sum(dim=1)
                    pairs = zip((top[:, 0] - top[:, 1])[drawn].tolist(), better[drawn].tolist(), strict=True)
                    found.setdefault((layer, fitted), []).extend(pairs)
        return found


def _held(logits: torch.Tensor, allowed: torch.Tensor | None) -> torch.Tensor:
    """Logits [N, V] with minus infinity for ids that may not come."""
    return logits if allowed is None else logits.masked_fill(~allowed, float("-inf"))


def _allowed(make: Callable[[], Mask] | None, tokens: Sequence[int], vocabulary: int) -> torch.Tensor | None:
    """Which ids could come at each place, bool [N, V]; None where all could."""
    if make is None:
        return None
    mask = make()
    bits = np.zeros((len(tokens), -(-vocabulary // 32)), dtype=np.int32)
    for number, token in enumerate(tokens):
        mask.fill([mask], bits[number : number + 1])
        mask.push(token)
    unpacked = np.unpackbits(bits.view(np.uint8), axis=1, bitorder="little")[:, :vocabulary]
    return torch.from_numpy(unpacked.astype(bool))


class Run:
    """The cases of a command line, and the record that they are written to."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        self.file = case_file(arguments, FILE, {"cases": [], "absent": []})

    def all(self) -> None:
        """Every case that an earlier run left."""
        torch.set_num_threads(self.arguments.threads)
        for name in self.arguments.models:
            try:
                subject = subject_of(name, self.arguments)
            except Missing as error:
                raise SystemExit(str(error)) from error
            forced = Forced(subject)
            for task in subject.tasks:
                for tokens in self.arguments.tokens:
                    for rows in self.arguments.rows:
                        self._group(subject, forced, task, tokens, rows)

    def _group(self, subject: Subject, forced: Forced, task: Task, tokens: int, rows: int) -> None:
        """All settings of a task, in turns with the full model."""
        key: Record = {"model": subject.name, "task": task.name, "tokens": tokens, "rows": rows}
        key |= {"threads": self.arguments.threads, "layers": list(subject.layers)}
        settings = {
            f"{layer} {kind} {margin:g}": (layer, kind, margin)
            for layer in subject.layers
            for kind in KINDS
            for margin in self.arguments.margins
        }
        known = self.file.find("cases", key)
        if known is not None and set(settings) <= set(known["sides"]):
            return
        print(f"\n== {subject.name}, {task.name}, {tokens} tokens, {rows} row(s)", flush=True)
        full = Side(subject, task, None, rows, tokens)
        sides: dict[str, Side] = {FULL: full}
        for name, (layer, kind, margin) in settings.items():
            best = _BEST_IDS if kind == RERANKED else None
            leave = EarlyExit(margin, layer, None if kind == PLAIN else str(layer), best, deferred=True)
            sides[name] = Side(subject, task, leave, rows, tokens)
        written: dict[str, Tokens] = {}
        rounds: dict[str, list[Record]] = {}
        for side in sides.values():
            side.run(rows, _WARM_TOKENS)
        for number in range(self.arguments.repeats):
            for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
                written[name], figures = sides[name].run(rows, tokens)
                rounds.setdefault(name, []).append(figures)
        along = forced.margins(task, written[FULL])
        found: Record = {}
        for name, (layer, kind, margin) in settings.items():
            places = along[layer, kind != PLAIN]
            left = [better == 0 for own, better in places if own >= margin]
            others = [kind != RERANKED or better < _BEST_IDS for own, better in places if own < margin]
            found[name] = {
                "layer": layer,
                "kind": kind,
                "margin": margin,
                "rounds": rounds[name],
                "draws": len(places),
                "left": len(left),
                "left_same": sum(left),
                "same": sum(left) + sum(others),
                "same_texts": sum(own == theirs for own, theirs in zip(written[name], written[FULL], strict=True)),
                "first_other": [_first_other(*pair) for pair in zip(written[name], written[FULL], strict=True)],
            }
        count = sum(map(len, written[FULL]))
        self.file.put("cases", key, {"count": count, FULL: rounds[FULL], "sides": found})
        write(self.file, self.arguments.clock)


def _first_other(own: Sequence[int], theirs: Sequence[int]) -> int:
    """How many tokens two texts begin with in common."""
    return next((place for place, pair in enumerate(zip(own, theirs, strict=False)) if pair[0] != pair[1]), len(own))


def write(file: CaseFile, clock: str) -> None:
    """The record as it is, with its goals, tables and plot."""
    publish(file, clock, goals_of, page, draw)


def parser() -> argparse.ArgumentParser:
    options = case_parser(__doc__, "a minute on the built-in model", 2)
    options.add_argument("--heads", type=Path, default=DEFAULT / "exit-heads", help="where exit heads are kept")
    options.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options.add_argument("--layers", nargs="+", type=int, help="default: a half, two thirds and five sixths of all")
    options.add_argument("--margins", nargs="+", type=float, default=[0.5, 0.9, 0.98])
    options.add_argument("--tokens", nargs="+", type=int, default=[64, 256])
    options.add_argument("--rows", nargs="+", type=int, default=[1], help=f"at most {_MOST}")
    options.add_argument("--fit-tokens", type=int, default=20_000, help="of a text that heads are fitted to")
    options.set_defaults(clock="cpu")
    return options


def main() -> None:
    options = parser()
    arguments = options.parse_args()
    if not all(1 <= rows <= _MOST for rows in arguments.rows):
        options.error(f"there are {_MOST} prompts")
    if arguments.quick:
        arguments.models, arguments.tokens, arguments.margins = [BUILTIN], [24], [0.9]
        arguments.repeats, arguments.fit_tokens = 1, 4000
    run_ = Run(arguments)
    if not arguments.show_only:
        run_.all()
    write(run_.file, arguments.clock)
    print(page(run_.file.record, arguments.clock))


if __name__ == "__main__":
    main()
