"""Waits for tokens: buckets and percentiles."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest

from qpdsl.executor.requests.latencies import PERCENTILES, Waits, bucket_of, percentiles


def test_percentiles_are_those_of_the_waits_within_their_buckets() -> None:
    draw = random.Random(1)
    waits = [10 ** draw.uniform(-5, 2) for _ in range(999)]
    found = percentiles(Counter(map(bucket_of, waits)))
    for share, wait in zip(PERCENTILES, found, strict=True):
        assert wait == pytest.approx(sorted(waits)[math.ceil(share / 100 * len(waits)) - 1], rel=0.0222)


def test_few_waits_and_none() -> None:
    assert percentiles({}) == ()
    alone = percentiles({bucket_of(0.003): 1})
    assert len(set(alone)) == 1 and alone[0] == pytest.approx(0.003, rel=0.0222)
    # Nothing is shorter than the shortest bucket, nor an error.
    assert percentiles({bucket_of(0.0): 4})[0] < 2e-7


def test_tokens_of_one_step_share_its_time_and_those_with_the_first_are_no_waits() -> None:
    waits = Waits()
    waits.note(0.4, 3, first=True)
    waits.note(0.3, 3, first=False)
    waits.note(0.3, 1, first=False)
    assert waits.first == {bucket_of(0.4): 1}
    assert waits.between == {bucket_of(0.1): 3, bucket_of(0.3): 1}
