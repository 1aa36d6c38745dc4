"""Math-Shepherd (Wang et al., "Math-Shepherd: Verify and Reinforce LLMs Step-by-step", 2024): a tag after each step.

The text is the problem, a space and the solution, with " ки" at the end of each step. A step's score is the softmax
over "+" and "−" at its tag.
"""

from __future__ import annotations

from collections.abc import Sequence

from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import Piece, automatic_prefix, encode_located
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.verifiers.verifier import (
    STEP_SEPARATOR,
    Solution,
    StepReads,
    Verifier,
    sign_token,
    two_way,
)

TAG = "ки"


class MathShepherdVerifier(Verifier):
    """Named by the program, as any model may have the tokens that it needs.

    Raises ContextError where the tokenizer lacks the tag or the signs.
    """

    kind = "math_shepherd"

    def __init__(self, tokenizer: TextTokenizer, width: int | None = None, padding: int | None = None) -> None:
        super().__init__(tokenizer, width, padding)
        self._tag = sign_token(tokenizer, TAG, "a Math-Shepherd")
        self._prefix = automatic_prefix(tokenizer)
        self._ids = (sign_token(tokenizer, "+", "a Math-Shepherd"), sign_token(tokenizer, "-", "a Math-Shepherd"))

    def lay_out(self, solution: Solution) -> StepReads | None:
        return self._search_and_learn(solution) if solution.raw else self._by_steps(solution)

    def score(self, values: Sequence[float]) -> float:
        return two_way(values[0], values[1])

    def _by_steps(self, solution: Solution) -> StepReads | None:
        if not solution.steps:
            return None
        pieces: list[Piece] = [(f"{solution.problem} ", False)]
        ends: list[int] = []
        length = len(solution.problem) + 1
        for step in solution.steps:
            pieces += [(f"{STEP_SEPARATOR if ends else ''}{step} ", False), (TAG, True)]
            length += len(pieces[-2][0]) + len(TAG)
            ends.append(length)
        encoded = encode_located(self._tokenizer, pieces)
        positions = [encoded.last_before(end) for end in ends]
        if any(encoded.tokens[position] != self._tag for position in positions):
            raise ContextError(f"its tokenizer does not keep ` {TAG}` apart from the text around it")
        shift = len(self._prefix)
        return StepReads(self._prefix + encoded.tokens, tuple(position + shift for position in positions), self._ids)

    def _search_and_learn(self, solution: Solution) -> StepReads | None:
        """As search-and-learn has it: a system prompt, and every tag counts, also one in the text itself."""
        tagged = solution.text.replace(STEP_SEPARATOR, f" {TAG}{STEP_SEPARATOR}")
        if not tagged.endswith(STEP_SEPARATOR):
            tagged += f" {TAG}"
        # All of it is trusted: whatever counts as a tag there counts here.
        pieces: list[Piece] = [(f"{solution.system}\n{solution.problem}\n {tagged}", True)]
        tokens = self._prefix + encode_located(self._tokenizer, pieces).tokens
        positions = tuple(position for position, token in enumerate(tokens) if token == self._tag)
        return StepReads(tokens, positions, self._ids) if positions else None
