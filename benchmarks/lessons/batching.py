"""Continuous batching under a Pareto load: which share of the batch's slots is filled, step by step.

    python -m benchmarks.lessons.batching [--quick]

Fifty requests come at once to an engine with four slots. Their output lengths follow a Pareto distribution (shape 1.5,
scale 20), cut off where the model's context ends. Static: the engine is given four requests, and the next four when
all of them are done. Continuous: it is given all, and fills a slot in the step after it is free. A step is one forward
of the model. How full the slots are follows from the lengths: below, for a hundred draws of them. KV memory without a
token: the ends of pages at all steps of the engine, and what memory would hold none if each request had a place of its
own, in one piece, for as many tokens as any request may come to.
"""

from __future__ import annotations

import heapq
import random
import statistics
from collections.abc import Sequence
from pathlib import Path

from benchmarks.common.serving import greedy, run, samples
from benchmarks.common.shapes import counting_prompts
from benchmarks.lessons.served import SMALL, built_in, engine_for, main, table
from benchmarks.peers.peer import Tokens
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.tui.widgets.figures import graph

SLOTS, SHAPE, SCALE, LONGEST = 4, 1.5, 20, 400
SIDES = ("static", "continuous")
# The plot in a terminal: at most so many columns, and lines.
_COLUMNS, _LINES = 100, 4
_DRAWS, _ENOUGH = 100, 0.8
PICTURE = Path(__file__).with_name("batching.svg")


def lengths_of(count: int, seed: int = 3) -> list[int]:
    """Pareto lengths: P(length > x) = (scale / x)^shape."""
    draw = random.Random(seed)
    return [min(LONGEST, int(SCALE * draw.paretovariate(SHAPE))) for _ in range(count)]


def filled(lengths: Sequence[int]) -> float:
    """The share of slots that continuous batching fills, by arithmetic: each request in the slot that is free first."""
    ends = [0] * SLOTS
    for length in lengths:
        heapq.heapreplace(ends, ends[0] + length)
    return sum(lengths) / (SLOTS * max(ends))


def reserved_for_nothing(prompts: Tokens, lengths: Sequence[int]) -> float:
    """The share of memory without a token, over all steps, where each request has a place for the longest."""
    place = max(map(len, prompts)) + LONGEST
    stored = sum(length * (len(prompt) + length / 2) for prompt, length in zip(prompts, lengths, strict=True))
    return 1 - stored / (place * sum(lengths))


def ends_of_pages(reports: Sequence[StepReport], page_bytes: int) -> float:
    """The share of the pages in use without a token, over all steps; the engine has one more for its own ends."""
    held = sum(report.pages_held * page_bytes for report in reports)
    unused = sum(report.leased_bytes - (report.pages_held + 1) * page_bytes for report in reports)
    return (sum(report.wasted_bytes for report in reports) - unused) / held


def used(
    model: PagedModel, prompts: Tokens, lengths: Sequence[int], portion: int
) -> tuple[list[StepReport], int, Tokens]:
    """The steps, the one at which the last request began, and the tokens."""
    reports: list[StepReport] = []
    engine = engine_for(model, SLOTS, 2 * SLOTS * (max(map(len, prompts)) + LONGEST), reports.append)
    tickets, last = [], 0
    for start in range(0, len(lengths), portion):
        last = len(reports)
        pairs = zip(prompts[start : start + portion], lengths[start : start + portion], strict=True)
        tickets += [engine.submit("model", greedy(prompt, length)) for prompt, length in pairs]
        run(engine)
    last = max(last, next(at for at, report in enumerate(reports) if report.waiting == 0))
    return reports, last, samples(tickets)


def exercise(quick: bool, picture: Path | None = None) -> str:
    count = 10 if quick else 50
    lengths = lengths_of(count)
    model, prompts = built_in(SMALL), counting_prompts(count)
    ran = {side: used(model, prompts, lengths, SLOTS if side == "static" else count) for side in SIDES}
    sides = {
        side: ([report.sequences / SLOTS for report in reports], last, tokens)
        for side, (reports, last, tokens) in ran.items()
    }
    longest = max(len(use) for use, _, _ in sides.values())
    lines = [
        f"{count} requests in {SLOTS} slots: {min(lengths)} to {max(lengths)} tokens each, "
        f"median {statistics.median(lengths):g}, mean {statistics.mean(lengths):.0f}",
        "",
        table(
            ("", "steps", "slots filled", "while requests wait"),
            [
                (side, f"{len(use)}", f"{statistics.mean(use):.1%}", f"{statistics.mean(use[: last + 1]):.1%}")
                for side, (use, last, _) in sides.items()
            ],
        ),
    ]
    for side, (use, _, _) in sides.items():
        lines += ["", f"{side}: slots filled, of {SLOTS}, over {longest} steps"]
        columns = max(1, round(len(use) * min(1, _COLUMNS / longest)))
        lines += [f"|{line.ljust(min(_COLUMNS, longest))}|" for line in graph(use, columns, _LINES, 1.0)]
    first, *others = (tokens for _, _, tokens in sides.values())
    shares = [filled(lengths_of(count, seed)) for seed in range(_DRAWS)]
    enough = sum(share > _ENOUGH for share in shares)
    lines += [
        "",
        f"continuous, {_DRAWS} draws of the lengths: median {statistics.median(shares):.1%}, "
        f"{enough} above {_ENOUGH:.0%}, least {min(shares):.1%}",
        "KV memory without a token: "
        f"{ends_of_pages(ran['continuous'][0], model.layout.page_bytes):.1%} of the pages, "
        f"{reserved_for_nothing(prompts, lengths):.1%} of places for the longest request",
        f"the same tokens: {'yes' if all(tokens == first for tokens in others) else 'NO'}",
    ]
    if picture is not None:
        draw({side: use for side, (use, _, _) in sides.items()}, picture)
    return "\n".join(lines)


def draw(sides: dict[str, list[float]], path: Path) -> None:
    """Writes the slots filled over time as SVG: the same bytes for the same figures."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams.update({"svg.hashsalt": "qpdsl", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3})
    picture, panels = plt.subplots(len(sides), 1, figsize=(9, 4), layout="constrained", sharex=True, sharey=True)
    for axes, (side, use) in zip(panels.flat, sides.items(), strict=True):
        axes.fill_between(range(len(use)), [100 * part for part in use], step="post", alpha=0.7)
        axes.axhline(80, color="C3", linewidth=1, linestyle="--")
        axes.set_title(f"{side}: {statistics.mean(use):.0%} of the slots over {len(use)} steps", loc="left")
        axes.set_ylabel("slots filled, %")
    panels.flat[-1].set_xlabel("step")
    picture.savefig(path, metadata={"Date": None})
    plt.close(picture)


if __name__ == "__main__":
    main(__doc__, exercise)
