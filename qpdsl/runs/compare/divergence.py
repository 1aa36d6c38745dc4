"""Where two runs of a row part: the first sample of theirs that is not the same, token by token.

Both draw by the same noise where the texts before a sample are the same (common random numbers), so a sample is set
beside the one at the same place: of the same `generate`, in the same rounds, on the same path through the fan-outs.
Until the first token that differs everything is equal, and what comes after it has that token in it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from qpdsl.executor.events.events import Path, Rounds

# What parted the runs: a token that was drawn otherwise behind the same text, or behind another one, where the prompts
# of the runs differ; other rows that went on, or another row that was chosen in the end, though all samples were the
# same.
Cause = Literal["token", "choice", "prompt"]
Step = tuple[str, Rounds]
# The samples of a step by path, and those of one path by number: a thought and what follows it are two.
_Samples = dict[tuple[Path, int], "DrawnSample"]


@dataclass(frozen=True, slots=True)
class DrawnSample:
    """One sample of a row: the operator that drew it, by its id, the rounds of the loops around it, and its path.

    `prompt` is a digest of the tokens that it goes on from. `tokens` are its own, eos included.
    """

    operator: str
    rounds: Rounds
    path: Path
    prompt: bytes
    tokens: tuple[int, ...]

    @property
    def step(self) -> Step:
        return self.operator, self.rounds


@dataclass(frozen=True, slots=True)
class Divergence:
    """The first difference of two runs of a row, and whose it is. `cause`: see `Cause`.

    Of tokens: the samples on both sides are equal before `place`, counted from 0, where they have `first` and
    `second`; None for one that had ended. Otherwise `path` is that of a row that one side alone went on with, and
    `operator` the `generate` that it went on in; without one the samples are all the same, and what was chosen among
    them is not.
    """

    cause: Cause
    operator: str = ""
    rounds: Rounds = ()
    path: Path = ()
    place: int = 0
    first: int | None = None
    second: int | None = None
    samples: tuple[DrawnSample | None, DrawnSample | None] = (None, None)


def first_divergence(
    first: Sequence[DrawnSample], second: Sequence[DrawnSample], searches: Collection[str] = ()
) -> Divergence | None:
    """The first difference between the samples of two runs of a row, in the order in which a program runs.

    Samples that one side alone has are none where both have others of the same row: how many are drawn, and how many a
    decided vote gives up, is another matter. None where no sample differs. `searches` are the ids of operators that
    search trees: their steps are depths, which come in no order, so that a choice there counts as first where no token
    of the same search differs.
    """
    one, other = _by_step(first), _by_step(second)
    chosen: Divergence | None = None
    for step in sorted({*one, *other}, key=_order):
        search = next((id for id in searches if step[0].startswith(f"{id}.")), None)
        if chosen is not None and (search is None or not chosen.operator.startswith(f"{search}.")):
            return chosen
        sides = one.get(step, {}), other.get(step, {})
        found = _at_step(*sides, chooses=search is None)
        if found is not None:
            return found
        if search is not None and chosen is None:
            chosen = _at_step(*sides)
    return chosen


def divergence_of(path: Path, first: Sequence[DrawnSample], second: Sequence[DrawnSample]) -> Divergence | None:
    """The first difference among the samples that the row at `path` was made of, in the run that has that row.

    That is the `first` one; None where the other has all of them too.
    """
    line = [sample for sample in first if path[: len(sample.path)] == sample.path]
    own, others = _by_step(line), _by_step(second)
    for step in sorted(own, key=_order):
        for at, sample in own[step].items():
            beside = others.get(step, {}).get(at)
            if beside is None:
                return Divergence("choice", *step, sample.path[:-1])
            if (found := _between(sample, beside)) is not None:
                return found
    return None


def _by_step(samples: Iterable[DrawnSample]) -> dict[Step, _Samples]:
    steps: dict[Step, _Samples] = {}
    for sample in samples:
        own = steps.setdefault(sample.step, {})
        part = 0
        while (sample.path, part) in own:
            part += 1
        own[sample.path, part] = sample
    return steps


def _order(step: Step) -> tuple[int, Rounds, tuple[int, ...]]:
    """Operators of one chain in their order; those in a loop by its rounds first."""
    operator, rounds = step
    place, *inner = (int(part) for part in operator.split("."))
    return place, rounds, tuple(inner)


def _at_step(first: _Samples, second: _Samples, *, chooses: bool = True) -> Divergence | None:
    """The first difference at a step; only that of a token unless it is a choice that counts, too."""
    rows, others = ({path[:-1] for path, _ in side} for side in (first, second))
    if chooses and (alone := sorted(rows ^ others)):
        parent = alone[0]
        own, beside = (
            next((side[at] for at in sorted(side) if at[0][:-1] == parent), None) for side in (first, second)
        )
        there = own or beside
        assert there is not None
        return Divergence("choice", *there.step, parent, samples=(own, beside))
    for at in sorted(first.keys() & second.keys()):
        if (found := _between(first[at], second[at])) is not None:
            return found
    return None


def _between(first: DrawnSample, second: DrawnSample) -> Divergence | None:
    if first.tokens == second.tokens:
        return None
    pairs = zip(first.tokens, second.tokens, strict=False)
    place = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(first.tokens), len(second.tokens)))
    one, other = (sample.tokens[place] if place < len(sample.tokens) else None for sample in (first, second))
    cause: Cause = "token" if first.prompt == second.prompt else "prompt"
    return Divergence(cause, *first.step, first.path, place, one, other, (first, second))
