"""Running a physical plan: operators in order, loops by rounds, one coroutine for each instance.

`_OPERATORS`, at the end, says which function runs which operator. To add an operator, write its function (in
`operators/`, or here where it runs other operators) and add its line there.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from qpdsl.executor.events.events import InstanceDone, InstanceStarted, Path
from qpdsl.executor.requests.errors import BudgetReached, EngineError, RequestRefused, ServerGone
from qpdsl.executor.runtime.generate.decided_vote import run_decided_vote
from qpdsl.executor.runtime.generate.generate import generate
from qpdsl.executor.runtime.generate.speculative_expansion import SpeculativeExpansion
from qpdsl.executor.runtime.instance.candidates import FRESH, Candidates, JsonValue, Row
from qpdsl.executor.runtime.instance.functions import FunctionError
from qpdsl.executor.runtime.instance.instance import Instance, NoAnswerError, RowError, Services, Usage, check_rows
from qpdsl.executor.runtime.instance.internal_error import internal_error
from qpdsl.executor.runtime.instance.operator_events import (
    emit_answered,
    emit_changes,
    emit_copies,
    emit_done,
    emit_sources,
    emit_started,
    emit_values,
)
from qpdsl.executor.runtime.instance.row_tasks import RowClock, together
from qpdsl.executor.runtime.last_choice import FinalCandidate, candidates_of, last_choice
from qpdsl.executor.runtime.operators.context import say, set_context
from qpdsl.executor.runtime.operators.extract import extract
from qpdsl.executor.runtime.operators.json_documents import spelt_in
from qpdsl.executor.runtime.operators.lists import each_element, join
from qpdsl.executor.runtime.operators.relational import (
    distinct,
    first,
    let,
    order,
    return_value,
    top_k,
    where,
    why_none,
)
from qpdsl.executor.runtime.operators.split import split
from qpdsl.executor.runtime.operators.tools import tool
from qpdsl.executor.runtime.operators.vote import vote
from qpdsl.executor.runtime.scoring.checks import equal, passes, valid_json
from qpdsl.executor.runtime.scoring.judge import judge, likelihood, prob, round_robin, tournament
from qpdsl.executor.runtime.scoring.python_functions import python_extract, python_score
from qpdsl.executor.runtime.scoring.score import draw_score, log_prob, score
from qpdsl.executor.runtime.standing import ends_in_steps, support_of
from qpdsl.executor.runtime.tree_search.search import search
from qpdsl.executor.runtime.ways import ProgramEnd, try_ways
from qpdsl.grammar.ast.walk import made_column
from qpdsl.planner.cost.run_figures import UNFINISHED
from qpdsl.planner.plan import ops
from qpdsl.planner.plan.evaluate import evaluate_rows
from qpdsl.planner.plan.physical import BranchStrategy, GenerateStrategy, PhysicalOp, PhysicalPlan
from qpdsl.planner.plan.reads import made_by, outlives_rows
from qpdsl.planner.values.library import TooLarge
from qpdsl.planner.values.value import Value

Operate = Callable[[PhysicalOp, Candidates, Instance], Awaitable[Candidates]]


@dataclass(frozen=True, slots=True)
class InstanceResult:
    """The result of one instance: the program's value, its score (None without a `score` stage), its rows, its costs.

    `error` says why there is no value; where it is `unanswered` nothing broke, and the model wrote none. `fault` is
    what was raised where that is a fault of qpdsl or of the machine, and not of the program or its arguments; `cause`
    what a Python function of the user raised, or what a server calls a bad request. Tokens are counted as `Usage`
    counts them; seconds are wall time. `timed_out`: it took longer than it was given. `unscored`: rows without a score,
    as they were too long for a verifier or a judge. `counts`: those of its `Usage`. `cached_tokens` of the prompts'
    were found in a cache, how many may depend on what else runs. `engine_seconds` are the engine's for this instance,
    those of each forward divided by tokens; what was drawn before, and remembered, counts as it did then. `support` is
    how sure the program is of its value, None where nothing says so (see `standing.py`). `candidates`: see
    `last_choice.py`, None where they are not wanted. `tried` are the names of the ways by which a program under a
    budget tried its problem, in their order.
    """

    value: JsonValue
    score: float | None
    rows: Candidates
    prompt_tokens: int
    sampled_tokens: int
    near_ties: int
    seconds: float
    error: str | None = None
    timed_out: bool = False
    unscored: int = 0
    counts: Mapping[str, int] = field(default_factory=dict, compare=False)
    cached_tokens: int = field(default=0, compare=False)
    support: float | None = None
    candidates: tuple[FinalCandidate, ...] | None = field(default=None, compare=False)
    engine_seconds: float = field(default=0.0, compare=False)
    tried: tuple[str, ...] = ()
    unanswered: bool = False
    fault: Exception | None = field(default=None, compare=False)
    cause: BaseException | None = field(default=None, compare=False)


async def run(
    plan: PhysicalPlan,
    arguments: Mapping[str, Value],
    seed: int,
    services: Services,
    name: str = "",
    *,
    baseline: bool = False,
    timeout: float | None = None,
) -> InstanceResult:
    """Runs one instance. Its failure is reported in the result, not raised; raises BudgetReached and ServerGone.

    `baseline` marks it, in the events, as greedy decoding to compare with. After `timeout` seconds it fails, and its
    requests are given up; None lets it take as long as it takes.
    """
    clock = RowClock(timeout)
    instance = Instance(name, services, arguments, seed, baseline, floor=plan.floor, clock=clock)
    services.events.emit(InstanceStarted(instance=name, baseline=baseline))
    start = time.monotonic()
    end, error, timed_out, unanswered = ProgramEnd(()), None, False, False
    fault: Exception | None = None
    cause: BaseException | None = None
    try:
        async with clock:
            end = await _run_program(plan, instance)
        _show_rest(end.rows, instance)
        if end.failure is not None:
            raise end.failure
    except (BudgetReached, ServerGone):
        # Nothing is wrong with the instance, and another time there is more to spend, or the server is back.
        raise
    except (RowError, EngineError) as failure:
        error, unanswered = str(failure), isinstance(failure, NoAnswerError)
        cause = failure.__cause__.__cause__ if isinstance(failure.__cause__, FunctionError) else None
        cause = failure if isinstance(failure, RequestRefused) else cause
    except TimeoutError:
        timed_out, error = True, f"timed out: it took more than {timeout:g} s"
    except TooLarge as failure:
        error = str(failure)
    except OverflowError:
        error = "a number is too large to compute with"
    except Exception as failure:  # whatever goes wrong in one instance, the others go on
        fault, error = failure, internal_error(failure)
    usage, seconds = instance.usage, time.monotonic() - start
    services.events.emit(
        InstanceDone(
            instance=name,
            prompt_tokens=usage.prompt_tokens,
            sampled_tokens=usage.sampled_tokens,
            seconds=seconds,
            error=error,
            answer=None if error is not None else _as_text(end.value),
            score=end.score,
            path=end.rows[0].path if end.rows and error is None else (),
            baseline=baseline,
            unanswered=unanswered,
            deadline=None if baseline else plan.deadline,
        )
    )
    return InstanceResult(
        end.value,
        end.score,
        end.rows,
        usage.prompt_tokens,
        usage.sampled_tokens,
        usage.near_ties,
        seconds,
        error,
        timed_out,
        usage.counts["unscored"],
        dict(usage.counts),
        usage.cached_tokens,
        end.support if error is None else None,
        end.candidates,
        usage.engine_seconds,
        end.tried,
        unanswered,
        fault,
        cause,
    )


def _show_rest(rows: Candidates, instance: Instance) -> None:
    """Gives `on_token` what stands at the end of rows for a letter that is only begun, as nothing completes it now."""
    for row in rows:
        # A copy of a row has a longer path.
        written = (row.path[:length] for length in range(len(row.path), -1, -1))
        stage, rest, thought = next((instance.unshown[at] for at in written if at in instance.unshown), (0, "", False))
        if rest and instance.services.on_token is not None:
            instance.services.on_token(row.path, stage, rest, thought)


def _as_text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


async def _run_program(plan: PhysicalPlan, instance: Instance) -> ProgramEnd:
    """All operators of a plan; where it leaves ways to a budget, those of one way after another."""
    root, start = plan.ops[-1], time.monotonic()
    if not isinstance(root.op, ops.Strategy):
        return await _run_operators(plan.ops, plan.score_column, instance)
    own = replace(instance, usage=Usage(), operator=root.id)
    try:
        end = await try_ways(root, own, _run_operators)
    finally:
        instance.usage.add(own.usage)
    emit_done(1, len(end.rows), time.monotonic() - start, own)
    return end


async def _run_operators(chain: tuple[PhysicalOp, ...], score_column: str | None, instance: Instance) -> ProgramEnd:
    """The operators of a whole program, from its one row to its value. What leaves no row is the program's failure."""
    candidates: tuple[FinalCandidate, ...] | None = None
    rows: Candidates = (Row(None, (), {}),)
    choice = last_choice(chain) if instance.services.candidates else None
    root = chain[-1].op
    assert isinstance(root, ops.Return)
    try:
        if choice is not None:
            rows = await _run_chain(chain[:choice], rows, instance)
            candidates = await candidates_of(chain[choice:], rows, instance, score_column, _operate)
        rows = _in_order(await _run_chain(chain[choice or 0 :], rows, instance), chain[-1].columns)
    except (RowError, TooLarge, OverflowError) as failure:
        return ProgramEnd((), failure=failure, candidates=candidates)
    if rows and not rows[0].generated.finished and ends_in_steps(chain):
        instance.usage.counts[UNFINISHED] += 1
    column = rows[0].columns.get(score_column) if rows and score_column else None
    score = column if isinstance(column, float) else None
    try:
        value = return_value(root, rows, instance)
    except (RowError, TooLarge, OverflowError) as failure:
        return ProgramEnd(rows, failure=failure, score=score, candidates=candidates)
    if instance.watched and rows:
        emit_answered(root.value, rows[0], instance)
    return ProgramEnd(rows, value, None, score, support_of(chain, instance.supports, score), candidates)


