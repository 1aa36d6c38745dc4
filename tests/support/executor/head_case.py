"""Random heads, hidden states and draws for the tests of the heads, and the logits that they should come to."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch

from qpdsl.executor.engine.step import sampler
from qpdsl.executor.kernels.data.token_draws import Drawn, HeadWeights, TokenDraws
from qpdsl.executor.requests.request import SamplingParams
from tests.support.executor.paged_case import DEVICE


@dataclass(frozen=True)
class HeadCase:
    """Hidden states [R, d], a head, draws, and for each draw the allowed ids, ascending; None where all are."""

    hidden: torch.Tensor
    head: HeadWeights
    draws: TokenDraws
    allowed: list[list[int] | None]

    @property
    def vocabulary(self) -> int:
        return self.head.weight.shape[0]

    def lines(self) -> tuple[torch.Tensor, torch.Tensor]:
        """`bits` and `lines` of the masked draws; what lies past the vocabulary may be any bit."""
        masked = [ids for ids in self.allowed if ids is not None]
        bools = torch.ones(max(1, len(masked)), -(-self.vocabulary // 32) * 32, dtype=torch.bool)
        for line, ids in enumerate(masked):
            bools[line, : self.vocabulary] = False
            bools[line, ids] = True
        bits = (bools.view(len(bools), -1, 32).long() << torch.arange(32)).sum(-1)
        bits = torch.where(bits >= 1 << 31, bits - (1 << 32), bits).int()
        lines, line = [], 0
        for ids in self.allowed:
            lines.append(-1 if ids is None else line)
            line += ids is not None
        return bits.to(DEVICE), torch.tensor(lines, dtype=torch.int32, device=DEVICE)

    def of(self, *chosen: int) -> HeadCase:
        """Some draws alone, with their hidden states alone."""
        at = torch.tensor(chosen, device=DEVICE)
        used, rows = self.draws.rows[at].unique(return_inverse=True)
        draws = TokenDraws(rows.int(), self.draws.temperatures[at], self.draws.keys[at], self.draws.positions[at])
        return HeadCase(self.hidden[used.long()], self.head, draws, [self.allowed[draw] for draw in chosen])

    def masked(self) -> HeadCase:
        """The draws under a mask alone."""
        return self.of(*(draw for draw, ids in enumerate(self.allowed) if ids is not None))

    def wanted(self) -> tuple[sampler.SampledTokens, torch.Tensor]:
        """What the sampler draws from logits computed in float32, and those logits [D, V]."""
        weight, bias = self.head.weight.float(), self.head.bias
        logits = self.hidden.float() @ weight.T
        logits = (logits if bias is None else logits + bias.float()) * self.head.scale
        if self.head.softcap is not None:
            logits = torch.tanh(logits / self.head.softcap) * self.head.softcap
        logits = logits[self.draws.rows.long()]
        for draw, ids in enumerate(self.allowed):
            if ids is not None:
                others = torch.ones(self.vocabulary, dtype=torch.bool)
                others[ids] = False
                logits[draw, others.to(DEVICE)] = float("-inf")
        params = [SamplingParams(round(float(t), 6)) for t in self.draws.temperatures]
        keys = [key % (1 << 64) for key in self.draws.keys.tolist()]
        return sampler.sample(logits, params, keys, self.draws.positions.tolist()), logits


def head_case(
    vocabulary: int,
    width: int,
    rows: list[int],
    dtype: torch.dtype = torch.float32,
    *,
    seed: int = 0,
    biased: bool = False,
    scale: float = 1.0,
    softcap: float | None = None,
    allowed: list[list[int] | None] | None = None,
) -> HeadCase:
    """A draw for each of `rows`: greedy and at several temperatures, under keys of all sizes.

    Without `allowed`, the draws may take all ids, one, none but the last, 9 and 20 random ones, in turn.
    """
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    weight = (torch.randn(vocabulary, width, generator=generator) * 3 / width**0.5).to(dtype)
    bias = torch.randn(vocabulary, generator=generator).to(dtype) if biased else None
    hidden = torch.randn(max(rows) + 1, width, generator=generator).to(dtype)
    count = len(rows)
    if allowed is None:
        sets: list[list[int] | None] = [None, [rng.randrange(vocabulary)], [vocabulary - 1]]
        sets += [sorted(rng.sample(range(vocabulary), size)) for size in (9, 20)]
        allowed = [sets[draw % len(sets)] for draw in range(count)]
    temperatures = [[0.0, 1.0, 0.7, 1.6][draw % 4] for draw in range(count)]
    keys = [rng.getrandbits(64) - (1 << 63) for _ in range(count)]
    draws = TokenDraws(
        torch.tensor(rows, dtype=torch.int32, device=DEVICE),
        torch.tensor(temperatures, device=DEVICE),
        torch.tensor(keys, device=DEVICE),
        torch.tensor([draw * 1001 for draw in range(count)], device=DEVICE),
    )
    head = HeadWeights(weight.to(DEVICE), None if bias is None else bias.to(DEVICE), scale, softcap)
    return HeadCase(hidden.to(DEVICE), head, draws, allowed)


def same_draws(drawn: Drawn, case: HeadCase) -> None:
    """Asserts the sampler's tokens where no near tie explains others, their log-probabilities, and the near ties."""
    wanted, logits = case.wanted()
    tokens, logprobs, gaps = drawn
    tie = gaps < sampler.NEAR_TIE_GAP
    differ = tokens != wanted.tokens
    assert not (differ & ~(tie & wanted.near_ties)).any()
    exact = logits.double().log_softmax(-1).gather(1, tokens[:, None])[:, 0]
    torch.testing.assert_close(logprobs.double(), exact, rtol=0, atol=2e-5)
    assert torch.equal(tie, wanted.near_ties)
    single = torch.tensor([ids is not None and len(ids) == 1 for ids in case.allowed], device=tokens.device)
    assert gaps[single].isinf().all()
