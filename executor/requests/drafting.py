"""What proposes tokens that one forward then checks. It changes how fast tokens come, and none of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal as OneOf

# "ngram": what followed the last tokens where they stood before, in the sample, its prompt, its siblings or a corpus.
# "model": a smaller model of the engine draws with the sample's own noise. "early_exit": the model's own first layers
# do, perhaps through an exit head. "eagle": a trained head does, from the model's last hidden states (EAGLE, Li et al.,
# 2024).
DraftMethod = OneOf["ngram", "model", "early_exit", "eagle"]
# Every one is a row of the step, whether it is right or not: from here on a step is arithmetic.
MOST_DRAFTED = 63


@dataclass(frozen=True, slots=True)
class Drafting:
    """Where drafts come from, and how large they may be.

    `model`: for "model" and "eagle", the drafting model by the name that the engine knows it by; for "early_exit" an
    exit head, or None for the model's own head after its middle layer. At most `length` tokens follow each other; the
    engine drafts fewer, or none, where it measures that they do not pay, unless `fixed`. With `branches` above 1 a
    draft is a tree: each token has up to so many that may follow it. `corpus`: texts as token ids, for "ngram".
    """

    method: DraftMethod
    model: str | None = None
    length: int = 8
    branches: int = 1
    fixed: bool = False
    # Its hash would be computed anew each time that a draft is looked up.
    corpus: tuple[tuple[int, ...], ...] = field(default=(), hash=False)

    def __post_init__(self) -> None:
        if self.method != "early_exit" and (self.model is not None) != (self.method in ("model", "eagle")):
            raise ValueError("a model drafts for `model` and `eagle`, and an exit head for `early_exit`")
        if not 1 <= self.length <= MOST_DRAFTED or self.branches < 1:
            raise ValueError(f"a draft has 1 to {MOST_DRAFTED} tokens after each other, and a branch at least")
        if self.nodes > MOST_DRAFTED:
            raise ValueError(f"a draft has at most {MOST_DRAFTED} tokens, this tree {self.nodes}")

    @property
    def nodes(self) -> int:
        """The tokens of a whole draft: those of a full tree."""
        return sum(self.branches**level for level in range(1, self.length + 1)) if self.branches > 1 else self.length
