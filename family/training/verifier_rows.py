"""Training rows for the process reward model, in the RLHFlow chat form.

The first user turn is the problem, a space and step 1; every later user turn is one step; every assistant turn is
"+" or "-". A step's score is p("+") against p("-") at the generation prompt after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from family.tasks.wrong_solutions import JudgedStep
from family.training.batches import IGNORED, padded


@dataclass(frozen=True)
class VerifierRow:
    """Lists of one length with a value for each position, `IGNORED` where there is nothing to learn.

    `words`: the id a careful solver would write next. `labels`: "+" or "-" at generation prompts. `first_errors`: 1
    where the token is the first wrong one of its step, 0 where it is right. `after_error`: 1 once anything was wrong,
    0 before.
    """

    ids: list[int]
    words: list[int]
    labels: list[int]
    first_errors: list[int]
    after_error: list[int]


@dataclass(frozen=True)
class VerifierBatch:
    """The lists of `VerifierRow` stacked: int64 [rows, width]."""

    ids: torch.Tensor
    words: torch.Tensor
    labels: torch.Tensor
    first_errors: torch.Tensor
    after_error: torch.Tensor


class RowMaker:
    """Builds verifier rows with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._user, self._assistant, self._end, self.plus, self.minus, self.pad = tokenizer.convert_tokens_to_ids(
            ["<|user|>", "<|assistant|>", "<|end|>", "+", "-", "<|pad|>"]
        )

    def row(self, problem: str, steps: Sequence[JudgedStep], empty_last: bool = False) -> VerifierRow:
        """One row. With `empty_last` an empty step follows, as in texts that end in a blank line."""
        row = VerifierRow([], [], [], [], [])
        opening = self._encode(problem + " ")
        after_error = 0
        for index, step in enumerate(steps):
            written = self._encode(step.text)
            intended = written if step.intended == step.text else self._encode(step.intended) if step.intended else None
            self._add(row, self._user)
            for token in opening if index == 0 else []:
                self._add(row, token)
            after_error = self._add_step(row, written, intended, after_error)
            after_error = max(after_error, int(not step.right))
            self._close(row, after_error)
        if empty_last:
            self._add(row, self._user)
            self._close(row, after_error)
        return row

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def _add(
        self, row: VerifierRow, token: int, label: int = IGNORED, first_error: int = IGNORED, after_error: int = IGNORED
    ) -> None:
        row.ids.append(token)
        row.words.append(IGNORED)
        row.labels.append(label)
        row.first_errors.append(first_error)
        row.after_error.append(after_error)

    def _add_step(self, row: VerifierRow, written: list[int], intended: list[int] | None, after_error: int) -> int:
        wrong = intended is None
        for place, token in enumerate([*written, self._end]):
            first_error = IGNORED
            if intended is not None and not wrong:
                right = intended[place] if place < len(intended) else self._end
                row.words[-1] = right
                first_error = int(right != token)
                wrong = first_error == 1
                after_error = max(after_error, first_error)
            self._add(row, token, first_error=first_error, after_error=after_error)
        return after_error

    def _close(self, row: VerifierRow, after_error: int) -> None:
        if row.ids[-1] != self._end:
            self._add(row, self._end)
        self._add(row, self._assistant, label=self.minus if after_error else self.plus)
        self._add(row, self.plus)
        self._add(row, self._end)


def pad_verifier_rows(rows: Sequence[VerifierRow], pad_id: int) -> VerifierBatch:
    """Stack rows, padded on the right."""
    return VerifierBatch(
        ids=padded([row.ids for row in rows], pad_id),
        words=padded([row.words for row in rows], IGNORED),
        labels=padded([row.labels for row in rows], IGNORED),
        first_errors=padded([row.first_errors for row in rows], IGNORED),
        after_error=padded([row.after_error for row in rows], IGNORED),
    )
