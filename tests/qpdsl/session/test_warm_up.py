"""A session has its engine ready before a program runs, and says how far that is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.session.session import Session

TEXT = 'model llm = "zoo/counting-mini"\nprogram p(problem: text) { chat user=problem | generate llm max_tokens=6 }'


def test_a_load_warms_the_engine_and_tells_each_quarter(monkeypatch: pytest.MonkeyPatch) -> None:
    def warm_up(self: PagedEngine, tell: Callable[[str, str, int, int], None]) -> None:
        for done in range(9):
            tell("zoo/counting-mini", "compiling kernels", done, 8)

    monkeypatch.setattr(PagedEngine, "warm_up", warm_up)
    said: list[tuple[str, str]] = []
    Session().load(planned(lower(parse_file(Source("p.qp", TEXT)), "p")), slow=lambda *what: said.append(what))
    assert said == [("zoo/counting-mini", f"compiling kernels: {done} of 8") for done in (0, 2, 4, 6, 8)]
