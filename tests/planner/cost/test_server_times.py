"""Estimates for models on servers: by what earlier runs waited, and none without them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.planner.cost.device import nominal
from qpdsl.planner.cost.estimate import estimate_cost, with_costs
from qpdsl.planner.cost.run_figures import OperatorFigures, RunFigures, calls_json
from qpdsl.planner.cost.statistics import Statistics
from qpdsl.planner.cost.timing import RunLoad
from qpdsl.planner.explain.analyze import Analysis
from qpdsl.planner.explain.measurements import servers_text
from qpdsl.planner.explain.plan import explain, explain_json
from qpdsl.planner.explain.quantities import calls_words
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import PhysicalPlan, RemoteModel, everything
from tests.support.planner.lowered import program_of
from tests.support.planner.rules import SERVER, with_server

_ID = "vllm:http://127.0.0.1:8000/v1#m"
_TEXT = f"""model llm = "{_ID}"
model prm = "zoo/counting-prm"
program p(problem: text) -> text {{
  chat user=problem
  generate llm n=8 max_tokens=100
  score prm
  best by score
}}
"""


def planned(server: RemoteModel | None = SERVER) -> PhysicalPlan:
    naive = plan(program_of(_TEXT), ())
    return optimize(naive if server is None else with_server(naive, server)).plan


def figures(in_flight: int = 4, seconds: float = 2.0, **counts: int) -> RunFigures:
    """A run of 4 problems, each of which waited for its samples, 50 tokens in the longest, for so many seconds."""
    drawn = OperatorFigures(
        runs=4,
        rows_in=4,
        rows_out=32,
        prompt_tokens=3200,
        sampled_tokens=1280,
        seconds=4 * seconds,
        counts={"going": 4, "samples": 32, "context": 400, "longest": 200, "requests": 32, **counts},
    )
    return RunFigures(4, 0, in_flight, 8.0, {"1": drawn}, {})


def test_without_earlier_runs_nothing_is_estimated() -> None:
    physical = planned()
    estimate = estimate_cost(physical, nominal(), Statistics(), RunLoad(problems=4))
    assert estimate.seconds is None and estimate.costs["1"].seconds is None
    scored = estimate.costs["2"].seconds
    assert scored is not None and scored > 0
    # No KV of this machine is for it, and none of its forwards are here.
    assert list(estimate.models) == ["zoo/counting-prm"]
    text = explain(with_costs(physical, estimate))
    assert "est not measured" in text and "within replayable" in text


def test_what_was_waited_is_waited_again() -> None:
    physical, statistics = planned(), Statistics()
    statistics.add(physical, figures())
    estimate = estimate_cost(physical, nominal(), statistics, RunLoad(problems=4, in_flight=4))
    assert estimate.costs["1"].seconds == pytest.approx(8.0)
    scored = estimate.costs["2"].seconds
    assert estimate.seconds is not None and scored is not None and 2.0 < estimate.seconds < 2.1 + scored
    again = Statistics.from_text(statistics.to_text())
    assert again.servers == statistics.servers and again.servers[_ID].levels[4].rate == pytest.approx(160.0)


def test_what_was_waited_is_shown() -> None:
    statistics = Statistics()
    statistics.add(planned(), figures())
    shown = servers_text(statistics.servers)
    assert shown == f"{_ID}\n  4 problems at once or more: operators waited 2.00 s each, 160.0 tokens/s"


def test_waits_are_those_of_as_many_problems_at_once() -> None:
    physical, statistics = planned(), Statistics()
    statistics.add(physical, figures(in_flight=1, seconds=0.5))
    statistics.add(physical, figures(in_flight=70, seconds=5.0))
    waits = {flight: statistics.servers[_ID].at(flight) for flight in (1, 3, 40, 256)}
    each = {flight: None if wait is None else wait.wait(50) for flight, wait in waits.items()}
    assert each == {1: 0.5, 3: 0.5, 40: 5.0, 256: 5.0}


def test_what_was_replayed_says_nothing_of_a_server() -> None:
    statistics = Statistics()
    statistics.add(planned(), figures(replayed=3))
    assert statistics.servers == {}


def test_an_analysis_has_the_calls() -> None:
    physical = planned()
    counts = {"retries": 2, "server_cached": 96, "cost_millionths": 12_500}
    run, estimate = figures(**counts), estimate_cost(physical, nominal(), Statistics(), RunLoad(problems=4))
    analysis = Analysis(physical, run, estimate)
    text = analysis.text()
    assert "8.00 s waited (est not measured)" in text and "8.00 s (est not measured)" in text
    assert "servers: 32 requests, 2 of them again, 96 tokens cached there, cost 0.0125" in text
    assert f"{_ID}: operators waited 2.00 s each, 160.0 tokens/s" in text and "a server was not measured" in text
    data = analysis.to_json()
    assert data["measured"]["servers"]["requests"] == 32 and data["measured"]["servers"]["cost"] == 0.0125
    assert data["estimated"]["seconds"] is None and data["repeats"] == "replayable"


def test_words_and_data_of_calls() -> None:
    counts = {"requests": 3, "replayed": 1, "saved_calls": 1, "beyond_tokens": 64, "beyond_used": 40}
    assert ", ".join(calls_words(counts)) == "3 requests, 1 replayed, 1 call saved, 24 tokens wasted"
    assert "64 tokens past its stop" in list(calls_words(counts, of_operator=True))
    assert calls_json(counts) == {
        "requests": 3,
        "retries": 0,
        "replayed": 1,
        "server_cached": 0,
        "saved_calls": 1,
        "wasted_tokens": 24,
        "cost": 0.0,
    }
    assert calls_json({"near_ties": 1}) is None and not list(calls_words({}))


@pytest.mark.parametrize(
    ("server", "said", "repeats"),
    [
        (None, "replayable · server not probed", "replayable"),
        (SERVER, "replayable", "replayable"),
        (replace(SERVER, repeats="recorded"), "recorded", "recorded"),
    ],
)
def test_what_comes_again_is_told(server: RemoteModel | None, said: str, repeats: str) -> None:
    physical = planned(server)
    (line,) = [line for line in explain(physical).splitlines() if "generate" in line]
    assert line.endswith(said) and "on a server" in line and "dense head" not in line
    data = explain_json(physical)
    of_generate = next(operator for operator in data["operators"] if operator["operator"] == "Generate")
    assert data["repeats"] == of_generate["repeats"] == repeats
    assert [operator["repeats"] for operator in data["operators"] if operator is not of_generate] == ["exact"] * 4


def test_a_greedy_server_without_seeds_replays_what_is_greedy() -> None:
    text = _TEXT.replace("n=8", "temperature=0")
    physical = with_server(plan(program_of(text), ()), replace(SERVER, repeats="recorded"))
    assert [physical.repeats(node) for node in physical.ops].count("replayable") == 1
    sampled = with_server(plan(program_of(_TEXT), ()), replace(SERVER, repeats="recorded"))
    assert [sampled.repeats(node) for node in sampled.ops].count("recorded") == 1


def test_rules_about_this_engine_leave_servers_alone() -> None:
    """What a head, a mask or a draft computes is a server's own affair, and so is a step that may be for nothing."""
    text = f"""model llm = "{_ID}"
model prm = "zoo/counting-prm"
program p(problem: text) -> text {{
  chat user=problem
  repeat 3 {{
    generate llm n=4 stop="\\n\\n" draft ngram
    score prm
    keep 2 by score
  }}
  say "a number: "
  generate llm as /[0-9]+/ into number
  generate llm as choice("yes", "no") into sure
  best by score
}}
"""
    physical = optimize(with_server(plan(program_of(text)))).plan
    names = {name for node in everything(physical.ops) for name in node.rules}
    assert not names & {"sparse_logits", "jump_forward", "option_tree", "draft_tokens", "speculative_expansion"}
    spare = optimize(with_server(plan(program_of(text)), replace(SERVER, spare_rows=64))).plan
    assert "speculative_expansion" in spare.rules
    # Rows enough for a server that bears many, which the engine then limits.
    assert physical.in_flight is not None and physical.in_flight > 32 and physical.floor == 256
