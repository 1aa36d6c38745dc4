"""What can be told of a draw besides its token: how the distribution that it came from looks."""

from __future__ import annotations

from typing import NamedTuple


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
