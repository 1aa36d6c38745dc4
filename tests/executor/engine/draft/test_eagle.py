"""An EAGLE head drafts from the model's own hidden states: what it proposes is what its equations say."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig

from family.tasks.counting import evaluation_problems
from qpdsl import zoo
from qpdsl.executor.engine.draft.eagle import EagleDrafter
from qpdsl.executor.engine.draft.eagle_head import EagleHead
from qpdsl.executor.engine.memory.sequence import Proposal, Sequence
from qpdsl.executor.engine.paged_engine import EngineConfig, PagedEngine
from qpdsl.executor.models.eagle_checkpoint import load_head
from qpdsl.executor.models.quick_load import load
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.executor.text.context import Context, encode
from tests.executor.engine.draft.test_drafts import random_head
from tests.support.executor.models import engine_of, paged, random_model, served

PROMPT = tuple(range(1, 40))


class Reference:
    """The head over the hidden states of transformers' own model, all computed anew each time."""

    def __init__(self, head: EagleHead) -> None:
        self._model = random_model("llama")
        self._head = head

    @torch.inference_mode()
    def logits(self, tokens: Several[int], path: Several[int]) -> torch.Tensor:
        """Of the token behind `path`, drafted behind `tokens`, float32 [V]."""
        ids = torch.tensor([tokens])
        features = self._model.model(ids).last_hidden_state[:, :-1]
        embed = self._head.embed_tokens or self._model.get_input_embeddings()
        for length in range(len(path) + 1):
            text = torch.tensor([[*tokens, *path[:length]]])
            predicted = self._head(embed(text[:, 1:]), features)
            features = torch.cat((features, predicted[:, -1:]), dim=1)
        logits: torch.Tensor = self._model.lm_head(features[0, -1])
        return logits


@pytest.mark.parametrize("embeds", [False, True])
@pytest.mark.parametrize(("length", "branches"), [(4, 1), (3, 2)])
def test_drafts_are_those_of_the_published_equations(
    embeds: bool, length: int, branches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    head = random_head(embeds)
    rounds: list[tuple[list[int], Proposal]] = []
    propose = EagleDrafter.propose

    def recorded(self: EagleDrafter, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        proposals = propose(self, samples, lengths)
        for sample, proposal in zip(samples, proposals, strict=True):
            assert proposal is not None
            rounds.append((list(sample.tokens), proposal))

        if len(rounds) % 2:
            # What is right is taken over, so that the head goes on behind it.
            right = [plain.tokens[sample.drawn : sample.drawn + 3] for sample in samples]
            return [Proposal(tokens) if len(tokens) == 3 else None for tokens in right]
        return proposals

    monkeypatch.setattr(EagleDrafter, "propose", recorded)
    engine = PagedEngine(EngineConfig(token_budget=16))
    engine.add("m", paged("llama"))
    engine.add_head("head", head)
    drafting = Drafting("eagle", "head", length=length, branches=branches, fixed=True)
    request = GenerateRequest(PROMPT, (0,), SamplingParams(0), 20)
    ((plain,),) = served(engine_of(paged("llama")), (request,))
    ((drafted,),) = served(engine, (replace(request, draft=drafting),))
    assert drafted == plain and drafted.steps.accepted >= 6
    reference = Reference(head)
    assert len(rounds) >= 3
    for tokens, proposal in rounds[:6]:
        assert len(proposal.tokens) == (drafting.nodes if branches > 1 else length)
        for path in proposal.paths:
            best = reference.logits(tokens, path[:-1]).topk(branches).indices.tolist()
            assert path[-1] in best


def test_the_head_that_ships_is_mostly_right() -> None:
    model = load("m", zoo.path("zoo/counting"), "cpu", "float32")
    problems = [problem.text for problem in evaluation_problems(8)]
    prompts = [encode(model.tokenizer, Context(turns=(("user", text),))) for text in problems]
    requests = tuple(GenerateRequest(prompt, (0,), SamplingParams(0), 60, eos=model.eos) for prompt in prompts)
    drafting = Drafting("eagle", "head", length=3, fixed=True)
    plain = served(engine_of(model.paged), requests)
    engine = engine_of(model.paged)
    engine.add_head("head", load_head("head", zoo.head_path(zoo.HEADS[0]), "cpu"))
    drafted = served(engine, tuple(replace(request, draft=drafting) for request in requests))
    assert drafted == plain
    steps = [sample.steps for (sample,) in drafted]
    assert sum(step.accepted for step in steps) > 0.75 * sum(step.drafted for step in steps) > 0


@pytest.mark.parametrize("before", [(0,), (0, 1, 0, 2)])
def test_a_text_that_goes_on_from_the_prefix_cache_is_drafted_as_if_it_were_read_anew(
    before: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the next round of a search does, whose prompt is what a sample wrote: of the latest two that is known."""
    monkeypatch.setattr("qpdsl.executor.engine.draft.eagle._ENDED_TOKENS", 2 * (len(PROMPT) + 20))
    proposed: list[Proposal | None] = []
    propose = EagleDrafter.propose

    def recorded(self: EagleDrafter, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        proposed.extend(propose(self, samples, lengths))
        return proposed[-len(samples) :]

    monkeypatch.setattr(EagleDrafter, "propose", recorded)
    engine = PagedEngine(EngineConfig())
    engine.add("m", paged("llama"))
    engine.add_head("head", random_head(False))
    drafting = Drafting("eagle", "head", length=3, fixed=True)
    request = GenerateRequest(PROMPT, (0,), SamplingParams(0), 20, draft=drafting)
    written = {}
    for last in before:
        ((written[last],),) = served(engine, (replace(request, prompt=(PROMPT[0] + last, *PROMPT[1:])),))
    onward = replace(request, prompt=(*PROMPT, *written[0].tokens))
    found = []
    for cached in (True, False):
        proposed.clear()
        ticket = engine.submit("m", replace(onward, cached=cached))
        while engine.has_work:
            engine.step()
        assert (ticket.result().cached > len(PROMPT)) is cached
        found.append(([*proposed], ticket.result().samples[0].tokens))
    assert found[0] == found[1] and any(found[0][0])


def test_a_head_for_another_model_is_refused() -> None:
    engine = PagedEngine()
    engine.add("m", paged("llama"))
    config = LlamaConfig(hidden_size=64, intermediate_size=32, num_attention_heads=4, vocab_size=10)
    engine.add_head("wide", EagleHead(config))
    request = GenerateRequest(PROMPT, (0,), SamplingParams(0), 5)
    for name, reason in {
        "nobody": "nobody is to draft for m, and there is no such EAGLE head",
        "wide": "wide is no EAGLE head for m: its hidden states are 64 wide, not 48",
    }.items():
        with pytest.raises(EngineError, match=reason):
            engine.submit("m", replace(request, draft=Drafting("eagle", name)))
