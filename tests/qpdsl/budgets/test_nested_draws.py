"""Which ways nest: by their plans, and by the tokens that really are drawn."""

from __future__ import annotations

import pytest

from qpdsl.budgets.observations import draws_all_of, nested_strategies
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalOp
from qpdsl.session.programs import load_program
from qpdsl.session.surroundings import Surroundings

_MODELS = Surroundings(models={"llm": "zoo/counting", "prm": "zoo/counting-prm"}, kinds={"prm": "rlhflow"})
_BEST_OF_N = "chat user=problem | generate llm n={n} temperature=0.8 | score prm reduce=last | best by score"
_DVTS = (
    'chat user=problem | split {n} | repeat 40 until all(finished) {{ generate llm n=4 stop="\\n\\n" temperature=0.8 | '
    "score prm | keep 1 by score per group }} | extract a = /(\\d+)/ | vote a weight=score"
)
_BEAM = _DVTS.replace(" per group", "").replace("keep 1", "keep {n}")


def chain(text: str, n: int) -> tuple[PhysicalOp, ...]:
    return plan(load_program(None, text.format(n=n), None, _MODELS)).ops


@pytest.mark.parametrize("text", [_BEST_OF_N, _DVTS], ids=["best of n", "dvts"])
def test_copies_that_never_meet_nest(text: str) -> None:
    assert draws_all_of(chain(text, 16), chain(text, 4))
    assert not draws_all_of(chain(text, 4), chain(text, 16))
    assert nested_strategies([chain(text, n) for n in (4, 1, 16)]) == {(1, 0), (1, 2), (0, 2)}


@pytest.mark.parametrize(
    "text",
    [
        _BEAM,
        _DVTS.replace(" per group", ""),
        _DVTS.replace("split {n} |", "").replace("n=4", "n={n}"),
        _DVTS.replace("until all(finished)", "until any(finished)"),
        _DVTS.replace("score prm |", "score prm | split {n} by score |"),
        _BEST_OF_N.replace("temperature=0.8", "temperature=0.{n}"),
        _BEST_OF_N + " | generate llm n=2",
    ],
    ids=["beam search", "one group", "groups of generate", "until any", "rebase", "temperature", "more behind"],
)
def test_what_depends_on_other_copies_does_not(text: str) -> None:
    assert nested_strategies([chain(text, n) for n in (2, 4, 8)]) == frozenset()


def test_other_programs_do_not() -> None:
    assert nested_strategies([chain(_BEST_OF_N, 4), chain(_DVTS, 16)]) == frozenset()
