"""llama.cpp on the same float32 weights, many sequences in one batch through its low-level interface.

The weights come from a GGUF file, written from the transformers model without a tokenizer: ids go in and out. The loop
keeps as many sequences in flight as there are slots: a new prompt starts when another sequence has ended.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gguf
import llama_cpp
import numpy as np
import numpy.typing as npt
import torch
from transformers import PreTrainedModel

from benchmarks.common.serving import Tokens
from benchmarks.peers.peer import Room

# GGUF names of the parts of a layer, and of what is outside the layers.
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_OUTER = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_FLOAT32 = 0
# More tokens than this at once gain nothing on a CPU; llama.cpp's own default.
_UBATCH = 512


@dataclass
class _Row:
    """One sequence in flight: which request it is, and what it has drawn."""

    request: int
    length: int
    at: int = 0
    tokens: list[int] = field(default_factory=list)


class Llama:
    """A context with `room.slots` sequences of `room.context` tokens each, keys and values in float32."""

    def __init__(self, model: PreTrainedModel, room: Room, scratch: Path) -> None:
        file = scratch / "model.gguf"
        if not file.exists():
            write_gguf(model, file)
        llama_cpp.llama_backend_init()
        self._quiet = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._quiet, ctypes.c_void_p(0))
        options = llama_cpp.llama_model_default_params()
        self._model = llama_cpp.llama_model_load_from_file(str(file).encode(), options)
        if not self._model:
            raise RuntimeError("llama.cpp does not load the GGUF file")
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
        config.type_k = config.type_v = _FLOAT32
        # On a CPU the faster way, and the one whose tokens are transformers': flash attention there rounds more.
        config.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        # A cache for each sequence: in one for all, every row would look at every other's cells.
        config.kv_unified = False
        config.no_perf = True
        self._context = llama_cpp.llama_init_from_model(self._model, config)
        if not self._context:
            raise RuntimeError(f"llama.cpp makes no context of {room.slots} sequences of {context} tokens")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._vocabulary = model.config.get_text_config().vocab_size
        self._batch = llama_cpp.llama_batch_init(self._capacity, 0, 1)
        array = np.ctypeslib.as_array
        self._tokens = array(self._batch.token, (self._capacity,))
        self._positions = array(self._batch.pos, (self._capacity,))
        self._wanted = array(self._batch.logits, (self._capacity,))
        array(self._batch.n_seq_id, (self._capacity,))[:] = 1
        self._random = np.random.default_rng(0)
        self.steps = 0

    def run(self, prompts: Tokens, lengths: Sequence[int]) -> Tokens:
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
                self._retire(slots, out)
            elif any(slots):
                self._step(slots)
                self._retire(slots, out)
        return [out[index] for index in range(len(prompts))]

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
        used = [slot for slot, row in enumerate(slots) if row is not None]
        for index, slot in enumerate(used):
            row = _row(slots, slot)
            self._batch.seq_id[index][0] = slot
            self._tokens[index] = row.tokens[-1]
            self._positions[index] = row.at
            row.at += 1
        self._wanted[: len(used)] = 1
        self._decode(len(used))
        for slot, token in zip(used, self._greedy(len(used)), strict=True):
            _row(slots, slot).tokens.append(token)

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

    def _logits(self, rows: int) -> npt.NDArray[np.float32]:
        """A view float32 [rows, V], good until the next decode, in the order of the wanted tokens."""
        logits: npt.NDArray[np.float32] = np.ctypeslib.as_array(
            llama_cpp.llama_get_logits(self._context), (rows, self._vocabulary)
        )
        return logits

    def _greedy(self, rows: int) -> list[int]:
        tokens: list[int] = self._logits(rows).argmax(axis=1).tolist()
        return tokens

    def _sampled(self, logits: npt.NDArray[np.float32]) -> npt.NDArray[np.int64]:
        drawn: npt.NDArray[np.int64] = (logits + self._random.gumbel(size=logits.shape)).argmax(axis=1)
        return drawn

    def close(self) -> None:
        """Frees context and weights."""
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self._context)
        llama_cpp.llama_model_free(self._model)


def _row(slots: list[_Row | None], slot: int) -> _Row:
    row = slots[slot]
    assert row is not None
    return row


def write_gguf(model: PreTrainedModel, file: Path) -> None:
    """Writes weights and shape. Raises ValueError for a model that is neither Llama nor Qwen2."""
    config = model.config
    if config.model_type not in ("llama", "qwen2"):
        raise ValueError(f"no GGUF is written of {config.model_type}")
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    writer = gguf.GGUFWriter(file, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(dim)
    writer.add_value_length(dim)
    writer.add_rope_dimension_count(dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("no_vocab")
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = tensor.float()
        # llama.cpp turns neighbouring pairs of a Llama head, transformers turns its two halves.
        if config.model_type == "llama" and ".q_proj." in name:
            weight = _paired(weight, heads)
        if config.model_type == "llama" and ".k_proj." in name:
            weight = _paired(weight, kv_heads)
        writer.add_tensor(_renamed(name), np.ascontiguousarray(weight.numpy()))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _paired(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of each head from (half, pair) order to (pair, half)."""
    rows = weight.shape[0] // heads
    return weight.view(heads, 2, rows // 2, *weight.shape[1:]).transpose(1, 2).reshape(weight.shape)


def _renamed(name: str) -> str:
    if name in _OUTER:
        return _OUTER[name]
    _, _, layer, rest = name.split(".", 3)
    for theirs, ours in _LAYER.items():
        if rest == theirs or rest.startswith(theirs + "."):
            return f"blk.{layer}.{ours}{rest.removeprefix(theirs)}"
    raise ValueError(f"no GGUF name is known for {name}")
