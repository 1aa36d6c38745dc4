"""vLLM in this process, its steps driven one by one. It needs `vllm` and nothing else of this checkout's dependencies.

It reads its settings from the environment as it is imported: `process.py` sets them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind

from benchmarks.peers.peer import OnStep, Room, Tokens, no_watch

# Tokens of a page of its attention kernels on a CPU.
_BLOCK = 32


class Vllm:
    """Layers compiled, no tokenizer: ids go in and out."""

    def __init__(self, folder: str, dtype: str, room: Room) -> None:
        self._llm = LLM(
            model=folder,
            dtype=dtype,
            block_size=_BLOCK,
            max_model_len=room.context,
            max_num_seqs=room.slots,
            enable_prefix_caching=room.sharing,
            skip_tokenizer_init=True,
            disable_log_stats=True,
        )
        self._numbers = count()

    def run(self, prompts: Tokens, lengths: Sequence[int], on_step: OnStep = no_watch) -> Tokens:
        """All requests at once; it admits them as its room allows."""
        engine = self._llm.llm_engine
        rows: dict[str, list[int]] = {}
        for prompt, length in zip(prompts, lengths, strict=True):
            params = SamplingParams(
                temperature=0.0,
                max_tokens=length,
                ignore_eos=True,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
            )
            name = str(next(self._numbers))
            rows[name] = []
            engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        while engine.has_unfinished_requests():
            for output in engine.step():
                rows[output.request_id] += output.outputs[0].token_ids
            on_step(sum(bool(tokens) for tokens in rows.values()), sum(map(len, rows.values())))
        return [tuple(tokens) for tokens in rows.values()]
