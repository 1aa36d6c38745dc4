"""The parameters of a `-e` pipeline, and slips in one."""

from __future__ import annotations

import pytest

from qpdsl.grammar.diagnostic import Diagnostic, QpError
from qpdsl.grammar.format.unparse import format_type
from qpdsl.grammar.parse.parser import parse_pipeline
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower

START = "chat user=q | generate llm n=2 | score prm | "


def params(text: str) -> list[str]:
    return [param.name for param in parse_pipeline(Source("-e", text)).programs[0].params]


def error_of(text: str) -> Diagnostic:
    with pytest.raises(QpError) as error:
        lower(parse_pipeline(Source("-e", text)))
    (found,) = error.value.diagnostics
    return found


@pytest.mark.parametrize("stage", ["best by scor", "keep 2 by Score", "vote text weight=scroe", "where scoer > 0.5"])
def test_a_slip_of_a_columns_name_is_no_parameter(stage: str) -> None:
    assert params(START + stage) == ["q"]
    found = error_of(START + stage)
    assert (found.code, found.help) == ("QP203", "did you mean `score`?")


def test_what_tells_rows_apart_is_a_column() -> None:
    """A parameter is the same in all of them."""
    for stage in ("best by quality", "keep 2 by score - mean(score per topic)", "distinct by reply"):
        assert params(START + stage) == ["q"]
        assert error_of(START + stage).code == "QP203"
    stages = "let x = score + k | keep 2 by x - most | return {x: x, of: topic[0]}"
    assert params(START + stages) == ["q", "k", "most", "topic"]


def test_what_stands_elsewhere_is_told() -> None:
    start = "chat user=q | generate llm n=2 | "
    assert "inside its parentheses" in error_of(start + "let share = count(text) per text / count()").message
    assert error_of(start + "search puct(c=1.4)").help == ("write `search puct by score simulations=64 c=1.4 { … }`")
    assert "decided=0.95" in (error_of(start + "where decided(text, 0.95)").help or "")


def test_lists_are_parameters() -> None:
    text = "each q in questions { chat user=q | generate llm as choice(options) }"
    found = parse_pipeline(Source("-e", text)).programs[0].params
    assert [(param.name, format_type(param.type)) for param in found] == [
        ("questions", "[text]"),
        ("options", "[text]"),
    ]


def test_other_names_are_parameters() -> None:
    text = START + "where score > min_score and tokens < most | keep k by score * weight | return text"
    assert params(text) == ["q", "min_score", "most", "k", "weight"]
    # Where no column can stand, a name like one is a parameter.
    assert params('chat user=q | generate llm n=token | chat user="{texts}" | generate llm') == ["q", "token", "texts"]


def test_a_comma_is_left_out_only_where_an_option_follows() -> None:
    assert error_of("chat user=q | generate llm n=2, top_k=3").help == "leave the comma out"
    assert error_of(START.replace("score prm", "score logprob, prm") + "best by score").help == (
        "ask each in a stage of its own, as in `score logprob into a`, and add the columns up"
    )
