"""What a request may ask of how its tokens are drawn.

With logits that are changed before, with drafts, only where the model is sure, with figures returned.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import numpy as np

# Of all ids, float32 [V].
Logits: TypeAlias = "np.ndarray[Any, np.dtype[np.float32]]"

# Of the distribution at temperature 1 over the ids that may come: the probability of the token that was drawn, by how
# much the largest probability is ahead of the second, or 1 - H / ln(ids), which is 0 where all are alike.
ConfidenceMeasure = Literal["probability", "top", "margin", "entropy"]
# A confidence nearer to its threshold than this could be on either side by rounding.
_NEAR = 1e-6
# How far the threshold moves at a draw, and where it begins, when a share is held.
_RATE = 0.1
_FIRST = 0.9


@dataclass(frozen=True, slots=True)
class LogitProcessors:
    """What a row's own tokens do to its logits, in this order, before the temperature and the filters.

    `bias` is added to the logits of ids. That of an id which stands in the prompt or was drawn is divided by
    `repetition` where it is above 0, else multiplied by it (CTRL: Keskar et al., 2019, section 4.1; transformers'
    RepetitionPenaltyLogitsProcessor). From that of one which was drawn k times k · `frequency` and `presence` are taken
    (OpenAI's). `min_tokens` and `without` say again what a mask does: the sample does not end before so many tokens,
    and these texts never appear in it.
    """

    repetition: float = 1.0
    presence: float = 0.0
    frequency: float = 0.0
    bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    without: tuple[str, ...] = ()

    @property
    def given(self) -> tuple[str, ...]:
        """The options that do something, as programs call them; the first ones change logits, and do not only mask."""
        options = {
            "repetition_penalty": self.repetition != 1,
            "presence_penalty": self.presence != 0,
            "frequency_penalty": self.frequency != 0,
            "logit_bias": bool(self.bias),
            "min_tokens": self.min_tokens > 0,
            "without": bool(self.without),
        }
        return tuple(name for name, given in options.items() if given)

    @property
    def adjusts(self) -> bool:
        """Whether it changes logits, and does not only mask them."""
        return self.repetition != 1 or self.presence != 0 or self.frequency != 0 or bool(self.bias)


UNPROCESSED = LogitProcessors()


@dataclass(frozen=True, slots=True, eq=False)
class LogitContrast:
    """A token is drawn from what sets its model apart from a smaller one, whose `smaller` logits are of the same place.

    Only ids may come that the model finds plausible: those of at least `alpha` times the probability of its likeliest
    one. The logit of such an id is l + beta · (l − s), where l is the model's and s the smaller one's. Ids that one of
    them lacks do not count. Source: contrastive decoding (Li et al., 2022, equation 2, for what is plausible; O'Brien
    and Lewis, 2023, section 2, for the logits).

    Both models' logits have a row's biases and penalties in them by then, and what a mask forbids is no part of them.
    The temperature and the filters follow, and a log-probability is one of the contrasted logits.
    """

    smaller: Logits
    alpha: float
    beta: float

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1 or not (math.isfinite(self.beta) and self.beta >= 0):
            raise ValueError(f"alpha lies between 0 and 1 and beta is 0 or more, not {self.alpha} and {self.beta}")


@dataclass(frozen=True, slots=True)
class Confidence:
    """A token stands where the model's confidence in it, by this measure, is over the `threshold` (0 to 1).

    Source: CALID, filter decoding, section 2. Its equation 1 is `top`, which the drawn token has no part in.

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


class DrawFigures(NamedTuple):
    """Of the model's distribution at temperature 1, before filters such as top-p, over the ids that a mask allows.

    `entropy` is in nats. `confidence` is minus the mean of the log-probabilities of the `LIKELIEST` likeliest ids (Fu
    et al., "Deep Think with Confidence", 2025, equation 2). `certainty` is KL(uniform ‖ p) in nats, the divergence of
    the distribution from the uniform one: self-certainty (Kang et al., "Scalable Best-of-N Selection for Large Language
    Models via Self-Certainty", 2025). The surer the model is, the greater they are, and the less the entropy. All are 0
    where one id alone may come.
    """

    entropy: float
    confidence: float
    certainty: float


LIKELIEST = 20
FORCED = DrawFigures(0.0, 0.0, 0.0)


class ConfidenceWindow:
    """The mean confidence of the last `window` draws (Fu et al., 2025, equation 3). It begins with `earlier` ones.

    Draws at which one id alone could come have no part in it: nothing was open there, and their 0 would be the least.
    """

    def __init__(self, window: int, earlier: Iterable[float] = ()) -> None:
        self._last = deque(earlier, window)

    def push(self, confidence: float) -> float | None:
        """The mean of the window that ends with this draw; None where it is not full, or the draw has no part in it."""
        if not confidence:
            return None
        self._last.append(confidence)
        # Exact, so that no version of Python sums otherwise.
        return math.fsum(self._last) / len(self._last) if len(self._last) == self._last.maxlen else None


# A mean nearer to the bar than this could be on either side by rounding.
_NEAR_BAR = 1e-5


@dataclass(frozen=True, slots=True)
class ConfidenceFloor:
    """A sample ends with the token that brings the mean confidence of a full `window` of draws under the `bar`.

    Source: DeepConf online (Fu et al., 2025, section 3.2). A mean is compared in `digits` digits, as scores are, so
    that one that equals the bar stays. `earlier` are the confidences of the draws before the request's own that its
    first windows reach back to.
    """

    window: int
    bar: float
    digits: int
    earlier: tuple[float, ...] = ()

    def after(self, figures: Iterable[DrawFigures]) -> ConfidenceFloor:
        """What the draws are held to that follow these."""
        drawn = (*self.earlier, *(draw.confidence for draw in figures if draw.confidence))
        return replace(self, earlier=drawn[max(len(drawn) - self.window + 1, 0) :])

    def follow(self) -> ConfidenceWindow:
        """What takes the draws of one sample."""
        return ConfidenceWindow(self.window, self.earlier)

    def ends(self, mean: float) -> bool:
        """Whether a sample ends with a window of this mean."""
        return round(mean, self.digits) < self.bar

    def near(self, mean: float) -> bool:
        """Whether rounding could have decided it."""
        return self.ends(mean - _NEAR_BAR) != self.ends(mean + _NEAR_BAR)


# Every one is a row of the step, whether it is right or not: from here on a step is arithmetic.
MAX_DRAFTED = 63


@dataclass(frozen=True, slots=True)
class Drafting:
    """What proposes tokens that one forward then checks: it changes how fast tokens come, and none of them.

    `method` names one of the engine's drafters, and `model` what it drafts with, a model or a head, by the name that
    the engine knows it by. At most `length` tokens follow each other; the
    engine drafts fewer, or none, where it measures that they do not pay, unless `fixed`. With `branches` above 1 a
    draft is a tree: each token has up to so many that may follow it. `corpus`: texts as token ids, to look
    into. `shown`: the engine says here that its drafter is shown the hidden states of all rows.
    """

    method: str
    model: str | None = None
    length: int = 8
    branches: int = 1
    fixed: bool = False
    # Its hash would be computed anew each time that a draft is looked up.
    corpus: tuple[tuple[int, ...], ...] = field(default=(), hash=False)
    shown: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if not 1 <= self.length <= MAX_DRAFTED or self.branches < 1:
            raise ValueError(f"a draft has 1 to {MAX_DRAFTED} tokens after each other, and a branch at least")
        if self.nodes > MAX_DRAFTED:
            raise ValueError(f"a draft has at most {MAX_DRAFTED} tokens, this tree {self.nodes}")

    @property
    def nodes(self) -> int:
        """The tokens of a whole draft: those of a full tree."""
        return sum(self.branches**level for level in range(1, self.length + 1)) if self.branches > 1 else self.length
