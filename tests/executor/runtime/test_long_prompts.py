"""Long prompts are read beside the event loop, and come to the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from qpdsl.executor.text import context
from tests.support.executor.programs import compiled, run_all, texts

PROGRAM = """
model llm = "zoo/counting"
model prm = "zoo/counting-prm"
program p(problem: text) -> text {
  chat user=problem
  generate llm n=3 temperature=1.0 max_tokens=30
  score prm reduce=last
  let a = score
  score judge(llm, "Is it right?", 0..3)
  vote text
}
"""


def test_nothing_of_a_long_prompt_is_read_in_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = compiled(PROGRAM)
    rows = [{"problem": text} for text in texts(3)]
    expected = run_all(plan, rows)
    monkeypatch.setattr(context, "_LONG", 0)
    in_loop: list[bool] = []
    encode: Callable[..., Any] = context.encode_pieces

    def noted(tokenizer: PreTrainedTokenizerFast, pieces: list[context.Piece]) -> tuple[int, ...]:
        in_loop.append(asyncio._get_running_loop() is not None)
        return encode(tokenizer, pieces)

    def located(tokenizer: Tokenizer, text: str) -> context.Encoded:
        in_loop.append(asyncio._get_running_loop() is not None)
        encoding = tokenizer.encode(text, add_special_tokens=False)
        return context.Encoded(tuple(encoding.ids), tuple(encoding.offsets))

    monkeypatch.setattr(context, "encode_pieces", noted)
    monkeypatch.setattr(context, "located", located)
    found = run_all(plan, rows)
    assert [(one.error, one.value, one.rows) for one in found] == [(one.error, one.value, one.rows) for one in expected]
    assert in_loop and not any(in_loop)
