"""Turns that a program continues, and conversations of their own: what the model is shown, and why a row has ended."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from qpdsl import zoo
from qpdsl.executor.models.text_model import TextModel
from qpdsl.executor.runtime.instance.candidates import Row
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.values.value import Value, frozen
from tests.support.executor.programs import HEADER, arguments, compiled, run_all, texts
from tests.support.planner.lowered import program_of


def result_of(stages: str, parameters: str = "problem: text", **values: Value) -> InstanceResult:
    physical = compiled(f'{HEADER}model slm = "zoo/counting-mini"\nprogram p({parameters}) -> text {{\n{stages}\n}}')
    (result,) = run_all(physical, [arguments(physical, problem=texts(1)[0], **values)])
    return result


def rows_of(stages: str, parameters: str = "problem: text", **values: Value) -> tuple[Row, ...]:
    result = result_of(stages, parameters, **values)
    assert result.error is None
    return result.rows


@cache
def loaded() -> tuple[Any, PreTrainedTokenizerFast]:
    folder = zoo.path("zoo/counting")
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    return model, AutoTokenizer.from_pretrained(folder)


def transformers_goes_on(turns: list[tuple[str, str]], tokens: list[int], count: int) -> list[int]:
    """What transformers' own greedy decoding writes behind tokens of an open turn, without eos."""
    model, tokenizer = loaded()
    messages = [{"role": role, "content": text} for role, text in turns]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    ids = torch.tensor([[*prompt, *tokens]])
    with torch.inference_mode():
        whole = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=count)[0]
    eos = model.generation_config.eos_token_id
    return [id for id in whole[ids.shape[1] :].tolist() if id not in (eos if isinstance(eos, list) else [eos])]


def encoded(text: str) -> list[int]:
    return loaded()[1].encode(text, add_special_tokens=False)


def test_said_text_is_continued_as_transformers_continues_it() -> None:
    (row,) = rows_of(
        ' chat user=problem\n generate llm temperature=0 max_tokens=8\n say "\\nWait, {tokens} "\n'
        " generate llm temperature=0 max_tokens=12"
    )
    turns = [("user", texts(1)[0])]
    first = transformers_goes_on(turns, [], 8)
    said = [*first, *encoded("\nWait, 8 ")]
    assert list(row.generated.tokens) == [*said, *transformers_goes_on(turns, said, 12)]
    assert row.columns["text"] == loaded()[1].decode(row.generated.tokens)
    assert row.columns["tokens"] == 20 and "\nWait, 8 " in str(row.columns["text"])


@pytest.mark.parametrize(
    "begun", ['chat user=problem assistant="The answer is "', 'chat user=problem | say "The answer is "']
)
def test_an_open_assistant_turn_is_continued(begun: str) -> None:
    (row,) = rows_of(f" {begun}\n generate llm temperature=0 max_tokens=6")
    said = encoded("The answer is ")
    assert list(row.generated.tokens) == [*said, *transformers_goes_on([("user", texts(1)[0])], said, 6)]
    assert str(row.columns["text"]).startswith("The answer is ") and not str(row.columns["step"]).startswith("The")


def test_an_assistant_turn_before_another_is_an_example() -> None:
    (row,) = rows_of(' chat user="1 + 1?" assistant="2" user=problem\n generate llm temperature=0 max_tokens=6')
    turns = [("user", "1 + 1?"), ("assistant", "2"), ("user", texts(1)[0])]
    assert row.context is not None and [turn[:2] for turn in row.context.turns] == turns
    assert list(row.generated.tokens) == transformers_goes_on(turns, [], 6)


def test_what_was_said_is_a_part_of_the_finished_turn() -> None:
    (row,) = rows_of(' chat user=problem\n say "Yes."\n chat user="Sure?"\n generate llm temperature=0 max_tokens=4')
    turns = [("user", texts(1)[0]), ("assistant", "Yes."), ("user", "Sure?")]
    assert row.context is not None and [turn[:2] for turn in row.context.turns] == turns
    assert list(row.generated.tokens) == transformers_goes_on(turns, [], 4)


