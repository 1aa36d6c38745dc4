"""Drafts from what followed the last tokens where they stood before: no model is asked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from weakref import WeakValueDictionary

from qpdsl.executor.engine.draft.branching import joined
from qpdsl.executor.engine.draft.history import History, Match
from qpdsl.executor.engine.memory.proposal import Proposal
from qpdsl.executor.engine.memory.sequence import Sequence
from qpdsl.executor.requests.drafting import Drafting

# Rows whose prompts begin with the same tokens, so many, look into each other's texts.
_STEM = 64
# Groups of such rows that are remembered.
_GROUPS = 16


@dataclass(slots=True)
class _Text:
    """A sample's own history, its prompt's, and that of the rows beside it; its tokens are added up to `added`."""

    prompt: History
    group: History | None
    added: int
    own: History = field(default_factory=History)


class NGramDrafter:
    """Looks into the sample, its prompt, the rows beside it and the corpus, for the longest match, the latest first.

    Rows beside it are those of the same request, and of others whose prompts begin alike, unless they asked not to
    share what is computed.
    """

    def __init__(self, drafting: Drafting) -> None:
        self._drafting = drafting
        self._texts: dict[Sequence, _Text] = {}
        self._prompts: WeakValueDictionary[tuple[int, ...], History] = WeakValueDictionary()
        self._groups: OrderedDict[tuple[int, ...], History] = OrderedDict()
        self._corpus = History(bounded=False)
        for text in drafting.corpus:
            self._corpus.add(text, 1, len(text))

    def propose(self, samples: Several[Sequence], lengths: Several[int]) -> list[Proposal | None]:
        """See `Drafter`."""
        return [
            self._proposal(sample, length) if length > 0 else None
            for sample, length in zip(samples, lengths, strict=True)
        ]

    def forget(self, sample: Sequence) -> None:
        """See `Drafter`."""
        self._texts.pop(sample, None)

    def _proposal(self, sample: Sequence, length: int) -> Proposal | None:
        text, tokens = self._updated(sample), sample.tokens
        pair = tokens[-2], tokens[-1]
        matches: list[Match] = []
        for history in (text.own, text.prompt, text.group, self._corpus):
            if history is not None and pair in history:
                found = history.matches(tokens)
                # Behind the prompt the sample goes on.
                matches += [match._replace(tokens=tokens) for match in found] if history is text.prompt else found
        if not matches:
            return None
        matches.sort(key=lambda match: -match.length)
        branches = self._drafting.branches
        if branches == 1:
            return Proposal(tuple(matches[0].following(length, tokens)))
        paths = [match.following(length, tokens) for match in matches]
        return joined(paths, branches, self._drafting.nodes)

    def _updated(self, sample: Sequence) -> _Text:
        text = self._texts.get(sample)
        if text is None:
            text = self._texts[sample] = self._text(sample)
        # Nothing follows the last token yet.
        end = len(sample.tokens) - 1
        for history in (text.own, text.group):
            if history is not None:
                history.add(sample.tokens, text.added, end)
        text.added = end
        return text

    def _text(self, sample: Sequence) -> _Text:
        prompt = sample.generation.prompt
        history = self._prompts.get(prompt)
        if history is None:
            history = History(bounded=False)
            history.add(prompt, 1, len(prompt) - 1)
            self._prompts[prompt] = history
        group = self._group(prompt[:_STEM]) if sample.request.cached else None
        return _Text(history, group, sample.prompt_length - 1)

    def _group(self, stem: tuple[int, ...]) -> History:
        group = self._groups.setdefault(stem, History())
        self._groups.move_to_end(stem)
        if len(self._groups) > _GROUPS:
            self._groups.popitem(last=False)
        return group
