"""Process reward models in the RLHFlow chat format (Xiong et al., "An implementation of generative PRM", 2024).

The first user turn is the problem, a space and step 1; each later user turn is one step; every assistant turn is "+".
A step's score is the softmax over "+" and "−" at the token before the assistant's answer to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from qpdsl.executor.text.context import Encoded, Piece, ResumedEncoder, chat_frame, encode_located, template_strips
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.verifiers.verifier import Solution, StepReads, Verifier, sign_token, two_way


class RlhflowVerifier(Verifier):
    """Named by the program, as its files are those of any chat model.

    Raises ContextError where the tokenizer cannot lay out the format.
    """

    kind = "rlhflow"

    def __init__(self, tokenizer: TextTokenizer, width: int | None = None, padding: int | None = None) -> None:
        super().__init__(tokenizer, width, padding)
        self._encoder = ResumedEncoder(tokenizer)
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
        # The turns are the user's (even numbers) and the assistant's (odd) in alternation. A step is judged where the
        # assistant's answer to it begins.
        answers: list[int] = []
        length = 0
        for part in frame:
            if isinstance(part, int) and part % 2:
                answers.append(length)
            text = part if isinstance(part, str) else "+" if part % 2 else texts[part // 2]
            pieces.append((text, isinstance(part, str)))
            length += len(text)
        encoded: Encoded = encode_located(self._tokenizer, pieces, self._encoder.encode)
        return StepReads(encoded.tokens, tuple(encoded.last_before(end) for end in (*answers, length)), self._ids)

    def score(self, values: Sequence[float]) -> float:
        return two_way(values[0], values[1])

    @cached_property
    def _strips(self) -> bool:
        return template_strips(self._tokenizer)

    def _frame(self, steps: int) -> list[str | int]:
        """The conversation up to where the last step is judged, with the turns' numbers in place of their texts."""
        frame = self._frames.get(steps)
        if frame is None:
            turns = [("user" if index % 2 == 0 else "assistant", None) for index in range(2 * steps - 1)]
            frame = self._frames[steps] = chat_frame(self._tokenizer, turns)
        return frame
