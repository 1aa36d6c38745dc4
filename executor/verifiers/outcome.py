"""Outcome reward models: a sequence classifier's number for the whole solution, read at its last token.

A conversation of the problem and the solution; or, for a tokenizer without a chat template, one after the other with a
newline between. One label is the score itself, of any size; of two the second one's softmax is.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from transformers import PreTrainedTokenizerFast

from qpdsl.executor.text.context import (
    ContextError,
    Piece,
    automatic_prefix,
    chat_frame,
    encode_pieces,
    template_strips,
)
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS, Solution, StepReads, Verifier, two_way


class OutcomeVerifier(Verifier):
    """`labels` is the width of the model's head. Raises ContextError where that says no score."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, labels: int) -> None:
        super().__init__()
        if labels > 2:
            raise ContextError(f"it tells {labels} classes apart; an outcome reward model has one number or two")
        self._tokenizer = tokenizer
        self._ids = tuple(range(labels))

    @property
    def bounded(self) -> bool:
        return len(self._ids) == 2

    def lay_out(self, solution: Solution) -> StepReads | None:
        text = solution.text if solution.raw else solution.text.rstrip()
        if not text:
            return None
        tokens = self._tokens(solution.problem, text)
        return StepReads(tokens, (len(tokens) - 1,), self._ids)

    def score(self, values: Sequence[float]) -> float:
        return round(values[0], SCORE_DIGITS) if len(values) == 1 else two_way(values[1], values[0])

    def _tokens(self, problem: str, text: str) -> tuple[int, ...]:
        if self._frame is None:
            return automatic_prefix(self._tokenizer) + encode_pieces(self._tokenizer, [(f"{problem}\n{text}", False)])
        said = [problem, text]
        if template_strips(self._tokenizer):
            said = [each.strip() for each in said]
        pieces: list[Piece] = [(part, True) if isinstance(part, str) else (said[part], False) for part in self._frame]
        return encode_pieces(self._tokenizer, pieces)

    @cached_property
    def _frame(self) -> list[str | int] | None:
        if not self._tokenizer.chat_template:
            return None
        return chat_frame(self._tokenizer, [("user", None), ("assistant", None)], to_go_on=False)
