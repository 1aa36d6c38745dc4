"""What a sample wrote past its stop, for later calls to take their text from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WrittenAhead:
    """A prompt with the tokens that `model` went on to, of which those from `start` on are past the stop.

    `billed`: the server counted its own tokens for all of it, and these are others. `used`: up to where it was taken.
    """

    model: str
    tokens: tuple[int, ...]
    start: int
    billed: bool = False
    used: int = 0

    def goes_on_from(self, prompt: tuple[int, ...]) -> bool:
        """Whether there are tokens here that follow a prompt, some of which may be past the stop as well."""
        return self.start <= len(prompt) < len(self.tokens) and self.tokens[: len(prompt)] == prompt

    def use(self, end: int) -> int:
        """Takes what is past the stop up to `end`; returns how many tokens of it nobody took before."""
        before = max(self.used, self.start)
        self.used = max(before, end)
        return self.used - before
