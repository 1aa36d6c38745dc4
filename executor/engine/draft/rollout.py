"""A model draws ahead of another: tokens one after the other, or a tree of them, for several samples at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import numpy as np
import torch

from qpdsl.executor.engine.draft.drafters import Branching
from qpdsl.executor.engine.memory.sequence import Chunk, Proposal, Sequence
from qpdsl.executor.engine.model.paged_model import PagedModel
from qpdsl.executor.engine.step.backends import ForwardOutput
from qpdsl.executor.engine.step.draws import Draw, Masks
from qpdsl.executor.engine.step.mask_filler import MaskFiller
from qpdsl.executor.engine.step.readout import Readout
from qpdsl.executor.engine.step.sampler import cuts, filtered_scores, perturbed
from qpdsl.executor.requests.drawing import Drafting

Forward = Callable[[list[Chunk]], ForwardOutput]


@dataclass(eq=False, slots=True)
class Ahead:
    """A sample, the sequence that stands for it in the drafting model, and the draft as it grows.

    `sequence` has the sample's tokens, and pages for as many more as are computed: all but the last level. A chain
    appends to it, and its `mask` goes along; a tree leaves both as they are.
    """

    sample: Sequence
    sequence: Sequence
    length: int
    tree: Branching
    last: int = -1
    frontier: list[int] = field(default_factory=list)

    @classmethod
    def of(cls, sample: Sequence, sequence: Sequence, length: int, drafting: Drafting) -> Ahead:
        is_tree = drafting.branches > 1
        sequence.mask = None if sample.mask is None else sample.mask if is_tree else sample.mask.fork()
        return cls(sample, sequence, length, Branching(drafting.branches, drafting.nodes if is_tree else length))

    def goes_on(self, token: int, depth: int) -> bool:
        """Whether something may follow this token, which stands behind `depth` others."""
        return depth + 1 < self.length and token not in self.sample.generation.eos


# A sample that has more of its own tokens to compute than that gets no draft.
MAX_MISSING = 16


def stand_in(sample: Sequence) -> Sequence:
    """A sequence with the tokens of a sample, for a model that drafts in its place."""
    return Sequence(sample.ticket, sample.request, list(sample.tokens), sample.index)


def computed_ahead(length: int, branches: int) -> int:
    """How many tokens of a draft are computed: all but the last level."""
    return sum(branches**level for level in range(1, length))


class Rollout:
    """Draws under the samples' own noise, masks and parameters, from what `forward` computes and `readout` reads.

    Each sequence that has caught up with its sample is given to `caught_up`.
    """

    def __init__(
        self,
        model: PagedModel,
        forward: Forward,
        readout: Readout,
        caught_up: Callable[[Sequence], None] = lambda sequence: None,
    ) -> None:
        self._model = model
        self._forward = forward
        self._readout = readout
        self._filler = MaskFiller(model.vocabulary)
        self._caught_up = caught_up

    def proposals(
        self, samples: Several[Sequence], drafts: Mapping[Sequence, Ahead], branches: int
    ) -> list[Proposal | None]:
        """For each of the samples what its draft, if it has one, has grown to: a tree where there are `branches`."""
        if branches > 1:
            self.trees([*drafts.values()], branches)
        else:
            self.chains([*drafts.values()])
        return [drafts[sample].tree.proposal if sample in drafts else None for sample in samples]

    def chains(self, drafts: list[Ahead]) -> None:
        """Lets every draft grow by one token a forward, as far as its length."""
        depth = 0
        while drafts:
            chunks = [Chunk(draft.sequence, draft.sequence.missing) for draft in drafts]
            with self._filler.begin(chunks) as filling:
                output, rows = self._computed(chunks)
                masks = filling.masks()
                first = {} if masks is None else masks.first
                draws = [
                    _draw_of(draft.sample, rows[draft.sequence], depth, first.get(draft.sequence, -1))
                    for draft in drafts
                ]
                tokens = self._readout.sample(output.hidden, draws, masks).tokens
            going = []
            for draft, token in zip(drafts, tokens, strict=True):
                if depth == 0:
                    self._caught_up(draft.sequence)
                node = draft.tree.add(draft.last, token)
                assert node is not None
                draft.last = node
                if draft.goes_on(token, depth) and _takes(draft.sequence, token):
                    draft.sequence.tokens.append(token)
                    going.append(draft)
            drafts = going
            depth += 1

    def trees(self, drafts: list[Ahead], branches: int) -> None:
        """Lets every draft grow by a level of its tree a forward: behind each token the best few by perturbed score."""
        for draft in drafts:
            draft.frontier = [-1]
        depth = 0
        while drafts:
            chunks: list[Chunk] = []
            for draft in drafts:
                if depth:
                    # Attention sees a tree behind a token that is computed with it.
                    draft.sequence.computed -= 1
                chunks.append(Chunk(draft.sequence, draft.sequence.missing, draft.tree.proposal))
            with self._filler.begin(chunks) as filling:
                output, rows = self._computed(chunks)
                masks = filling.masks()
                first = {} if masks is None else masks.first
                behind = [(draft, node) for draft in drafts for node in draft.frontier]
                draws = [
                    _draw_of(
                        draft.sample,
                        rows[draft.sequence] + 1 + node,
                        depth,
                        first[draft.sequence] + 1 + node if draft.sequence in first else -1,
                    )
                    for draft, node in behind
                ]
                found = _ranked(self._model, output.hidden, draws, masks, branches)
            for draft in drafts:
                if depth == 0:
                    self._caught_up(draft.sequence)
                draft.frontier = []
            for (draft, parent), tokens in zip(behind, found, strict=True):
                for token in tokens:
                    node = draft.tree.add(parent, token)
                    if node is not None and draft.goes_on(token, depth):
                        draft.frontier.append(node)
            drafts = [draft for draft in drafts if draft.frontier]
            depth += 1

    def _computed(self, chunks: list[Chunk]) -> tuple[ForwardOutput, dict[Sequence, int]]:
        """The forward, and where the last own row of each sequence lies among those that are read."""
        output = self._forward(chunks)
        rows: dict[Sequence, int] = {}
        row = 0
        for chunk, count in output.readers:
            row += count
            rows[chunk.sequence] = row - 1 - (0 if chunk.proposal is None else len(chunk.proposal.tokens))
            chunk.sequence.computed += chunk.count
        return output, rows


def _takes(sequence: Sequence, token: int) -> bool:
    """Whether more may follow a token under the sequence's mask, which takes it."""
    return sequence.mask is None or not (sequence.mask.push(token) or sequence.mask.error is not None)


