"""Decode of a hybrid model against transformers and llama.cpp, at the width of Qwen3.5-0.8B with random weights.

    python -m benchmarks.engine.hybrid [--threads 2] [--rows 1 8] [--layers 8] [--tokens 32] [--repeats 3]
                                       [--clock wall] [--peers generate llama.cpp] [--quick] [--output FOLDER]

All sides decode greedily in float32 from the same prompts and weights, in turn; times include short prompts. Layers are
three of the gated delta rule to one of attention, and the vocabulary is Qwen3.5's. `recurrence`: the share of a step
that goes by between the two projections of a recurrent layer, from steps with and without what is done there:
convolutions, the delta rule, gates and norms. `of the bytes`: the share of states in what a step reads and writes,
which is theirs of a step that waits for memory alone. `--quick` takes a tiny shape, to see that it works.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedModel

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import Goal, Ratio, absent_line, goal_table, machine_line, speedup, turns, write
from benchmarks.common.serving import NAME, engine_of, greedy, paged, run, samples
from benchmarks.common.settings import GENERATE, LLAMA
from benchmarks.common.shapes import random_prompts
from benchmarks.peers.peer import Peer, Room, Tokens
from benchmarks.peers.start import start_peers
from qpdsl.executor.engine.model.native_stack import NativeStack
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.kernels.llvm.forward import LAYER

OURS = "qpdsl"
# At most such a share of a step goes by between the projections of recurrent layers.
_SHARE = 0.1
_SHAPE = {
    "vocab_size": 248_320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
    "tie_word_embeddings": True,
}
_TINY = {"vocab_size": 512, "hidden_size": 128, "intermediate_size": 256, "num_attention_heads": 4, "head_dim": 64}
_PROMPT = 8
# At least so many times as many tokens a second.
_GOALS = {GENERATE: 1.5, LLAMA: 1.0}
_KV_BYTES = 256 << 20


@dataclass(frozen=True)
class Case:
    """Tokens a second of each side; the ratio of ours to each other one; and in how many rows the tokens agree.

    recurrence, moved: see `share` and `moved`
    """

    rows: int
    speed: dict[str, float]
    ratio: dict[str, Ratio]
    same: dict[str, int]
    recurrence: Ratio
    moved: float


def random_model(layers: int, quick: bool) -> PreTrainedModel:
    shape = {**_SHAPE, **(_TINY if quick else {})}
    config = CONFIG_MAPPING["qwen3_5_text"](**shape, num_hidden_layers=layers)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def ours(model: PagedModel, prompts: Tokens, tokens: int) -> Tokens:
    # A new engine has an empty prefix cache.
    engine = engine_of({NAME: model}, _KV_BYTES, EngineConfig(max_sequences=len(prompts)))
    tickets = [engine.submit(NAME, greedy(prompt, tokens)) for prompt in prompts]
    run(engine)
    return samples(tickets)


@contextmanager
def left_out(model: PagedModel) -> Iterator[None]:
    """Inside the block, layers go from one projection of a recurrence to the other at once, and tokens are wrong."""
    stack = model._stack
    assert isinstance(stack, NativeStack)
    codes = stack.table[:, LAYER.index("rule code")]
    own = codes.copy()
    codes[:] = 0
    try:
        yield
    finally:
        codes[:] = own


def step_seconds(model: PagedModel, prompts: Tokens, tokens: int, clock: Callable[[], float]) -> float:
    """Of the middle one of the steps after that of the prompts, which touches new memory."""
    engine = engine_of({NAME: model}, _KV_BYTES, EngineConfig(max_sequences=len(prompts)))
    for prompt in prompts:
        engine.submit(NAME, greedy(prompt, tokens))
    seconds: list[float] = []
    while engine.has_work:
        start = clock()
        engine.step()
        seconds.append(clock() - start)
    return statistics.median(seconds[1:])


def share(model: PagedModel, prompts: Tokens, arguments: argparse.Namespace) -> Ratio:
    """The part of a step that goes by between the projections of recurrent layers: it takes so much less without."""
    clock = time.perf_counter if arguments.clock == "wall" else time.process_time
    shares = []
    for _ in range(arguments.repeats):
        whole = step_seconds(model, prompts, arguments.tokens, clock)
        with left_out(model):
            shares.append(1 - step_seconds(model, prompts, arguments.tokens, clock) / whole)
    return Ratio.of(shares)


def moved(rows: int, model: PagedModel) -> float:
    """The share of states in the bytes that a step of so many rows moves: a state is read and written."""
    assert model.states is not None
    states = 2 * rows * model.states.block_bytes
    return states / (states + model.weight_bytes)


def measure(rows: int, model: PagedModel, others: dict[str, Peer], arguments: argparse.Namespace) -> Case:
    prompts = random_prompts(rows, _PROMPT, model.head.width)
    tokens: int = arguments.tokens

    def side(peer: Peer) -> Callable[[], Tokens]:
        return lambda: peer.run(prompts, [tokens] * rows)

    sides = {OURS: lambda: ours(model, prompts, tokens), **{name: side(peer) for name, peer in others.items()}}
    seconds, outputs = turns(sides, arguments.repeats, arguments.clock)
    return Case(
        rows,
        {name: round(rows * tokens / statistics.median(times), 1) for name, times in seconds.items()},
        {name: speedup(seconds, OURS, name) for name in others},
        {name: sum(a == b for a, b in zip(outputs[OURS], outputs[name], strict=True)) for name in others},
        share(model, prompts, arguments),
        round(moved(rows, model), 3),
    )


def percent(share: Ratio) -> str:
    return f"{share.median:.1%} ({share.low:.1%}–{share.high:.1%})"


def table(cases: list[Case], names: list[str]) -> str:
    heads = "".join(f" `{name}` tok/s | ratio (low–high) | same rows |" for name in names)
    lines = [
        f"| rows | qpdsl tok/s | recurrence (low–high) | of the bytes |{heads}",
        "|---:|---:|---:|---:|" + "---:|---:|---:|" * len(names),
    ]
    for case in cases:
        cells = "".join(f" {case.speed[name]:,.1f} | {case.ratio[name]} | {case.same[name]} |" for name in names)
        own = f"{case.speed[OURS]:,.1f} | {percent(case.recurrence)} | {case.moved:.1%}"
        lines.append(f"| {case.rows} | {own} |{cells}")
    return "\n".join(lines)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=2)
    options.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    options.add_argument("--layers", type=int, default=8)
    options.add_argument("--tokens", type=int, default=32)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--clock", choices=("wall", "cpu"), default="wall")
    options.add_argument("--peers", nargs="*", choices=(GENERATE, LLAMA), default=[GENERATE, LLAMA])
    options.add_argument("--quick", action="store_true", help="a tiny shape: does it work?")
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    model = random_model(arguments.layers, arguments.quick)
    room = Room(max(arguments.rows), _PROMPT + arguments.tokens, arguments.threads)
    with tempfile.TemporaryDirectory() as scratch:
        others, absent = start_peers(arguments.peers, model, room, Path(scratch))
        behind = paged(model)
        cases = [measure(rows, behind, others, arguments) for rows in arguments.rows]
        for peer in others.values():
            peer.close()
    goals = [
        Goal(f"{case.rows} row(s): times `{name}`", _GOALS[name], ratio.median)
        for case in cases
        for name, ratio in case.ratio.items()
    ]
    goals += [
        Goal(f"{case.rows} row(s): share of all but recurrences", 1 - _SHARE, 1 - case.recurrence.median)
        for case in cases
    ]
    width = "a tiny width" if arguments.quick else "Qwen3.5-0.8B's width"
    text = (
        f"# Decode of a hybrid model, {arguments.layers} layers of {width}, float32, greedy, "
        f"{arguments.threads} thread(s)\n\n{table(cases, [*others])}\n\n{goal_table(goals)}\n\n"
        f"Ours run as {behind.implementation}. Ratio: how many times as many tokens a second as that system, median "
        f"over {arguments.repeats} rounds in turn, on the {arguments.clock} clock. Same rows: with the same tokens as "
        "ours.\n"
        f"{absent_line(absent)}\n{machine_line()}\n"
    )
    write(arguments.output, "hybrid", text, {"cases": [asdict(case) for case in cases], "absent": absent}, goals)


if __name__ == "__main__":
    main()
