"""Speculative decoding by acceptance: drafts of one, three and five tokens, and a tree of two branches on three levels.

    python -m benchmarks.lessons.speculation [--quick]

The built-in generator writes answers at temperature 1, and n-grams, the mini model or its own first layers draft for
it. A round is one forward of the generator. Acceptance is the share of single drafted tokens that are right. If each
token of a chain of K were right with that probability a, whatever came before, a round would give
(1 - a^(K+1)) / (1 - a) tokens (Leviathan et al., 2023, equation 1); the last column has that. A drafter draws with the
sample's own noise, so that it is right more often than by chance. Whatever is drafted, the tokens are the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.common.serving import engine_of, run, samples
from benchmarks.common.shapes import COUNTING, counting_prompts
from benchmarks.lessons.served import SMALL, built_in, main, table
from benchmarks.peers.peer import Tokens
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.request import GenerateRequest, SamplingParams
from qpdsl.grammar.words import DraftMethod

METHODS: dict[DraftMethod, str] = {"ngram": "n-grams", "model": SMALL, "early_exit": "first layers"}
CHAINS, LEVELS, BRANCHES = (1, 3, 5), 3, 2
_LENGTH = 96


@dataclass(frozen=True)
class Drafted:
    """Sums over all samples: tokens drawn, rounds, tokens drafted and those of them that were right."""

    tokens: Tokens
    draws: int
    rounds: int
    drafted: int
    accepted: int


def drawn(models: dict[str, PagedModel], prompts: Tokens, draft: Drafting | None) -> Drafted:
    room = 4 * len(prompts) * (max(map(len, prompts)) + 2 * _LENGTH)
    engine = engine_of(models, room * sum(model.layout.token_bytes for model in models.values()))
    tickets = [
        engine.submit("model", GenerateRequest(prompt, (index,), SamplingParams(1.0), _LENGTH, draft=draft))
        for index, prompt in enumerate(prompts)
    ]
    run(engine)
    steps = [sample.steps for ticket in tickets for sample in ticket.result().samples]
    counts = (sum(getattr(step, name) for step in steps) for name in ("draws", "rounds", "drafted", "accepted"))
    return Drafted(samples(tickets), *counts)


def expected(acceptance: float, length: int) -> float:
    """Tokens a round of a chain whose tokens are right independently of each other."""
    return sum(acceptance**power for power in range(length + 1))


def drafting(method: DraftMethod, length: int, branches: int = 1) -> Drafting:
    return Drafting(method, "draft" if method == "model" else None, length, branches, fixed=True)


def exercise(quick: bool) -> str:
    prompts = counting_prompts(2 if quick else 32)
    models = {"model": built_in(COUNTING), "draft": built_in(SMALL)}
    plain = drawn(models, prompts, None)
    rows, same = [], True
    methods: list[DraftMethod] = ["model"] if quick else [*METHODS]
    for method in methods:
        acceptance = 0.0
        for length in CHAINS[:2] if quick else CHAINS:
            result = drawn(models, prompts, drafting(method, length))
            same &= result.tokens == plain.tokens
            if length == 1 and result.drafted:
                acceptance = result.accepted / result.drafted
            rows.append(_row(METHODS[method], f"chain of {length}", result, f"{expected(acceptance, length):.2f}"))
        result = drawn(models, prompts, drafting(method, LEVELS, BRANCHES))
        same &= result.tokens == plain.tokens
        rows.append(_row(METHODS[method], f"tree, {BRANCHES} on {LEVELS} levels", result, ""))
    head = ("draft by", "draft", "drafted a round", "accepted a round", "tokens a round", "if independent")
    return "\n".join(
        [
            f"{len(prompts)} answers of `{COUNTING}`, {plain.draws:,} tokens; a token a round without drafts",
            "",
            table(head, rows),
            "",
            f"the same tokens as without drafts: {'yes' if same else 'NO'}",
        ]
    )


def _row(name: str, draft: str, result: Drafted, independent: str) -> tuple[str, ...]:
    shares = (result.drafted / result.rounds, result.accepted / result.rounds, result.draws / result.rounds)
    return (name, draft, *(f"{share:.2f}" for share in shares), independent)


if __name__ == "__main__":
    main(__doc__, exercise)
