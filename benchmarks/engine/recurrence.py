"""What a step of a hybrid model spends on recurrences, at the shape of Qwen3.5-0.8B with random weights.

    python -m benchmarks.engine.recurrence [--threads 1] [--rows 1 8] [--prompt 512] [--layers 24] [--repeats 9]

A step has a row of each of several texts, or one text's prompt; its layers, in bfloat16 as the checkpoint is, run as
the engine runs transformers' modules, and the head after them. Attention is left out: it grows with the context, so the
shares are the largest that there are. `recurrence`: convolutions and the delta rule. `between projections`: these, and
gates, norms and casts. Times are the median step's, on the processor's clock.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import CONFIG_MAPPING, AttentionInterface, AutoModel

from benchmarks.common.folders import RESULTS
from benchmarks.common.results import Goal, goal_table, machine_line, write
from qpdsl.executor.engine.model.mixers import Mixers, state_step, take_over
from qpdsl.executor.engine.model.rowwise import RowwiseModules
from qpdsl.executor.kernels import recurrences
from qpdsl.executor.kernels.data.states import FRESH, StateRows, StateSegment, StateStep
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.kernels.linear import PackedLinear

_SHAPE = {
    "vocab_size": 248_320,
    "hidden_size": 1024,
    "intermediate_size": 3584,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 16,
}
# At most so much of a step at 1 and at 8 rows.
_GOAL = 0.1
_CLASSES = (recurrences.ShortConvolution, recurrences.MatrixState)


def left_out(
    module: torch.nn.Module, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *others: Any, **named: Any
) -> tuple[torch.Tensor, None]:
    """An attention function that gives each row its own query."""
    return query.transpose(1, 2).contiguous(), None


class Hybrid:
    """The model, and the states of `texts` texts."""

    def __init__(self, layers: int, texts: int) -> None:
        AttentionInterface.register("left_out", left_out)
        config = CONFIG_MAPPING["qwen3_5_text"](**_SHAPE, num_hidden_layers=layers)
        torch.manual_seed(0)
        self.inner: Any = AutoModel.from_config(config, dtype=torch.bfloat16, attn_implementation="left_out").eval()
        mixers = take_over(self.inner, config)
        assert mixers is not None
        self.mixers: Mixers = mixers
        layout = mixers.layout
        self.states = StateRows(torch.zeros(texts * layout.block_bytes, dtype=torch.uint8), layout)
        self.head = PackedLinear(FloatWeight(self.inner.embed_tokens.weight.detach()))
        with torch.no_grad():
            RowwiseModules(self.inner, lambda: self.hidden([(FRESH, 0, 0, 5)])).keep()

    def hidden(self, segments: Sequence[tuple[int, int, int, int]]) -> torch.Tensor:
        count = sum(segment[-1] for segment in segments)
        tokens = torch.arange(count)[None] * 37 % _SHAPE["vocab_size"]
        with state_step(StateStep(self.states, tuple(StateSegment(*segment) for segment in segments))):
            hidden: torch.Tensor = self.inner(
                input_ids=tokens, position_ids=torch.arange(count)[None], use_cache=False
            )[0]
        return hidden[0]

    def step(self, segments: Sequence[tuple[int, int, int, int]]) -> None:
        self.head(self.hidden(segments)[[segment[2] + segment[3] - 1 for segment in segments]])


class Clock:
    """Seconds of the processor by what is computed."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any, **named: Any) -> Any:
            start = time.process_time()
            try:
                return function(*arguments, **named)
            finally:
                self.seconds[name] += time.process_time() - start

        return run


@contextmanager
def clocked(model: Hybrid, clock: Clock) -> Iterator[None]:
    """Counts recurrences, mixers and the projections in these, inside the block."""
    own = {kind: kind.__call__ for kind in _CLASSES}
    changed: list[tuple[Any, Any]] = []
    for kind in _CLASSES:
        kind.__call__ = clock.timed("recurrence", own[kind])  # type: ignore[method-assign]
    for mixer in model.mixers.mixers:
        layers = [module for module in mixer.module.modules() if isinstance(module, torch.nn.Linear)]
        for module, name in ((mixer.module, "mixer"), *((layer, "projection") for layer in layers)):
            changed.append((module, module.forward))
            module.forward = clock.timed(name, module.forward)
    try:
        yield
    finally:
        for kind in _CLASSES:
            kind.__call__ = own[kind]  # type: ignore[method-assign]
        for module, forward in changed:
            module.forward = forward


@torch.no_grad()
def shares(model: Hybrid, segments: Sequence[tuple[int, int, int, int]], repeats: int) -> tuple[float, float, float]:
    """Seconds of the median step, and the shares of recurrences and of all between projections in it."""
    found = []
    for repeat in range(repeats + 1):
        clock = Clock()
        with clocked(model, clock):
            clock.timed("step", model.step)(segments)
        if repeat:
            found.append(clock.seconds)
    found.sort(key=lambda seconds: seconds["step"])
    steps = [seconds["step"] for seconds in found]
    between = [(seconds["mixer"] - seconds["projection"]) / seconds["step"] for seconds in found]
    recurrence = [seconds["recurrence"] / seconds["step"] for seconds in found]
    return statistics.median(steps), statistics.median(recurrence), statistics.median(between)


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--threads", type=int, default=1)
    options.add_argument("--rows", nargs="+", type=int, default=[1, 8])
    options.add_argument("--prompt", type=int, default=512)
    options.add_argument("--layers", type=int, default=24)
    options.add_argument("--repeats", type=int, default=9)
    options.add_argument("--output", type=Path, default=RESULTS)
    arguments = options.parse_args()
    torch.set_num_threads(arguments.threads)
    model = Hybrid(arguments.layers, max(arguments.rows))
    cases = [(f"{rows} rows", [(text, text, text, 1) for text in range(rows)]) for rows in arguments.rows]
    cases.append((f"a prompt of {arguments.prompt}", [(FRESH, 0, 0, arguments.prompt)]))
    lines = [
        f"# Recurrences in a step of Qwen3.5-0.8B's shape, {arguments.threads} thread(s)",
        "",
        "| step | milliseconds | recurrence | between projections |",
        "|---|---:|---:|---:|",
    ]
    record: list[dict[str, Any]] = []
    for name, segments in cases:
        seconds, recurrence, between = shares(model, segments, arguments.repeats)
        lines.append(f"| {name} | {1e3 * seconds:.1f} | {recurrence:.1%} | {between:.1%} |")
        record.append({"step": name, "seconds": seconds, "recurrence": recurrence, "between": between})
    goals = [
        Goal(f"rest of a step of {case['step']}", 1 - _GOAL, round(1 - case["recurrence"], 3)) for case in record[:-1]
    ]
    text = "\n".join([*lines, "", goal_table(goals), "", machine_line(), ""])
    print(text)
    write(arguments.output, "recurrence", text, {"threads": arguments.threads, "cases": record}, goals)


if __name__ == "__main__":
    main()
