"""The draws of a step: which sample draws from which row, under which noise, and from which ids."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.engine.step.adjustments import Adjustment
from qpdsl.executor.requests.drawing import ConfidenceMeasure, LogitContrast
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import Bits, SamplingParams
from qpdsl.executor.requests.routing import Routing


class Draw(NamedTuple):
    """One token to draw.

    `row`: of the hidden states that are read. `position`: how many tokens were drawn before under the key. `allowed`:
    the row of the masks' bits, -1 where every id may come. `sparse`: whether the head may compute the ids alone that
    the mask allows. `exit` and `route`: as in a `GenerateRequest`. `confidence`: what is to be told of how sure the
    model was, None for nothing. `screened`: whether the head may leave out ids that cannot win, since nobody reads the
    log-probability. `figures`: whether `DrawFigures` of it are told. `adjustment`: what the row's own tokens do to its
    logits. `contrast`: what they are contrasted with. `rank`: of an id that is not drawn, but is the one of this rank,
    from 0.
    """

    row: int
    params: SamplingParams
    key: int
    position: int
    allowed: int = -1
    sparse: bool = False
    exit: EarlyExit | None = None
    route: Routing | None = None
    confidence: ConfidenceMeasure | None = None
    screened: bool = False
    figures: bool = False
    adjustment: Adjustment | None = None
    contrast: LogitContrast | None = None
    rank: int | None = None


def drawn_by(draws: Several[Draw]) -> tuple[list[SamplingParams], list[int], list[int]]:
    """The parameters, keys and positions of draws."""
    return [draw.params for draw in draws], [draw.key for draw in draws], [draw.position for draw in draws]


@dataclass(frozen=True, slots=True)
class Masks:
    """Which ids each draw under a mask may take: `bits` as in `Mask.fill`, and how many they are, int64 [rows].

    `first`: the first row of each sequence that has some, which has one for each row of its chunk that is read. A
    prompt that is to be forked has one for all its samples.
    """

    bits: Bits
    counts: np.ndarray[tuple[int], np.dtype[np.int64]]
    first: Mapping[Sequence, int]
