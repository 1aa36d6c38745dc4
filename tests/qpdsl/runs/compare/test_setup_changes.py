from typing import Any

from qpdsl.runs.compare.side import Setup, setup
from tests.support.compared_runs import side

USUAL = {"version": "1 build a, torch 2", "program": "p", "seed": "0", "noise": "3", "model `llm`": "x"}


def between(first: dict[str, Any], second: dict[str, Any]) -> Setup:
    sides = (
        side([True], **{**values, "fingerprint": {**USUAL, **values.get("fingerprint", {})}})
        for values in (first, second)
    )
    return setup(*sides)


def told(found: Setup) -> list[tuple[str, str, str]]:
    return [(change.name, change.first, change.second) for change in found.changes]


def test_equal_runs_differ_in_nothing() -> None:
    found = between({}, {})
    assert told(found) == [] and found.source == () and found.plan == () and found.same_noise


def test_each_part_is_told_once_with_what_it_was() -> None:
    found = between(
        {"parameters": {"n": 4, "t": 0.5}},
        {
            "parameters": {"n": 8},
            "models": {"llm": "zoo/counting-mini"},
            "seed": 1,
            "grader": "number 1",
            "machine": "another",
            "fingerprint": {"seed": "1", "version": "1 build b, torch 2", "arguments": "q", "dtype": "bfloat16"},
        },
    )
    assert told(found) == [
        ("n", "4", "8"),
        ("t", "0.5", "not set"),
        ("model llm", "zoo/counting", "zoo/counting-mini"),
        ("seed", "0", "1"),
        ("grader", "equal 1", "number 1"),
        ("version", "1 build a", "1 build b"),
        ("dtype", "default", "bfloat16"),
        ("machine", "m", "another"),
    ]


def test_programs_and_plans_differ_line_by_line() -> None:
    found = between({"source": "a\nb\nc", "plan": "x"}, {"source": "a\nB\nc", "plan": "x"})
    assert found.source == ("@@ -1,3 +1,3 @@", " a", "-b", "+B", " c") and found.plan == ()


def test_files_of_equal_names_may_hold_something_else() -> None:
    found = between(
        {"input_digest": "1"}, {"input_digest": "2", "fingerprint": {"model `llm`": "y", "program": "q", "python": "f"}}
    )
    assert [change.name for change in found.changes] == [
        "what the program reads",
        "files of model llm",
        "what the input holds",
        "python",
    ]


def test_random_numbers_are_common_under_one_seed_and_the_same_models() -> None:
    assert between({"parameters": {"n": 4}}, {"parameters": {"n": 8}}).same_noise
    for other in (
        {"seed": 1},
        {"models": {"llm": "b"}},
        {"fingerprint": {"model `llm`": "y"}},
        {"fingerprint": {"noise": "4"}},
    ):
        assert not between({}, other).same_noise