def _in_order(rows: Candidates, columns: Iterable[str]) -> Candidates:
    """The rows with their columns in the order in which the program first makes them, whatever the plan left out."""
    return tuple(
        replace(row, columns={name: row.columns[name] for name in columns if name in row.columns}) for row in rows
    )


async def _run_chain(chain: tuple[PhysicalOp, ...], rows: Candidates, instance: Instance) -> Candidates:
    """Operators in running order, each on the rows of the one before it."""
    position = 0
    while position < len(chain):
        node, strategy = chain[position], chain[position].strategy
        if isinstance(strategy, GenerateStrategy) and strategy.vote is not None:
            end = next(number for number, later in enumerate(chain) if later.id == strategy.vote) + 1
            rows = await run_decided_vote(chain[position:end], rows, instance, _operate)
            position = end
        else:
            rows = await _run_one(node, rows, instance)
            position += 1
    return rows


async def _run_one(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """One operator on all its rows, with its events."""
    start = time.monotonic()
    # The arms of a branch run side by side, so each operator counts what it spends in a usage of its own.
    own = replace(instance, usage=Usage(), operator=node.id, decision=None)
    if instance.watched:
        emit_started(len(rows), own)
    try:
        rows_out = await _operate(node, rows, own)
    finally:
        instance.usage.add(own.usage)
    emit_done(len(rows), len(rows_out), time.monotonic() - start, own)
    if instance.watched:
        emit_changes(node, rows, rows_out, own)
    return rows_out


async def _operate(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows that an operator makes of rows, without events and accounts."""
    made = await _OPERATORS[type(node.op)](node, rows, instance)
    # What left no row inside of an operator has said so itself.
    if rows and not made and not node.inside:
        instance.emptied.append(why_none(node.op, rows))
    return made


async def _repeat(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    op = node.op
    assert isinstance(op, ops.Repeat)
    limit = instance.whole("repeat", op.limit, rows) if rows else 0
    gathers = op.gather is not None
    ahead = SpeculativeExpansion(limit, gathers=gathers) if any(_runs_ahead(inner) for inner in node.body) else None
    try:
        return await (_gather if gathers else _rounds)(node, op, limit, rows, replace(instance, ahead=ahead))
    finally:
        if ahead is not None:
            ahead.close()
            instance.usage.counts.update(ahead.counts)
            instance.usage.engine_seconds += ahead.usage.engine_seconds


async def _rounds(node: PhysicalOp, op: ops.Repeat, limit: int, rows: Candidates, instance: Instance) -> Candidates:
    """What the last round left, each of which begins with the rows of the one before."""
    for index in range(limit):
        scopes = [instance.scope(row) for row in rows]
        if op.until is not None and evaluate_rows(op.until, scopes, instance.arguments):
            break
        before = instance.usage.sampled_tokens
        rows = await _run_chain(node.body, rows, replace(instance, rounds=(*instance.rounds, index)))
        if instance.usage.sampled_tokens == before:
            # It may have waited for nothing: other rows go on, and the clock of this one runs.
            await asyncio.sleep(0)
    return rows


async def _gather(node: PhysicalOp, op: ops.Repeat, limit: int, rows: Candidates, instance: Instance) -> Candidates:
    """What all rounds left, each of which begins with the rows that came in, on paths of its own."""
    gathered: list[Row] = []
    for index in range(limit):
        start = tuple(replace(row, path=(*row.path, index)) for row in rows)
        if instance.watched:
            emit_copies(start, instance)
        gathered += await _run_chain(node.body, start, replace(instance, rounds=(*instance.rounds, index)))
        check_rows(len(gathered))
        scopes = [instance.scope(row) for row in gathered]
        if op.until is not None and evaluate_rows(op.until, scopes, instance.arguments):
            break
    return tuple(gathered)


def _runs_ahead(node: PhysicalOp) -> bool:
    return isinstance(node.strategy, GenerateStrategy) and node.strategy.speculates


async def _peek(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows as they were, each with the columns that the body made of it."""
    assert isinstance(node.op, ops.Peek)
    if node.op.alone:
        return await _for_each(node, rows, rows, instance)
    inner = instance.beside()
    after = await _run_chain(node.body, rows, inner)
    if instance.watched:
        emit_sources(node, rows, after, inner, instance)
    return tuple(
        replace(
            row, columns={**row.columns, **{name: peek.columns[name] for name in peek.columns if name not in FRESH}}
        )
        for row, peek in zip(rows, after, strict=True)
    )


async def _ask(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows as they were, with the columns that the body made of each, which runs on a row of its own."""
    # The row's own text is in its columns.
    return await _for_each(node, rows, [Row(None, row.path, row.columns) for row in rows], instance)


async def _for_each(node: PhysicalOp, rows: Candidates, starts: Iterable[Row], instance: Instance) -> Candidates:
    """The rows, with the columns that the body made of what each starts from."""
    inner = instance.beside()
    ends = await together(
        # Scores that another operator reads again are kept for one chain of rows.
        _run_chain(node.body, (start,), replace(inner, steps={}, emptied=[]))
        for start in starts
    )
    if instance.watched:
        emit_sources(node, rows, [end[0] if end else None for end in ends], inner, instance)
    made = [name for name in node.columns if name in made_by(node.body) and name not in FRESH]
    ended = [end[0].columns if end else {} for end in ends]
    return tuple(
        replace(row, columns={**row.columns, **{name: columns.get(name) for name in made}})
        for row, columns in zip(rows, ended, strict=True)
    )


async def _call(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows as they were, each with what the called program gives back for it, which runs on a row of its own."""
    op = node.op
    assert isinstance(op, ops.Call) and op.value is not None
    value = op.value
    given = {column.name: instance.values(column.value, rows) for column in op.columns}
    inner = instance.beside()
    made = await together(
        # Scores that another operator reads again are kept for one chain of rows.
        _run_chain(
            node.body,
            (Row(None, row.path, {name: values[number] for name, values in given.items()}),),
            replace(inner, steps={}),
        )
        for number, row in enumerate(rows)
    )

    def result(number: int, last: Candidates) -> Value:
        # Its own parameters are columns, which no row has where there is none.
        known = {**instance.arguments, **{name: values[number] for name, values in given.items()}}
        scopes = [instance.scope(row) for row in last]
        found = evaluate_rows(value, scopes, known) if last or outlives_rows(value, ()) else None
        return evaluate_rows(op.otherwise, scopes, known) if found is None and op.otherwise is not None else found

    values = [result(number, last) for number, last in enumerate(made)]
    if instance.watched:
        emit_sources(node, rows, [last[0] if last else None for last in made], inner, instance)
    if op.type is not None:
        values = [spelt_in(value, op.type) if isinstance(value, str) else value for value in values]
    return tuple(row.with_column(made_column(op) or "", value) for row, value in zip(rows, values, strict=True))


async def _branch(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """Each arm on the rows, side by side; a column that an arm does not make is none in its rows.

    An arm that would make the rows of an earlier arm again gets copies of them, on its own paths.
    """
    assert isinstance(node.op, ops.Branch)
    check_rows(len(rows) * len(node.arms))
    same_as = node.strategy.same_as if isinstance(node.strategy, BranchStrategy) else (None,) * len(node.arms)
    if (only := node.op.only) is not None:
        same_as = tuple(None if arm == only else only for arm in range(len(node.arms)))
    distinct = [index for index, first in enumerate(same_as) if first is None]
    marks = {index: _ArmIndex(index) for index in distinct}
    arm_rows = await together(
        _run_chain(node.arms[index], tuple(replace(row, path=(*row.path, marks[index])) for row in rows), instance)
        for index in distinct
    )
    rows_of = dict(zip(distinct, arm_rows, strict=True))
    if only is not None:
        return tuple(replace(row, columns={**dict.fromkeys(node.columns), **row.columns}) for row in rows_of[only])
    arms = [
        rows_of[index] if first is None else tuple(_on_arm(row, marks[first], index) for row in rows_of[first])
        for index, first in enumerate(same_as)
    ]
    return tuple(replace(row, columns={**dict.fromkeys(node.columns), **row.columns}) for arm in arms for row in arm)


class _ArmIndex(int):
    """An arm's index in the paths of its rows. It is found again by identity, since other indices can equal it."""


def _on_arm(row: Row, mark: _ArmIndex, arm: int) -> Row:
    """The row as if it came by another arm."""
    return replace(row, path=tuple(arm if index is mark else index for index in row.path))


async def _if(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The rows through the one block or the other, side by side, in the order of the rows that they were made of."""
    op = node.op
    assert isinstance(op, ops.If)
    holds = [bool(value) for value in instance.values(op.condition, rows)]
    parts = [tuple(row for row, held in zip(rows, holds, strict=True) if held is wanted) for wanted in (True, False)]
    made = await together(
        # Without `else`, and where nothing in an arm was needed, rows pass.
        _run_chain(arm, part, instance) if arm and part else _unchanged(node, part, instance)
        for arm, part in zip((*node.arms, ())[:2], parts, strict=True)
    )
    after = [row for part in made for row in part]
    places = {row.path: place for place, row in enumerate(rows)}
    after.sort(key=lambda row: _place(row, places))
    columns = dict.fromkeys(node.columns)
    return tuple(replace(row, columns={**columns, **row.columns}) for row in after)


def _place(row: Row, places: Mapping[Path, int]) -> int:
    """The place of the row that this one was made of, whose path its path begins with."""
    return next(places[row.path[:length]] for length in range(len(row.path), -1, -1) if row.path[:length] in places)


async def _each(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    """The body on a copy of each row for every element of its list."""
    op = node.op
    assert isinstance(op, ops.Each)
    copies = each_element(op, rows, instance)
    if rows and not copies:
        instance.emptied.append(why_none(op, rows))
    if instance.watched:
        emit_copies(copies, instance)
        emit_values(op.column.id, copies, instance, scores=False)
    return await _run_chain(node.body, copies, instance) if copies else ()


async def _unchanged(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    return rows


async def _search(node: PhysicalOp, rows: Candidates, instance: Instance) -> Candidates:
    return await search(node, rows, instance, _run_chain)


def _plain(operator: Callable[[Any, Candidates, Instance], Awaitable[Candidates]]) -> Operate:
    """An operator that there is but one way to run."""
    return lambda node, rows, instance: operator(node.op, rows, instance)


def _with_strategy(operator: Callable[[Any, Candidates, Instance, Any], Awaitable[Candidates]]) -> Operate:
    """An operator that runs as its strategy says."""
    return lambda node, rows, instance: operator(node.op, rows, instance, node.strategy)


_OPERATORS: Mapping[type[ops.Operator], Operate] = {
    ops.Prompt: _plain(set_context),
    ops.Chat: _plain(set_context),
    ops.Say: _plain(say),
    ops.Generate: _with_strategy(generate),
    ops.StepScore: _with_strategy(score),
    ops.Judge: _with_strategy(judge),
    ops.Prob: _with_strategy(prob),
    ops.Likelihood: _with_strategy(likelihood),
    ops.Tournament: _with_strategy(tournament),
    ops.KeepTournament: _with_strategy(tournament),
    ops.RoundRobin: _with_strategy(round_robin),
    ops.LogProb: _plain(log_prob),
    ops.DrawScore: _plain(draw_score),
    ops.Equal: _plain(equal),
    ops.ValidJson: _plain(valid_json),
    ops.Passes: _plain(passes),
    ops.PythonScore: _plain(python_score),
    ops.Extract: _plain(extract),
    ops.PythonExtract: _plain(python_extract),
    ops.Tool: _plain(tool),
    ops.Let: _plain(let),
    ops.Where: _plain(where),
    ops.First: _plain(first),
    ops.Distinct: _plain(distinct),
    ops.Order: _plain(order),
    ops.Join: _plain(join),
    ops.Keep: _plain(top_k),
    ops.Vote: _plain(vote),
    ops.Split: _plain(split),
    ops.Repeat: _repeat,
    ops.Search: _search,
    ops.Branch: _branch,
    ops.If: _if,
    ops.Each: _each,
    ops.Peek: _peek,
    ops.Ask: _ask,
    ops.Call: _call,
    ops.Return: _unchanged,
}
