"""What the large model would have drawn where a filter's small one was sure: which draws, and how they are counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence

from qpdsl.executor.requests.request import Mask
from qpdsl.planner.plan.ops import THRESHOLDS


def small_draws(
    tokens: Sequence[int], large: Collection[int], mask: Mask | None, *, jump: bool
) -> Iterator[tuple[int, Mask | None]]:
    """The places of a sample's tokens that the small model drew, each with the mask as it was before the token.

    `large` are those where the large model did. `mask` is a fresh one of the sample, and goes on with it. With `jump`
    nobody drew what it forced.
    """
    forced: list[int] = []
    if mask is not None and jump:
        forced = mask.forced()
    for place, token in enumerate(tokens):
        if not forced and place not in large:
            yield place, None if mask is None else mask.fork()
        if mask is not None and place + 1 < len(tokens):
            mask.push(token)
            forced = forced[1:] or (mask.forced() if jump else [])


def count_shadow(counts: Counter[str], probability: float | None, *, same: bool) -> None:
    """Counts a draw that the large model made too, by the small one's `probability` where its threshold is one of it.

    So one run tells of every larger threshold what it would have lost.
    """
    for suffix in ("", *(f"_{least}" for least in THRESHOLDS if probability is not None and probability > least)):
        counts[f"shadowed{suffix}"] += 1
        counts[f"differed{suffix}"] += not same
