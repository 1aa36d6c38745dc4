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
    """A new engine for every run, so that every run prefills every prompt."""

    def __init__(self, model: str, dtype: str, room: Room) -> None:
        torch.set_num_threads(room.threads)
        self._model = load(NAME, Path(model), "cpu", None if dtype == "quantized" else dtype).paged

    def run(self, prompts: Tokens, lengths: Sequence[int], on_step: OnStep = no_watch) -> Tokens:
        layout = self._model.layout
        room = sum(len(prompt) + length + layout.page_size for prompt, length in zip(prompts, lengths, strict=True))
        last: list[StepReport] = []
        config = EngineConfig(max_sequences=len(prompts))
        engine = engine_of({NAME: self._model}, 2 * room * layout.token_bytes, config, last.append)
        tickets = [engine.submit(NAME, greedy(prompt, length)) for prompt, length in zip(prompts, lengths, strict=True)]
        unread = sum(map(len, prompts))
        tokens = len(prompts)
        while engine.has_work:
            engine.step()
            for step in last:
                unread -= step.prefill_tokens
                tokens += step.decode_tokens
                # A row draws its first token in the step that reads the end of its prompt.
                on_step(len(prompts) if unread == step.cached_tokens else 0, tokens)
            last.clear()
        return samples(tickets)
