"""Where a turn's thought ends and its answer begins: found in the tokens, by the marks of the model's `Thinking`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from qpdsl.executor.text.context import encode_pieces
from qpdsl.executor.text.detokenizer import Detokenizer, Tokens
from qpdsl.executor.text.text_tokenizer import TextTokenizer
from qpdsl.executor.text.thinking import Thinking

# Where a turn is: before its first mark, in its thought, or in its answer.
Place = Literal["opening", "thought", "answer"]


@dataclass(frozen=True, slots=True)
class Parted:
    """The text of a turn, parted: the thought between the marks, None where there is none, and the answer.

    `place` is where the turn ends, and so many of its tokens come before the answer `begins`. The white space around
    the thought, and before the answer, is left out.
    """

    place: Place
    thought: str | None
    answer: str
    begins: int


class ThoughtMarks:
    """Finds the marks of one model in its tokens.

    A mark that is made of added tokens, as most are, is known by their ids, so no text can forge it; another one by its
    text.
    """

    def __init__(self, thinking: Thinking, tokenizer: TextTokenizer) -> None:
        self.thinking = thinking
        self._tokenizer = tokenizer
        self._plain = Detokenizer(tokenizer.backend_tokenizer)
        self._marked = Detokenizer(tokenizer.backend_tokenizer, marked=True)
        self._open, self._close = map(self._ids, (thinking.open_mark, thinking.close_mark))

    @property
    def reach(self) -> int:
        """How many of the last tokens may hold the mark that closes a thought."""
        # A token has a byte at least, but for those that are not shown.
        return len(self.thinking.close_mark.encode()) + 1 if self._close is None else len(self._close)

    @property
    def ends(self) -> frozenset[int]:
        """The id of the mark that closes a thought, where it is one."""
        return frozenset(self._close if self._close is not None and len(self._close) == 1 else ())

    @property
    def open_tokens(self) -> int:
        """How many tokens the mark that opens a thought has."""
        return len(self.opening if self._open is None else self._open)

    @cached_property
    def opening(self) -> Tokens:
        """The ids of what stands before a thought."""
        return encode_pieces(self._tokenizer, [(self.thinking.open, True)])

    @cached_property
    def closing(self) -> Tokens:
        """The ids of what stands between a thought and its answer."""
        return encode_pieces(self._tokenizer, [(self.thinking.close, True)])

    @cached_property
    def rest(self) -> Tokens:
        """The ids of what stands between the mark that closes a thought and the answer."""
        _, _, rest = self.thinking.close.partition(self.thinking.close_mark)
        return encode_pieces(self._tokenizer, [(rest, True)]) if rest else ()

    def opened(self, tokens: Tokens) -> tuple[Place, int]:
        """Where a turn is that begins with these tokens, and how many of them are before the thought or the answer."""
        first = next((at for at, token in enumerate(tokens) if not self._is_space(token)), len(tokens))
        if self._open is not None:
            rest = tokens[first : first + len(self._open)]
            if rest == self._open:
                return "thought", first + len(self._open)
            return ("opening", len(tokens)) if rest == self._open[: len(rest)] else ("answer", 0)
        mark, text = self.thinking.open_mark, self._whole_letters(tokens).lstrip()
        if text.startswith(mark):
            return "thought", self._reaching(tokens, mark, 0)
        return ("opening", len(tokens)) if mark.startswith(text) else ("answer", 0)

    def closed(self, tokens: Tokens, since: int = 0) -> tuple[int, int] | None:
        """Of a thought that begins at the token `since`: where the mark that closes it begins and ends, if it does."""
        if self._close is not None:
            size = len(self._close)
            for start in range(since, len(tokens) - size + 1):
                if tokens[start : start + size] == self._close:
                    return start, start + size
            return None
        mark = self.thinking.close_mark
        place = self._marked.text(tokens[since:]).find(mark)
        if place < 0:
            return None
        start = end = self._reaching(tokens, mark, since)
        while start > since and len(self._whole_letters(tokens[since:start])) > place:
            start -= 1
        # The first letter of the mark may be spread over tokens.
        return start - self._marked.unfinished(tokens[since:start]), end

    def closes(self, tokens: Tokens) -> bool:
        """Whether the last token of a thought completes the mark that closes it."""
        last = tokens[-self.reach :]
        return last == self._close if self._close is not None else self.thinking.close_mark in self._marked.text(last)

    def begins_mark(self, tokens: Tokens) -> bool:
        """Whether the last tokens of a thought may be the beginning of the mark that closes it."""
        if self._close is not None:
            return any(
                tokens[-size:] == self._close[:size] for size in range(1, min(len(tokens), len(self._close)) + 1)
            )
        mark, last = self.thinking.close_mark, tokens[-self.reach :]
        text, begun = self._whole_letters(last), self._marked.unfinished(last) > 0
        return begun or any(text.endswith(mark[:size]) for size in range(1, len(mark)))

    def parted(self, tokens: Tokens, *, inside: bool) -> Parted:
        """Parts the tokens of a turn. `inside`: it begins in the thought."""
        place, since = self._begins(tokens, inside=inside)
        if place == "answer":
            return self.answer(tokens)
        found = None if place == "opening" else self.closed(tokens, since)
        if found is None:
            return Parted(place, self._plain.text(tokens[since:]).strip(), "", len(tokens))
        start, end = found
        thought = self._plain.text(tokens[since:start]) if self._close is not None else self._before(tokens[since:end])
        return Parted("answer", thought.strip(), self._after(tokens, since, end), end)

    def answer(self, tokens: Tokens) -> Parted:
        """A turn in which nothing is thought."""
        return Parted("answer", None, self._plain.text(tokens), 0)

    def unclosed(self, tokens: Tokens, *, inside: bool) -> Tokens:
        """The tokens of a turn up to the mark that closes its thought."""
        place, since = self._begins(tokens, inside=inside)
        found = None if place == "opening" else self.closed(tokens, since)
        return tokens if found is None else tokens[: found[0]]

    def _whole_letters(self, tokens: Tokens) -> str:
        """Their text with special tokens, without a letter that they only begin."""
        return self._marked.text(tokens).removesuffix(self._marked.tail(tokens))

    def _begins(self, tokens: Tokens, *, inside: bool) -> tuple[Place, int]:
        return ("thought", 0) if inside else self.opened(tokens)

    def _before(self, tokens: Tokens) -> str:
        """The text before a mark that is known by its text."""
        return self._marked.text(tokens).partition(self.thinking.close_mark)[0]

    def _after(self, tokens: Tokens, since: int, end: int) -> str:
        """The answer, of which the last token of a mark may be a part."""
        if self._close is not None:
            return self._plain.text(tokens[end:]).lstrip()
        behind = self._marked.text(tokens[since:end]).partition(self.thinking.close_mark)[2]
        return (behind + self._plain.text(tokens[end:])).lstrip()

    def _reaching(self, tokens: Tokens, mark: str, since: int) -> int:
        """How many tokens there are up to the one with which their text, from `since` on, holds a mark."""
        low, high = since + 1, len(tokens)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if mark in self._marked.text(tokens[since:middle]) else (middle + 1, high)
        return low

    def _is_space(self, token: int) -> bool:
        return not self._plain.bytes_of(token).strip() and not self._marked.bytes_of(token).strip()

    def _ids(self, mark: str) -> Tokens | None:
        """The ids of a mark that has an added token in it; None where its text alone tells."""
        ids = encode_pieces(self._tokenizer, [(mark, True)])
        return ids if any(id in self._tokenizer.added_tokens_decoder for id in ids) else None
