"""What a reward model's head gives: at every token, or at the last one.

vLLM serves such a model with `--runner pooling`: `/pooling` gives a row of numbers a token (with the pooling "STEP",
one a step's mark), `/classify` one row. SGLang's `/classify`, with `--is-embedding`, gives the row at the last token.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from qpdsl.executor.remote.scoring.reading import BadAnswer, Reading, Values, field, number
from qpdsl.executor.remote.scoring.scoring_positions import Tokens


def token_rows(model: str, tokens: Tokens, positions: Sequence[int], outputs: Tokens, *, are_shares: bool) -> Reading:
    """vLLM's `/pooling`: the `outputs` of the head at each of `positions`.

    `are_shares`: the server answers with probabilities whatever it is asked for; their logarithms are read.
    """
    body = {"model": model, "input": list(tokens), "task": "token_classify", "use_activation": False}

    def read(answer: Any) -> Values:
        rows = field(answer, "data", 0, "data")
        if not isinstance(rows, list) or not rows or not all(isinstance(row, list) for row in rows):
            raise BadAnswer("did not give a row of numbers for each token")
        chosen = _chosen(rows, tokens, positions)
        return tuple(_outputs(row, outputs, are_shares=are_shares) for row in chosen)

    return Reading("/pooling", body, read)


def last_row(model: str, tokens: Tokens, outputs: Tokens, *, are_shares: bool) -> Reading:
    """vLLM's `/classify`: the `outputs` of the head at the last token."""
    body = {"model": model, "input": list(tokens), "use_activation": False}
    return Reading(
        "/classify",
        body,
        lambda answer: (_outputs(field(answer, "data", 0, "probs"), outputs, are_shares=are_shares),),
    )


def native_last_row(tokens: Tokens, outputs: Tokens) -> Reading:
    """SGLang's `/classify`: the `outputs` of the head at the last token."""
    body = {"input_ids": list(tokens)}

    def read(answer: Any) -> Values:
        # One that was asked about alone is answered alone by some versions, and in a list by others.
        single = answer[0] if isinstance(answer, list) and answer else answer
        return (_outputs(field(single, "embedding"), outputs, are_shares=False),)

    return Reading("/classify", body, read)


def _chosen(rows: list[Any], tokens: Tokens, positions: Sequence[int]) -> list[Any]:
    """The rows of these positions, out of one for each token or one for each mark of a step."""
    if len(rows) == len(tokens):
        return [rows[position] for position in positions]
    marks = [position for position, token in enumerate(tokens) if token == tokens[positions[-1]]]
    if len(rows) != len(marks) or not set(positions).issubset(marks):
        raise BadAnswer(f"gave {len(rows)} rows for {len(tokens)} tokens, of which {len(marks)} end a step")
    return [rows[marks.index(position)] for position in positions]


def _outputs(row: Any, outputs: Tokens, *, are_shares: bool) -> tuple[float, ...]:
    numbers = [number(field(row, output)) for output in outputs]
    if not are_shares:
        return tuple(numbers)
    return tuple(math.log(share) if share > 0 else -745.0 for share in numbers)
