"""llama.cpp on a GGUF file, many sequences in one batch through its low-level interface.

Token ids go in and out. The loop keeps as many sequences in flight as there are slots: a new prompt starts when another
sequence has ended. It needs `llama_cpp` and numpy, and nothing else of this checkout's dependencies.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import llama_cpp
import numpy as np
import numpy.typing as npt

from benchmarks.peers.peer import OnStep, Room, Tokens, no_watch

Logits = npt.NDArray[np.float32]
# Types of keys and values. Its own default is float16.
FLOAT32, FLOAT16 = 0, 1
# More tokens than this at once gain nothing on a CPU; llama.cpp's own default.
_UBATCH = 512


@dataclass
class _Row:
    """One sequence in flight: which request it is, and what it has drawn."""

    request: int
    length: int
    at: int = 0
    tokens: list[int] = field(default_factory=list)


class Weights:
    """The weights of a file, which several contexts may use one after the other."""

    def __init__(self, file: Path) -> None:
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        self.model = llama_cpp.llama_model_load_from_file(str(file).encode(), llama_cpp.llama_model_default_params())
        if not self.model:
            raise RuntimeError("llama.cpp does not load the GGUF file")
        self.vocabulary: int = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))

    def close(self) -> None:
        llama_cpp.llama_model_free(self.model)


class Llama:
    """A context with `room.slots` sequences of `room.context` tokens each, keys and values in the type `kv`."""

    def __init__(self, weights: Weights, room: Room, kv: int = FLOAT32) -> None:
        self._weights = weights
        config = llama_cpp.llama_context_default_params()
        self._slots = room.slots
        self._capacity = max(_UBATCH, room.slots, room.context)
        # It rounds a sequence's share of the context up to this.
        context = -(-(room.context + 1) // 256) * 256
        config.n_ctx = room.slots * context
        config.n_batch = self._capacity
        config.n_ubatch = _UBATCH
        config.n_seq_max = room.slots
        config.n_threads = config.n_threads_batch = room.threads
        config.type_k = config.type_v = kv
        # On a CPU the faster way, and the one whose tokens are transformers': flash attention there rounds more.
        config.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        # A cache for each sequence: in one for all, every row would look at every other's cells.
        config.kv_unified = False
        config.no_perf = True
        self._context = llama_cpp.llama_init_from_model(weights.model, config)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context of {room.slots} sequences of {context} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = weights.vocabulary
        self._batch = llama_cpp.llama_batch_init(self._capacity, 0, 1)
        array = np.ctypeslib.as_array
        self._tokens = array(self._batch.token, (self._capacity,))
        self._positions = array(self._batch.pos, (self._capacity,))
        self._wanted = array(self._batch.logits, (self._capacity,))
        array(self._batch.n_seq_id, (self._capacity,))[:] = 1
        self._random = np.random.default_rng(0)
        self.steps = 0

    def run(self, prompts: Tokens, lengths: Sequence[int], on_step: OnStep = no_watch) -> Tokens:
        """Where all fit at once, longest first, so that the slots in use stay neighbours: it splits batches at gaps.

        `steps` counts the calls of its decoder in the last run, those that prefill among them.
        """
        llama_cpp.llama_memory_clear(self._memory, False)
        self.steps = 0
        if len(prompts) <= self._slots:
            order = sorted(range(len(prompts)), key=lambda index: -lengths[index])
        else:
            order = list(range(len(prompts)))
        waiting = deque(order)
        slots: list[_Row | None] = [None] * min(self._slots, len(prompts))
        out: dict[int, tuple[int, ...]] = {}
        tokens = 0
        while len(out) < len(prompts):
            started = []
            budget = self._capacity
            for slot, row in enumerate(slots):
                if row is None and waiting and len(prompts[waiting[0]]) <= budget:
                    request = waiting.popleft()
                    budget -= len(prompts[request])
                    slots[slot] = _Row(request, lengths[request])
                    started.append(slot)
            if started:
                self._prefill([(slot, prompts[_row(slots, slot).request]) for slot in started])
                for slot, token in zip(started, self._greedy(len(started)), strict=True):
                    row = _row(slots, slot)
                    row.at = len(prompts[row.request])
                    row.tokens.append(token)
                tokens += len(started)
            elif any(slots):
                tokens += sum(row is not None for row in slots)
                self._step(slots)
            self._retire(slots, out)
            on_step(len(prompts) - len(waiting), tokens)
        return [out[index] for index in range(len(prompts))]

    def drawn(
        self,
        prompts: Tokens,
        draws: Sequence[Callable[[Logits], int]],
        eos: Collection[int],
        limit: int,
        on_first: Callable[[], None],
    ) -> Tokens:
        """All prompts at once, each row's tokens by its own `draws` of logits [V], to an end or `limit` tokens.

        `on_first` is called when every row has its first token.
        """
        llama_cpp.llama_memory_clear(self._memory, False)
        rows = [_Row(index, limit, len(prompt)) for index, prompt in enumerate(prompts)]
        slots: list[_Row | None] = [*rows]
        started = 0
        while started < len(prompts):
            end, tokens = started, 0
            while end < len(prompts) and tokens + len(prompts[end]) <= self._capacity:
                tokens += len(prompts[end])
                end += 1
            self._prefill(list(enumerate(prompts))[started:end])
            self._draw(slots, range(started, end), draws, eos)
            started = end
        on_first()
        while any(slots):
            self._draw(slots, self._forward(slots), draws, eos)
        return [tuple(row.tokens) for row in rows]

    def _draw(
        self,
        slots: list[_Row | None],
        used: Sequence[int],
        draws: Sequence[Callable[[Logits], int]],
        eos: Collection[int],
    ) -> None:
        """A token for each used slot from the logits of the last decode. Rows that end leave their slots."""
        for slot, logits in zip(used, self._logits(len(used)), strict=True):
            row = _row(slots, slot)
            row.tokens.append(draws[slot](logits))
            if row.tokens[-1] in eos or len(row.tokens) == row.length:
                slots[slot] = None

    def fan_out(self, prompt: Sequence[int], samples: int, length: int) -> Tokens:
        """Prefills the prompt once and copies its cache to the other sequences."""
        llama_cpp.llama_memory_clear(self._memory, False)
        self._prefill([(0, tuple(prompt))])
        first = self._logits(1)
        for slot in range(1, samples):
            llama_cpp.llama_memory_seq_cp(self._memory, 0, slot, -1, -1)
        drawn = self._sampled(np.repeat(first, samples, axis=0))
        tokens = [drawn]
        for at in range(len(prompt), len(prompt) + length - 1):
            for slot in range(samples):
                self._batch.seq_id[slot][0] = slot
            self._tokens[:samples] = tokens[-1]
            self._positions[:samples] = at
            self._wanted[:samples] = 1
            self._decode(samples)
            tokens.append(self._sampled(self._logits(samples)))
        return [tuple(column) for column in np.stack(tokens, axis=1).tolist()]

    def _step(self, slots: list[_Row | None]) -> None:
        """One token for every sequence in flight."""
        used = self._forward(slots)
        for slot, token in zip(used, self._greedy(len(used)), strict=True):
            _row(slots, slot).tokens.append(token)

    def _forward(self, slots: list[_Row | None]) -> list[int]:
        """Computes the last token of every sequence in flight; the slots, in the order of the logits."""
        used = [slot for slot, row in enumerate(slots) if row is not None]
        for index, slot in enumerate(used):
            row = _row(slots, slot)
            self._batch.seq_id[index][0] = slot
            self._tokens[index] = row.tokens[-1]
            self._positions[index] = row.at
            row.at += 1
        self._wanted[: len(used)] = 1
        self._decode(len(used))
        return used

    def _retire(self, slots: list[_Row | None], out: dict[int, tuple[int, ...]]) -> None:
        for slot, row in enumerate(slots):
            if row is not None and len(row.tokens) == row.length:
                out[row.request] = tuple(row.tokens)
                slots[slot] = None
                llama_cpp.llama_memory_seq_rm(self._memory, slot, -1, -1)

    def _prefill(self, prompts: list[tuple[int, tuple[int, ...]]]) -> None:
        """Whole prompts into their slots; the logits of each last token are wanted."""
        end = 0
        for slot, prompt in prompts:
            start, end = end, end + len(prompt)
            self._tokens[start:end] = prompt
            self._positions[start:end] = np.arange(len(prompt))
            self._wanted[start:end] = 0
            self._wanted[end - 1] = 1
            for index in range(start, end):
                self._batch.seq_id[index][0] = slot
        self._decode(end)

    def _decode(self, tokens: int) -> None:
        self._batch.n_tokens = tokens
        self.steps += 1
        status = llama_cpp.llama_decode(self._context, self._batch)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def _logits(self, rows: int) -> Logits:
        """A view float32 [rows, V], good until the next decode, in the order of the wanted tokens."""
        logits: Logits = np.ctypeslib.as_array(llama_cpp.llama_get_logits(self._context), (rows, self._vocabulary))
        return logits

    def _greedy(self, rows: int) -> list[int]:
        tokens: list[int] = self._logits(rows).argmax(axis=1).tolist()
        return tokens

    def _sampled(self, logits: Logits) -> npt.NDArray[np.int64]:
        drawn: npt.NDArray[np.int64] = (logits + self._random.gumbel(size=logits.shape)).argmax(axis=1)
        return drawn

    def close(self) -> None:
        """Frees the context and the weights."""
        self.free()
        self._weights.close()

    def free(self) -> None:
        """Frees the context alone."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)


def _row(slots: list[_Row | None], slot: int) -> _Row:
    row = slots[slot]
    assert row is not None
    return row
