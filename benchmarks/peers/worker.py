"""A side of a benchmark in a process of its own: requests come and replies go as lines of JSON.

    python -m benchmarks.peers.worker

Its side is the one thing that it imports besides the standard library, so it runs in that side's own environment. A
request has its name under `do`; these are the names, with what comes beside them and what is replied:

load, with `side`, `model`, `dtype`, `slots`, `context`, `threads`, `options`: `seconds`, `about`, `resident`
run, with `prompts`, `lengths`: `tokens`, `total`, `first`, `first_tokens`, `resident`, `peak`
write, with `prompts`, `schemas`, `limit`, `plan`, of a side that writes JSON: as run, without `first_tokens`, with
`counts`, `parts`
search, with `problems` and `own_draws`, of a side that searches: the fields of `Found`

`total` and `first` are `[seconds, processor seconds]` since the run began: at its end, and when every row had its first
token; `first_tokens` is how many tokens there were by then, since a side may decode some rows while it prefills others.
`resident` and `peak` are bytes of memory. A request that fails is answered with `{"error"}`.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.peers.clocks import processor_seconds, resident
from benchmarks.peers.peer import OnStep, Room, Searcher, Stepwise, Tokens, Writer

Message = dict[str, Any]


class GenerateSide:
    def __init__(self, model: str, dtype: str, room: Room) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        from benchmarks.peers.generate import Generate

        torch.set_num_threads(room.threads)
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=getattr(torch, dtype)).eval()
        self.run = Generate(loaded, room).run


class LlamaSide:
    """A context for each run, of the run's own size: it takes the memory of its whole room at once."""

    def __init__(self, model: str, dtype: str, room: Room) -> None:
        from benchmarks.peers import llama

        self._llama = llama
        self._threads = room.threads
        self._kv = llama.FLOAT32 if dtype == "float32" else llama.FLOAT16
        self._weights = llama.Weights(Path(model))

    def run(self, prompts: Tokens, lengths: Sequence[int], on_step: OnStep) -> Tokens:
        longest = max(len(prompt) + length for prompt, length in zip(prompts, lengths, strict=True))
        context = self._llama.Llama(self._weights, Room(len(prompts), longest, self._threads), self._kv)
        try:
            return context.run(prompts, lengths, on_step)
        finally:
            context.free()


def _side(name: str, model: str, dtype: str, room: Room, options: Message) -> tuple[Stepwise | Searcher | Writer, str]:
    """The side, and its version."""
    # Imported here: each environment has one of them.
    if name == "qpdsl":
        # Before torch, as it says how torch's threads wait.
        import qpdsl  # noqa: F401
        from benchmarks.peers.ours import Ours

        return Ours(model, dtype, room), _version("qpdsl")
    if name == "generate":
        return GenerateSide(model, dtype, room), _version("transformers")
    if name == "vllm":
        from benchmarks.peers.vllm import Vllm

        return Vllm(model, dtype, room), _version("vllm")
    if name == "llama.cpp":
        return LlamaSide(model, dtype, room), _version("llama_cpp_python")
    if name == "qpdsl json":
        from benchmarks.decoding.writers import ours

        return ours.Ours(model, dtype, room), _version("qpdsl")
    if name == "generate json":
        from benchmarks.decoding.writers import generate

        return generate.Generate(model, dtype, room, options["eos"]), _version("transformers")
    if name == "vllm json":
        from benchmarks.decoding.writers import vllm

        return vllm.Vllm(model, dtype, room, options["eos"]), _version("vllm")
    if name == "llama.cpp json":
        from benchmarks.decoding.writers.llama import LlamaCpp

        return LlamaCpp(model, dtype, room, options["eos"]), _version("llama_cpp_python")
    if name == "planned":
        from benchmarks.search.planned import Planned

        return Planned(dtype, room, options), _version("qpdsl")
    if name == "vllm loop":
        from benchmarks.search.vllm_loop import VllmLoop

        return VllmLoop(model, dtype, room, options), _version("vllm")
    raise ValueError(f"no side is called {name}")


class Worker:
    """Answers requests, one after the other."""

    def __init__(self) -> None:
        self.side: Any = None

    def answer(self, request: Message) -> Message:
        if request["do"] == "load":
            start = time.perf_counter()
            room = Room(request["slots"], request["context"], request["threads"])
            self.side, about = _side(
                request["side"], request["model"], request["dtype"], room, request.get("options", {})
            )
            return {"seconds": time.perf_counter() - start, "about": about, "resident": resident()[0]}
        if request["do"] == "run" and self.side is not None:
            return _timed(self.side, [tuple(prompt) for prompt in request["prompts"]], request["lengths"])
        if request["do"] == "write" and self.side is not None:
            return _written(self.side, request)
        if request["do"] == "search" and self.side is not None:
            return vars(self.side.search(request["problems"], request["own_draws"]))
        raise ValueError(f"cannot do {request['do']!r} now")


def _timed(side: Stepwise, prompts: Tokens, lengths: list[int]) -> Message:
    start, cpu = time.perf_counter(), processor_seconds()
    first: tuple[list[float], int] | None = None

    def on_step(started: int, tokens: int) -> None:
        nonlocal first
        if first is None and started == len(prompts):
            first = [time.perf_counter() - start, processor_seconds() - cpu], tokens

    tokens = side.run(prompts, lengths, on_step)
    total = [time.perf_counter() - start, processor_seconds() - cpu]
    assert first is not None, "the side did not tell its steps"
    now, peak = resident()
    return {
        "tokens": tokens,
        "total": total,
        "first": first[0],
        "first_tokens": first[1],
        "resident": now,
        "peak": peak,
    }


def _written(side: Writer, request: Message) -> Message:
    start, cpu = time.perf_counter(), processor_seconds()
    first: list[list[float]] = []

    def on_first() -> None:
        first.append([time.perf_counter() - start, processor_seconds() - cpu])

    prompts = [tuple(prompt) for prompt in request["prompts"]]
    written = side.write(prompts, request["schemas"], request["limit"], request["plan"], on_first)
    total = [time.perf_counter() - start, processor_seconds() - cpu]
    now, peak = resident()
    figures = {"total": total, "first": first[0] if first else total, "resident": now, "peak": peak}
    return {"tokens": written.tokens, "counts": written.counts, "parts": written.parts, **figures}


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def main() -> None:
    # What engines print must not get between the replies.
    replies = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    worker = Worker()
    for line in sys.stdin:
        try:
            reply = worker.answer(json.loads(line))
        except Exception as error:  # whatever a system of others raises
            reply = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
