"""Outcome reward models: a sequence classifier's number for the whole solution, read where transformers reads it.

The text is a conversation of the problem and the solution or, for a tokenizer without a chat template, one after the
other with a newline between. A head with one output gives the score itself, of any size; of a head with two classes the
score is the probability of the second. The place is the last token that is not the padding of the model's
configuration, which `…ForSequenceClassification` pools, in a batch of one as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from qpdsl.executor.text.chat_template import ContextError
from qpdsl.executor.text.context import Piece, automatic_prefix, chat_frame, encode_pieces, template_strips
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.verifiers.verifier import SCORE_DIGITS, ModelFiles, Solution, StepReads, Verifier, two_way


class OutcomeVerifier(Verifier):
    """Recognized by its architecture. Raises ContextError where the head has more than two outputs."""

    kind = "outcome"
    head = "score"

    def __init__(self, tokenizer: TextTokenizer, width: int | None = None, padding: int | None = None) -> None:
        super().__init__(tokenizer, width, padding)
        outputs = 1 if width is None else width
        if outputs > 2:
            raise ContextError(f"it tells {outputs} classes apart; an outcome reward model has one number or two")
        self._ids = tuple(range(outputs))

    @classmethod
    def recognizes(cls, files: ModelFiles) -> bool:
        architectures = getattr(files.config, "architectures", None) or [""]
        return bool(architectures[0].endswith("ForSequenceClassification")) and files.tensors.has_head(cls.head)

    @property
    def bounded(self) -> bool:
        return len(self._ids) == 2

    def lay_out(self, solution: Solution) -> StepReads | None:
        text = solution.text if solution.raw else solution.text.rstrip()
        if not text:
            return None
        tokens = self._tokens(solution.problem, text)
        # As transformers has it: the last token that is no padding, be it the token that closes a turn.
        last = max((at for at, token in enumerate(tokens) if token != self.padding), default=0)
        return StepReads(tokens[: last + 1], (last,), self._ids)

    def score(self, values: Sequence[float]) -> float:
        return round(values[0], SCORE_DIGITS) if len(values) == 1 else two_way(values[1], values[0])

    def _tokens(self, problem: str, text: str) -> tuple[int, ...]:
        if self._frame is None:
            return automatic_prefix(self._tokenizer) + encode_pieces(self._tokenizer, [(f"{problem}\n{text}", False)])
        turns = [problem, text]
        if template_strips(self._tokenizer):
            turns = [turn.strip() for turn in turns]
        pieces: list[Piece] = [(part, True) if isinstance(part, str) else (turns[part], False) for part in self._frame]
        return encode_pieces(self._tokenizer, pieces)

    @cached_property
    def _frame(self) -> list[str | int] | None:
        if not self._tokenizer.chat_template:
            return None
        return chat_frame(self._tokenizer, [("user", None), ("assistant", None)], to_go_on=False)
