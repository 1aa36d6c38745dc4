"""KV memory oversubscribed eight times: the run finishes, with the same tokens; how much slower?

    python -m benchmarks.engine.oversubscribed [--repeats 3] [--quick]

The working set is what all sequences hold at their full length; the budget is an eighth of it. Sampled at temperature
1 from noise keys, so equal tokens are no accident of greedy decoding. "an eighth of the sequences at once" has all the
memory it wants and takes only as many sequences at a time as the small budget could hold: what a scheduler that never
had to take back anything would reach.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict

from benchmarks.common.results import Goal, goal_table, machine_line, speedup, turns, write
from benchmarks.common.serving import NAME, checkpoint, engine_of, paged, run, samples
from benchmarks.common.settings import Settings, alone
from benchmarks.common.shapes import COUNTING, counting_prompts, folder_of
from benchmarks.peers.peer import Tokens
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams

_TIMES = 8
AMPLE, SMALL, FEWER = "ample memory", "an eighth of the memory", "an eighth of the sequences at once"


def ours(
    model: PagedModel, requests: list[GenerateRequest], kv_bytes: int, slots: int
) -> tuple[Tokens, list[StepReport]]:
    reports: list[StepReport] = []
    engine = engine_of({NAME: model}, kv_bytes, EngineConfig(max_sequences=slots), reports.append)
    tickets = [engine.submit(NAME, request) for request in requests]
    run(engine)
    return samples(tickets), reports


def bench(settings: Settings) -> None:
    count, length = settings.sized(64, 16), settings.sized(256, 48)
    prompts = counting_prompts(count)
    requests = [GenerateRequest(prompt, (index,), SamplingParams(1.0), length) for index, prompt in enumerate(prompts)]
    model = paged(checkpoint(folder_of(COUNTING, settings.scratch)))
    page = model.layout.page_size
    working_set = sum(-(-(len(prompt) + length) // page) for prompt in prompts) * model.layout.page_bytes
    sides: dict[str, Callable[[], tuple[Tokens, list[StepReport]]]] = {
        AMPLE: lambda: ours(model, requests, 2 * working_set, count),
        SMALL: lambda: ours(model, requests, working_set // _TIMES, count),
        FEWER: lambda: ours(model, requests, 2 * working_set, max(1, count // _TIMES)),
    }
    seconds, returned = turns(sides, settings.repeats, settings.clock)
    rows = {
        name: {
            "seconds": round(statistics.median(seconds[name]), 3),
            "slowdown": asdict(speedup(seconds, AMPLE, name)),
            "steps": len(reports),
            "preemptions": reports[-1].preemptions,
            "computed": sum(report.prefill_tokens + report.decode_tokens for report in reports),
            "same": sum(a == b for a, b in zip(tokens, returned[AMPLE][0], strict=True)),
        }
        for name, (tokens, reports) in returned.items()
    }
    lines = [
        "| run | seconds | slowdown (low–high) | steps | preemptions | tokens computed | rows with the same tokens |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {name} | {row['seconds']:.2f} | {speedup(seconds, AMPLE, name)} | {row['steps']:,} "
        f"| {row['preemptions']:,} | {row['computed']:,} | {row['same']}/{count} |"
        for name, row in rows.items()
    ]
    goals = [Goal("share of rows with the same tokens", 1.0, rows[SMALL]["same"] / count)]
    text = (
        f"# KV memory oversubscribed {_TIMES}×: {count} sequences of {length} tokens, `{COUNTING}`, temperature 1\n\n"
        + "\n".join(lines)
        + f"\n\n{goal_table(goals)}\n\nWorking set {working_set:,} bytes, budget {working_set // _TIMES:,}. "
        f"Slowdowns are medians over {settings.repeats} rounds in turn.\n\n{machine_line()}\n"
    )
    record = {"repeats": settings.repeats, "clock": settings.clock, "working_set_bytes": working_set, "runs": rows}
    write(settings.output, "oversubscribed", text, record, goals)


if __name__ == "__main__":
    alone(__doc__, bench)
