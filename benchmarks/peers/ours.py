"""The engine itself, beside its peers: a model loaded as `qpdsl run` loads it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.common.serving import NAME, engine_of, greedy, samples
from benchmarks.peers.peer import OnStep, Room, Tokens, no_watch
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.models.load import load


class Ours:
    """One engine for all runs, as its peers have one. After each it forgets the prompts."""

    def __init__(self, model: str, dtype: str, room: Room) -> None:
        torch.set_num_threads(room.threads)
        loaded = load(NAME, Path(model), "cpu", None if dtype == "quantized" else dtype).paged
        self._last: list[StepReport] = []
        self._cached = 0
        config = EngineConfig(max_sequences=room.slots)
        tokens = room.slots * (room.context + loaded.layout.page_size)
        self._engine = engine_of({NAME: loaded}, 2 * tokens * loaded.layout.token_bytes, config, self._last.append)

    def run(self, prompts: Tokens, lengths: Sequence[int], on_step: OnStep = no_watch) -> Tokens:
        engine, last = self._engine, self._last
        tickets = [engine.submit(NAME, greedy(prompt, length)) for prompt, length in zip(prompts, lengths, strict=True)]
        # Reports count the tokens that were found in the cache since the engine began.
        unread = sum(map(len, prompts)) + self._cached
        tokens = len(prompts)
        while engine.has_work:
            engine.step()
            for step in last:
                unread -= step.prefill_tokens
                tokens += step.decode_tokens
                # A row draws its first token in the step that reads the end of its prompt.
                on_step(len(prompts) if unread == step.cached_tokens else 0, tokens)
                self._cached = step.cached_tokens
            last.clear()
        tree = engine.runner(NAME).scheduler.memory.tree
        while tree.evict():
            pass
        return samples(tickets)
