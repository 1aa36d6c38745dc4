"""Log-probabilities over SGLang's own `/generate`: of named ids at every token from some place on.

It tells of the tokens from `logprob_start_len` on, the first of them without a number, and finds those before it in its
cache (`GenerateReqInput` and `_process_input_token_ids_logprobs` in its sources).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qpdsl.executor.remote.scoring.log_probabilities import Want
from qpdsl.executor.remote.scoring.reading import BadAnswer, Reading, Values, field, number
from qpdsl.executor.remote.scoring.scoring_positions import Tokens


def native_reading(tokens: Tokens, wants: Sequence[Want]) -> Reading:
    """What is wanted after each number of the `tokens`, all of them included."""
    lengths = [length for length, _ in wants]
    inside = min(lengths) < len(tokens)
    start = min(lengths) - 1
    body = {
        "input_ids": list(tokens),
        "sampling_params": {"max_new_tokens": 1, "temperature": 0, "top_p": 1.0, "top_k": -1},
        "return_logprob": True,
        "logprob_start_len": start if inside else -1,
        "token_ids_logprob": list(dict.fromkeys(id for _, ids in wants for id in ids)),
    }

    def read(answer: Any) -> Values:
        meta = field(answer, "meta_info")
        before = field(meta, "input_token_ids_logprobs") if inside else []
        if inside and (not isinstance(before, list) or len(before) != len(tokens) - start):
            raise BadAnswer(f"did not tell the log-probabilities of the {len(tokens) - start} tokens from {start} on")
        rows = []
        for length, ids in wants:
            after_all = length == len(tokens)
            told = field(meta, "output_token_ids_logprobs", 0) if after_all else before[length - start]
            known = _by_id(told)
            rows.append(tuple(known.get(id) for id in ids))
        return tuple(rows)

    return Reading("/generate", body, read)


def _by_id(told: Any) -> dict[int, float]:
    """What stands as a list of a log-probability, an id and maybe its text."""
    if not isinstance(told, list):
        raise BadAnswer("did not tell log-probabilities")
    return {int(number(field(entry, 1))): min(number(field(entry, 0)), 0.0) for entry in told}
