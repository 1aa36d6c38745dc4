"""How long the requests of a model take, as far as can be told when they come."""

from __future__ import annotations

from qpdsl.executor.engine.memory.sequence import Sequence

# The weight of what was seen last, in the means over steps and over samples.
_RATE = 0.05


class WorkEstimate:
    """Learns how long a step of the model takes, and what part of `max_tokens` its samples have.

    A step counts from its start to that of the model's next one, where there was work all the time: what other models
    and the awaiting coroutines take in between is waited for too. A step takes up to `token_budget` tokens of a prompt.
    """

    def __init__(self, token_budget: int) -> None:
        self._token_budget = token_budget
        self._step_seconds: float | None = None
        self._share = 1.0
        self._started: float | None = None

    def step_starts(self, now: float) -> None:
        """Notes the time at which a step of the model starts, in seconds."""
        if self._started is not None:
            taken = now - self._started
            before = taken if self._step_seconds is None else self._step_seconds
            self._step_seconds = before + _RATE * (taken - before)
        self._started = now

    def idle(self) -> None:
        """Notes that the model has no work left: the time until its next step is no step's."""
        self._started = None

    def ended(self, drawn: int, max_tokens: int) -> None:
        """Notes how many tokens a sample came to."""
        self._share += _RATE * (min(1.0, drawn / max_tokens) - self._share)

    def seconds(self, sequence: Sequence) -> float | None:
        """How long a sequence that has just come will take once it runs; None before two steps were seen.

        What of its prompt is cached is counted all the same: it may be evicted before its turn.
        """
        if self._step_seconds is None:
            return None
        steps = -(-sequence.missing // self._token_budget)
        if sequence.generates:
            steps += round(self._share * sequence.generation.max_tokens)
        return max(1, steps) * self._step_seconds
