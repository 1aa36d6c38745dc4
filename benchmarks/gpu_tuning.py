"""Other block sizes for decode attention."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from gpu_kernels import MODELS, cache, queries_of, scoring_of, seconds
from gpu_record import alive

from qpdsl.executor.kernels import triton_decode
from qpdsl.executor.kernels.tuning import Tuning


def best(name: str, batch: int, context: int) -> dict[str, Any]:
    """Decode attention with other block sizes: the five fastest, and what `tuning.py` chooses as `chosen_us`."""
    rows, metadata, layers = cache(name, "plain", [context] * batch, [1] * batch)
    query, scoring = queries_of(name, batch), scoring_of(name)
    out = torch.empty_like(query)
    found = []
    for keys, ahead, warps, splits in product((32, 64, 128), (1, 2, 3), (2, 4, 8), (None, 1, 4, 8, 16, 32)):
        if splits is not None and not 132 <= batch * MODELS[name][0] * splits <= 132 * 16:
            continue
        tuning = Tuning(keys=keys, ahead=ahead, warps=warps, splits=splits)
        try:
            time = seconds(
                lambda layer, t=tuning: triton_decode.decode(query, rows, metadata, layer, scoring, out, t),
                layers,
                12,
                7,
            )
        except Exception as error:  # Too much shared memory, as a rule: the next may fit.
            alive()
            found.append((float("inf"), f"{tuning}: {type(error).__name__}"))
            continue
        found.append((time, str(tuning)))
    chosen = seconds(lambda layer: triton_decode.decode(query, rows, metadata, layer, scoring, out), layers)
    fastest = [{"us": round(time * 1e6, 2), "tuning": text} for time, text in sorted(found)[:5]]
    return {"model": name, "sequences": batch, "context": context, "chosen_us": round(chosen * 1e6, 2), "best": fastest}
