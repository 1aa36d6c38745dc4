"""What the dashboard says of every shipped program and idiom: its tree, its rankings and its sums are the run's."""

from __future__ import annotations

import ast as python
from collections import Counter
from dataclasses import dataclass, field, fields, is_dataclass

import pytest

from qpdsl.executor.events import events
from qpdsl.executor.events.codec import decode, encode
from qpdsl.executor.events.events import Event, Expanded, InstanceDone, OperatorDone, RunStarted
from qpdsl.executor.events.operator_counts import count_name
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.grammar import ast
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.grammar.words import SEARCH_PRIOR
from qpdsl.planner.check.program import lower
from qpdsl.planner.explain.plan import explain_json
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.budgeted_plan import budgeted
from qpdsl.planner.optimize.optimizer import Optimized, optimize
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.budget_policy import BudgetPolicy, Turn
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.strategies.written_strategies import strategies_of
from qpdsl.tui.state.run_state import _TAKES, RunState
from qpdsl.tui.state.search import CandidateNode, SearchTree, rankings
from tests.support.executor.programs import arguments, texts
from tests.support.paths import ROOT
from tests.support.shipped_programs import Case, cases, session, together


@dataclass
class Watched:
    """A program that ran while somebody watched, and what that one knows of it."""

    case: Case
    result: InstanceResult
    state: RunState
    seen: list[Event] = field(default_factory=list)

    @property
    def tree(self) -> SearchTree:
        return self.state.trees.get(self.case.name, SearchTree())

    @property
    def stars(self) -> list[CandidateNode]:
        return [node for node in self.tree.nodes() if node.answer]


@pytest.fixture(scope="module")
def watched() -> list[Watched]:
    # All come to a result in the greater of two widths.
    some = [*(case for case in cases() if "n=2" not in case.name), _budgeted()]
    one, seen = session(), []
    one.events.subscribe(seen.append, details=True)
    results = together(one, some)
    by_name = {}
    for case, result in zip(some, results, strict=True):
        by_name[case.name] = Watched(case, result, RunState())
        by_name[case.name].state.add(_begun(case))
    for event in seen:
        if (name := getattr(event, "instance", None)) in by_name:
            read = decode(encode(event, one.events.zero))
            by_name[name].seen.append(read)
            by_name[name].state.add(read)
    return list(by_name.values())


def _budgeted() -> Case:
    """A program under a budget, which answers greedily, and then searches whatever came of that."""
    path = ROOT / "programs" / "compute_optimal.qp"
    program = lower(parse_file(Source(path.name, path.read_text("utf-8"))), path.stem, Environment())
    ways = strategies_of(program)
    search = next(at for at, way in enumerate(ways) if "subtrees=2" in way.name)
    policy = BudgetPolicy(ways, 0, {0: Turn((), (search,))}, "tokens", 500.0, None, None, "a test")

    def way_plan(way: LogicalProgram, reads: tuple[str, ...] | None, sure: bool) -> Optimized:
        return optimize(plan(way, reads, support=sure))

    whole = budgeted(program, (), policy, way_plan).plan
    return Case("programs/compute_optimal", whole, arguments(whole, problem=texts(1)[0], expand=2, depth=2))


def _begun(case: Case) -> RunStarted:
    how = {"seed": 0, "device": "cpu", "concurrency": 1, "pid": 1, "wall": 0.0, "version": "0"}
    return RunStarted(at=0.0, program=case.name, plan=explain_json(case.plan), rows=1, **how)  # type: ignore[arg-type]


def test_no_candidate_is_written_twice(watched: list[Watched]) -> None:
    for one in watched:
        made = [event for event in one.seen if isinstance(event, Expanded)]
        keys = Counter((event.aside, candidate.path) for event in made for candidate in event.candidates)
        assert set(keys.values()) <= {1}, one.case.name
        for node in one.tree.nodes():
            assert one.tree.get(node.key) is node and node in node.parent.children  # type: ignore[union-attr]


