"""How sure a model must be of a token for it to stand (CALID: filter decoding, section 2)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal as OneOf

# Of the distribution at temperature 1 over the ids that may come: the probability of the token that was drawn, by how
# much the largest probability is ahead of the second, or 1 - H / ln(ids), which is 0 where all are alike.
ConfidenceMeasure = OneOf["probability", "margin", "entropy"]
# A confidence nearer to its threshold than this could be on either side by rounding.
_NEAR = 1e-6
# How far the threshold moves at a draw, and where it begins, when a share is held.
_RATE = 0.1
_FIRST = 0.9


@dataclass(frozen=True, slots=True)
class Confidence:
    """A token stands where the model's confidence in it, by this measure, is over the `threshold` (0 to 1).

    All measures are of the distribution at temperature 1, before filters such as top-p, over the ids that a mask
    allows: a threshold means the same at every temperature, and what could not have been drawn counts for nothing. Of a
    single allowed id there is nothing to be unsure of, and none of this is asked.

    With a `share` the threshold moves so that in the long run this share of the draws is not over it. It is a function
    of the confidences that the sample itself had before. After each draw it moves up by rate * share, and where the
    draw was not over it, down by the rate, so that after n draws the share is met within (1 + rate) / (rate * n)
    (Gibbs and Candès, "Adaptive conformal inference under distribution shift", 2021, proposition 4.1).
    """

    by: ConfidenceMeasure = "probability"
    threshold: float = _FIRST
    share: float | None = None

    def __post_init__(self) -> None:
        if not math.isfinite(self.threshold):
            raise ValueError(f"a threshold is a number, not {self.threshold}")
        if self.share is not None and not 0 <= self.share <= 1:
            raise ValueError(f"a share lies between 0 and 1, not at {self.share}")

    def holds(self, confidence: float) -> bool:
        """Whether a token of this confidence stands."""
        return confidence > self.threshold

    def near(self, confidence: float) -> bool:
        """Whether rounding could have decided it."""
        return abs(confidence - self.threshold) < _NEAR

    def after(self, confidence: float) -> Confidence:
        """What the next draw of the same sample is held to."""
        if self.share is None:
            return self
        return replace(self, threshold=self.threshold + _RATE * (self.share - (not self.holds(confidence))))
