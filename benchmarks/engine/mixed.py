"""A mixed load with Pareto output lengths: continuous against static batching.

    python -m benchmarks.engine.mixed [--repeats 3] [--peers ...] [--quick]

More requests than slots, all there from the start, in random order; output lengths follow a Pareto distribution, as
those of people's requests do: many short, a few very long. Greedy, float32. "qpdsl, static": the same engine, given one
batch at a time. Slot use: output tokens over steps times slots, the whole run with its tail counted; unknown for
`generate_batch`, which does not count its steps.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.common.results import Goal, absent_line, goal_table, machine_line, speedup, turns, write
from benchmarks.common.serving import NAME, checkpoint, engine_of, greedy, paged, run, samples
from benchmarks.common.settings import Settings, alone
from benchmarks.common.shapes import COUNTING, counting_prompts, folder_of
from benchmarks.peers.peer import Peer, Room, Tokens
from benchmarks.peers.start import start_peers
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport

OURS, STATIC = "qpdsl", "qpdsl, static"
_SHORTEST, _LONGEST, _SHAPE = 16, 256, 1.2


def pareto(count: int, shortest: int, longest: int, seed: int = 3) -> list[int]:
    """Lengths with P(length > x) falling as x to the power of −1.2, cut off at `longest`."""
    draw = random.Random(seed)
    return [min(longest, int(shortest * draw.paretovariate(_SHAPE))) for _ in range(count)]


def ours(
    model: PagedModel, prompts: Tokens, lengths: list[int], slots: int, portion: int | None = None
) -> tuple[Tokens, int]:
    """The tokens and the number of steps. With `portion`, that many requests at a time, the next when all are done."""
    reports: list[StepReport] = []
    room = 2 * slots * (max(map(len, prompts)) + max(lengths) + 32) * model.layout.token_bytes
    engine = engine_of({NAME: model}, room, EngineConfig(max_sequences=slots), reports.append)
    requests = [greedy(prompt, length) for prompt, length in zip(prompts, lengths, strict=True)]
    tickets = []
    for start in range(0, len(requests), portion or len(requests)):
        tickets += [engine.submit(NAME, request) for request in requests[start : start + (portion or len(requests))]]
        run(engine)
    return samples(tickets), len(reports)


def bench(settings: Settings) -> None:
    slots, count = settings.sized(32, 8), settings.sized(1024, 40)
    longest = settings.sized(_LONGEST, 64)
    prompts = counting_prompts(count)
    lengths = pareto(count, settings.sized(_SHORTEST, 4), longest)
    model = checkpoint(folder_of(COUNTING, settings.scratch))
    room = Room(slots, max(map(len, prompts)) + longest, settings.threads)
    others, absent = start_peers(settings.peers, model, room, settings.scratch)
    behind = paged(model)

    def side(peer: Peer) -> Callable[[], tuple[Tokens, int | None]]:
        # Both at once: the steps are those of this call.
        return lambda: (peer.run(prompts, lengths), getattr(peer, "steps", None))

    sides: dict[str, Callable[[], tuple[Tokens, int | None]]] = {
        OURS: lambda: ours(behind, prompts, lengths, slots),
        STATIC: lambda: ours(behind, prompts, lengths, slots, slots),
        **{name: side(peer) for name, peer in others.items()},
    }
    seconds, returned = turns(sides, settings.repeats, settings.clock)
    for peer in others.values():
        peer.close()

    total = sum(lengths)
    use = {name: total / (steps * slots) for name, (_, steps) in returned.items() if steps}
    medians = {name: round(statistics.median(times), 3) for name, times in seconds.items()}
    ratios = {name: speedup(seconds, OURS, name) for name in sides if name != OURS}
    same = {
        name: sum(a == b for a, b in zip(tokens, returned[OURS][0], strict=True))
        for name, (tokens, _) in returned.items()
    }
    lines = [
        "| system | tok/s | ours over it (low–high) | slot use | rows with the same tokens |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, median in medians.items():
        used = f"{use[name]:.0%}" if name in use else "not counted"
        lines.append(f"| {name} | {total / median:,.0f} | {ratios.get(name, '')} | {used} | {same[name]}/{count} |")
    goals = [Goal("slot use", 0.8, round(use[OURS], 3))]
    spread = f"{min(lengths)} to {max(lengths)}, median {statistics.median(lengths):g}, mean {total / count:.0f}"
    text = (
        f"# Mixed load: {count} requests in {slots} slots, `{COUNTING}`, float32, greedy\n\n"
        f"Output tokens: {spread}.\n\n" + "\n".join(lines) + f"\n\n{goal_table(goals)}\n\n"
        f"Ratios are medians over {settings.repeats} rounds in turn.\n{absent_line(absent)}\n{machine_line()}\n"
    )
    record = {
        "repeats": settings.repeats,
        "clock": settings.clock,
        "requests": count,
        "slots": slots,
        "lengths": lengths,
        "seconds": medians,
        "ratio": {name: asdict(ratio) for name, ratio in ratios.items()},
        "slot_use": {name: round(value, 4) for name, value in use.items()},
        "same_tokens": same,
        "absent": absent,
    }
    write(settings.output, "mixed", text, record, goals)


if __name__ == "__main__":
    alone(__doc__, bench)
