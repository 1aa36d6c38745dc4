"""Constraints that would compile for ever are found, and nothing goes on for them."""

from __future__ import annotations

import json
import os
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest
from llguidance import LLMatcher

from qpdsl.executor.text.compile_check import CompileCheck

PLAIN = LLMatcher.grammar_from_regex("[a-ü]+ 漢")
# No text of fewer than millions of characters is known to be none of all of these.
ENDLESS = {
    "patterns": LLMatcher.grammar_from_json_schema(
        json.dumps({"allOf": [{"type": "string", "pattern": f"(.*a.{{{n}}})"} for n in range(1, 25)]})
    ),
    "multiples": LLMatcher.grammar_from_json_schema(
        json.dumps({"allOf": [{"type": "integer", "multipleOf": prime} for prime in (7, 11, 13, 17, 19, 23)]})
    ),
    "grammar": LLMatcher.grammar_from_lark("start: A\nA: " + " & ".join(f"/(?s:.*a.{{{n}}})/" for n in range(1, 25))),
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_what_compiles_for_ever_is_found(kind: str) -> None:
    check = CompileCheck(seconds=0.3)
    for _ in range(2):
        assert "takes more than 0.3 s" in (check.trouble(ENDLESS[kind]) or "")
        assert check.trouble(PLAIN) is None


def test_it_costs_the_time_of_the_one_that_is_asked() -> None:
    """The time of those before, or of those beside, is not counted."""
    check = CompileCheck(seconds=0.3)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(check.trouble, [PLAIN] * 2000)) == {None}


def test_a_process_that_was_killed_is_started_again() -> None:
    check = CompileCheck()
    assert check.trouble(PLAIN) is None
    assert check._process is not None
    os.kill(check._process.pid, signal.SIGKILL)
    check._process.wait()
    assert check.trouble(PLAIN) is None
