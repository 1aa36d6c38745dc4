"""The matcher finds what Python's `re` finds, in bounded time, and knows early when nothing can change it."""

from __future__ import annotations

import random
import re
from typing import Any

import pytest

from qpdsl.grammar.literals import regex
from qpdsl.grammar.literals.early_match import early_matcher
from qpdsl.grammar.literals.matcher import Matcher
from qpdsl.grammar.literals.regex_tree import MOST_CHARACTERS
from tests.support.grammar import random_patterns


def test_what_python_finds_is_found() -> None:
    chance = random.Random(1)
    found = 0
    for _ in range(700):
        pattern = random_patterns.pattern(chance)
        ours, python = Matcher(pattern), re.compile(pattern)
        for text in (random_patterns.text(chance) for _ in range(15)):
            expected = python.search(text)
            match = ours.search(text)
            assert (match and match.text) == (expected and expected[0]), (pattern, text)
            assert ours.matches(text) == (expected is not None)
            if match is not None and expected is not None and python.groups:
                found += 1
                assert match.group == expected[1], (pattern, text)
    assert found > 1000


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"(a|b*)*", "aab"),
        (r"(?:|a)*b", "aab"),
        (r"(?:(a)|b)*", "ab"),
        (r"(a*)+$", "aab\n"),
        (r"(\d+)$", "12\n"),
        (r"^(.*?),", "x1,2,3"),
        (r"(?i)ß|K", "straSSe ẞ \u212a"),
        (r"The answer is (-?\d+)", "The answer is x. The answer is -12. The answer is 3."),
        (r"[^\s\S]|b", "ab"),
    ],
)
def test_what_python_finds_is_found_in_detail(pattern: str, text: str) -> None:
    expected, match = re.search(pattern, text), Matcher(pattern).search(text)
    assert expected is not None and match is not None
    assert match.text == expected[0]
    assert match.group == (expected[1] if expected.re.groups else None)


class Counted(Matcher):
    """Counts the steps from one character to the next that no cache saves."""

    moves = 0

    def _moved(self, *arguments: Any) -> Any:
        self.moves += 1
        return super()._moved(*arguments)


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (r"^(a+)+$", "a" * 3000 + "b"),
        (r"(a|a)*b", "a" * 3000),
        (r"\s*x", " " * 3000),
        (r"(.*)(.*)(.*)y", "x" * 3000),
        (r"(?:\w+\s*)+:", "word " * 600),
        (r"(a?){20}a{20}", "a" * 19),
    ],
)
def test_each_character_is_looked_at_once_or_twice(pattern: str, text: str) -> None:
    matcher = Counted(pattern)
    assert matcher.search(text) is None
    assert matcher.moves <= 2 * len(text)


def test_a_matcher_forgets_states_and_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpdsl.grammar.literals.matcher._MOST_CACHED", 5)
    chance, pattern = random.Random(2), r"(a|b)*a(?:a|b){3}(\s|$)"
    matcher = Matcher(pattern)
    for _ in range(50):
        text = "".join(chance.choice("aab \n") for _ in range(30))
        expected, match = re.search(pattern, text), matcher.search(text)
        assert (match and match.text) == (expected and expected[0])


def test_a_settled_match_is_that_of_every_longer_text() -> None:
    chance = random.Random(3)
    settled = 0
    for _ in range(600):
        pattern = random_patterns.pattern(chance)
        early = early_matcher(pattern)
        if early is None:
            assert "$" in pattern
            continue
        search, text = early.search(), ""
        while not search.settled and len(text) < 12:
            text += (char := random_patterns.text(chance)[:1])
            search.push(char)
        if search.settled:
            settled += 1
            match = re.search(pattern, text)
            assert match is not None
            for _ in range(8):
                longer = re.search(pattern, text + random_patterns.text(chance))
                assert longer is not None
                assert (longer.span(), longer.groups()) == (match.span(), match.groups())
    assert settled > 200


def test_a_pattern_that_is_too_large_is_refused() -> None:
    assert regex.check(f"a{{{MOST_CHARACTERS}}}", 1) is None
    for pattern in (f"a{{{MOST_CHARACTERS + 1}}}", "((a{100}){100}){100}", "(?:ab){,9}" + "a?" * MOST_CHARACTERS):
        fault = regex.check(pattern, 1)
        assert fault is not None and fault.code in ("QP118", "QP119")
