"""Drafts from what followed the last tokens where they stood before: no model is asked."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence as Several
from dataclasses import dataclass, field
from typing import NamedTuple, Self
from weakref import WeakValueDictionary

from qpdsl.executor.engine.draft.drafters import Drafter, DraftHost, joined
from qpdsl.executor.engine.memory.sequence import Proposal, Sequence
from qpdsl.executor.requests.drawing import Drafting

# Rows whose prompts begin with the same tokens, so many, look into each other's texts.
_STEM = 64
# Groups of such rows that are remembered.
_GROUPS = 16
# Places of a pair that are kept, the latest ones.
_PLACES = 4
# A match is told from a longer one up to so many tokens.
_LONGEST = 16
# Pairs after which the older half is forgotten.
_PAIRS = 1 << 14


class HistoryMatch(NamedTuple):
    """`tokens[end - length : end]` are the last tokens of a sample; what follows them there may follow here."""

    length: int
    tokens: Several[int]
    end: int

    def following(self, count: int, own: Several[int]) -> list[int]:
        """Up to `count` tokens from `end` on. In the sample's `own` tokens, what follows goes on with itself."""
        found = list(self.tokens[self.end : self.end + count])
        if self.tokens is own and found:
            period = len(found)
            found += [found[index % period] for index in range(period, count)]
        return found


class History:
    """An index of token lists that only grow, two tokens a key: a token is added and a pair is found in O(1).

    This is the search of LZ77 (Ziv and Lempel, 1977) with a chain for each pair, and of prompt lookup (Saxena, 2023).
    """

    def __init__(self, *, bounded: bool = True) -> None:
        """`bounded`: what was added long ago is forgotten."""
        self._bounded = bounded
        self._young: dict[tuple[int, int], list[tuple[Several[int], int]]] = {}
        self._old: dict[tuple[int, int], list[tuple[Several[int], int]]] = {}

    def add(self, tokens: Several[int], start: int, end: int) -> None:
        """Adds the pairs of `tokens` whose second token stands from `start` to before `end`, at 1 or later."""
        for place in range(max(start, 1), end):
            places = self._young.setdefault((tokens[place - 1], tokens[place]), [])
            places.append((tokens, place + 1))
            if len(places) > _PLACES:
                del places[0]
        if self._bounded and len(self._young) > _PAIRS:
            self._old, self._young = self._young, {}

    def __contains__(self, pair: tuple[int, int]) -> bool:
        return pair in self._young or pair in self._old

    def matches(self, tokens: Several[int]) -> list[HistoryMatch]:
        """Places where the last tokens, two at least, stood before, the latest first."""
        pair = tokens[-2], tokens[-1]
        places = [*reversed(self._young.get(pair, ())), *reversed(self._old.get(pair, ()))]
        return [HistoryMatch(_agreeing(tokens, other, end), other, end) for other, end in places if end < len(other)]


def _agreeing(tokens: Several[int], other: Several[int], end: int) -> int:
    """How many of the last tokens stand before `end` in the other list."""
    most = min(_LONGEST, len(tokens), end)
    length = 2
    while length < most and tokens[-length - 1] == other[end - length - 1]:
        length += 1
    return length


@dataclass(slots=True)
class _Text:
    """A sample's own history, its prompt's, and that of the rows beside it; its tokens are added up to `added`."""

    prompt: History
    group: History | None
    added: int
    own: History = field(default_factory=History)


class NGramDrafter(Drafter):
    """Looks into the sample, its prompt, the rows beside it and the corpus, for the longest match, the latest first.

    Rows beside it are those of the same request, and of others whose prompts begin alike, unless they asked not to
    share what is computed.
    """

    method = "ngram"

    def __init__(self, drafting: Drafting) -> None:
        self._drafting = drafting
        self._texts: dict[Sequence, _Text] = {}
        self._prompts: WeakValueDictionary[tuple[int, ...], History] = WeakValueDictionary()
        self._groups: OrderedDict[tuple[str, tuple[int, ...]], History] = OrderedDict()
        self._corpus = History(bounded=False)
        for text in drafting.corpus:
            self._corpus.add(text, 1, len(text))

    @classmethod
    def of(cls, drafting: Drafting, host: DraftHost) -> Self:
        """See `Drafter`."""
        return cls(drafting)

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
        matches: list[HistoryMatch] = []
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
        owner = sample.request.client.owner
        group = self._group(owner, prompt[:_STEM]) if sample.request.cached else None
        return _Text(history, group, sample.prompt_length - 1)

    def _group(self, owner: str, stem: tuple[int, ...]) -> History:
        group = self._groups.setdefault((owner, stem), History())
        self._groups.move_to_end((owner, stem))
        if len(self._groups) > _GROUPS:
            self._groups.popitem(last=False)
        return group
