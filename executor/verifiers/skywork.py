"""Skywork-o1-Open-PRM (Skywork, "Skywork-o1 Open Series", 2024): a value head read at newlines.

The text is the problem and a newline, then the solution, each line encoded by itself with a newline token after it. A
step is a line; its score is the sigmoid of the value head at its newline.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import encode_pieces
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS, ModelFiles, Solution, StepReads, Verifier


class SkyworkVerifier(Verifier):
    """Recognized by the weights of its head. Raises ContextError where the tokenizer has no token for a newline."""

    kind = "skywork"
    head = "v_head.summary"
    head_width = 1

    def __init__(self, tokenizer: TextTokenizer, width: int | None = None, padding: int | None = None) -> None:
        super().__init__(tokenizer, width, padding)
        ids = tokenizer.encode("\n", add_special_tokens=False)
        if not ids or tokenizer.decode(ids[-1:]) != "\n":
            raise ContextError("its tokenizer has no token for a newline, so it cannot be a Skywork verifier")
        self._newline = int(ids[-1])

    @classmethod
    def recognizes(cls, files: ModelFiles) -> bool:
        return files.tensors.has_head(cls.head)

    def lay_out(self, solution: Solution) -> StepReads | None:
        text = solution.text if solution.raw else solution.text.rstrip()
        if not text and not solution.raw:
            return None
        first = self._tokenizer.bos_token or ""
        tokens = list(encode_pieces(self._tokenizer, [(first, True), (f"{solution.problem}\n", False)]))
        positions: list[int] = []
        for line in text.split("\n"):
            tokens += [*encode_pieces(self._tokenizer, [(line, False)]), self._newline]
            if line.strip() or solution.raw:
                positions.append(len(tokens) - 1)
        return StepReads(tuple(tokens), tuple(positions), (0,))

    def score(self, values: Sequence[float]) -> float:
        return round(1.0 / (1.0 + math.exp(min(-values[0], 700.0))), SCORE_DIGITS)
