"""A contrasted token is the one that the logits of both models say, whatever the batch, the chunks and the memory."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import pytest
import torch
from transformers import PreTrainedModel

from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.engine.step.sampler import perturbed
from qpdsl.executor.requests.drawing import LogitContrast, LogitProcessors
from qpdsl.executor.requests.request import GenerateRequest, LogitsRequest, SamplingParams
from tests.support.executor.models import VOCABULARY, PagedModel, paged, random_model

# The smaller one has a few ids fewer, as models of one tokenizer may.
_SMALLER = {"hidden_size": 24, "vocab_size": VOCABULARY - 5}
_PROMPTS = [tuple(range(3, 3 + length)) for length in (1, 9, 40)]
_LENGTH = 24


@cache
def models() -> tuple[PreTrainedModel, PreTrainedModel]:
    return random_model("llama", 1), random_model("llama", 2, **_SMALLER)


@cache
def both(native: bool) -> tuple[PagedModel, PagedModel]:
    """The larger and the smaller one behind paged attention."""
    return paged("llama", seed=1, native=native), paged("llama", seed=2, native=native, **_SMALLER)


def drawn(
    sampling: SamplingParams, alpha: float, beta: float, config: EngineConfig, pages: int, native: bool = True
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """The tokens and log-probabilities of a sample of each prompt, drawn side by side."""
    large, small = both(native)
    engine = PagedEngine(config, kv_bytes=pages * large.layout.page_bytes)
    engine.add("large", large)
    engine.add("small", small)
    rows: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ()) for _ in _PROMPTS]
    for _ in range(_LENGTH):
        texts = [prompt + tokens for prompt, (tokens, _) in zip(_PROMPTS, rows, strict=True)]
        reads = [engine.submit("small", LogitsRequest(text)) for text in texts]
        served(engine)
        contrasts = [read.result().whole[0] for read in reads]
        draws = []
        for index, (text, logits) in enumerate(zip(texts, contrasts, strict=True)):
            assert logits is not None
            done = len(rows[index][0])
            contrast = LogitContrast(logits, alpha, beta)
            request = GenerateRequest(text, (index,), sampling, 1, drawn=done, contrast=contrast)
            draws.append(engine.submit("large", request))
        served(engine)
        for index, draw in enumerate(draws):
            (sample,) = draw.result().samples
            rows[index] = rows[index][0] + sample.tokens, (*rows[index][1], sample.logprob)
    return rows


def served(engine: PagedEngine) -> None:
    while engine.has_work:
        engine.step()
        engine.check_integrity()


def straight(
    prompt: tuple[int, ...], choose: Callable[[torch.Tensor, int], int], alpha: float, beta: float, penalty: float = 1.0
) -> tuple[list[int], list[float]]:
    """As the papers have it, from transformers' logits in double: tokens, and how sure the distribution was of them."""
    tokens, logprobs = list(prompt), list[float]()
    for place in range(_LENGTH):
        with torch.inference_mode():
            large, small = (model(torch.tensor([tokens])).logits[0, -1].double() for model in models())
        large, small = large.clone(), small.clone()
        for logits in (large, small):
            seen = torch.tensor([token for token in set(tokens) if token < len(logits)])
            logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
        # Ids that the smaller one lacks do not count.
        own = large[: len(small)]
        plausible = own.exp() >= alpha * own.exp().max()
        scores = torch.full_like(own, -math.inf)
        scores[plausible] = ((1 + beta) * own - beta * small)[plausible]
        token = choose(scores, place)
        logprobs.append(float(scores.log_softmax(0)[token]))
        tokens.append(token)
    return tokens[len(prompt) :], logprobs


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("alpha", "beta"), [(0.1, 0.5), (0.0, 2.0), (0.7, 1.0)])
def test_greedy_tokens_are_those_of_two_straight_forwards(alpha: float, beta: float, native: bool) -> None:
    rows = drawn(SamplingParams(0.0), alpha, beta, EngineConfig(), 400, native)
    plain = drawn(SamplingParams(0.0), 0.0, 0.0, EngineConfig(), 400, native)
    for prompt, (tokens, logprobs) in zip(_PROMPTS, rows, strict=True):
        expected, sure = straight(prompt, lambda scores, place: int(scores.argmax()), alpha, beta)
        assert [*tokens] == expected
        assert logprobs == pytest.approx(sure, abs=1e-3)
    assert rows != plain


def test_a_penalty_is_in_the_logits_of_both_models() -> None:
    sampling = SamplingParams(0.0, processors=LogitProcessors(repetition=1.4))
    for prompt, (tokens, logprobs) in zip(_PROMPTS, drawn(sampling, 0.1, 0.5, EngineConfig(), 400), strict=True):
        expected, sure = straight(prompt, lambda scores, place: int(scores.argmax()), 0.1, 0.5, 1.4)
        assert [*tokens] == expected
        assert logprobs == pytest.approx(sure, abs=1e-3)


def test_samples_have_the_noise_of_the_row_and_the_place() -> None:
    for index, (prompt, (tokens, _)) in enumerate(
        zip(_PROMPTS, drawn(SamplingParams(0.9), 0.05, 0.5, EngineConfig(), 400), strict=True)
    ):

        def choose(scores: torch.Tensor, place: int, key: int = index) -> int:
            return int(perturbed((scores / 0.9).float()[None], [key], [place])[0].argmax())

        assert [*tokens] == straight(prompt, choose, 0.05, 0.5)[0]


def test_bits_do_not_hang_on_how_they_are_computed() -> None:
    sampling = SamplingParams(1.0, top_k=20, top_p=0.9)
    expected = drawn(sampling, 0.02, 0.5, EngineConfig(), 400)
    for config, pages in (
        (EngineConfig(max_sequences=1), 400),
        (EngineConfig(token_budget=7), 400),
        (EngineConfig(), 12),
    ):
        assert drawn(sampling, 0.02, 0.5, config, pages) == expected


def test_an_id_at_the_edge_of_what_is_plausible_is_a_near_tie() -> None:
    large, small = both(True)
    engine = PagedEngine(kv_bytes=400 * large.layout.page_bytes)
    engine.add("large", large)
    engine.add("small", small)
    reads = [engine.submit(name, LogitsRequest(_PROMPTS[1])) for name in ("large", "small")]
    served(engine)
    own, smaller = (read.result().whole[0] for read in reads)
    assert own is not None and smaller is not None
    best, *_, third = sorted(own.tolist(), reverse=True)[:3]

    def near_ties(alpha: float) -> int:
        contrast = LogitContrast(smaller, alpha, 0.0)
        ticket = engine.submit("large", GenerateRequest(_PROMPTS[1], (4,), SamplingParams(0.0), 1, contrast=contrast))
        served(engine)
        return ticket.result().samples[0].near_ties

    edge = math.exp(third - best)
    assert (near_ties(edge), near_ties(edge * 1.01), near_ties(1.0), near_ties(0.0)) == (1, 0, 0, 0)


@pytest.mark.parametrize(("alpha", "beta"), [(-0.1, 0.5), (1.1, 0.5), (0.1, -1.0), (0.1, math.inf)])
def test_numbers_out_of_bounds_are_refused(alpha: float, beta: float) -> None:
    with pytest.raises(ValueError, match="alpha lies between"):
        LogitContrast(torch.zeros(3).numpy(), alpha, beta)
    with pytest.raises(ValueError, match="of one place"):
        GenerateRequest((1,), (1,), SamplingParams(), 2, contrast=LogitContrast(torch.zeros(3).numpy(), 0.1, 0.5))
