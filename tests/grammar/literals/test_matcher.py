"""The matcher finds what Python's `re` finds, in bounded time, and knows early when nothing can change it."""

from __future__ import annotations

import random
import re
from itertools import pairwise
from typing import Any

import pytest

from qpdsl.grammar.literals import regex
from qpdsl.grammar.literals.early_match import early_matcher
from qpdsl.grammar.literals.matcher import Matcher
from qpdsl.grammar.literals.regex import MAX_CHARACTERS
from tests.support.grammar import random_patterns


def test_what_python_finds_is_found() -> None:
    chance = random.Random(1)
    found = 0
    for _ in range(400):
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


def test_all_matches_are_those_that_python_finds() -> None:
    chance = random.Random(4)
    beside_empty = 0
    for _ in range(300):
        # Patterns that may match nothing have matches beside empty ones.
        pattern = chance.choice(["{}", "(?:{})*", "(?:{})?", "(?:{})*?", "{}|"]).format(random_patterns.pattern(chance))
        if regex.check(pattern, 1) is not None:
            continue
        ours, python = Matcher(pattern), re.compile(pattern)
        for text in (random_patterns.text(chance) for _ in range(15)):
            expected = list(python.finditer(text))
            assert [match.text for match in ours.all(text)] == [match[0] for match in expected], (pattern, text)
            if python.groups:
                assert [match.group for match in ours.all(text)] == [match[1] for match in expected], (pattern, text)
            beside_empty += any(one.end() == other.start() for one, other in pairwise(expected) if not one[0])
    assert beside_empty > 300


@pytest.mark.parametrize(
    ("pattern", "text"),
    [(r"\d*|[+*-]", "3+4"), ("[a-z]*|\\d+", "12ab3"), ("x*|b", "b"), ("^|b", "bb"), ("$|\n", "a\n")],
)
def test_a_match_follows_an_empty_one_at_the_same_place(pattern: str, text: str) -> None:
    assert [match.text for match in Matcher(pattern).all(text)] == [match[0] for match in re.finditer(pattern, text)]


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
    monkeypatch.setattr("qpdsl.grammar.literals.matcher._MAX_CACHED", 5)
    chance, pattern = random.Random(2), r"(a|b)*a(?:a|b){3}(\s|$)"
    matcher = Matcher(pattern)
    for _ in range(50):
        text = "".join(chance.choice("aab \n") for _ in range(30))
        expected, match = re.search(pattern, text), matcher.search(text)
        assert (match and match.text) == (expected and expected[0])


def test_a_settled_match_is_that_of_every_longer_text() -> None:
    chance = random.Random(3)
    settled = 0
    for _ in range(350):
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
    assert regex.check(f"a{{{MAX_CHARACTERS}}}", 1) is None
    for pattern in (f"a{{{MAX_CHARACTERS + 1}}}", "((a{100}){100}){100}", "(?:ab){,9}" + "a?" * MAX_CHARACTERS):
        fault = regex.check(pattern, 1)
        assert fault is not None and fault.code in ("QP118", "QP119")
