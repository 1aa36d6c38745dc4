"""A generator and a verifier in one KV budget, against the same two in fixed parts of it, the best split found.

    python -m benchmarks.engine.shared_budget [--repeats 3] [--quick]

Beam searches side by side, on token ids: each round draws four continuations of the best one so far on zoo/counting,
reads a score of each on zoo/counting-prm, and keeps the highest. Generator and verifier want memory in turn: the one
for what it draws, the other for what it reads. The budget is a third of what all searches hold at the end on both
models. *By least recent use* has pages of both models leave the cache in that order, as if all took equally long to
compute again. A fixed split is two engines with a part each, stepped in turn as one engine steps its models. Computed
tokens count recomputation, whatever else the machine does.
"""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from benchmarks.common.results import Goal, goal_table, machine_line, speedup, turns, write
from benchmarks.common.serving import checkpoint, engine_of, paged
from benchmarks.common.settings import Settings, alone
from benchmarks.common.shapes import COUNTING, counting_prompts, folder_of
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests import engine_loop
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import Completion, GenerateRequest, ReadRequest, SamplingParams

_GENERATOR, _VERIFIER = COUNTING, "zoo/counting-prm"
_WIDTH = 4
_SPLITS = (0.3, 0.45, 0.6, 0.7, 0.8, 0.9)
SHARED = "one budget"