def test_the_star_has_the_answer_of_the_row(watched: list[Watched]) -> None:
    """It stands on what was written, not on a copy; where the answer is one column, a text or column of it is that.

    Rows that fail have no star.
    """
    for one in watched:
        done = next(event for event in one.seen if isinstance(event, InstanceDone))
        if done.error is not None:
            assert not one.stars, one.case.name
            continue
        (star,) = one.stars
        assert star.writer is star, one.case.name
        last = one.case.plan.ops[-1]
        root = last.arms[-1][-1].op if last.arms else last.op
        assert isinstance(root, ops.Return) and done.answer is not None
        if not isinstance(root.value, ast.Name) or root.value.id in one.case.values:
            continue
        wrote = _letters("".join(node.record.step for node in star.line() if not node.copied))
        answer = _letters(done.answer)
        told = {_letters(str(value)) for value in star.values.values()}
        # A `say` puts text between that no candidate wrote.
        assert answer in wrote or answer in told or (wrote and answer.endswith(_letters(star.record.step))), (
            one.case.name
        )


def _letters(text: str) -> str:
    return "".join(text.split())


def test_no_cut_contradicts_what_was_kept(watched: list[Watched]) -> None:
    cuts = 0
    for one in watched:
        for ranking in rankings(one.tree):
            if ranking.kind == "TopK" and 0 < ranking.kept < len(ranking.ranked):
                cuts += 1
                assert ranking.cuts, (one.case.name, ranking)
            if ranking.tally:
                winner = next(iter(ranking.selection.keys), None)
                assert ranking.tally[0].answer == winner, one.case.name
                assert sum(votes.rows for votes in ranking.tally) == len(ranking.ranked)
    assert cuts > 50


def test_each_way_under_a_budget_is_a_tree_of_its_own(watched: list[Watched]) -> None:
    one = next(one for one in watched if one.case.name == "programs/compute_optimal")
    ways = [node for node in one.tree.root.children if node.heads]
    assert [node.aside[0] for node in ways] == ["way 1: arm 1", "way 2: arm 2 (subtrees=2)"]
    (star,) = one.stars
    assert star.aside == ways[1].aside and len(star.line()) > 2
    assert one.tree.fates.total() > 4 and one.tree.fates["beside"] == 0


def test_bars_are_parts_of_their_rounds(watched: list[Watched]) -> None:
    scaled = set()
    for one in watched:
        scaled |= {one.case.name} if one.tree.scaled else set()
        parts = [part for node in one.tree.nodes() if (part := one.tree.part(node)) is not None]
        assert all(0 <= part <= 1 for part in parts), one.case.name
    assert any("deepconf" in name for name in scaled) and any("logprob" in name for name in scaled)


def test_the_sums_of_the_plan_are_the_row_s(watched: list[Watched]) -> None:
    for one in watched:
        done = next(event for event in one.seen if isinstance(event, InstanceDone))
        shown = one.state.plan
        assert shown is not None
        top = [one.state.totals(node.id) for node in one.case.plan.ops]
        assert sum(totals.sampled_tokens for totals in top) == done.sampled_tokens, one.case.name
        assert sum(totals.prompt_tokens for totals in top) == done.prompt_tokens, one.case.name
        runs = Counter(event.operator for event in one.seen if isinstance(event, OperatorDone))
        assert all(shown.line(operator) is not None for operator in runs), one.case.name
        assert all(totals.now == 0 for totals in one.state.operators.values()), one.case.name


def test_every_count_has_a_name(watched: list[Watched]) -> None:
    names = {name for one in watched for totals in one.state.operators.values() for name in totals.counts}
    assert len(names) > 40 and not [name for name in names if count_name(name) is None]


def test_every_kind_of_event_has_a_reader() -> None:
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event)]
    assert set(_TAKES) == set(kinds) - {Event, events.Detail}


