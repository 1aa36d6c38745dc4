"""Qwen2.5-Math-PRM (Zhang et al., "The Lessons of Developing Process Reward Models", 2025): a two-class head.

A conversation of a system prompt, the problem and the solution, with `<extra_0>` after each step in place of the blank
line. A step's score is the probability of the second class at its `<extra_0>`.
"""

from __future__ import annotations

from collections.abc import Sequence

from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import Piece, chat_frame, encode_pieces
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.verifiers.verifier import ModelFiles, Solution, StepReads, Verifier, two_way

MARK = "<extra_0>"
# What the model was trained and is published with.
SYSTEM = "Please reason step by step, and put your final answer within \\boxed{}."


class QwenVerifier(Verifier):
    """Recognized by its architecture. Raises ContextError where the tokenizer lacks the mark or a chat template."""

    kind = "qwen"
    head = "score"
    head_width = 2

    def __init__(self, tokenizer: TextTokenizer, width: int | None = None, padding: int | None = None) -> None:
        super().__init__(tokenizer, width, padding)
        added = {token.content: id for id, token in tokenizer.added_tokens_decoder.items()}
        if MARK not in added:
            raise ContextError(f"its tokenizer has no token `{MARK}`, so it cannot be a Qwen verifier")
        self._mark = added[MARK]
        self._frame = chat_frame(tokenizer, [("system", SYSTEM), ("user", None), ("assistant", None)])

    @classmethod
    def recognizes(cls, files: ModelFiles) -> bool:
        """Whether it is the architecture that Qwen published with its verifiers."""
        architectures = getattr(files.config, "architectures", None) or [""]
        return bool(architectures[0].endswith("ForProcessRewardModel"))

    def lay_out(self, solution: Solution) -> StepReads | None:
        """The conversation up to its last mark; each step is read at its own, by both classes."""
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
        positions = tuple(position for position, token in enumerate(tokens) if token == self._mark)
        return StepReads(tokens[: positions[-1] + 1], positions, (0, 1))

    def score(self, values: Sequence[float]) -> float:
        """The probability of the second of two classes, by their logits."""
        return two_way(values[1], values[0])
