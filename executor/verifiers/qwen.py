"""Qwen2.5-Math-PRM (Zhang et al., "The Lessons of Developing Process Reward Models", 2025): a two-class head.

A conversation of a system prompt, the problem and the solution, with `<extra_0>` behind each step in place of the blank
line. A step's score is the softmax of the head at its `<extra_0>`, the second class.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from qpdsl.executor.text.context import ContextError, Piece, chat_frame, encode_pieces
from qpdsl.executor.verifiers.verifier import Solution, StepReads, Verifier, two_way

MARK = "<extra_0>"
# What the model was trained and is published with.
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


class QwenVerifier(Verifier):
    """Raises ContextError where the tokenizer lacks the mark or a chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        known = {token.content: id for id, token in tokenizer.added_tokens_decoder.items()}
        if MARK not in known:
            raise ContextError(f"its tokenizer has no token `{MARK}`, so it cannot be a Qwen verifier")
        self._mark = known[MARK]
        self._frame = chat_frame(tokenizer, [("system", SYSTEM), ("user", None), ("assistant", None)])

    def lay_out(self, solution: Solution) -> StepReads | None:
        if not solution.steps:
            return None
        pieces: list[Piece] = []
        for part in self._frame:
            if isinstance(part, str):
                pieces.append((part, True))
            elif part == 1:
                pieces.append((solution.problem, False))
            else:
                pieces += [piece for step in solution.steps for piece in ((step, False), (MARK, True))]
        tokens = encode_pieces(self._tokenizer, pieces)
        places = tuple(place for place, token in enumerate(tokens) if token == self._mark)
        return StepReads(tokens[: places[-1] + 1], places, (0, 1))

    def score(self, values: Sequence[float]) -> float:
        return two_way(values[1], values[0])