def test_every_field_of_an_event_is_read() -> None:
    """By its name: what nobody here reads was carried for nothing."""
    read: set[str] = set()
    for path in (ROOT / "tui").rglob("*.py"):
        for node in python.walk(python.parse(path.read_text("utf-8"))):
            match node:
                case python.Attribute(attr=name) | python.Constant(value=str(name)):
                    read.add(name)
    kinds = [kind for kind in vars(events).values() if isinstance(kind, type) and is_dataclass(kind)]
    carried = {f"{kind.__name__}.{one.name}": one.name for kind in kinds for one in fields(kind)}
    assert [place for place, name in carried.items() if name not in read] == []


def test_who_wrote_a_token_is_told_of_as_many_as_were_counted(watched: list[Watched]) -> None:
    counted = {"forced": "forced", "small": "filter_sure", "early": "exits"}
    seen: Counter[str] = Counter()
    for one in watched:
        told: Counter[tuple[str, str]] = Counter()
        for event in one.seen:
            for candidate in event.candidates if isinstance(event, Expanded) else ():
                places = [place for own in candidate.written.values() for place in own]
                assert len(set(places)) == len(places) and set(places) <= set(range(len(candidate.pieces)))
                told.update({(event.operator, writer): len(own) for writer, own in candidate.written.items()})
        for (operator, writer), count in told.items():
            # What stands between a thought and its answer is counted by constraints alone.
            if not one.case.name.startswith("thinking/"):
                assert count == one.state.totals(operator).counts[counted[writer]], one.case.name
            seen[writer] += count
    assert set(seen) == set(counted)


def test_a_policy_s_decisions_are_told_with_what_each_way_took(watched: list[Watched]) -> None:
    one = next(one for one in watched if one.case.name == "programs/compute_optimal")
    tried = one.state.row(one.case.name).tried
    assert tuple(way.way for way in tried) == one.result.tried
    assert [way.next for way in tried] == [*one.result.tried[1:], None]
    assert sum(way.sampled_tokens for way in tried) == one.result.sampled_tokens
    assert sum(way.prompt_tokens for way in tried) == one.result.prompt_tokens
    assert all(way.support is not None and 0 <= way.support <= 1 and way.seconds > 0 for way in tried)


def test_a_tree_search_tells_its_visits_and_values(watched: list[Watched]) -> None:
    one = next(one for one in watched if one.case.name.startswith("search/puct"))
    visits = {node.key: int(node.values["visits"]) for node in one.tree.nodes() if "visits" in node.values}  # type: ignore[arg-type]
    assert visits
    for node in one.tree.nodes():
        if node.key in visits:
            assert visits[node.key] >= sum(visits.get(child.key, 0) for child in node.children)
            assert "value" in {*node.values, *node.scores}
    for node in one.tree.nodes():
        priors = [child.values[SEARCH_PRIOR] for child in node.children if SEARCH_PRIOR in child.values]
        assert not priors or sum(priors) == pytest.approx(1, abs=1e-5)  # type: ignore[arg-type]
    assert any(SEARCH_PRIOR in node.values for node in one.tree.nodes())


def test_copies_are_told_with_the_shares_that_they_follow(watched: list[Watched]) -> None:
    """A share of the copies that were given out is due to each row, and where they are not drawn it gets these."""
    found = set()
    for one in watched:
        for ranking in rankings(one.tree):
            if not ranking.copies or not ranking.selection.weights:
                continue
            shares = [own for own in ranking.selection.weights if own is not None]
            copies = [own.node.copies for own in ranking.ranked if own.key is not None]
            assert sum(shares) == pytest.approx(1, abs=1e-3) or not shares, one.case.name
            if "rebase" in one.case.name:
                # Each share is rounded up, from the greatest on.
                assert copies == sorted(copies, reverse=True), one.case.name
            found.add(one.case.name)
    assert any("rebase" in name for name in found) and any("particle" in name for name in found)
