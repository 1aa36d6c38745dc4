"""A prefix cache that is bounded, and one that is not: 1,000 requests, 60% of which share one of five prefixes.

    python -m benchmarks.lessons.prefix_cache [--quick]

Requests come one after another, in random order; each is a prompt and one token. A hit is a request that finds a whole
prefix in the cache. The engine's cache is a tree of pages, which evicts what nobody has read for longest. A bound of
500 entries is memory for 500 prompts; the prefix that prompts share is in it once.
"""

from __future__ import annotations

import random

from benchmarks.common.serving import greedy, run
from benchmarks.common.shapes import random_prompts
from benchmarks.lessons.served import SMALL, built_in, engine_for, main, table
from benchmarks.peers.peer import Tokens
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step_report import StepReport

REQUESTS, SHARED, PREFIXES = 1000, 0.6, 5
# Whole pages, so that a prefix can be found as a whole.
PREFIX, OWN = 64, 16


def load(count: int, vocabulary: int, seed: int = 1) -> Tokens:
    """The prompts: six in ten begin with one of five prefixes, the others share nothing."""
    draw = random.Random(seed)
    prefixes = random_prompts(PREFIXES, PREFIX, vocabulary)
    alone = random_prompts(count, PREFIX, vocabulary, seed=2)
    ends = random_prompts(count, OWN, vocabulary, seed=3)
    return [
        (prefixes[draw.randrange(PREFIXES)] if draw.random() < SHARED else own) + end
        for own, end in zip(alone, ends, strict=True)
    ]


def hits(model: PagedModel, prompts: Tokens, entries: int) -> tuple[int, int, int]:
    """Requests that found their prefix, prompt tokens that were found, and pages that were evicted."""
    reports: list[StepReport] = []
    page = model.layout.page_size
    # A prompt's pages, and those that the running request writes beside the cache.
    tokens = entries * (PREFIX + OWN) + (PREFIX + OWN + 2 * page)
    engine = engine_for(model, 1, tokens, reports.append)
    found = []
    for prompt in prompts:
        ticket = engine.submit("model", greedy(prompt, 1))
        run(engine)
        found.append(ticket.result().cached)
    return sum(cached >= PREFIX for cached in found), sum(found), reports[-1].evictions


def exercise(quick: bool) -> str:
    count, bounds = (40, (20, 40)) if quick else (REQUESTS, (10, 50, 500, REQUESTS))
    model = built_in(SMALL)
    prompts = load(count, model.vocabulary)
    known = {prompt[:PREFIX] for prompt in prompts}
    rows = []
    for entries in bounds:
        requests, tokens, evicted = hits(model, prompts, entries)
        name = "unbounded" if entries == count else f"{entries} entries"
        whole = count * (PREFIX + OWN)
        rows.append((name, f"{requests / count:.1%}", f"{tokens / whole:.1%}", f"{evicted:,}"))
    return "\n".join(
        [
            f"{count:,} requests, prompts of {PREFIX} + {OWN} tokens; "
            f"the most that any cache can hit: {(count - len(known)) / count:.1%}",
            "",
            table(("cache", "requests that hit", "prompt tokens found", "pages evicted"), rows),
        ]
    )


if __name__ == "__main__":
    main(__doc__, exercise)
