"""Prefix reuse: many requests that begin with one of five long prefixes, like the few-shot prompts of five tasks.

    python -m benchmarks.engine.prefix [--repeats 3] [--peers generate generate_batch] [--quick]

Hit rate: prompt tokens found in the prefix cache, over all prompt tokens. Ideal: every prefix computed once. Three ways
in which the requests come (all at once; in waves of eight; one after another), and two budgets: one that holds
everything, and one that holds what all running sequences have of their own, and two of the prefixes. The order of the
prefixes is random, so a first-come-first-served scheduler with the small budget throws out what the next request needs.
Peers get new prompts in each round, and so do we beside them: `generate_batch` keeps its blocks between rounds.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial

from benchmarks.common.results import Ratio, absent_line, machine_line, speedup, turns, write
from benchmarks.common.serving import NAME, checkpoint, engine_of, greedy, paged, run, samples
from benchmarks.common.settings import GENERATE, GENERATE_BATCH, Settings, alone
from benchmarks.common.shapes import COUNTING, folder_of, random_prompts
from benchmarks.peers.peer import Peer, Room, Tokens
from benchmarks.peers.start import start_peers
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig

OURS, COLD = "qpdsl", "qpdsl, nothing shared"
_PREFIXES, _SLOTS = 5, 16


@dataclass(frozen=True)
class Case:
    """One way of arriving under one budget: hit rate, what an ideal cache would hit, and how much faster than none."""

    arrival: str
    budget: str
    hit_rate: float
    ideal: float
    seconds: float
    faster_than_nothing_shared: Ratio


def workload(count: int, prefix: int, suffix: int, vocabulary: int) -> Tokens:
    """`count` prompts: one of five prefixes, drawn evenly, and a suffix of its own."""
    prefixes = random_prompts(_PREFIXES, prefix, vocabulary)
    suffixes = random_prompts(count, suffix, vocabulary, seed=2)
    draw = random.Random(4)
    return [prefixes[draw.randrange(_PREFIXES)] + own for own in suffixes]


def apart(prompts: Tokens, prefix: int, vocabulary: int) -> Tokens:
    """The same requests with nothing in common: the cost where no cache can help."""
    others = random_prompts(len(prompts), prefix, vocabulary, seed=5)
    return [other + prompt[prefix:] for other, prompt in zip(others, prompts, strict=True)]


def ours(model: PagedModel, prompts: Tokens, length: int, portion: int, kv_bytes: int) -> tuple[Tokens, int]:
    """The tokens, and how many prompt tokens came out of the cache. `portion` requests at a time."""
    engine = engine_of({NAME: model}, kv_bytes, EngineConfig(max_sequences=_SLOTS))
    tickets = []
    for start in range(0, len(prompts), portion):
        tickets += [engine.submit(NAME, greedy(prompt, length)) for prompt in prompts[start : start + portion]]
        run(engine)
    return samples(tickets), sum(ticket.result().cached for ticket in tickets)


def _run_peer(peer: Peer, length: int, prompts: Tokens) -> Tokens:
    return peer.run(prompts, [length] * len(prompts))


def bench(settings: Settings) -> None:
    count, prefix, suffix, length = settings.sized(120, 20), settings.sized(512, 96), 32, settings.sized(16, 4)
    model = checkpoint(folder_of(COUNTING, settings.scratch))
    vocabulary = model.config.vocab_size
    prompts = workload(count, prefix, suffix, vocabulary)
    cold_prompts = apart(prompts, prefix, vocabulary)
    wanted = [name for name in settings.peers if name in (GENERATE, GENERATE_BATCH)]
    room = Room(_SLOTS, prefix + suffix + length, settings.threads, sharing=True)
    others, absent = start_peers(wanted, model, room, settings.scratch)
    behind = paged(model)
    token = behind.layout.token_bytes
    page = behind.layout.page_size
    own = suffix + length + 2 * page
    ample = 2 * (_PREFIXES * (prefix + page) + count * own) * token
    small = (2 * (prefix + page) + _SLOTS * own) * token
    ideal = (count - len({prompt[:prefix] for prompt in prompts})) * prefix / (count * (prefix + suffix))

    cases: list[Case] = []
    tokens: list[Tokens] = []
    for arrival, portion in (("all at once", count), ("waves of eight", 8), ("one after another", 1)):
        for budget, kv_bytes in (("ample", ample), ("small", small)):
            sides = {
                OURS: partial(ours, behind, prompts, length, portion, kv_bytes),
                COLD: partial(ours, behind, cold_prompts, length, portion, kv_bytes),
            }
            seconds, returned = turns(sides, settings.repeats, settings.clock)
            hits = returned[OURS][1] / sum(map(len, prompts))
            median = round(statistics.median(seconds[OURS]), 3)
            faster = speedup(seconds, OURS, COLD)
            cases.append(Case(arrival, budget, round(hits, 4), round(ideal, 4), median, faster))
            tokens.append(returned[OURS][0])
    agree = all(side == tokens[0] for side in tokens)

    def fresh(run_all: Callable[[Tokens], object]) -> Callable[[], object]:
        """A side whose prompts share nothing with those of its last round."""
        rounds = itertools.count(1)

        def once() -> object:
            shift = next(rounds)
            return run_all([tuple((token + shift) % vocabulary for token in prompt) for prompt in prompts])

        return once

    beside = {OURS: fresh(lambda fresh_prompts: ours(behind, fresh_prompts, length, count, ample))}
    for name, peer in others.items():
        beside[name] = fresh(partial(_run_peer, peer, length))
    seconds, _ = turns(beside, settings.repeats, settings.clock)
    for peer in others.values():
        peer.close()

    lines = [
        "| requests come | budget | hit rate | of the ideal | seconds | times as fast as with nothing shared |",
        "|---|---|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {case.arrival} | {case.budget} | {case.hit_rate:.1%} | {case.hit_rate / case.ideal:.1%} "
        f"| {case.seconds:.2f} | {case.faster_than_nothing_shared} |"
        for case in cases
    ]
    ratios = {name: speedup(seconds, OURS, name) for name in others}
    against = "".join(f"All at once, ample: {ratio} times as fast as `{name}`.\n" for name, ratio in ratios.items())
    text = (
        f"# Prefix reuse: {count} requests, {_PREFIXES} prefixes of {prefix} tokens, suffixes of {suffix}, "
        f"{length} tokens out, `{COUNTING}`\n\n" + "\n".join(lines) + "\n\n"
        f"The ideal, every prefix computed once: {ideal:.1%}. Budgets: {ample:,} and {small:,} bytes; "
        f"{_SLOTS} sequences at once.\n"
        f"Tokens in all cases the same: {'yes' if agree else '**no**'}.\n{against}{absent_line(absent)}\n"
        f"{machine_line()}\n"
    )
    record = {
        "repeats": settings.repeats,
        "clock": settings.clock,
        "cases": [asdict(case) for case in cases],
        "same_tokens": agree,
        "ratio": {name: asdict(ratio) for name, ratio in ratios.items()},
        "absent": absent,
    }
    write(settings.output, "prefix", text, record)


if __name__ == "__main__":
    alone(__doc__, bench)
