"""The regex dialect is no larger than what Python's `re` and llguidance both take, and not much smaller."""

import random
import re
import warnings
from pathlib import Path

import pytest

from qpdsl.grammar.literals import regex

llguidance = pytest.importorskip("llguidance")

PATTERNS = (Path(__file__).parent / "regexes.txt").read_text("utf-8").splitlines()
# What the dialect leaves out although both engines take it: they mean different things by it, or it says nothing.
STRICT = {
    r"(\Aa)", r"(?u)a", r"[a&&b]", r"[[:alpha:]]", r"[a[b]]", r"[+--]", r"[a~~b]", r"[a||b]",
    r"a*+", r"a++", r"a?+", r"a{2}+",
}  # fmt: skip


def engines_take(pattern: str) -> bool:
    """Whether Python and llguidance both compile it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except re.error:
        return False
    matcher = llguidance.LLMatcher
    return not matcher.validate_grammar(matcher.grammar_from_regex(pattern))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_the_dialect_is_what_both_engines_take(pattern: str) -> None:
    accepted = regex.check(pattern, 1) is None
    assert accepted == (engines_take(pattern) and pattern not in STRICT)


def random_pattern(chance: random.Random, depth: int) -> str:
    """A small pattern with anchors at any place."""
    kind = chance.random()
    if depth == 0 or kind < 0.45:
        return chance.choice(["^", "$", "a", "b", "[c^$]", ".", r"\$", r"\d"])
    if kind < 0.65:
        return random_pattern(chance, depth - 1) + random_pattern(chance, depth - 1)
    if kind < 0.8:
        return chance.choice(["(", "(?:", "(?P<n>", "(?i:"]) + random_pattern(chance, depth - 1) + ")"
    if kind < 0.9:
        return f"(?:{random_pattern(chance, depth - 1)}|{random_pattern(chance, depth - 1)})"
    return f"(?:{random_pattern(chance, depth - 1)}){chance.choice(['*', '+', '?', '{2}', '{0,1}', '+?'])}"


def test_anchors_that_the_dialect_takes_llguidance_takes() -> None:
    chance = random.Random(0)
    patterns = {random_pattern(chance, 4) for _ in range(2000)}
    accepted = [pattern for pattern in sorted(patterns) if regex.check(pattern, 1) is None]
    assert len(accepted) > len(patterns) // 4
    assert [pattern for pattern in accepted if not engines_take(pattern)] == []
