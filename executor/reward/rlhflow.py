"""Process reward models in the RLHFlow chat format (Xiong et al., "An implementation of generative PRM", 2024).

The first user turn is the problem, a space and step 1; each later user turn is one step; every assistant turn is "+".
A step's score is the softmax over "+" and "−" at the token before the assistant's answer to it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from qpdsl.executor.reward.verifier import SCORE_DIGITS, StepReads
from qpdsl.executor.runtime.context import ContextError, Piece, chat_frame, encode_pieces

STEP_SEPARATOR = "\n\n"
_ENCODED_MAX = 20_000


class RlhflowVerifier:
    """Raises ContextError where the tokenizer cannot lay out the format."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._frames: dict[int, list[str | int]] = {}
        # Solutions grow a step at a time, so nearly every prefix is asked for again.
        self._encoded: dict[tuple[str, tuple[str, ...]], tuple[int, ...]] = {}
        self._ids = tuple(self._single(sign) for sign in "+-")

    def reads(self, problem: str, text: str) -> StepReads | None:
        steps = [step for step in text.split(STEP_SEPARATOR) if step.strip()]
        if not steps:
            return None
        positions: list[int] = []
        tokens: tuple[int, ...] = ()
        for count in range(1, len(steps) + 1):
            longer = self._encode(problem, tuple(steps[:count]))
            if longer[: len(tokens)] != tokens:
                raise ContextError("its chat template changes earlier turns as a conversation grows")
            tokens = longer
            positions.append(len(tokens) - 1)
        return StepReads(tokens, tuple(positions), self._ids)

    def score(self, logits: Sequence[float]) -> float:
        plus, minus = logits
        return round(1.0 / (1.0 + math.exp(min(minus - plus, 700.0))), SCORE_DIGITS)

    def _encode(self, problem: str, steps: tuple[str, ...]) -> tuple[int, ...]:
        """Token ids of the conversation up to where the verifier judges the last of `steps`."""
        known = self._encoded.get((problem, steps))
        if known is None:
            texts = [f"{problem} {steps[0]}", *steps[1:]]
            pieces: list[Piece] = [
                (part, True) if isinstance(part, str) else (texts[part // 2], False) for part in self._frame(len(steps))
            ]
            known = encode_pieces(self._tokenizer, pieces)
            if len(self._encoded) >= _ENCODED_MAX:
                del self._encoded[next(iter(self._encoded))]
            self._encoded[problem, steps] = known
        return known

    def _frame(self, steps: int) -> list[str | int]:
        frame = self._frames.get(steps)
        if frame is None:
            turns: list[tuple[str, str | None]] = [("user", None)]
            for _ in range(steps - 1):
                turns += [("assistant", "+"), ("user", None)]
            frame = self._frames[steps] = chat_frame(self._tokenizer, turns)
        return frame

    def _single(self, sign: str) -> int:
        ids = self._tokenizer.encode(sign, add_special_tokens=False)
        if not ids or (len(ids) > 1 and self._tokenizer.decode(ids[:-1]).strip()):
            raise ContextError(f"its tokenizer has no token for `{sign}`, so it cannot be an RLHFlow verifier")
        return int(ids[-1])
