"""Proposals under a constraint: right, wrong or forbidden, a chain or a tree, they change no sample."""

from __future__ import annotations

import random
from collections.abc import Callable
from collections.abc import Sequence as Several

import numpy as np
import pytest

from qpdsl.executor.engine.memory.sequence import Proposal, Sequence
from qpdsl.executor.engine.paged_engine import EngineConfig
from qpdsl.executor.requests.request import GenerateRequest, Sample
from tests.support.executor.constrained import (
    CONSTRAINTS,
    EOS,
    WIDTH,
    constrainer,
    engine_with,
    jumping,
    model,
    plain_samples,
    requests,
    tokenizer,
)

# What a sample would draw next, and how many tokens may be proposed.
Script = Callable[[random.Random, tuple[int, ...]], Proposal]


def right(chance: random.Random, coming: tuple[int, ...]) -> Proposal:
    return Proposal(coming[:4])


def wrong(chance: random.Random, coming: tuple[int, ...]) -> Proposal:
    """Right up to a place, and from there on ids of which most are forbidden, the end among them."""
    kept = chance.randrange(3)
    rest = tuple(chance.choice([EOS, 21, 22, chance.randrange(WIDTH)]) for _ in range(4 - kept))
    return Proposal(coming[:kept] + rest)


def tree(chance: random.Random, coming: tuple[int, ...]) -> Proposal:
    """What comes, with another id beside each token of it; breadth first or depth first."""
    others = [(token + 1 + chance.randrange(WIDTH - 1)) % WIDTH for token in coming[:3]]
    tokens: list[int] = []
    parents: list[int] = []
    last = -1
    for token, other in zip(coming[:3], others, strict=True):
        pair = [token, other] if chance.random() < 0.5 else [other, token]
        tokens += pair
        parents += [last, last]
        last = len(tokens) - 2 + pair.index(token)
    return Proposal(tuple(tokens), tuple(parents))


class Scripted:
    """In the place of an engine's drafters: proposes for each sample by what it is known to draw. No mask is asked."""

    def __init__(self, script: Script, known: dict[int, tuple[int, ...]], inner: object) -> None:
        self._script = script
        self._known = known
        self._inner = inner
        self._chance = random.Random(7)

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    def propose(self, samples: Several[Sequence]) -> None:
        for sample in samples:
            if not sample.forked or sample.proposal is not None:
                continue
            coming = self._known[sample.generation.keys[sample.index]][sample.drawn :]
            left = sample.generation.max_tokens - sample.drawn
            room = min(left, model().max_positions - len(sample.tokens)) - 1
            if coming:
                sample.proposal = self._script(self._chance, coming).pruned(room)


def proposed(
    script: Script, plain: tuple[GenerateRequest, ...], expected: list[tuple[Sample, ...]], **engine: object
) -> list[tuple[Sample, ...]]:
    served = engine_with(**engine)  # type: ignore[arg-type]
    runner = served.runner("m")
    known = {
        key: sample.tokens
        for request, samples in zip(plain, expected, strict=True)
        for key, sample in zip(request.keys, samples, strict=True)
    }
    runner.drafters = Scripted(script, known, runner.drafters)  # type: ignore[assignment]
    tickets = [served.submit("m", request) for request in plain]
    while served.has_work:
        served.step()
        served.check_integrity()
    return [ticket.result().samples for ticket in tickets]


@pytest.mark.parametrize("script", [right, wrong, tree])
@pytest.mark.parametrize("jump", [False, True], ids=["asked", "jumped"])
def test_samples_are_the_same(script: Script, jump: bool) -> None:
    plain = jumping(requests()) if jump else requests()
    samples = proposed(script, plain, plain_samples())
    assert samples == plain_samples()
    counts = [sample.steps for row in samples for sample in row]
    accepted, drafted = sum(count.accepted for count in counts), sum(count.drafted for count in counts)
    assert 100 < accepted <= drafted
    if script is right:
        assert accepted == drafted
    else:
        assert accepted < drafted


@pytest.mark.parametrize("script", [wrong, tree])
def test_samples_do_not_hang_on_the_schedule(script: Script) -> None:
    engine = {"kv_bytes": 3 << 17, "config": EngineConfig(token_budget=50, max_sequences=9)}
    assert proposed(script, jumping(requests()), plain_samples(), **engine) == plain_samples()


def test_masks_ahead_are_those_behind_each_token() -> None:
    chance = random.Random(11)
    masks = [constrainer().masks(kind, source)() for kind, source in CONSTRAINTS]
    masks.append(constrainer().masks("regex", r"\d\d")())
    paths: list[list[tuple[int, ...]]] = []
    for mask in masks:
        walked = mask.fork()
        coming = walked.forced() or tokenizer().encode("12", add_special_tokens=False)
        script = chance.choice([right, wrong, tree])
        paths.append(script(chance, (*coming, 21, 22, 23)).paths)
    paths[-1] = [(21,), (21, 22), (21, 22, EOS), (21, 22, EOS, 21)]
    rows = sum(1 + len(own) for own in paths)
    ahead = np.zeros((rows, WIDTH // 32), dtype=np.int32)
    masks[0].fill_ahead(masks, paths, ahead)
    row = 0
    for mask, own in zip(masks, paths, strict=True):
        for path in [(), *own]:
            expected = np.zeros((1, WIDTH // 32), dtype=np.int32)
            if mask.admits(path) == len(path):
                behind = mask.fork()
                if EOS not in path:
                    for token in path:
                        behind.push(token)
                    behind.fill([behind], expected)
                    assert (ahead[row] == expected[0]).all(), (path, row)
            else:
                assert not ahead[row].any()
            row += 1
        # The mask itself is where it was.
        assert mask.error is None and mask.admits(own[0][:1]) in (0, 1)
