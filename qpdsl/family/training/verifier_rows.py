"""Training rows for the process reward model, in the RLHFlow chat form.

The first user turn is the problem, a space and step 1; every later user turn is one step; every assistant turn is
"+" or "-". A step's score is p("+") against p("-") at the generation prompt after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from transformers import PreTrainedTokenizerFast

from qpdsl.family.tasks.mistakes import JudgedStep
from qpdsl.family.training.batches import IGNORED, stacked


@dataclass(frozen=True)
class VerifierRow:
    """Four lists of one length, a value a position, `IGNORED` where there is nothing to learn.

    `words`: the id a careful solver would write next. `labels`: "+" or "-" at generation prompts.
    `slips`: 1 where the token is the first wrong one of its step, 0 where it is right. `spoiled`: 1 once anything was
    wrong.
    """

    ids: list[int]
    words: list[int]
    labels: list[int]
    slips: list[int]
    spoiled: list[int]


@dataclass(frozen=True)
class VerifierBatch:
    """The lists of `VerifierRow` stacked: int64 [rows, width]."""

    ids: torch.Tensor
    words: torch.Tensor
    labels: torch.Tensor
    slips: torch.Tensor
    spoiled: torch.Tensor


class RowMaker:
    """Builds verifier rows with one tokenizer."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._user, self._assistant, self._end, self.plus, self.minus, self.pad = tokenizer.convert_tokens_to_ids(
            ["<|user|>", "<|assistant|>", "<|end|>", "+", "-", "<|pad|>"]
        )

    def row(self, problem: str, steps: Sequence[JudgedStep], empty_last: bool = False) -> VerifierRow:
        """One row; with `empty_last`, an empty step follows, as texts that end in a blank line give."""
        row = VerifierRow([], [], [], [], [])
        opening = self._encode(problem + " ")
        spoiled = 0
        for index, step in enumerate(steps):
            written = self._encode(step.text)
            wanted = written if step.intended == step.text else self._encode(step.intended) if step.intended else None
            self._add(row, self._user)
            for token in opening if index == 0 else []:
                self._add(row, token)
            spoiled = self._add_step(row, written, wanted, spoiled)
            spoiled = max(spoiled, int(not step.right))
            self._close(row, spoiled)
        if empty_last:
            self._add(row, self._user)
            self._close(row, spoiled)
        return row

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text)["input_ids"]
        return ids

    def _add(
        self, row: VerifierRow, token: int, label: int = IGNORED, slip: int = IGNORED, spoiled: int = IGNORED
    ) -> None:
        row.ids.append(token)
        row.words.append(IGNORED)
        row.labels.append(label)
        row.slips.append(slip)
        row.spoiled.append(spoiled)

    def _add_step(self, row: VerifierRow, written: list[int], wanted: list[int] | None, spoiled: int) -> int:
        slipped = wanted is None
        for place, token in enumerate([*written, self._end]):
            slip = IGNORED
            if wanted is not None and not slipped:
                right = wanted[place] if place < len(wanted) else self._end
                row.words[-1] = right
                slip = int(right != token)
                slipped = slip == 1
                spoiled = max(spoiled, slip)
            self._add(row, token, slip=slip, spoiled=spoiled)
        return spoiled

    def _close(self, row: VerifierRow, spoiled: int) -> None:
        if row.ids[-1] != self._end:
            self._add(row, self._end)
        self._add(row, self._assistant, label=self.minus if spoiled else self.plus)
        self._add(row, self.plus)
        self._add(row, self._end)


def pad_verifier_rows(rows: Sequence[VerifierRow], pad_id: int) -> VerifierBatch:
    """Stack rows, padded on the right."""
    return VerifierBatch(
        ids=stacked([row.ids for row in rows], pad_id),
        words=stacked([row.words for row in rows], IGNORED),
        labels=stacked([row.labels for row in rows], IGNORED),
        slips=stacked([row.slips for row in rows], IGNORED),
        spoiled=stacked([row.spoiled for row in rows], IGNORED),
    )
