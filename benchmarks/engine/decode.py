"""Decode throughput at 1 to 256 sequences, equal and ragged lengths, against transformers and llama.cpp, in one run.

    python -m benchmarks.engine.decode [--models zoo 0.5B] [--peers generate generate_batch llama.cpp] [--repeats 3]
                                       [--quick]

All sides decode greedily in float32 from the same prompts and weights. "equal": every sequence gets the same number of
tokens. "ragged": an eighth of it to nearly twice as many, evenly spread; `generate` runs the whole batch to the
longest, which is how a static batch behaves, and only the tokens asked for count. Times include the prefill. The 0.5B
model has random weights in the shape of Qwen2-0.5B, and short prompts and outputs.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass

from benchmarks.common.results import Goal, Ratio, absent_line, goal_table, machine_line, speedup, turns, write
from benchmarks.common.serving import NAME, checkpoint, engine_of, greedy, paged, run, samples
from benchmarks.common.settings import GENERATE, GENERATE_BATCH, LLAMA, Settings, alone
from benchmarks.common.shapes import COUNTING, HALF, counting_prompts, folder_of, random_prompts
from benchmarks.peers.peer import Peer, Room, Tokens
from benchmarks.peers.start import start_peers
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig

OURS = "qpdsl"
# The least ratio to each peer, by batch size, and where the lengths matter, by kind.
_GOALS = {
    (64, "equal", GENERATE): 1.5,
    (64, "ragged", GENERATE): 3.0,
    (64, "equal", GENERATE_BATCH): 2.0,
    (64, "ragged", GENERATE_BATCH): 2.0,
}
_LEVEL_WITH_LLAMA_FROM = 8


@dataclass(frozen=True)
class Load:
    """Prompts for one model, and how many tokens a sequence gets on average."""

    model: str
    prompts: Tokens
    counts: tuple[int, ...]
    tokens: int


@dataclass(frozen=True)
class Case:
    """Tokens per second of each side; per peer the ratio of ours to it, and in how many rows the tokens agree."""

    model: str
    sequences: int
    lengths: str
    tokens: int
    speed: dict[str, float]
    ratio: dict[str, Ratio]
    same: dict[str, int]


def load_of(name: str, settings: Settings) -> Load:
    """Fewer sequences and tokens for the large model, which takes a second a step at 64."""
    if name == "zoo":
        counts: tuple[int, ...] = (1, 8, 16) if settings.quick else (1, 8, 16, 64, 256)
        return Load(COUNTING, counting_prompts(max(counts)), counts, settings.sized(128, 24))
    counts = (1, 8) if settings.quick else (1, 8, 64)
    return Load(HALF, random_prompts(max(counts), 8, 151_936), counts, settings.sized(16, 4))


def lengths_of(kind: str, count: int, tokens: int) -> list[int]:
    """Equal lengths, or lengths from an eighth of `tokens` to nearly twice as many, in an order of their own."""
    if kind == "equal" or count == 1:
        return [tokens] * count
    shortest, longest = max(1, tokens // 8), 2 * tokens - tokens // 8
    lengths = [shortest + (longest - shortest) * index // (count - 1) for index in range(count)]
    random.Random(count).shuffle(lengths)
    return lengths


def ours(model: PagedModel, prompts: Tokens, lengths: list[int]) -> Tokens:
    # A new engine has an empty prefix cache: all sides prefill every prompt, every time.
    room = sum(len(prompt) + length + model.layout.page_size for prompt, length in zip(prompts, lengths, strict=True))
    engine = engine_of({NAME: model}, 2 * room * model.layout.token_bytes, EngineConfig(max_sequences=len(prompts)))
    tickets = [engine.submit(NAME, greedy(prompt, length)) for prompt, length in zip(prompts, lengths, strict=True)]
    run(engine)
    return samples(tickets)


def measure(load: Load, kind: str, count: int, model: PagedModel, others: dict[str, Peer], settings: Settings) -> Case:
    prompts, lengths = load.prompts[:count], lengths_of(kind, count, load.tokens)

    def side(peer: Peer) -> Callable[[], Tokens]:
        return lambda: peer.run(prompts, lengths)

    sides = {OURS: lambda: ours(model, prompts, lengths), **{name: side(peer) for name, peer in others.items()}}
    # A round of the large model is minutes long, and its smallest case has warmed everything up.
    warm = load.model == HALF and count > 1
    seconds, outputs = turns(sides, settings.repeats, settings.clock, warm)
    total = sum(lengths)
    return Case(
        load.model,
        count,
        kind,
        total,
        {name: round(total / statistics.median(times), 1) for name, times in seconds.items()},
        {name: speedup(seconds, OURS, name) for name in others},
        {name: sum(a == b for a, b in zip(outputs[OURS], outputs[name], strict=True)) for name in others},
    )


def goals_of(cases: list[Case]) -> list[Goal]:
    goals = []
    for case in cases:
        for name, ratio in case.ratio.items():
            least = _GOALS.get((case.sequences, case.lengths, name))
            if name == LLAMA and case.sequences >= _LEVEL_WITH_LLAMA_FROM:
                least = 1.0
            if least is not None:
                what = f"{case.model}, {case.sequences} sequences, {case.lengths}: times `{name}`"
                goals.append(Goal(what, least, ratio.median))
    return goals


def table(cases: list[Case], names: list[str]) -> str:
    heads = " | ".join(f"`{name}` tok/s | ratio (low–high) | same rows" for name in names)
    lines = [
        f"| model | sequences | lengths | qpdsl tok/s | {heads} |",
        "|---|---:|---|---:|" + "---:|---:|---:|" * len(names),
    ]
    for case in cases:
        cells = " | ".join(
            f"{case.speed[name]:,.1f} | {case.ratio[name]} | {case.same[name]}/{case.sequences}" for name in names
        )
        lines.append(f"| {case.model} | {case.sequences} | {case.lengths} | {case.speed[OURS]:,.1f} | {cells} |")
    return "\n".join(lines)


def bench(settings: Settings) -> None:
    cases: list[Case] = []
    absent: dict[str, str] = {}
    for name in settings.models:
        load = load_of(name, settings)
        scratch = settings.scratch / name
        scratch.mkdir(exist_ok=True)
        model = checkpoint(folder_of(load.model, scratch))
        room = Room(max(load.counts), max(map(len, load.prompts)) + 2 * load.tokens, settings.threads)
        others, missing = start_peers(settings.peers, model, room, scratch)
        absent.update(missing)
        behind = paged(model)
        for kind in ("equal", "ragged"):
            for count in load.counts:
                if kind == "equal" or count > 1:
                    cases.append(measure(load, kind, count, behind, others, settings))
                    print(cases[-1], flush=True)
        for peer in others.values():
            peer.close()
    names = [name for name in settings.peers if all(name in case.ratio for case in cases)]
    goals = goals_of(cases)
    text = (
        f"# Decode throughput, float32, greedy\n\n{table(cases, names)}\n\n{goal_table(goals)}\n\n"
        f"Ratio: how many times as many tokens a second as that system, median over {settings.repeats} rounds in turn. "
        f"Same rows: with the same tokens as ours.\n{absent_line(absent)}\n{machine_line()}\n"
    )
    record = {"repeats": settings.repeats, "clock": settings.clock, "cases": [asdict(case) for case in cases]}
    write(settings.output, "decode", text, {**record, "absent": absent}, goals)


if __name__ == "__main__":
    alone(__doc__, bench)
