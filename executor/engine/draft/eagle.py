"""Drafts by an EAGLE head, which looks at the model's last hidden states.

A tree of 2 branches and 3 levels is that of EAGLE-2 (Li et al., 2024), with children ranked by perturbed scores.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import Self

import torch

from qpdsl.executor.engine.draft.drafters import Drafter, DraftHost
from qpdsl.executor.engine.draft.eagle_head import EagleHead, HeadKV
from qpdsl.executor.engine.draft.rollout import MAX_MISSING, Ahead, Rollout, stand_in
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.engine.model.heads import LogitHead
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.backends import ForwardOutput
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.requests.drawing import Drafting
from qpdsl.executor.requests.errors import EngineError

# Of samples that ended, what is known of so many tokens stays.
_ENDED_TOKENS = 4096


@dataclass(eq=False, slots=True)
class _Seen:
    """What the head knows of a sample: its features from position `start` to before `end`.

    Those that the head has taken are in `kept`, one place each; the rest waits in `features` [_, d] a piece. `proposed`
    are those of the proposal that the last forward computed.
    """

    start: int
    end: int
    kept: HeadKV = field(default_factory=HeadKV)
    features: list[torch.Tensor] = field(default_factory=list)
    proposed: torch.Tensor | None = None

    def until(self, end: int) -> _Seen:
        """A copy that ends earlier."""
        kept, known = self.kept.copy(), end - self.start
        kept.count = min(kept.count, known)
        return _Seen(self.start, end, kept, [torch.cat(self.features)[: known - kept.count]] if self.features else [])


@dataclass(eq=False, slots=True)
class _Guess:
    """A draft under way: predictions [d] behind the last token of the sample and behind drafted ones, by number (-1
    for the sample's). A drafted token that the head has taken has a place in `seen.kept`, behind those that stay.
    """

    seen: _Seen
    sample: Sequence
    predicted: dict[int, torch.Tensor] = field(default_factory=dict)
    places: dict[int, int] = field(default_factory=dict)
    taken: int = 0


@dataclass(frozen=True, slots=True)
class _Rows:
    """What the head is to take for one sample: tokens, the features before them [M, d], and what each row sees."""

    guess: _Guess
    tokens: list[int]
    features: torch.Tensor
    positions: list[int]
    at: int
    seen: torch.Tensor


class EagleDrafter(Drafter):
    """Predicts features behind those that the model gave, and draws from them with the model's own head.

    A prompt of which the prefix cache has a part goes on from what is known of a sample that ended, where that began
    with the same tokens; else the head goes without the features of that part.
    """

    method = "eagle"
    shown = True

    def __init__(self, drafting: Drafting, head: EagleHead, model: PagedModel, readout: Readout) -> None:
        self._drafting = drafting
        self._head = head
        self._model = model
        own = head.embed_tokens
        self._embed: Callable[[torch.Tensor], torch.Tensor] = model.embed if own is None else own
        self._rollout = Rollout(model, self._forward, readout)
        self._seen: dict[Sequence, _Seen] = {}
        self._guesses: dict[Sequence, _Guess] = {}
        # By their tokens, what is known of samples that ended, the latest last.
        self._ended: dict[tuple[int, ...], _Seen] = {}

    @classmethod
    def of(cls, drafting: Drafting, host: DraftHost) -> Self:
        """See `Drafter`."""
        name, other, model = host.target.name, drafting.model, host.target.model
        head = None if other is None else host.heads.get(other)
        if head is None:
            raise EngineError(f"{other} is to draft for {name}, and there is no such EAGLE head")
        assert isinstance(model.head, LogitHead)
        if (width := head.config.hidden_size) != (own := model.head.in_features):
            raise EngineError(f"{other} is no EAGLE head for {name}: its hidden states are {width} wide, not {own}")
        if head.embed_tokens is not None and head.embed_tokens.num_embeddings < model.vocabulary:
            raise EngineError(f"{other} is no EAGLE head for {name}: it does not know all of its tokens")
        return cls(drafting, head, model, host.target.backend.readout)

    def saw(self, chunk: Chunk, start: int, hidden: torch.Tensor) -> None:
        """See `Drafter`."""
        seen = self._seen.get(chunk.sequence)
        if seen is None or seen.end != start:
            seen = self._seen[chunk.sequence] = self._begun(chunk.sequence.tokens, start)
        seen.features.append(hidden[: chunk.count])
        seen.end += chunk.count
        seen.proposed = None if chunk.proposal is None else hidden[chunk.count :]

    def forked(self, prompt: Sequence, samples: Several[Sequence]) -> None:
        """See `Drafter`."""
        seen = self._seen.get(prompt)
        for sample in samples:
            if seen is not None and sample is not prompt:
                self._seen[sample] = _Seen(seen.start, seen.end, seen.kept.copy(), [*seen.features])

    def accepted(self, sample: Sequence, nodes: Several[int]) -> None:
        """See `Drafter`."""
        seen = self._seen.get(sample)
        if seen is not None and seen.proposed is not None and nodes:
            seen.features.append(seen.proposed[list(nodes)])
            seen.end += len(nodes)

    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        """See `Drafter`."""
        drafts: dict[Sequence, Ahead] = {}
        for sample, length in zip(samples, lengths, strict=True):
            seen = self._seen.get(sample)
            if length < 1 or seen is None or seen.end != sample.computed or sample.missing > MAX_MISSING:
                continue
            drafting = stand_in(sample)
            drafting.computed = len(sample.tokens) - 1
            self._guesses[drafting] = _Guess(seen, sample)
            drafts[sample] = Ahead.of(sample, drafting, length, self._drafting)
        proposals = self._rollout.proposals(samples, drafts, self._drafting.branches)
        self._guesses.clear()
        return proposals

    def forget(self, sample: Sequence) -> None:
        """See `Drafter`."""
        seen = self._seen.pop(sample, None)
        if seen is None or seen.start:
            return
        # A piece may be a view of what a step gave for all of its samples.
        seen.features, seen.proposed = [torch.cat(seen.features)] if seen.features else [], None
        text = tuple(sample.tokens[: seen.end + 1])
        self._ended.pop(text, None)
        self._ended[text] = seen
        while sum(map(len, self._ended)) > _ENDED_TOKENS:
            del self._ended[next(iter(self._ended))]

    def _begun(self, tokens: list[int], start: int) -> _Seen:
        """What is known before position `start` of a text, of which the token there is computed now."""
        beginning = tuple(tokens[: start + 1])
        for text, seen in reversed(self._ended.items()):
            if start and seen.end >= start and text[: start + 1] == beginning:
                return seen.until(start)
        return _Seen(start, start)

    def _forward(self, chunks: list[Chunk]) -> ForwardOutput:
        """Predictions behind the last token of each chunk and behind those of its proposal, as a model would give."""
        fresh = [guess for chunk in chunks if -1 not in (guess := self._guesses[chunk.sequence]).predicted]
        if fresh:
            self._catch_up(fresh)
        else:
            self._go_on(chunks)
        hidden: list[torch.Tensor] = []
        readers: list[tuple[Chunk, int]] = []
        for chunk in chunks:
            guess = self._guesses[chunk.sequence]
            if chunk.proposal is None:
                rows = [guess.predicted[max(guess.predicted)]]
            else:
                rows = [guess.predicted[node] for node in range(-1, len(chunk.proposal.tokens))]
            hidden += rows
            readers.append((chunk, len(rows)))
        return ForwardOutput(readers, torch.stack(hidden), {})

    def _catch_up(self, guesses: list[_Guess]) -> None:
        """Has the head take what the model has given since, and the tokens behind that the model has not seen yet."""
        rows: list[_Rows] = []
        for guess in guesses:
            seen, tokens = guess.seen, guess.sample.tokens
            features = torch.cat(seen.features)
            count, at = len(features), seen.kept.count
            first = seen.end - count
            sees = torch.ones(count, at + count, dtype=torch.bool, device=features.device).tril(at)
            rows.append(_Rows(guess, tokens[first + 1 : seen.end + 1], features, [*range(first, seen.end)], at, sees))
            seen.features.clear()
            seen.kept.count += count
        for row, predicted in zip(rows, self._taken(rows), strict=True):
            row.guess.predicted[-1] = predicted[-1]
        while rows := [
            self._row(guess, -1, position, guess.sample.tokens[position + 1])
            for guess in guesses
            if (position := guess.seen.end + guess.taken) < len(guess.sample.tokens) - 1
        ]:
            for row, predicted in zip(rows, self._taken(rows), strict=True):
                row.guess.predicted[-1] = predicted[-1]

    def _go_on(self, chunks: list[Chunk]) -> None:
        """Has the head take the drafted tokens that are new, each behind its parent."""
        rows: list[_Rows] = []
        numbers: list[int] = []
        for chunk in chunks:
            guess = self._guesses[chunk.sequence]
            drafted = (
                Proposal(tuple(chunk.sequence.tokens[len(guess.sample.tokens) :]))
                if chunk.proposal is None
                else chunk.proposal
            )
            depths, ancestors = drafted.depths, drafted.ancestors
            for number, token in enumerate(drafted.tokens):
                if number not in guess.predicted:
                    path = ancestors[number][:-1]
                    position = len(guess.sample.tokens) - 1 + depths[number]
                    rows.append(self._row(guess, path[-1] if path else -1, position, token, path))
                    guess.places[number] = rows[-1].at
                    numbers.append(number)
        for number, row, predicted in zip(numbers, rows, self._taken(rows), strict=True):
            row.guess.predicted[number] = predicted[-1]

    def _row(self, guess: _Guess, parent: int, position: int, token: int, path: Several[int] = ()) -> _Rows:
        """One token behind a prediction; of the drafted tokens it sees those on its path."""
        at = guess.seen.kept.count + guess.taken
        guess.taken += 1
        sees = torch.ones(1, at + 1, dtype=torch.bool, device=guess.predicted[parent].device)
        hidden = set(guess.places.values()) - {guess.places[node] for node in path}
        sees[0, list(hidden)] = False
        return _Rows(guess, [token], guess.predicted[parent][None], [position], at, sees)

    def _taken(self, rows: list[_Rows]) -> list[torch.Tensor]:
        """The predictions [M, d] of each, computed together."""
        if not rows:
            return []
        features = torch.cat([row.features for row in rows])
        tokens = torch.tensor([token for row in rows for token in row.tokens], device=features.device)
        positions = [position for row in rows for position in row.positions]
        parts = [(row.guess.seen.kept, row.at, row.seen) for row in rows]
        predicted = self._head.extend(self._embed(tokens), features, positions, parts)
        return list(torch.split(predicted, [len(row.tokens) for row in rows]))
