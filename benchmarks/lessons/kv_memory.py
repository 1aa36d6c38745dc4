"""KV memory of Llama-3-70B by type, with grouped and with full multi-head attention, as this engine lays it out.

    python -m benchmarks.lessons.kv_memory

Users: on four A100 with 80 GB each, as the lesson counts: 320 GiB, less the weights in 16 bits and a tenth, for the KV
of 4,096 tokens each. Numbers alone: as the lesson has it, without the scales that quantized numbers need to be read.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from benchmarks.lessons.served import main, table
from qpdsl.executor.engine.memory.kv_cache import KVLayout

LAYERS, QUERY_HEADS, KV_HEADS, WIDTH, PARAMETERS = 80, 64, 8, 128, 70e9
MEMORY, CONTEXT = 320 * 2**30, 4096
BITS = {None: 16, "int8": 8, "fp8": 8, "int4": 4}


def users(token_bytes: float) -> int:
    return int((0.9 * MEMORY - 2 * PARAMETERS) / token_bytes) // CONTEXT


def exercise(quick: bool) -> str:
    layout = KVLayout.equal(LAYERS, 16, KV_HEADS, WIDTH, torch.bfloat16)
    rows = []
    for kv_type, bits in BITS.items():
        own = replace(layout, kv_type=kv_type)
        alone = 2 * LAYERS * KV_HEADS * WIDTH * bits / 8
        cells = (f"{alone / 1024:,.0f}", f"{users(alone):,}", f"{own.token_bytes / 1024:,.0f}")
        rows.append((kv_type or "16 bits", *cells, f"{users(own.token_bytes):,}"))
    full = KVLayout.equal(LAYERS, 16, QUERY_HEADS, WIDTH, torch.bfloat16)
    return "\n".join(
        [
            table(("KV", "KiB a token, numbers alone", "users at 4k", "KiB a token, as stored", "users at 4k"), rows),
            "",
            f"{QUERY_HEADS} KV heads, one for each query head: {full.token_bytes / 1024:,.0f} KiB a token in 16 bits; "
            f"{KV_HEADS} that groups of {QUERY_HEADS // KV_HEADS} share: {layout.token_bytes / 1024:,.0f} KiB, "
            f"{full.token_bytes / layout.token_bytes:g} times less",
        ]
    )


if __name__ == "__main__":
    main(__doc__, exercise)
