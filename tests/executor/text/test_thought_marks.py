"""Marks of thoughts that are plain text, whose letters are spread over tokens."""

from __future__ import annotations

import pytest

from qpdsl.executor.runtime.generate.thought import ThoughtWatch
from qpdsl.executor.text.detokenizer import Detokenizer, Tokens
from qpdsl.executor.text.stop import StopWatch
from qpdsl.executor.text.thinking import given_thinking
from qpdsl.executor.text.thought_marks import ThoughtMarks
from tests.support.executor import letters

IDS = {data: id for id, data in enumerate(letters.bytes_of("byte_level")) if len(data) == 1}


def tokens_of(text: str) -> Tokens:
    """A token for each byte."""
    return tuple(IDS[bytes([byte])] for byte in text.encode())


@pytest.mark.parametrize("text", ["🙂ab中b", " 🙂é中🙂", "🙂中ab", "🙂a b. 中 é中"])
def test_no_byte_of_a_mark_is_shown(text: str) -> None:
    tokenizer, thinking = letters.tokenizer("byte_level"), given_thinking("🙂|中")
    assert thinking is not None
    marks, detokenizer = ThoughtMarks(thinking, tokenizer), Detokenizer(tokenizer.backend_tokenizer)
    told = {"thought": "", "answer": ""}

    def follow(part: str) -> StopWatch:
        return StopWatch(detokenizer, None, lambda piece: told.update({part: told[part] + piece}))

    watch = ThoughtWatch(marks, "opening", (), lambda *_: follow("thought"), lambda *_: follow("answer"))
    tokens = tokens_of(text)
    for token in tokens:
        if watch.push(token):
            watch.goes_on(())
    thought, answer = text.partition("🙂")[2].split("中", 1)
    assert told == {"thought": thought, "answer": answer}
    parted = marks.parted(tokens, inside=False)
    assert (parted.thought, parted.answer) == (thought.strip(), answer.lstrip())
    begins = len("🙂".encode()) + text.startswith(" ")
    assert marks.unclosed(tokens, inside=False) == tokens[: begins + len(thought.encode())]
    assert watch.thought_tokens == len(thought.encode())
