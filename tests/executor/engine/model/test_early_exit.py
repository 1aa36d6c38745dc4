"""Leaving after some layer: its logits are those of the model cut there, and the margin decides."""

from __future__ import annotations

import pytest
import torch

from qpdsl.executor.engine.paged_engine import PagedEngine
from qpdsl.executor.requests.early_exit import EarlyExit
from qpdsl.executor.requests.request import GenerateRequest, Sample, SamplingParams
from tests.support.executor.models import CONFIGS, paged, random_model

PROMPT = (5, 17, 80, 3, 44)


def decoded(name: str, leave: EarlyExit | None, count: int = 12) -> Sample:
    engine = PagedEngine()
    engine.add("m", paged(name))
    ticket = engine.submit("m", GenerateRequest(PROMPT, (0,), SamplingParams(0), count, exit=leave))
    while engine.has_work:
        engine.step()
    (sample,) = ticket.result().samples
    return sample


def straight(name: str, leave: EarlyExit, count: int) -> tuple[list[int], int, float]:
    """Greedy tokens by transformers, how many of them the exit gave, and the sum of their log-probabilities."""
    model = random_model(name)
    norm = getattr(model.base_model, "norm", None) or model.base_model.final_layer_norm
    softcap = getattr(model.config, "final_logit_softcapping", None)
    layer = leave.layer or model.config.num_hidden_layers // 2
    tokens, left, logprob = list(PROMPT), 0, 0.0
    for _ in range(count):
        with torch.inference_mode():
            output = model(torch.tensor([tokens]), output_hidden_states=True)
            logits = model.get_output_embeddings()(norm(output.hidden_states[layer][0, -1:]))[0]
        logits = logits if softcap is None else torch.tanh(logits / softcap) * softcap
        best = logits.softmax(-1).topk(2).values
        leaves = bool(best[0] - best[1] >= leave.margin)
        left += leaves
        if not leaves:
            logits = output.logits[0, -1]
        tokens.append(int(logits.argmax()))
        logprob += logits.log_softmax(-1)[tokens[-1]].item()
    return tokens[len(PROMPT) :], left, logprob


@pytest.mark.parametrize("name", CONFIGS)
def test_a_token_stands_where_the_exits_margin_does(name: str) -> None:
    for margin, least in ((0.07, 1), (0.5, 0)):
        leave = EarlyExit(margin)
        tokens, left, logprob = straight(name, leave, 12)
        for deferred in (False, True):
            sample = decoded(name, EarlyExit(margin, deferred=deferred))
            assert list(sample.tokens) == tokens and left >= least
            assert sample.logprob == pytest.approx(logprob, abs=1e-3)
            assert (sample.steps.exits, sample.steps.refined) == (left, 12 - left)


def test_a_margin_that_is_never_reached_is_plain_decoding() -> None:
    assert decoded("llama", EarlyExit(1.1)).tokens == decoded("llama", None).tokens
    assert decoded("llama", EarlyExit(0.0)).tokens != decoded("llama", None).tokens
