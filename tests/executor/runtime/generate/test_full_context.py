"""A row whose context is full ends there, by `length`; the other rows go on."""

from __future__ import annotations

import pytest

from qpdsl.executor.text.context import encode
from qpdsl.session.session import Session
from tests.support.executor.programs import compiled, run_all, texts

MODELS = 'model llm = "zoo/counting-mini"\nmodel slm = "zoo/counting"\n'
PROGRAM = """
program p(problem: text) -> text {{
  chat user=problem
  generate llm n=4 temperature=1.5 max_tokens=40
  chat user="Sure?"
  generate llm {options} into sure
  return text
}}
"""


@pytest.mark.parametrize(
    ("options", "room"),
    [("max_tokens=2", 0), ('as choice("no", "of course")', 1), ("via filter(slm, 0.5) max_tokens=2", 0)],
)
def test_a_row_without_room_ends_and_the_others_go_on(options: str, room: int) -> None:
    plan, rows, session = compiled(MODELS + PROGRAM.format(options=options)), [{"problem": texts(1)[0]}], Session()
    (whole,) = run_all(plan, rows, session=session)
    assert whole.error is None
    model = session._models["zoo/counting-mini"]
    lengths = [len(encode(model.tokenizer, row.context)) for row in whole.rows if row.context is not None]
    model.max_positions = max(lengths) + room
    (result,) = run_all(plan, rows, session=session)
    assert result.error is None and min(lengths) < max(lengths)
    for row, before, length in zip(result.rows, whole.rows, lengths, strict=True):
        if length == max(lengths):
            assert (row.columns["finish"], row.columns["finished"], row.columns["text"]) == ("context", True, "")
            assert not row.columns["sure"]
        elif length + 8 < max(lengths):
            assert row.columns == before.columns
