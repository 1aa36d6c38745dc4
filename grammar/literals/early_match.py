"""When the first match of a regex in a text can no longer change, whatever text follows.

The matcher follows all ways to match at once, in order of rank. Once a thread has matched, those that rank after it no
longer count; once no thread is left that ranks before it, the match is settled. "is 1" may still become "is 12", since
the thread that takes one more digit ranks before the one that ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from qpdsl.grammar.literals.matcher import Matcher, State, matcher


@dataclass(frozen=True, slots=True)
class EarlyMatcher:
    """A regex whose match can be settled before a text ends; `search` begins a search for its first match."""

    matcher: Matcher

    def search(self) -> EarlySearch:
        """A search over a text that comes in pieces."""
        return EarlySearch(self.matcher, self.matcher.start)


@dataclass(slots=True)
class EarlySearch:
    """One search, fed with a text piece by piece."""

    matcher: Matcher
    state: State

    @property
    def settled(self) -> bool:
        """Whether there is a match, and the text that follows can no longer change it."""
        return self.state.settled

    def push(self, text: str) -> bool:
        """Takes more of the text. Returns `settled`."""
        for char in text:
            if self.state.settled:
                break
            self.state = self.matcher.after(self.state, char)
        return self.state.settled


def early_matcher(pattern: str) -> EarlyMatcher | None:
    """The early matcher of a checked pattern; None for one with a `$`, which only the end of a text settles."""
    found = matcher(pattern)
    return None if found.anchored_at_end else EarlyMatcher(found)
