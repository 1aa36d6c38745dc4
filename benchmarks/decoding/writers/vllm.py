"""vLLM with structured outputs, its steps driven one by one.

It reads its settings from the environment as it is imported: `peers/process.py` sets them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from typing import Any

from vllm import LLM, SamplingParams
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams

from benchmarks.peers.peer import Room, Tokens, Written

# Tokens of a page of its attention kernels on a CPU.
_BLOCK = 32


class Vllm:
    """Layers compiled, masks by llguidance, no prefix cache."""

    def __init__(self, model: str, dtype: str, room: Room, eos: Sequence[int]) -> None:
        self._llm = LLM(
            model=model,
            dtype=dtype,
            block_size=_BLOCK,
            max_model_len=room.context,
            max_num_seqs=room.slots,
            enable_prefix_caching=False,
            disable_log_stats=True,
            structured_outputs_config={"backend": "guidance", "disable_any_whitespace": True},
        )
        self._eos = list(eos)
        self._numbers = count()

    def write(
        self,
        prompts: Tokens,
        schemas: Sequence[str],
        limit: int,
        plan: Mapping[str, Any],
        on_first: Callable[[], None],
    ) -> Written:
        """It has one way, so `plan` says nothing."""
        engine = self._llm.llm_engine
        rows: dict[str, list[int]] = {}
        for prompt, schema in zip(prompts, schemas, strict=True):
            params = SamplingParams(
                temperature=0.0,
                max_tokens=limit,
                stop_token_ids=self._eos,
                detokenize=False,
                output_kind=RequestOutputKind.DELTA,
                structured_outputs=StructuredOutputsParams(json=schema),
            )
            name = str(next(self._numbers))
            rows[name] = []
            engine.add_request(name, {"prompt_token_ids": list(prompt)}, params)
        told = False
        while engine.has_unfinished_requests():
            for output in engine.step():
                rows[output.request_id] += output.outputs[0].token_ids
            if not told and all(rows.values()):
                told = True
                on_first()
        return Written([tuple(tokens) for tokens in rows.values()])
