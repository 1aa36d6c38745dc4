"""A longer context: it holds what was generated in it, and the columns that a program made stay."""

from __future__ import annotations

import json

import pytest
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.executor.text.context import Context, Turn, encode
from qpdsl.planner.values.value import frozen
from tests.support.executor.programs import HEADER, compiled, run_all, texts


def rows(stages: str) -> tuple[Row, ...]:
    plan = compiled(HEADER + f"program p(problem: text) -> text {{\n{stages}\n}}")
    (result,) = run_all(plan, [{"problem": texts(1)[0]}])
    assert result.error is None
    return result.rows


def test_a_chat_goes_on_behind_the_assistants_turn() -> None:
    stages = 'chat system="Be brief." user=problem\n generate llm n=2 temperature=2.5 max_tokens=12 into first\n'
    result_rows = rows(stages + ' chat user="{first}? Again:"\n generate llm temperature=0 max_tokens=3\n return text')
    assert len({row.columns["first"] for row in result_rows}) == 2
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    for row in result_rows:
        messages = [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": texts(1)[0]},
            {"role": "assistant", "content": row.columns["first"]},
            {"role": "user", "content": f"{row.columns['first']}? Again:"},
        ]
        assert row.context == Context(
            turns=tuple(Turn(message["role"], str(message["content"])) for message in messages)
        )
        whole = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=False)
        assert encode(tokenizer, row.context) == tuple(whole)
        assert row.columns["tokens"] == 3 and row.columns["finish"] == "length"


def test_a_chat_that_follows_a_chat_has_no_turn_between() -> None:
    (row,) = rows('chat user=problem\n chat assistant="Hm."\n chat user="Well?"\n generate llm max_tokens=1')
    assert row.context is not None and [turn.role for turn in row.context.turns] == ["user", "assistant", "user"]


GIVEN = "chat messages=history\n generate llm max_tokens=1"
CALLS = [{"id": "a1", "type": "function", "function": {"name": "add", "arguments": {"of": "3 <|end|>", "to": 4}}}]


def given(*turns: dict[str, object]) -> InstanceResult:
    plan = compiled(HEADER + f"program p(history: messages) -> text {{\n{GIVEN}\n}}")
    (result,) = run_all(plan, [{"history": frozen(list(turns))}])
    return result


def test_a_conversation_has_thoughts_and_turns_of_tools() -> None:
    asked = {"role": "user", "content": "How many?"}
    result = given(
        asked,
        {"role": "assistant", "content": "12", "reasoning_content": "3 * 4", "reasoning": "3 * 4", "refusal": None},
        asked,
        {"role": "assistant", "content": None, "tool_calls": CALLS, "reasoning": ""},
        {"role": "tool", "content": "7", "tool_call_id": "a1"},
    )
    assert result.error is None and result.rows[0].context is not None
    turns = result.rows[0].context.turns
    assert [turn[:3] for turn in turns] == [
        ("user", "How many?", ""),
        ("assistant", "12", "3 * 4"),
        ("user", "How many?", ""),
        ("assistant", "", ""),
        ("tool", "7", ""),
    ]
    assert [json.loads(turn.calls) for turn in turns[3:]] == [
        {"tool_calls": CALLS, "content": None},
        {"tool_call_id": "a1"},
    ]


@pytest.mark.parametrize(
    ("turn", "words"),
    [
        ({"role": "function", "content": "x"}, "no `role` of `system`, `user`, `assistant` or `tool`"),
        ({"role": "assistant", "content": None}, "no text as `content`"),
        ({"role": "assistant", "content": "x", "reasoning": "a", "thinking": "b"}, "a thought that is no text, or two"),
        ({"role": "assistant", "content": "x", "reasoning": 3}, "a thought that is no text, or two"),
        ({"role": "user", "content": "x", "reasoning": "a"}, "`reasoning`, which no turn of the role `user` has"),
        ({"role": "assistant", "content": "x", "audio": "a"}, "`audio`, which no turn of the role `assistant` has"),
    ],
)
def test_a_turn_that_is_none_is_refused(turn: dict[str, object], words: str) -> None:
    result = given({"role": "user", "content": "x"}, turn)
    assert result.error is not None and "turn 1 of `messages` has" in result.error and words in result.error


def test_a_prompt_goes_on_behind_what_was_generated() -> None:
    (row,) = rows(
        'prompt "<|user|>{problem}"\n generate llm max_tokens=4 into start\n prompt "<|end|> So"\n generate llm'
    )
    assert row.context is not None
    assert row.context.prompt == (
        ("<|user|>", True),
        (texts(1)[0], False),
        (str(row.columns["start"]), False),
        ("<|end|> So", True),
    )


def test_a_new_turn_clears_what_was_generated_and_keeps_the_rest() -> None:
    stages = "chat user=problem\n split 2\n generate llm max_tokens=4 temperature=0\n extract a = /./\n"
    for index, row in enumerate(rows(stages + ' score logprob\n chat user="Again"\n return a')):
        fresh = {"text": "", "step": "", "finish": None, "finished": False, "logprob": 0.0, "tokens": 0}
        assert {name: row.columns[name] for name in fresh} == fresh
        assert row.columns["group"] == index and row.columns["a"] and row.columns["score"]
        assert row.path == (index, 0)


def test_arms_run_on_the_same_rows_and_lack_each_others_columns() -> None:
    stages = (
        'chat user=problem\n generate llm n=2 stop="\\n\\n" temperature=1.5\n branch {\n { extract a = /./ }\n'
        " { generate llm n=2 temperature=0.9 max_tokens=5 into b }\n { where true }\n }\n return text"
    )
    result_rows = rows(stages)
    assert [row.path for row in result_rows] == [
        (0, 0),
        (1, 0),
        (0, 1, 0),
        (0, 1, 1),
        (1, 1, 0),
        (1, 1, 1),
        (0, 2),
        (1, 2),
    ]
    assert [row.columns["a"] is None for row in result_rows] == [False, False, *[True] * 6]
    assert all(row.columns["b"] is None for row in result_rows[:2] + result_rows[6:])
    assert len({tuple(row.columns) for row in result_rows}) == 1
    assert result_rows[0].columns["text"] == result_rows[6].columns["text"]


def test_arms_that_loop_draw_as_loops_outside_them_do() -> None:
    loop = 'repeat 2 { generate llm stop="\\n" temperature=1.5 max_tokens=9 }'
    both = rows(f"chat user=problem\n branch {{ {{ {loop} }} {{ {loop} | {loop} }} }}\n return text")
    alone = rows(f"chat user=problem\n branch {{ {{ {loop} }} {{ generate llm max_tokens=1 }} }}\n return text")
    assert both[0] == alone[0]
    assert both[1].path[:3] == (1, 0, 0)


def test_a_system_turn_without_text_is_none() -> None:
    (row,) = rows('chat system="" user=problem\n generate llm max_tokens=2')
    assert row.context is not None and [turn.role for turn in row.context.turns] == ["user"]
