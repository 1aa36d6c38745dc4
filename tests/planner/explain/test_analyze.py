"""EXPLAIN ANALYZE of a run that is written down here, so that the clock is fixed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.events.events import EngineStepped, Event, InstanceDone, InstanceStarted, OperatorDone
from qpdsl.executor.measure.run_meter import RunMeter
from qpdsl.executor.requests.latencies import bucket_of
from qpdsl.planner.cost.device import nominal
from qpdsl.planner.cost.estimate import estimate_cost
from qpdsl.planner.cost.run_figures import MemoryPart, RunFigures, operator_seconds, total
from qpdsl.planner.cost.statistics import Statistics, clock_key
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.explain.analyze import Analysis
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.physical import PhysicalPlan
from qpdsl.session.programs import load_program
from tests.support.golden import check

HERE = Path(__file__).parent / "analyses"
PAGE = 32768


def plan_of(name: str) -> PhysicalPlan:
    lowered = load_program(name, None, None)
    return planned(lowered, () if lowered.score_column is None else (lowered.score_column,))


def stepped(at: float, model: str, prefill: int, decode: int, seconds: float, pages: int = 10) -> EngineStepped:
    report = StepReport(
        model,
        sequences=1,
        capacity=128,
        seconds=seconds,
        prefill_tokens=prefill,
        decode_tokens=decode,
        waiting=0,
        running=1,
        pages_held=pages,
        pages_leased=pages,
        pages=1000,
        slabs=1,
        slabs_free=0,
        leased_bytes=0,
        wasted_bytes=0,
        preemptions=0,
        cached_tokens=0,
        evictions=0,
        thrashed=0,
        first_waits={bucket_of(2 * seconds): 1} if prefill and decode else {},
        waits={bucket_of(seconds): decode} if decode else {},
    )
    return EngineStepped(at=at, report=report)


def done(at: float, id: str, rows: tuple[int, int], tokens: tuple[int, int, int], **counts: int) -> OperatorDone:
    prompt, cached, sampled = tokens
    return OperatorDone(
        at=at,
        instance="a",
        operator=id,
        rows_in=rows[0],
        rows_out=rows[1],
        prompt_tokens=prompt,
        sampled_tokens=sampled,
        seconds=0.5,
        cached_tokens=cached,
        counts=counts,
    )


def beam_search() -> list[Event]:
    """Two rounds of one problem: 4 samples, then 12 of three rows that go on and one that stays."""
    events: list[Event] = [InstanceStarted(at=10.0, instance="a"), done(10.0, "0", (1, 1), (0, 0, 0))]
    rounds = [(1, 4, 60, 0, 48, 4, 40, 0), (4, 13, 210, 200, 150, 13, 300, 220)]
    for rows, made, prompt, cached, sampled, texts, read, known in rounds:
        going = made // 4
        events += [
            stepped(10.2, "zoo/counting", prompt - cached, sampled, 0.4),
            done(
                10.5, "1.0", (rows, made), (prompt, cached, sampled),
                going=going, samples=4 * going, context=prompt, longest=15, near_ties=1,
            ),
            stepped(10.8, "zoo/counting-prm", read - known, 0, 0.1, 20),
            done(
                11.0, "1.1", (made, made), (read, known, 0),
                texts=texts, text_tokens=read, first_tokens=read // 2, new_tokens=12 * texts, steps=2 * texts,
                steps_known=texts if known else 0,
            ),
            done(11.1, "1.2", (made, 4), (0, 0, 0)),
        ]  # fmt: skip
    events.append(
        done(11.2, "1", (1, 4), (610, 420, 210), near_ties=2, run_ahead=16, run_ahead_used=10, steps=34, steps_known=13)
    )
    events += [done(11.2, id, (4 if id == "2" else 1, 1), (0, 0, 0)) for id in "234"]
    return [
        *events,
        InstanceDone(at=11.25, instance="a", prompt_tokens=610, sampled_tokens=210, seconds=1.25, error=None),
    ]


def measured(events: list[Event]) -> RunFigures:
    measuring = RunMeter({"zoo/counting": PAGE, "zoo/counting-prm": 2 * PAGE}, 4000 * PAGE)
    for event in events:
        measuring.see(event)
    return measuring.figures()


def analysis(statistics: Statistics | None = None) -> Analysis:
    plan, figures = plan_of("beam_search"), measured(beam_search())
    return Analysis(plan, figures, estimate_cost(plan, nominal(), statistics or Statistics(), RunLoad(1)))


def test_the_text() -> None:
    check(HERE / "beam_search.txt", str(analysis()))


def test_the_text_after_one_run() -> None:
    known = Statistics()
    known.add(plan_of("beam_search"), measured(beam_search()))
    known.add_clock(plan_of("beam_search"), clock_key(nominal()), 1.5)
    check(HERE / "beam_search_again.txt", str(analysis(known)))


def test_the_json() -> None:
    check(HERE / "beam_search.json", json.dumps(analysis().to_json(), indent=1))


def test_the_parts_of_the_memory() -> None:
    known = analysis()
    memory = {"weights": MemoryPart(3 << 20, 2 << 20), "activations": MemoryPart(2048, 1024), "kv": MemoryPart(0, 0)}
    told = replace(known, figures=replace(known.figures, memory={**memory, "other": MemoryPart(1 << 30, 1 << 30)}))
    (line,) = (line for line in str(told).splitlines() if line.startswith("memory"))
    assert line.startswith(
        "memory, peak (mean of the steps): weights 3.0 MiB (2.0 MiB), activations 2.0 KiB (1.0 KiB), KV 0 B (0 B), "
        "other 1.0 GiB (1.0 GiB); zoo/counting: 10 (10) of 1000 KV pages"
    )
    assert told.to_json()["measured"]["memory"]["weights"] == {"peak": 3 << 20, "mean": 2 << 20}
    assert known.to_json()["measured"]["memory"] is None and "memory, peak" not in str(known)


def test_all_forwards_are_charged_once() -> None:
    plan, figures = plan_of("beam_search"), measured(beam_search())
    seconds = operator_seconds(plan, figures)
    assert seconds["1.0"] + seconds["1.1"] == pytest.approx(figures.forward_seconds)
    assert seconds["1"] == pytest.approx(figures.forward_seconds)
    # Of the verifier's forwards all, of the generator's its own: nobody else calls these models.
    assert seconds["1.1"] == pytest.approx(0.2)


def test_totals_count_what_is_inside_once() -> None:
    whole = total(plan_of("beam_search").ops, measured(beam_search()))
    assert (whole.prompt_tokens, whole.cached_tokens, whole.sampled_tokens) == (610, 420, 210)
    assert whole.count("near_ties") == 2


def test_the_time_of_a_forward_is_parted_by_tokens() -> None:
    measuring = RunMeter()
    measuring.see(stepped(1.0, "m", 30, 10, 0.8))
    (model,) = measuring.figures().models.values()
    assert model.prefill_seconds == pytest.approx(0.6)
    assert model.decode_seconds == pytest.approx(0.2)


def test_a_problem_that_never_ended_is_no_part_of_the_means() -> None:
    cut = [InstanceStarted(at=11.0, instance="b"), replace(done(11.1, "1.0", (1, 4), (60, 0, 48)), instance="b")]
    assert measured([*beam_search(), *cut]).operators == measured(beam_search()).operators