def _draw_of(sample: Sequence, row: int, ahead: int, allowed: int = -1) -> Draw:
    """The draw of a sample's token that stands `ahead` places behind its next one, from a row of hidden states."""
    request = sample.generation
    position = request.drawn + sample.drawn + ahead
    return Draw(row, request.sampling, request.keys[sample.index], position, allowed, request.sparse)


def _ranked(
    model: PagedModel, hidden: torch.Tensor, draws: Several[Draw], masks: Masks | None, count: int
) -> list[list[int]]:
    """For each draw the ids of the `count` largest perturbed scores, the largest first; at T=0, of the logits.

    `hidden` [W, d]. Ids that may not be drawn are left out.
    """
    rows = torch.tensor([draw.row for draw in draws], device=hidden.device)
    scores = model.logits(hidden.index_select(0, rows)).float().cpu()
    width = scores.shape[1]
    if masks is not None:
        for score, draw in zip(scores, draws, strict=True):
            if draw.allowed >= 0:
                bits = np.unpackbits(masks.bits[draw.allowed].view(np.uint8), count=width, bitorder="little")
                score[torch.from_numpy(bits == 0)] = float("-inf")
    noisy = [index for index, draw in enumerate(draws) if not draw.params.greedy]
    if noisy:
        own = [draws[index] for index in noisy]
        temperature = torch.tensor([draw.params.temperature for draw in own])
        rescaled = scores[noisy] / temperature[:, None]
        if any(draw.params.filtered for draw in own):
            bounds = (torch.from_numpy(bound) for bound in cuts([draw.params for draw in own], width))
            rescaled, _ = filtered_scores(rescaled, *bounds)
        scores[noisy] = perturbed(rescaled, [draw.key for draw in own], [draw.position for draw in own])
    best = scores.topk(min(count, width), dim=1)
    found = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [[token for token, score in zip(*row, strict=True) if score > float("-inf")] for row in found]
