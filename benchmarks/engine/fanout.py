"""Fan-out: 64 samples of one 1k-token prompt, against transformers and llama.cpp.

    python -m benchmarks.engine.fanout [--repeats 3] [--peers ...] [--quick]

Sampled at temperature 1, each side with its own noise, so no tokens are compared; every sample gets the same number of
tokens. Times include the prefill. `generate` stands in the table twice: with `num_return_sequences`, which prefills the
prompt for every sample, and by hand, prefilled once and the cache copied. Beside the times: the most KV pages that were
held at once, and the least that could do (the prompt once, and every sample's own tokens).
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import asdict
from functools import partial

from benchmarks.common.results import absent_line, machine_line, speedup, turns, write
from benchmarks.common.serving import NAME, checkpoint, engine_of, paged, run, samples
from benchmarks.common.settings import GENERATE, Settings, alone
from benchmarks.common.shapes import COUNTING, folder_of, random_prompts
from benchmarks.peers.generate import Generate
from benchmarks.peers.peer import Room, Tokens
from benchmarks.peers.start import start_peers
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams

OURS = "qpdsl"
BY_HAND = "generate, cache copied by hand"


def ours(model: PagedModel, prompt: tuple[int, ...], count: int, length: int) -> tuple[Tokens, int]:
    """The samples, and the most pages that were held after a step."""
    reports: list[StepReport] = []
    room = 2 * (len(prompt) + count * (length + 2 * model.layout.page_size)) * model.layout.token_bytes
    engine = engine_of({NAME: model}, room, EngineConfig(max_sequences=count), reports.append)
    ticket = engine.submit(NAME, GenerateRequest(prompt, tuple(range(count)), SamplingParams(1.0), length))
    run(engine)
    return samples([ticket]), max(report.pages_held for report in reports)


def bench(settings: Settings) -> None:
    count, length, size = settings.sized(64, 8), settings.sized(64, 8), settings.sized(1024, 200)
    # Its positions are rotations, so nothing but the configuration limits it to the length that it was trained at.
    model = checkpoint(folder_of(COUNTING, settings.scratch), positions=size + length)
    prompt = random_prompts(1, size, model.config.vocab_size)[0]
    room = Room(count, size + length, settings.threads)
    others, absent = start_peers(settings.peers, model, room, settings.scratch)
    behind = paged(model)

    sides: dict[str, Callable[[], object]] = {OURS: lambda: ours(behind, prompt, count, length)}
    for name, peer in others.items():
        sides[name] = partial(peer.fan_out, prompt, count, length)
        if name == GENERATE:
            assert isinstance(peer, Generate)
            sides[BY_HAND] = partial(peer.fan_out_by_hand, prompt, count, length)
    seconds, returned = turns(sides, settings.repeats, settings.clock)
    for peer in others.values():
        peer.close()

    medians = {name: round(statistics.median(times), 3) for name, times in seconds.items()}
    ratios = {name: speedup(seconds, OURS, name) for name in sides if name != OURS}
    page = behind.layout.page_size
    held = returned[OURS][1]
    least = size // page + count * -(-(size % page + length - 1) // page)
    lines = ["| system | seconds | tok/s | ratio (low–high) |", "|---|---:|---:|---:|"]
    for name, median in medians.items():
        ratio = ratios.get(name, "")
        lines.append(f"| {name} | {median:.2f} | {count * length / median:,.0f} | {ratio} |")
    text = (
        f"# Fan-out: {count} samples of {length} tokens from one prompt of {size}, `{COUNTING}`, float32\n\n"
        + "\n".join(lines)
        + f"\n\nRatio: how many times as fast ours is, median over {settings.repeats} rounds in turn.\n"
        f"KV pages of {page} tokens: {held} held at the most, {least} are the least that could do.\n"
        f"{absent_line(absent)}\n{machine_line()}\n"
    )
    record = {
        "repeats": settings.repeats,
        "clock": settings.clock,
        "samples": count,
        "prompt_tokens": size,
        "tokens": length,
        "seconds": medians,
        "ratio": {name: asdict(ratio) for name, ratio in ratios.items()},
        "pages_held": held,
        "pages_least": least,
        "absent": absent,
    }
    write(settings.output, "fanout", text, record)


if __name__ == "__main__":
    alone(__doc__, bench)
