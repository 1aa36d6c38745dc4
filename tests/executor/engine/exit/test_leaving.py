"""Which tokens of an exit stand: by margin, certificate, exit head; and among what the last layer draws if not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from qpdsl.executor.engine.batch.staging import Staging
from qpdsl.executor.engine.exit.exit_steps import ExitHeads
from qpdsl.executor.engine.exit.leaving import leave, refined
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step import sampler
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.engine.step.routed_head import CompiledHead
from qpdsl.executor.kernels.llvm.compile import vector_width
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import VOCABULARY, engine_of, paged, served

needs_vectors = pytest.mark.skipif(not vector_width(), reason="this machine has no vectors")

LAYERS = 4


@dataclass(frozen=True)
class Shift:
    """An exit head."""

    layer: int
    weight: torch.Tensor
    bias: torch.Tensor

    @classmethod
    def random(cls, layer: int, width: int = 48) -> Shift:
        generator = torch.Generator().manual_seed(layer)
        return cls(layer, 0.3 * torch.randn(width, width, generator=generator), torch.randn(width, generator=generator))


@cache
def model(native: bool = True) -> PagedModel:
    return paged("llama", native=native, num_hidden_layers=LAYERS)


def readouts() -> list[Readout]:
    """One that draws by the compiled head, and one by logits."""
    head = model().panel_head
    assert head is not None
    staging = Staging("cpu")
    return [
        Readout(model(), staging, sampler.sample, head=CompiledHead(head)),
        Readout(model(), staging, sampler.sample),
    ]


def case() -> tuple[torch.Tensor, list[Draw], Masks]:
    """Draws of all kinds under masks of one id to all of them, and under none."""
    rng = np.random.default_rng(1)
    bits = np.zeros((5, -(-VOCABULARY // 32)), dtype=np.int32)
    for row, count in zip(bits, (1, 2, 9, 60, VOCABULARY), strict=True):
        ids = np.zeros(len(row) * 32, dtype=bool)
        ids[rng.choice(VOCABULARY, count, replace=False)] = True
        row[:] = np.packbits(ids, bitorder="little").view(np.int32)
    masks = Masks(bits, np.bitwise_count(bits.view(np.uint32)).sum(axis=1, dtype=np.int64), {})
    samplings = (SamplingParams(0), SamplingParams(1.0), SamplingParams(0.7), SamplingParams(0.8, top_k=5))
    draws = []
    for number in range(60):
        params = samplings[number % 4]
        how = EarlyExit(
            float(rng.uniform(0, 0.6)),
            1,
            None,
            int(rng.integers(1, 9)) if number % 5 == 0 else None,
            float(rng.uniform(0, 1)) if number % 3 == 0 and not params.filtered else None,
        )
        draws.append(Draw(number % 7, params, number * 977, number, int(rng.integers(-1, 5)), number % 2 == 0, how))
    hidden = torch.randn(7, 48, generator=torch.Generator().manual_seed(0))
    return hidden, draws, masks


@needs_vectors
def test_what_stands_is_the_same_by_the_head_and_by_logits() -> None:
    hidden, draws, masks = case()
    by_head, by_logits = (leave(readout, hidden, draws, masks) for readout in readouts())
    assert 10 < sum(leaving.stands for leaving in by_head) < 50
    for one, other in zip(by_head, by_logits, strict=True):
        assert (one.token, one.stands) == (other.token, other.stands) or other.near_tie
        assert one.logprob == pytest.approx(other.logprob, abs=1e-4)
        assert (one.best is None) == (other.best is None)


@needs_vectors
def test_what_comes_of_a_draw_depends_on_it_alone() -> None:
    hidden, draws, masks = case()
    readout = readouts()[0]
    together = leave(readout, hidden, draws, masks)
    for index, draw in enumerate(draws):
        for sparse in (False, True):
            (alone,) = leave(readout, hidden[draw.row][None], [draw._replace(row=0, sparse=sparse)], masks)
            assert alone[:4] == together[index][:4]
            assert np.array_equal(alone.best, together[index].best)  # type: ignore[arg-type]


@needs_vectors
def test_margins_are_those_of_the_allowed_ids() -> None:
    hidden, draws, masks = case()
    draws = [draw for draw in draws if not draw.params.filtered]
    readout = readouts()[0]
    told = readout.with_margins(hidden, draws, masks)
    assert told is not None
    top = readout.masked_logits(hidden, draws, masks).double().softmax(dim=-1).topk(2, dim=-1).values
    torch.testing.assert_close(told[1], top[:, 0] - top[:, 1], atol=1e-5, rtol=0)
    # A draw with one id to choose from is sure of it.
    assert told[1][[index for index, draw in enumerate(draws) if draw.allowed == 0]].eq(1).all()


def test_the_best_ids_are_scored_again() -> None:
    hidden, draws, masks = case()
    readout = readouts()[-1]
    draws = [draw._replace(exit=EarlyExit(1.1, 1, rerank=1 + index % 6)) for index, draw in enumerate(draws)]
    leavings = leave(readout, hidden, draws, masks)
    again, wider = refined(draws, leavings, masks)
    assert wider is not None
    logits = readout.masked_logits(hidden, draws, masks)
    chosen = readout.masked_logits(hidden, again, wider).isfinite()
    for row, ids, draw in zip(logits, chosen, draws, strict=True):
        assert draw.exit is not None and draw.exit.rerank is not None
        count = min(draw.exit.rerank, int(row.isfinite().sum()))
        assert int(ids.sum()) == count
        assert row[ids].min() >= row.topk(count).values[-1]


def request(how: EarlyExit | None, temperature: float = 1.0, count: int = 30) -> GenerateRequest:
    return GenerateRequest((5, 17, 80, 3), tuple(range(6)), SamplingParams(temperature), count, exit=how)


def samples(how: EarlyExit | None, temperature: float = 1.0, native: bool = True) -> tuple[Sample, ...]:
    (found,) = served(engine_of(model(native)), (request(how, temperature),))
    return found


class Given:
    """A model of 40 ids whose hidden states are its logits."""

    head = SimpleNamespace(width=40)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden


def test_a_certified_token_is_the_models() -> None:
    generator = torch.Generator().manual_seed(8)
    readout = Readout(Given(), Staging("cpu"), sampler.sample)  # type: ignore[arg-type]
    stood = 0
    for number, bound in enumerate((0.05, 0.3, 0.8, 2.0)):
        at_exit = 3 * torch.randn(200, 40, generator=generator)
        full = at_exit + bound * (2 * torch.rand(200, 40, generator=generator) - 1)
        params = [SamplingParams((0.0, 0.5, 1.0, 1.7)[row % 4]) for row in range(200)]
        how = EarlyExit(certify=bound)
        draws = [Draw(row, own, 31 * row + number, row, exit=how) for row, own in enumerate(params)]
        leavings = leave(readout, at_exit, draws, None)
        drawn = readout.sample(full, draws, None)
        stood += sum(leaving.stands for leaving in leavings)
        for leaving, token in zip(leavings, drawn.tokens, strict=True):
            assert not leaving.stands or leaving.token == token
    assert 200 < stood < 700


def test_without_a_bound_all_leave_and_with_a_wide_one_none() -> None:
    none, all_of_them = (samples(EarlyExit(0.0, LAYERS - 1, certify=bound)) for bound in (1e3, 0.0))
    assert [sample.tokens for sample in none] == [sample.tokens for sample in samples(None)]
    assert [sum(sample.steps.exits for sample in found) for found in (none, all_of_them)] == [0, 180]


def test_among_all_ids_a_rerank_is_a_draw_of_all_layers() -> None:
    def tokens(how: EarlyExit | None) -> list[tuple[int, ...]]:
        return [sample.tokens for sample in samples(how)]

    assert tokens(EarlyExit(1.1, 2, rerank=VOCABULARY)) == tokens(None)
    # The one id is the exit's best, so nothing is left to chance.
    assert tokens(EarlyExit(1.1, 2, rerank=1)) == [samples(EarlyExit(0.0, 2), 0.0)[0].tokens] * 6


@needs_vectors
def test_an_exit_head_moves_the_state_that_is_read() -> None:
    heads = [Shift.random(2), Shift.random(3)]
    how = EarlyExit(0.05, head="lens")
    found = []
    for native, deferred in ((True, False), (True, True), (False, False)):
        engine = engine_of(model(native))
        for head in heads:
            engine.add_exit_head("lens", head)
        both = tuple(request(replace(how, layer=layer, deferred=deferred)) for layer in (None, 3))
        found.append([[sample.tokens for sample in row] for row in served(engine, both)])
    assert found[0] == found[1] == found[2]
    # Without a layer, it is that of the head that came first.
    assert found[0][0] != found[0][1]
    assert found[0][0] != [sample.tokens for sample in samples(EarlyExit(0.05, 2))]


def test_a_head_leaves_rows_their_bits() -> None:
    heads = ExitHeads()
    heads.add("lens", Shift.random(2))
    residual = torch.randn(9, 48, generator=torch.Generator().manual_seed(3))
    how = EarlyExit(0.0, 2, "lens")
    together = heads.hidden(model(), how, residual)
    for row in range(9):
        assert torch.equal(heads.hidden(model(), how, residual[row : row + 1])[0], together[row])
    head = Shift.random(2)
    expected = model().leaving(residual + residual @ head.weight.T + head.bias)
    torch.testing.assert_close(together, expected)


def test_what_cannot_be_left_so_is_refused() -> None:
    engine = engine_of(model())
    engine.add_exit_head("lens", Shift.random(2))
    engine.add_exit_head("wide", Shift.random(2, 64))

    def refusal(how: EarlyExit, **changes: object) -> str:
        with pytest.raises(EngineError) as caught:
            engine.submit("m", replace(request(how), **changes))  # type: ignore[arg-type]
        return str(caught.value)

    assert refusal(EarlyExit(0.5, LAYERS)) == f"m cannot be left after layer {LAYERS}: it has {LAYERS} layers"
    assert refusal(EarlyExit(0.5, head="none")) == "m is to be left early by none, and there is no such exit head"
    assert refusal(EarlyExit(0.5, 3, "lens")) == "lens has no exit head for layer 3, but for: 2"
    assert refusal(EarlyExit(0.5, head="wide")) == "wide is no exit head for m: its hidden states are 64 wide, not 48"
    assert "certified" in refusal(EarlyExit(certify=1.0), sampling=SamplingParams(1.0, top_k=5))
    for wrong in ({"margin": -1.0}, {"layer": 0}, {"rerank": 0}, {"certify": -1.0}, {"margin": float("nan")}):
        with pytest.raises(ValueError):
            EarlyExit(**wrong)  # type: ignore[arg-type]


def test_drafts_are_checked_by_exits_too() -> None:
    how = EarlyExit(0.1, 2, deferred=True)
    drafted = replace(request(how), draft=Drafting("ngram", length=3, fixed=True))
    (found,) = served(engine_of(model()), (drafted,))
    assert [sample.tokens for sample in found] == [sample.tokens for sample in samples(how)]
    assert sum(sample.steps.drafted for sample in found) > 0
    assert sum(sample.steps.late + sample.steps.skipped for sample in found) == 0
