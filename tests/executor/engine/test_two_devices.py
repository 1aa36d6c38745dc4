"""What runs on a device mixes no tensor of its own with one of the host, from a checkpoint to a program's answer."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from qpdsl.executor.engine.feeding import Feeding
from qpdsl.executor.engine.model.decoder import Projection, joined_projections
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.kernels.data.weights import FloatWeight
from qpdsl.executor.models.load import load
from qpdsl.executor.requests.drawing import Confidence
from qpdsl.executor.requests.request import GenerateRequest, LogitsRequest, LogProbRequest, ReadRequest, SamplingParams
from qpdsl.executor.runtime.run import InstanceResult
from qpdsl.grammar.parse.parser import parse_file
from qpdsl.grammar.source import Source
from qpdsl.planner.check.program import lower
from qpdsl.planner.optimize.optimizer import planned
from qpdsl.session.session import Session
from tests.support.executor.model_files import save_random
from tests.support.executor.models import engine_of, random_model, served
from tests.support.executor.pretend_cuda import CUDA, on_cuda, pretend_cuda
from tests.support.executor.programs import arguments, texts
from tests.support.executor.rule_mask import RuleMask
from tests.support.paths import ROOT

PLAIN = GenerateRequest((5, 6, 7, 8), (1, 2, 3), SamplingParams(0.9), 8)
REQUESTS = (
    PLAIN,
    replace(PLAIN, sampling=SamplingParams(1.0, top_k=20, top_p=0.8, min_p=0.01), logprobs=True),
    replace(PLAIN, sampling=SamplingParams(0.0), mask=RuleMask),
    replace(PLAIN, confidence=Confidence("entropy", threshold=-1.0), figures=True),
)


def test_tensors_of_two_devices_do_not_mix() -> None:
    """The device itself: what it lets pass is no proof."""
    with pretend_cuda():
        here, there = torch.ones(3), torch.ones(3, device="cuda")
        assert there.is_cuda and there.device == CUDA and (there + 1).is_cuda and not there.cpu().is_cuda
        for mixes in (lambda: here + there, lambda: torch.cat((here, there)), lambda: here[there.long()]):
            with pytest.raises(RuntimeError, match="on the same device"):
                mixes()
        with pytest.raises(TypeError):
            there.numpy()


@pytest.mark.parametrize(
    ("name", "native", "deterministic"), [("qwen2", True, False), ("gemma2", True, True), ("llama", False, False)]
)
def test_an_engine_draws_and_reads_what_it_does_on_a_cpu(name: str, native: bool, deterministic: bool) -> None:
    text = tuple(range(1, 40))
    reads = (ReadRequest(text, (3, 20), (5, 6)), LogProbRequest(text[:9], text[9:14], (2, 3)), LogitsRequest(text, 2))
    drawn: list[list[list[tuple[int, ...]]]] = []
    values: list[torch.Tensor] = []
    for device in ("cpu", "cuda"):
        with pretend_cuda():
            model = PagedModel(random_model(name).to(device), native=native)
            assert model.kernels == (device == "cuda")
            engine = engine_of(model, config=EngineConfig(deterministic=deterministic and model.kernels))
            drawn.append([[sample.tokens for sample in own] for own in served(engine, REQUESTS)])
            tickets = [engine.submit("m", request) for request in reads]
            while engine.has_work:
                engine.step()
            found = [ticket.result() for ticket in tickets]
        rows = [*found[0].logits, found[1].logprobs, *found[2].whole]
        values.append(torch.cat([torch.as_tensor(row, dtype=torch.float64) for row in rows]))
    assert drawn[0] == drawn[1]
    torch.testing.assert_close(values[0], values[1], rtol=0, atol=2e-4)


def test_a_search_with_a_verifier_gives_the_answer_of_a_cpu() -> None:
    path = ROOT / "programs" / "beam_search.qp"
    plan = planned(lower(parse_file(Source(path.name, path.read_text("utf-8"))), "beam_search"))

    def answer(device: str) -> InstanceResult:
        with pretend_cuda():
            session = Session(device=device, dtype="float32", kv_bytes="16MiB")
            session.load(plan)
            assert all(model.kernels == (device == "cuda") for model in session.models_here.values())

            async def main() -> InstanceResult:
                async with session.running():
                    return await session.run(plan, arguments(plan, problem=texts(1)[0], n=4, width=2))

            return asyncio.run(main())

    here = answer("cpu")
    with patch.object(Feeding, "forward", autospec=True, side_effect=Feeding.forward) as fed:
        there = answer("cuda")
    assert fed.call_count > 10
    assert here.error is None and there.error is None
    assert here.value == there.value and here.score == pytest.approx(there.score, abs=1e-4)
    assert [row.columns["text"] for row in here.rows] == [row.columns["text"] for row in there.rows]


def test_a_checkpoint_in_float32_runs_in_bfloat16_on_a_device_and_says_so(tmp_path: Path) -> None:
    save_random(tmp_path / "m", "llama")
    with pretend_cuda():
        narrow = load("m", tmp_path / "m", "cuda", None)
        wide = load("m", tmp_path / "m", "cuda", "float32")
    assert narrow.paged.dtype is torch.bfloat16 and "float32 and it runs in bfloat16" in narrow.notes[0]
    assert wide.paged.dtype is torch.float32 and wide.notes == ()
    assert load("m", tmp_path / "m", "cpu", None).notes == ()


def test_a_bias_that_is_missing_beside_others_is_zero_where_they_are() -> None:
    with pretend_cuda():
        ones = on_cuda(torch.ones(2, 3))
        made = joined_projections(
            [Projection(FloatWeight(ones)), Projection(FloatWeight(ones), on_cuda(torch.ones(2)))]
        )
        assert made.bias is not None and made.bias.is_cuda and made.bias.tolist() == [0, 0, 1, 1]