def test_only_the_authors_own_text_gives_special_tokens() -> None:
    special = next(name for name in loaded()[1].all_special_tokens if name.startswith("<"))
    id = loaded()[1].convert_tokens_to_ids(special)
    given = rows_of(
        " chat user=problem\n say said\n generate llm max_tokens=2", "problem: text, said: text", said=special
    )
    (plain,) = rows_of(
        ' chat user=problem\n say "a {said} b"\n generate llm max_tokens=2', "problem: text, said: text", said=special
    )
    (written,) = rows_of(f' chat user=problem\n say "a {special} b"\n generate llm max_tokens=2 temperature=0')
    assert id not in given[0].generated.tokens and id not in plain.generated.tokens
    assert written.generated.tokens.count(id) == 1
    # What no tokenizer gives back is in the text all the same.
    assert str(written.columns["text"]).startswith(f"a {special} b")
    assert str(written.columns["text"]) == f"a {special} b{written.columns['step']}"


def test_text_that_is_said_follows_tokens_of_any_model() -> None:
    tokenizer = loaded()[1]
    model = TextModel("m", tokenizer, frozenset(), 256, len(tokenizer))
    before = tuple(encoded("a b"))
    assert model.decode(model.encode_said(before, ((" c", True), ("", False), ("d e", False)))) == "a b cd e"
    assert model.encode_said(before, ()) == before


@pytest.mark.parametrize(
    ("options", "finish", "finished"),
    [
        ("temperature=0", "eos", True),
        ("temperature=0 max_tokens=3", "length", False),
        ('temperature=0 stop="="', "stop", False),
        ('as choice("yes", "no")', "match", False),
        ("as /[0-9]{1,2}/", "match", False),
        ("as /[0-9]{40}/ max_tokens=4", "length", False),
    ],
)
def test_a_row_is_finished_where_the_model_ends_its_turn_or_has_no_room(
    options: str, finish: str, finished: bool
) -> None:
    (row,) = rows_of(f" chat user=problem\n generate llm {options}")
    assert (row.columns["finish"], row.columns["finished"], row.generated.finished) == (finish, finished, finished)
    (after,) = rows_of(f" chat user=problem\n generate llm {options}\n generate llm temperature=0 max_tokens=5")
    assert (len(str(after.columns["text"])) > len(str(row.columns["text"]))) != finished
    (opened,) = rows_of(f' chat user=problem\n generate llm {options}\n say "!"')
    assert (opened.columns["finish"], opened.columns["finished"]) == (None, False)
    assert opened.columns["text"] == f"{row.columns['text']}!" and opened.columns["step"] == "!"


def test_text_a_choice_and_text_again_are_one_turn() -> None:
    (row,) = rows_of(
        ' chat user=problem\n generate llm temperature=0 max_tokens=6\n say " Even? "\n'
        ' generate llm as choice("yes", "no") temperature=0 into even\n say ", since "\n'
        " generate llm temperature=0 max_tokens=6 into why"
    )
    begun, even, why = str(row.columns["text"]).partition(" Even? ")[0], row.columns["even"], row.columns["why"]
    assert row.columns["text"] == f"{begun} Even? {even}, since {why}" and even in ("yes", "no")
    assert row.context is not None and len(row.context.turns) == 1


