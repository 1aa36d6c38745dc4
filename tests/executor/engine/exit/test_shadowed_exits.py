"""Draws at an exit that the full model makes too: no token changes, and what is counted is true."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import pytest

from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.engine.step_report import StepReport
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from qpdsl.executor.requests.shadow import chance, shadowed
from tests.support.executor.models import engine_of, paged, served
from tests.support.executor.rule_mask import RuleMask

pytestmark = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

LAYERS = 4
EXITS = (
    EarlyExit(0.0, 2),
    EarlyExit(0.15, 2),
    EarlyExit(0.1, 1, rerank=5),
    EarlyExit(0.0, 2, certify=0.2),
)
SAMPLINGS = (SamplingParams(1.0), SamplingParams(0.0), SamplingParams(0.8), SamplingParams(1.0))


@cache
def model() -> PagedModel:
    return paged("llama", num_hidden_layers=LAYERS)


def requests(share: float, *, deferred: bool) -> tuple[GenerateRequest, ...]:
    return tuple(
        GenerateRequest(
            (5, 17, 80, number),
            (number, 1000 + number, 2000 + number)[: 1 + number % 3],
            SAMPLINGS[number % len(EXITS)],
            24,
            mask=RuleMask if number % 5 == 0 else None,
            jump=number % 10 == 0,
            exit=replace(EXITS[number % len(EXITS)], deferred=deferred, shadow=share),
        )
        for number in range(1, 17)
    )


def drawn(rows: list[tuple[Sample, ...]]) -> list[list[object]]:
    """What must not depend on shadows."""
    return [
        [
            (
                sample.tokens,
                sample.finish,
                sample.logprobs,
                sample.steps.draws,
                sample.steps.exits,
                sample.steps.refined,
            )
            for sample in row
        ]
        for row in rows
    ]


def counted(rows: list[tuple[Sample, ...]]) -> list[list[tuple[int, int]]]:
    return [[(sample.steps.shadowed, sample.steps.differed) for sample in row] for row in rows]


@cache
def plain(share: float) -> list[tuple[Sample, ...]]:
    return served(engine_of(model()), requests(share, deferred=False))


@pytest.mark.parametrize("share", [0.5, 1.0])
@pytest.mark.parametrize(
    ("pages", "config"),
    [(400, EngineConfig()), (400, EngineConfig(max_sequences=1)), (8, EngineConfig(token_budget=37))],
    ids=["batch", "alone", "least-memory"],
)
def test_shadows_change_no_token_and_depend_on_nothing_but_the_row(
    share: float, pages: int, config: EngineConfig
) -> None:
    assert drawn(plain(share)) == drawn(plain(0.0))
    assert sum(map(sum, (map(sum, row) for row in counted(plain(0.0))))) == 0
    reports: list[StepReport] = []
    engine = engine_of(model(), pages, config, reports.append)
    rows = served(engine, requests(share, deferred=True))
    assert drawn(rows) == drawn(plain(0.0)) and counted(rows) == counted(plain(share))
    assert pages > 100 or reports[-1].preemptions > 0


def test_what_is_counted_is_what_the_full_model_draws() -> None:
    for request, row in zip(requests(1.0, deferred=True), plain(1.0), strict=True):
        for index, sample in enumerate(row[:1]):
            steps = sample.steps
            assert request.exit is not None
            assert steps.shadowed == steps.exits + (steps.refined if request.exit.rerank else 0)
            if request.mask is not None:
                continue
            full = [
                GenerateRequest(
                    request.prompt + sample.tokens[:place], request.keys[index : index + 1], request.sampling, 1,
                    drawn=place,
                )
                for place in range(len(sample.tokens))
            ]  # fmt: skip
            ours = [samples[0].tokens[0] for samples in served(engine_of(model()), tuple(full))]
            assert steps.differed == sum(map(int.__ne__, ours, sample.tokens)) > 0


def test_shadowing_costs_layers() -> None:
    """What was put off is made up for where a shadow needs it."""
    none, some = (served(engine_of(model()), requests(share, deferred=True)) for share in (0.0, 0.5))

    def skipped(rows: list[tuple[Sample, ...]]) -> int:
        return sum(sample.steps.skipped for row in rows for sample in row)

    assert skipped(some) < skipped(none) / 2


def test_the_share_is_kept_and_other_purposes_are_other_numbers() -> None:
    places = [(key * 7919, position) for key in range(100) for position in range(100)]
    for share in (0.0, 0.02, 0.5, 1.0):
        assert sum(shadowed(*place, share) for place in places) / len(places) == pytest.approx(share, abs=0.02)
    one, other = ([chance(*place, purpose) for place in places] for purpose in (1, 2))
    mean = sum(a * b for a, b in zip(one, other, strict=True)) / len(places)
    assert mean == pytest.approx(0.25, abs=0.02)


def test_a_share_is_a_share() -> None:
    with pytest.raises(ValueError, match="shadowed share"):
        EarlyExit(shadow=1.5)
