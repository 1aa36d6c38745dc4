"""`via filter`: by runs and token by token the same, however requests are gathered, and what is counted of it."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import replace
from functools import cache

import pytest
from transformers import AutoTokenizer

from qpdsl import zoo
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.events.events import EngineStepped, Event
from qpdsl.executor.events.stream import EventStream
from qpdsl.executor.models.load import load
from qpdsl.executor.models.text_model import PagedTextModel
from qpdsl.executor.requests.request import GenerateRequest
from qpdsl.executor.runtime.instance.instance import Services
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.executor.runtime.run import run as run_instance
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.names.modules import Environment
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.planner.plan.logical import LogicalProgram
from qpdsl.planner.plan.physical import GenerateStrategy, PhysicalPlan, everything
from qpdsl.planner.plan.rule import with_strategies
from qpdsl.session.session import Session
from tests.support.executor.gateway import Gateway
from tests.support.executor.programs import run_all, texts
from tests.support.executor.scripted_engine import ScriptedEngine, scripted_model
from tests.support.planner.runs import assert_same

HEADER = """model llm = "zoo/counting"
model slm = "zoo/counting-mini"
schema Person { name: text(max_length=9), age: int(0..120) }
"""
_FILTERS = [
    "0.3",
    "0.9",
    "0.6, by=margin",
    "0.8, by=margin",
    "0.9, by=entropy",
    "0.6, by=top",
    "share=0.3",
    "share=0.1, by=margin",
]
_OPTIONS = ["temperature=0", "n=2 temperature=0.9", "n=3 temperature=1.4 top_p=0.95", "n=2 temperature=0.8 top_k=9"]
_TARGETS = ["", "", "as Person ", r"as /[a-z]{2,5} is [0-9]+( \* [0-9]+)*\./ "]


def lowered(stages: str) -> LogicalProgram:
    text = HEADER + f"program p(problem: text) -> text {{\n chat user=problem\n {stages}\n return text\n}}"
    return lower(parse_file(Source("test.qp", text)), "p", Environment())


def batched(plan: PhysicalPlan, rows: int, seconds: float = 0.1, logprobs: bool = True) -> PhysicalPlan:
    """The plan with batches of so many rows for the large model."""
    strategies = {
        node.id: replace(node.strategy, flush_rows=rows, flush_seconds=seconds, logprobs=logprobs)
        for node in everything(plan.ops)
        if isinstance(node.strategy, GenerateStrategy)
    }
    return with_strategies(plan, strategies)


def filtered_stages(seed: int) -> str:
    pick = random.Random(seed)
    target, options = pick.choice(_TARGETS), pick.choice(_OPTIONS)
    stop = pick.choice(["", ' stop="."']) if not target else ""
    first = f"generate llm {target}via filter(slm, {pick.choice(_FILTERS)}) {options}{stop} max_tokens=30"
    return first + (f"\n generate llm via filter(slm, {pick.choice(_FILTERS)}) max_tokens=9" if stop else "")


@pytest.mark.parametrize("seed", [1, 2, 5, 20, 35])
def test_all_its_plans_draw_the_same_tokens(seed: int) -> None:
    program, rows = lowered(filtered_stages(seed)), [{"problem": problem} for problem in texts(3)]
    expected = run_all(planned(program, naive=True), rows, seed=seed)
    assert all(result.error is None for result in expected)
    plan = planned(program)
    pick = random.Random(seed)
    tight = EngineConfig(max_sequences=pick.randint(1, 5), token_budget=pick.choice([16, 64]))
    for own, config, kv_bytes in (
        (plan, None, None),
        (batched(plan, 1, 0.0), tight, None),
        (batched(plan, 100, 0.01), tight, 1_500_000),
    ):
        assert_same(expected, run_all(own, rows, config, kv_bytes, seed))
    for result, one_by_one in zip(run_all(plan, rows, seed=seed), expected, strict=True):
        for name in ("filter_samples", "filter_alone", "large_draws"):
            assert result.counts.get(name, 0) == one_by_one.counts.get(name, 0)


def test_each_row_may_have_a_threshold_of_its_own() -> None:
    """At temperature 0 a row is what it would be in a program of that threshold alone."""
    sweep = "each t in [0.3, 0.9] {{ generate llm via filter(slm, {}) temperature=0 max_tokens=30 }}".format
    rows = [{"problem": problem} for problem in texts(3)]
    together = run_all(planned(lowered(sweep("t, by=margin"))), rows)
    for index, threshold in enumerate(("0.3, by=margin", "0.9, by=margin")):
        alone = run_all(planned(lowered(sweep(threshold))), rows)
        assert [r.rows[index].generated.tokens for r in together] == [r.rows[index].generated.tokens for r in alone]


def test_counts_say_who_drew_what_and_the_models_compute_nothing_twice() -> None:
    computed: dict[str, int] = {}

    def see(event: Event) -> None:
        if isinstance(event, EngineStepped):
            report = event.report
            tokens = report.prefill_tokens + report.decode_tokens
            computed[report.model] = computed.get(report.model, 0) + tokens

    plan = planned(lowered("generate llm n=3 via filter(slm, 0.3) temperature=0.9 max_tokens=60"), ("text",))
    session = Session()
    session.events.subscribe(see)
    results = run_all(plan, [{"problem": problem} for problem in texts(8)], session=session)
    names = ("filter_samples", "filter_alone", "filter_draws", "filter_sure", "large_draws", "large_tokens")
    total = {name: sum(result.counts.get(name, 0) for result in results) for name in names}
    sampled = sum(result.sampled_tokens for result in results)
    prompts = sum(result.counts["context"] for result in results)
    assert total["filter_samples"] == 24 and 0 < total["filter_alone"] < 24
    assert total["filter_draws"] - total["filter_sure"] == total["large_draws"] > 20
    assert total["filter_sure"] + total["large_draws"] == sampled
    flushes = {int(name.removeprefix("flush_")) for result in results for name in result.counts if "flush_" in name}
    assert max(flushes) > 1
    # Nobody reads log-probabilities, so the large model computes what it catches up on and nothing else.
    assert computed["zoo/counting"] == total["large_tokens"] <= prompts + 16 * 24 + sampled
    # A page that is filled in part is found again: a token is computed once.
    assert computed["zoo/counting-mini"] <= prompts + sampled


@pytest.mark.parametrize("naive", [True, False])
def test_a_sample_has_one_first_token_however_many_requests_draw_it(naive: bool) -> None:
    first, between = Counter[int](), Counter[int]()

    def see(event: Event) -> None:
        if isinstance(event, EngineStepped):
            first.update(event.report.first_waits)
            between.update(event.report.waits)

    session = Session()
    session.events.subscribe(see)
    plan = planned(lowered("generate llm n=2 via filter(slm, 0.8) temperature=0.9 max_tokens=30"), naive=naive)
    results = run_all(plan, [{"problem": problem} for problem in texts(4)], session=session)
    sampled = sum(result.sampled_tokens for result in results)
    assert sum(result.counts["large_draws"] for result in results) > 8
    assert (first.total(), between.total()) == (8, sampled - 8)


def test_a_program_says_how_many_rows_wait_for_the_large_model_and_for_how_long() -> None:
    def run(options: str) -> tuple[list[InstanceResult], set[int]]:
        stage = f"generate llm n=2 via filter(slm, 0.8{options}) temperature=0.9 max_tokens=30"
        results = run_all(planned(lowered(stage)), [{"problem": problem} for problem in texts(4)])
        sizes = {int(name.removeprefix("flush_")) for result in results for name in result.counts if "flush_" in name}
        return results, sizes

    expected, usual = run("")
    assert max(usual) > 2
    for options, least, most in ((", rows=1", 1, 1), (", rows=2, wait=3600", 1, 2), (", wait=0", 1, 8)):
        results, sizes = run(options)
        assert_same(expected, results)
        assert least <= min(sizes) and max(sizes) <= most


def test_an_adaptive_threshold_holds_its_share() -> None:
    stage = "generate llm n=2 as /[a-z ]{2000}/ via filter(slm, share=0.25) temperature=1.5 max_tokens=250"
    for result in run_all(planned(lowered(stage)), [{"problem": problem} for problem in texts(2)]):
        draws = result.counts["filter_draws"]
        assert draws > 400 and abs(result.counts["large_draws"] - 0.25 * draws) <= 2 * 11


@cache
def mini() -> PagedTextModel:
    return load("slm", zoo.path("zoo/counting-mini"), "cpu", "float32")


def remote(prompt: str, key: int) -> str:
    return random.Random(f"{key} {prompt}").choice(["so ", "7 ", "the ", "4", "."])


def through_a_gateway(plan: PhysicalPlan) -> tuple[list[InstanceResult], ScriptedEngine]:
    """The small model here, and the large one on an engine that draws for one request at a time and tells no more."""
    tokenizer = AutoTokenizer.from_pretrained(zoo.path("zoo/counting"))
    elsewhere = ScriptedEngine(tokenizer, remote)
    here = PagedEngine(kv_bytes=8 << 20)
    here.add("slm", mini().paged)
    engine = Gateway({"remote": elsewhere, "slm": here})
    models = {"llm": scripted_model("remote", tokenizer), "slm": mini()}
    services = Services(engine, models, {}, EventStream())

    async def main() -> list[InstanceResult]:
        driver = asyncio.create_task(engine.drive())
        try:
            rows = [run_instance(plan, {"problem": problem}, 0, services) for problem in texts(3)]
            return await asyncio.wait_for(asyncio.gather(*rows), 60)
        finally:
            driver.cancel()

    return asyncio.run(main()), elsewhere


@pytest.mark.parametrize("temperature", [0, 0.9])
def test_the_large_model_may_be_elsewhere(temperature: float) -> None:
    program = lowered(f'generate llm n=2 via filter(slm, 0.7) temperature={temperature} stop="\\n" max_tokens=24')
    results, elsewhere = through_a_gateway(planned(program, ("text",)))
    assert [result.error for result in results] == [None] * 3
    straight, _ = through_a_gateway(batched(planned(program, ("text",), naive=True), 1, logprobs=False))
    for result, other in zip(results, straight, strict=True):
        assert [row.generated.tokens for row in result.rows] == [row.generated.tokens for row in other.rows]
        assert [row.columns["finish"] for row in result.rows] == [row.columns["finish"] for row in other.rows]
    # It was asked for single tokens after all that stood, and for nothing else.
    assert elsewhere.requests
    for request in elsewhere.requests:
        assert isinstance(request, GenerateRequest) and (request.max_tokens, request.confidence) == (1, None)
    asked = sum(result.counts.get("large_draws", 0) for result in results)
    assert asked == len(elsewhere.requests)


def test_log_probabilities_are_read_where_somebody_reads_them() -> None:
    stage = "generate llm via filter(slm, 0.9) temperature=0 max_tokens=30"
    unread, read = planned(lowered(stage), ("text",)), planned(lowered(stage), ("text", "logprob"))
    scored = planned(lowered(stage + "\n score logprob reduce=mean into sure\n keep 1 by sure"), ("text",))
    for plan, wanted in ((unread, False), (read, True), (scored, True)):
        (strategy,) = [node.strategy for node in everything(plan.ops) if isinstance(node.strategy, GenerateStrategy)]
        assert strategy.logprobs == wanted
    rows = [{"problem": problem} for problem in texts(2)]
    for with_, without in zip(run_all(read, rows), run_all(unread, rows), strict=True):
        assert with_.value == without.value
        # The large model reads the whole text once more.
        assert with_.prompt_tokens > without.prompt_tokens