def test_any_of_several_stops_ends_a_step() -> None:
    stops = '["7", mark, /[0-9][^0-9]/]'
    stages = f" chat user=problem\n generate llm n=12 temperature=1.5 max_tokens=30 stop={stops}"
    ends = rows_of(stages, "problem: text, mark: text", mark="=")
    found = 0
    for row in ends:
        text, step = str(row.columns["text"]), str(row.columns["step"])
        if row.columns["finish"] == "stop":
            found += 1
            stop = text[len(step) :]
            assert stop in ("7", "=") or (len(stop) == 2 and stop[0].isdigit() and not stop[1].isdigit())
            assert not any(mark in text[:-1] for mark in ("7", "="))
    assert found > 6
    listed = rows_of(
        ' chat user=problem\n generate llm n=4 temperature=1 max_tokens=30 stop=marks',
        "problem: text, marks: [text]", marks=("=", "has"),
    )  # fmt: skip
    assert any(str(row.columns["text"]).endswith("=") for row in listed)


def test_a_conversation_can_be_given() -> None:
    turns = [("user", "1 + 1?"), ("assistant", "2")]
    history = frozen([{"role": role, "content": text} for role, text in turns])
    stages = " chat messages=history user=problem\n generate llm temperature=0 max_tokens=6"
    (row,) = rows_of(stages, "problem: text, history: messages", history=history)
    turns.append(("user", texts(1)[0]))
    assert row.context is not None and [turn[:2] for turn in row.context.turns] == turns
    assert list(row.generated.tokens) == transformers_goes_on(turns, [], 6)
    alone = " chat messages=history\n generate llm max_tokens=6"
    result = result_of(alone, "problem: text, history: messages", history=())
    assert result.error == "the conversation has no turn: `messages` is empty"


def test_a_row_asks_in_a_conversation_of_its_own_and_stays_as_it_was() -> None:
    begun = " chat user=problem\n generate llm n=3 temperature=1 max_tokens=20"
    asked = begun + (
        '\n ask {\n  chat user="Check this: {text}"\n  generate llm n=2 temperature=0.8 max_tokens=9\n'
        "  score prm given problem into quality\n  best by quality\n"
        "  generate llm temperature=0 max_tokens=4 into more\n }"
    )
    before, after = rows_of(begun), rows_of(asked)
    for row, other in zip(before, after, strict=True):
        assert (row.context, row.path, row.generated) == (other.context, other.path, other.generated)
        assert {**row.columns, "quality": other.columns["quality"], "more": other.columns["more"]} == other.columns
        assert isinstance(other.columns["quality"], float)
    # What comes after it changes nothing in it.
    on = "\n generate llm temperature=1 max_tokens=5"
    assert [row.columns["quality"] for row in rows_of(asked + on)] == [row.columns["quality"] for row in after]


def test_what_an_ask_leaves_no_row_of_is_none() -> None:
    rows = rows_of(
        " chat user=problem\n generate llm n=2 temperature=1 max_tokens=6\n let mark = 1\n ask {\n"
        "  chat user=text\n  generate llm max_tokens=3\n  let mark = 2\n  where tokens > 99\n  extract seen = /./\n }"
    )
    assert [(row.columns["mark"], row.columns["seen"]) for row in rows] == [(None, None)] * 2


@pytest.mark.parametrize("stages", [
    'say "So"\n generate llm temperature=1 max_tokens=9 stop=["is", /[0-9] /]\n say " or "\n generate llm max_tokens=6',
    "generate llm temperature=1 max_tokens=5\n generate llm as /[0-9]+/ max_tokens=4\n generate llm max_tokens=6",
])  # fmt: skip
def test_drafts_and_single_requests_continue_a_turn_with_the_same_tokens(stages: str) -> None:
    (problem,) = texts(1)
    made = []
    for draft in ("none", "ngram", "slm(tokens=3)"):
        text = f'{HEADER}model slm = "zoo/counting-mini"\nprogram p(problem: text) -> text draft {draft} {{\n'
        text += f" chat user=problem\n split 2\n {stages}\n}}"
        drafted = [compiled(text), plan(program_of(text))] if draft == "none" else [compiled(text)]
        made += [[row.generated for row in run_all(each, [{"problem": problem}])[0].rows] for each in drafted]
    assert all(rows == made[0] for rows in made) and len(made[0]) == 2
