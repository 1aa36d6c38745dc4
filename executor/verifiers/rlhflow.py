"""Process reward models in the RLHFlow chat format (Xiong et al., "An implementation of generative PRM", 2024).

The first user turn is the problem, a space and step 1; each later user turn is one step; every assistant turn is "+".
A step's score is the softmax over "+" and "−" at the token before the assistant's answer to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerFast

from qpdsl.executor.text.context import ContextError, Encoded, Piece, chat_frame, encode_located, template_strips
from qpdsl.executor.text.resumed_encoding import Beginnings
from qpdsl.executor.verifiers.verifier import Solution, StepReads, Verifier, two_way


class RlhflowVerifier(Verifier):
    """Raises ContextError where the tokenizer cannot lay out the format."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._beginnings = Beginnings(tokenizer)
        self._frames: dict[int, list[str | int]] = {}
        self._ids = (sign_token(tokenizer, "+", "an RLHFlow"), sign_token(tokenizer, "-", "an RLHFlow"))

    def lay_out(self, solution: Solution) -> StepReads | None:
        steps = solution.steps
        if not steps:
            return None
        frame = self._frame(len(steps))
        texts = [f"{solution.problem} {steps[0]}", *steps[1:]]
        if self._strips:
            texts = [text.strip() for text in texts]
        pieces: list[Piece] = []
        # The turns of the frame are the user's and the assistant's by turns; a step is judged where the latter begin.
        judged: list[int] = []
        at = 0
        for part in frame:
            if isinstance(part, int) and part % 2:
                judged.append(at)
            text = part if isinstance(part, str) else "+" if part % 2 else texts[part // 2]
            pieces.append((text, isinstance(part, str)))
            at += len(text)
        encoded: Encoded = encode_located(self._tokenizer, pieces, self._beginnings.encode)
        return StepReads(encoded.tokens, tuple(encoded.last_before(end) for end in (*judged, at)), self._ids)

    def score(self, values: Sequence[float]) -> float:
        return two_way(values[0], values[1])

    @cached_property
    def _strips(self) -> bool:
        return template_strips(self._tokenizer)

    def _frame(self, steps: int) -> list[str | int]:
        """The conversation up to where the last step is judged, numbers in the place of the texts."""
        frame = self._frames.get(steps)
        if frame is None:
            turns = [("user" if index % 2 == 0 else "assistant", None) for index in range(2 * steps - 1)]
            frame = self._frames[steps] = chat_frame(self._tokenizer, turns)
        return frame


def sign_token(tokenizer: PreTrainedTokenizerFast, sign: str, kind: str) -> int:
    """The token that a sign by itself comes to. Raises ContextError where it has none."""
    ids = tokenizer.encode(sign, add_special_tokens=False)
    if not ids or (len(ids) > 1 and tokenizer.decode(ids[:-1]).strip()):
        raise ContextError(f"its tokenizer has no token for `{sign}`, so it cannot be {kind} verifier")
    return int(ids[-1])
