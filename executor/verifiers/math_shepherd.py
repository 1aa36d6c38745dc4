"""Math-Shepherd (Wang et al., "Math-Shepherd: Verify and Reinforce LLMs Step-by-step", 2024): a tag behind each step.

The text is the problem, a space and the solution, with " ки" at the end of each step. A step's score is the softmax
over "+" and "−" at its tag.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from qpdsl.executor.text.context import ContextError, Piece, automatic_prefix, encode_located
from qpdsl.executor.verifiers.rlhflow import sign_token
from qpdsl.executor.verifiers.verifier import STEP_SEPARATOR, Solution, StepReads, Verifier, two_way

TAG = "ки"


class MathShepherdVerifier(Verifier):
    """Raises ContextError where the tokenizer has no token for the tag or the signs."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        super().__init__()
        self._tokenizer = tokenizer
        self._tag = sign_token(tokenizer, TAG, "a Math-Shepherd")
        self._prefix = automatic_prefix(tokenizer)
        self._ids = (sign_token(tokenizer, "+", "a Math-Shepherd"), sign_token(tokenizer, "-", "a Math-Shepherd"))

    def lay_out(self, solution: Solution) -> StepReads | None:
        return self._raw(solution) if solution.raw else self._sound(solution)

    def score(self, values: Sequence[float]) -> float:
        return two_way(values[0], values[1])

    def _sound(self, solution: Solution) -> StepReads | None:
        if not solution.steps:
            return None
        pieces: list[Piece] = [(f"{solution.problem} ", False)]
        ends: list[int] = []
        at = len(solution.problem) + 1
        for step in solution.steps:
            pieces += [(f"{STEP_SEPARATOR if ends else ''}{step} ", False), (TAG, True)]
            at += len(pieces[-2][0]) + len(TAG)
            ends.append(at)
        encoded = encode_located(self._tokenizer, pieces)
        places = [encoded.last_before(end) for end in ends]
        if any(encoded.tokens[place] != self._tag for place in places):
            raise ContextError(f"its tokenizer does not keep ` {TAG}` apart from the text around it")
        shift = len(self._prefix)
        return StepReads(self._prefix + encoded.tokens, tuple(place + shift for place in places), self._ids)

    def _raw(self, solution: Solution) -> StepReads | None:
        """As search-and-learn has it: a system prompt, and every tag counts, the text's own too."""
        tagged = solution.text.replace(STEP_SEPARATOR, f" {TAG}{STEP_SEPARATOR}")
        if not tagged.endswith(STEP_SEPARATOR):
            tagged += f" {TAG}"
        # Trusted as a whole: what counts for a tag there counts here.
        pieces: list[Piece] = [(f"{solution.system}\n{solution.problem}\n {tagged}", True)]
        tokens = self._prefix + encode_located(self._tokenizer, pieces).tokens
        places = tuple(place for place, token in enumerate(tokens) if token == self._tag)
        return StepReads(tokens, places, self._ids) if places else None
