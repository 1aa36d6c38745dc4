"""How the tokens of a `generate` came about, as counts: what EXPLAIN ANALYZE tells and the statistics keep.

Allowed ids are counted in buckets, so that their median and their tail can be told without keeping every step. What
n-grams would have drafted is counted where nothing drafts, since the planner may draft by them where that pays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from qpdsl.executor.requests.request import Sample
from qpdsl.executor.requests.routing import ARMS
from qpdsl.planner.plan.decode_plan import DecodePlan
from qpdsl.planner.plan.ops import DRAFTED

# A number of allowed ids is counted by so many of its leading bits.
_BITS = 5
_GRAM = 2
# So much of a prompt is looked into for n-grams.
_PROMPT = 512


def count_steps(counts: Counter[str], samples: Sequence[Sample], decode: DecodePlan) -> None:
    """Counts the steps of samples, as far as the decode plan has parts that they tell something of."""
    for sample in samples:
        steps = sample.steps
        counts["draws"] += steps.draws
        counts["rounds"] += steps.rounds
        if decode.constraint == "jump":
            counts["forced"] += steps.forced
        if decode.drafts:
            counts["drafted"] += steps.drafted
            counts["accepted"] += steps.accepted
            counts[f"{decode.draft}_drafted"] += steps.drafted
            counts[f"{decode.draft}_rounds"] += steps.rounds
            counts[f"{decode.draft}_draws"] += steps.draws
            counts[f"{decode.draft}_accepted"] += steps.accepted
            counts[f"{decode.draft}_rejected"] += steps.rejected
        if decode.exits_early:
            for name in ("exits", "refined", "late", "skipped"):
                counts[name] += getattr(steps, name)
            for name in ("full", "shadowed", "differed"):
                if of_steps := getattr(steps, name):
                    counts[name] += of_steps
        for arm, forwards in steps.arms:
            counts[f"{arm}_steps"] += forwards
        for ids in steps.allowed:
            counts[f"allowed_{bucket(ids)}"] += 1


def routed_words(counts: Counter[str]) -> str:
    """How often a router took each way, to compute the head or to draw at an exit; empty where there was no choice."""
    steps: dict[str, int] = {arm: counts[f"{arm}_steps"] for arm in ARMS}
    steps = steps if any(steps.values()) else {"exit": counts["exits"] + counts["refined"], "full": counts["full"]}
    total = sum(steps.values())
    return " · ".join(f"{arm} {own / total:.0%}" for arm, own in steps.items() if own)


def bucket(ids: int) -> int:
    """The number under which steps with so many allowed ids are counted: itself up to 31, else at most 6% less."""
    shift = max(ids.bit_length() - _BITS, 0)
    return ids >> shift << shift


def count_ngrams(counts: Counter[str], prompt: Sequence[int], tokens: Sequence[int]) -> None:
    """Counts the rounds in which a sample would have been drawn with n-grams from itself and its prompt as drafts."""
    text = (*prompt[-_PROMPT:], *tokens)
    start = len(text) - len(tokens)
    follows: dict[tuple[int, ...], int] = {}
    known = _GRAM
    at, rounds, drafted = start, 0, 0
    while at < len(text):
        while known < at:
            follows[text[known - _GRAM : known]] = known
            known += 1
        proposed = follows.get(text[at - _GRAM : at])
        accepted = 0
        if proposed is not None:
            length = min(DRAFTED, at - proposed)
            drafted += length
            while accepted < length and at + accepted < len(text) and text[proposed + accepted] == text[at + accepted]:
                accepted += 1
        rounds += 1
        at += accepted + 1
    counts.update(would_draws=len(tokens), would_rounds=rounds, would_drafted=drafted)
