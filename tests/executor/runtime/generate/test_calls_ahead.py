"""Calls that are taken from what an earlier one wrote past its stop: the same rows, by fewer requests."""

from __future__ import annotations

from dataclasses import replace

import pytest

from qpdsl.executor.requests.request import GenerateRequest
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.planner.optimize.optimizer import optimize
from qpdsl.planner.plan.naive import plan
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, RemoteModel, Tolerance, everything
from tests.support.executor.scripted_engine import ScriptedEngine, result_of
from tests.support.planner.lowered import program_of
from tests.support.planner.rules import SERVER, with_server

_MODEL = 'model llm = "vllm:http://127.0.0.1:8000/v1#m"\n'
_OPTIONS = 'temperature=0 stop="\\n" max_tokens=20'
_THREE = f"""
  prompt "{{problem}}"
  say " name:"
  generate llm {_OPTIONS}
  say "job:"
  generate llm {_OPTIONS}
  say "age:"
  generate llm {_OPTIONS}
  return text
"""
_WRITES = " name: Ann\njob: baker\nage: 31\n"


def naive(stages: str, server: RemoteModel = SERVER) -> PhysicalPlan:
    program = program_of(f"{_MODEL}program p(problem: text) -> text {{{stages}}}")
    return with_server(plan(program, ()), server)


def writes(document: str, result: PhysicalPlan) -> tuple[InstanceResult, ScriptedEngine]:
    """The result with a model that writes the document on from wherever it is, and a dot where it is not in it."""

    def script(prompt: str, key: int) -> str:
        said = prompt[prompt.find("?") + 1 :]
        return document[len(said) :] if document.startswith(said) else "."

    return result_of(result, script)


def spared(before: PhysicalPlan, document: str = _WRITES) -> tuple[int, dict[str, int]]:
    """How many requests the rule saves, and what was counted. The rows are those of the plan without it."""
    after = optimize(before).plan
    expected, plain = writes(document, optimize(before, ["speculative_calls"]).plan)
    result, ahead = writes(document, after)
    assert result.error is expected.error is None
    assert result.value == expected.value
    for row, same in zip(result.rows, expected.rows, strict=True):
        # Log-probabilities are read by nobody; the scripted engine tells them all the same.
        assert {**row.columns, "logprob": 0} == {**same.columns, "logprob": 0} and row.path == same.path
        assert row.generated.tokens == same.generated.tokens and row.generated.finished == same.generated.finished
    return len(plain.requests) - len(ahead.requests), dict(result.counts)


def test_later_calls_are_taken_from_the_first() -> None:
    saved, counts = spared(naive(_THREE))
    assert saved == counts["saved_calls"] == 2
    # The end of the document is written too, and wanted by nobody.
    assert counts["beyond_tokens"] - counts["beyond_used"] == 1


def test_what_does_not_fit_is_asked_for() -> None:
    saved, counts = spared(naive(_THREE), " name: Ann\ntown: Ulm\njob: baker\nage: 31\n")
    assert saved == 0 and counts["beyond_tokens"] > 0 and "saved_calls" not in counts


def test_a_call_that_is_made_may_serve_the_one_after_it() -> None:
    document = " name: Ann\njob:"

    def script(prompt: str, key: int) -> str:
        said = prompt[prompt.find("?") + 1 :]
        return " baker\nage: 31\n" if said.endswith("job:") else " Ann\n" if said == " name:" else " 31\n"

    before = naive(_THREE)
    expected, plain = result_of(optimize(before, ["speculative_calls"]).plan, script)
    result, ahead = result_of(optimize(before).plan, script)
    assert document in str(result.value) and result.value == expected.value
    assert len(plain.requests) - len(ahead.requests) == result.counts["saved_calls"] == 1


@pytest.mark.parametrize("last", ['temperature=0 stop="\\n"', "temperature=0 max_tokens=3", "temperature=0"])
def test_a_call_may_end_in_any_way(last: str) -> None:
    """At its stop, at its length, where the model ends."""
    stages = f'prompt "{{problem}}" | say " name:" | generate llm {_OPTIONS} | say "job:" | generate llm {last}'
    saved, _ = spared(naive(stages.replace(" | ", "\n") + "\nreturn text"))
    assert saved == 1


def test_a_call_that_would_have_more_is_made() -> None:
    long = " name: Ann\njob: " + "baker and " * 60
    saved, counts = spared(naive(_THREE.replace("max_tokens=20", "max_tokens=100")), long)
    assert saved == 0 and counts["beyond_tokens"] == 64


@pytest.mark.parametrize(
    "stages",
    [
        _THREE.replace("temperature=0", "temperature=0.5"),
        _THREE.replace('say "job:"', 'prompt "job:"').replace('say "age:"', 'prompt "age:"'),
        _THREE.replace(' stop="\\n"', ""),
        _THREE.replace("return text", "best by logprob\nreturn text"),
    ],
    ids=["a temperature", "another context", "no stop", "log-probabilities are read"],
)
def test_where_it_would_not_be_the_same_nothing_is_decided(stages: str) -> None:
    assert not _decided(naive(stages))


def test_it_takes_a_server_that_streams_and_whose_tokens_are_known() -> None:
    assert _decided(naive(_THREE))
    for server in (
        replace(SERVER, streams=False),
        replace(SERVER, greedy=False),
        replace(SERVER, token_ids=False),
        RemoteModel(),
    ):
        assert not _decided(naive(_THREE, server))
    permits = replace(naive(_THREE, replace(SERVER, token_ids=False)), within=Tolerance(repeats="recorded"))
    # Nor can tokens be counted that only the server knows.
    assert not _decided(permits)
    black_box = naive(_THREE.replace(" max_tokens=20", ""), replace(SERVER, token_ids=False))
    assert not _decided(black_box) and _decided(replace(black_box, within=Tolerance(repeats="recorded")))
    here = replace(naive(_THREE), models={"llm": "zoo/counting"})
    assert not _decided(here)


def test_the_first_request_is_told_no_stop_and_has_room_for_more() -> None:
    _, engine = writes(_WRITES, optimize(naive(_THREE)).plan)
    (request,) = engine.requests
    assert isinstance(request, GenerateRequest) and not request.stops and request.max_tokens == 84


def _decided(before: PhysicalPlan) -> bool:
    strategies = [node.strategy for node in everything(optimize(before).plan.ops)]
    return any(isinstance(strategy, GenerateStrategy) and strategy.beyond > 0 for strategy in strategies)