@dataclass(frozen=True)
class Load:
    """Searches of `rounds` rounds of `tokens` tokens each."""

    prompts: list[tuple[int, ...]]
    rounds: int
    tokens: int

    def working_set(self, models: Mapping[str, PagedModel]) -> int:
        """Bytes that the last round holds on both models, whole pages, what siblings share counted once."""
        total = 0
        for prompt in self.prompts:
            for model in models.values():
                page = model.layout.page_size
                shared = (len(prompt) + (self.rounds - 1) * self.tokens) // page
                own = -(-(self.tokens + page) // page)
                total += (shared + _WIDTH * own) * model.layout.page_bytes
        return total


@dataclass(frozen=True)
class Outcome:
    """Where each search ended; the tokens computed and the preemptions on both models."""

    ends: list[tuple[int, ...]] | None
    computed: int
    preemptions: int


Submit = Callable[[str, GenerateRequest | ReadRequest], Awaitable[Completion]]


async def search(submit: Submit, load: Load, number: int) -> tuple[int, ...]:
    """One beam search; its noise depends on its number, the round and the sample."""
    context = load.prompts[number]
    for round_ in range(load.rounds):
        keys = tuple((number << 16) + (round_ << 8) + sample for sample in range(_WIDTH))
        drawn = await submit(_GENERATOR, GenerateRequest(context, keys, SamplingParams(1.0), load.tokens))
        texts = [context + sample.tokens for sample in drawn.samples]
        # One position and two ids, as a process reward model reads them.
        reads = [submit(_VERIFIER, ReadRequest(text, (len(text) - 1,), (5, 6))) for text in texts]
        scores = [round(yes - no, 4) for read in await asyncio.gather(*map(_whole, reads)) for yes, no in read.logits]
        context = texts[scores.index(max(scores))]
    return context


async def _whole(read: Awaitable[Completion]) -> Completion:
    return await read


def searched(
    load: Load, models: Mapping[str, PagedModel], budgets: Mapping[tuple[str, ...], int], *, recent: bool = False
) -> Outcome:
    """Runs the load; `budgets` gives every engine its models and bytes. `recent`: pages go by least recent use."""
    reports: list[StepReport] = []
    engines: dict[str, PagedEngine] = {}
    config = EngineConfig(max_sequences=_WIDTH * len(load.prompts))
    for names, kv_bytes in budgets.items():
        engine = engine_of({name: models[name] for name in names}, kv_bytes, config, reports.append)
        engines.update(dict.fromkeys(names, engine))
        for runner in engine.models.runners.values() if recent else ():
            # Pages of equal worth go by least recent use.
            runner.scheduler.memory.tree._cost = 0.0

    async def all_searches() -> list[tuple[int, ...]]:
        drivers = [asyncio.create_task(engine.drive()) for engine in dict.fromkeys(engines.values())]

        def submit(name: str, request: GenerateRequest | ReadRequest) -> Awaitable[Completion]:
            return engines[name].submit(name, request)

        try:
            return await asyncio.gather(*(search(submit, load, number) for number in range(len(load.prompts))))
        finally:
            for driver in drivers:
                driver.cancel()

    try:
        ends: list[tuple[int, ...]] | None = engine_loop.run(all_searches())
    except EngineError:
        ends = None
    last = {report.model: report.preemptions for report in reports}
    computed = sum(report.prefill_tokens + report.decode_tokens for report in reports)
    return Outcome(ends, computed, sum(last.values()))


def bench(settings: Settings) -> None:
    count = settings.sized(24, 6)
    load = Load(counting_prompts(count), settings.sized(6, 3), settings.sized(24, 8))
    models = {name: paged(checkpoint(folder_of(name, settings.scratch))) for name in (_GENERATOR, _VERIFIER)}
    budget = load.working_set(models) // 3
    sides: dict[str, Callable[[], Outcome]] = {
        "memory for everything": partial(searched, load, models, {(_GENERATOR, _VERIFIER): 6 * budget}),
        SHARED: partial(searched, load, models, {(_GENERATOR, _VERIFIER): budget}),
        f"{SHARED}, by least recent use": partial(
            searched, load, models, {(_GENERATOR, _VERIFIER): budget}, recent=True
        ),
    }
    splits = {f"{part:.0%} to the generator": part for part in _SPLITS}
    for name, part in splits.items():
        parts: dict[tuple[str, ...], int] = {(_GENERATOR,): int(part * budget), (_VERIFIER,): int((1 - part) * budget)}
        sides[name] = partial(searched, load, models, parts)
    seconds, returned = turns(sides, settings.repeats, settings.clock)

    finished = [name for name in splits if returned[name].ends is not None]
    medians = {name: round(statistics.median(times), 3) for name, times in seconds.items()}
    best = min(finished, key=medians.__getitem__)
    rows: dict[str, dict[str, Any]] = {
        name: {
            "seconds": medians[name] if returned[name].ends is not None else None,
            "tokens_computed": returned[name].computed,
            "preemptions": returned[name].preemptions,
            "same_ends": returned[name].ends == returned[SHARED].ends,
        }
        for name in sides
    }
    lines = [
        "| memory | seconds | times as long as one budget (low–high) | tokens computed | preemptions | same tokens |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for name, row in rows.items():
        if row["seconds"] is None:
            lines.append(f"| {name} | a sequence does not fit | | | | |")
            continue
        lines.append(
            f"| {name} | {row['seconds']:.2f} | {speedup(seconds, SHARED, name)} | {row['tokens_computed']:,} "
            f"| {row['preemptions']:,} | {'yes' if row['same_ends'] else '**no**'} |"
        )
    ratio = speedup(seconds, SHARED, best)
    goals = [Goal(f"time of the best split ({best}) over one budget's", 1.0, ratio.median)]
    text = (
        f"# Generator and verifier in one KV budget: {count} beam searches of {load.rounds} rounds, "
        f"{_WIDTH} × {load.tokens} tokens each\n\n"
        + "\n".join(lines)
        + f"\n\n{goal_table(goals)}\n\nBudget {budget:,} bytes. Ratios are medians over {settings.repeats} rounds "
        f"in turn.\n\n{machine_line()}\n"
    )
    record = {
        "repeats": settings.repeats,
        "clock": settings.clock,
        "budget_bytes": budget,
        "runs": rows,
        "best_split": best,
        "ratio_to_best_split": asdict(ratio),
    }
    write(settings.output, "shared_budget", text, record, goals)


if __name__ == "__main__":
    alone(__doc__, bench)
