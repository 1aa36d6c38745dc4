"""How a row came to its answer, for training: every sample by its place in the program, and what the row ended in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

from qpdsl.executor.events.events import Path, Rounds
from qpdsl.executor.sample_memory.packed_numbers import packed, unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryDraw:
    """A sample that `model` drew behind `prompt`: its token ids, eos included, its text without eos, and natural
    log-probabilities of each token.

    `logprobs` are those under the model at temperature 1, `drawn_logprobs` those under what the tokens were drawn from
    (see `TokenLogprobs`); None where the engine cannot tell. `path` is that of the row it made: its parent's and one
    index more.
    """

    model: str
    operator: str
    rounds: Rounds
    path: Path
    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    text: str
    finish: str
    logprobs: tuple[float, ...] | None = None
    drawn_logprobs: tuple[float, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrajectoryEnd:
    """A row that came to the program's last choice, or to its end where it makes none.

    `prompt` is what it was asked: the turns of its conversation as messages, or a plain text. `text` was generated
    behind that, after a `thought`, and `tokens` are those of both.
    """

    path: Path
    prompt: tuple[Mapping[str, str], ...] | str
    text: str
    thought: str | None = None
    tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTrajectory:
    """All samples of a row in the order of their requests, and its ends, of which the answer's is the one `chosen`."""

    draws: tuple[TrajectoryDraw, ...] = ()
    ends: tuple[TrajectoryEnd, ...] = ()
    chosen: int | None = None

    def to_json(self) -> dict[str, Any]:
        """JSON values; what several draws have in common is there once."""
        models, prompts = _numbers(draw.model for draw in self.draws), _numbers(draw.prompt for draw in self.draws)
        asked = list(dict.fromkeys(map(_key, self.ends)))
        return {
            "models": list(models),
            "prompts": list(map(list, prompts)),
            "draws": [
                [
                    models[own.model],
                    own.operator,
                    own.rounds,
                    own.path,
                    prompts[own.prompt],
                    own.tokens,
                    own.text,
                    own.finish,
                    *_told(own),
                ]
                for own in self.draws
            ],
            "asked": [{"text": own} if isinstance(own, str) else [dict(turn) for turn in own] for own in asked],
            "ends": [[end.path, asked.index(_key(end)), end.text, end.thought, end.tokens] for end in self.ends],
            "chosen": self.chosen,
        }

    @classmethod
    def from_json(cls, said: Mapping[str, Any]) -> Self:
        """What `to_json` gave. Raises KeyError, TypeError, IndexError or ValueError for anything else."""
        draws = []
        for model, operator, rounds, path, prompt, tokens, text, finish, logprobs, drawn in said["draws"]:
            told = None if logprobs is None else tuple(unpacked(logprobs))
            draws.append(
                TrajectoryDraw(
                    model=said["models"][model],
                    operator=str(operator),
                    rounds=tuple(rounds),
                    path=tuple(path),
                    prompt=tuple(said["prompts"][prompt]),
                    tokens=tuple(tokens),
                    text=str(text),
                    finish=str(finish),
                    logprobs=told,
                    drawn_logprobs=told if drawn is None else tuple(unpacked(drawn)),
                )
            )
        ends = []
        for path, asked, text, thought, tokens in said["ends"]:
            prompt = said["asked"][asked]
            turns = prompt["text"] if isinstance(prompt, dict) else tuple(prompt)
            ends.append(
                TrajectoryEnd(path=tuple(path), prompt=turns, text=str(text), thought=thought, tokens=tuple(tokens))
            )
        return cls(draws=tuple(draws), ends=tuple(ends), chosen=said["chosen"])


def _told(draw: TrajectoryDraw) -> tuple[str | None, str | None]:
    """Both log-probabilities, the second one only where it is another."""
    logprobs, drawn = draw.logprobs, draw.drawn_logprobs
    if logprobs is None or drawn is None:
        return None, None
    return packed(logprobs), None if drawn == logprobs else packed(drawn)


def _numbers(values: Any) -> dict[Any, int]:
    return {value: number for number, value in enumerate(dict.fromkeys(values))}


def _key(end: TrajectoryEnd) -> Any:
    return end.prompt if isinstance(end.prompt, str) else tuple(tuple(turn.items()) for turn in end.prompt)


class DrawTree:
    """The draws of a row as a tree: one whose prompt begins with all tokens of another goes on from that."""

    def __init__(self, draws: Sequence[TrajectoryDraw]) -> None:
        self._draws = draws
        self._wholes: dict[tuple[str, tuple[int, ...]], list[int]] = {}
        for place, own in enumerate(draws):
            self._wholes.setdefault((own.model, (*own.prompt, *own.tokens)), []).append(place)
        self._lengths = sorted({len(tokens) for _, tokens in self._wholes}, reverse=True)
        self._parents = [self._parent(place) for place in range(len(draws))]

    @property
    def leaves(self) -> list[int]:
        """The places of draws that no other goes on from."""
        inner = set(self._parents)
        return [place for place in range(len(self._draws)) if place not in inner]

    def chain(self, place: int) -> list[int]:
        """The places of the draws of one sequence of tokens, in their order, up to the one at `place`."""
        found, at = [place], self._parents[place]
        while at is not None:
            found.insert(0, at)
            at = self._parents[at]
        return found

    def last_of(self, end: TrajectoryEnd) -> int | None:
        """The draw that an end's tokens end with; None where the program or a choice wrote their last ones."""
        fitting = [
            place
            for place, own in enumerate(self._draws)
            if end.path[: len(own.path)] == own.path and _ends_with(own, end.tokens)
        ]
        return max(fitting, key=lambda place: len(self._draws[place].path), default=None)

    def _parent(self, place: int) -> int | None:
        own = self._draws[place]
        for length in self._lengths:
            if length > len(own.prompt):
                continue
            if found := self._wholes.get((own.model, own.prompt[:length])):
                # Equal ones were drawn for several rows.
                of_path = (at for at in found if own.path[: len(self._draws[at].path)] == self._draws[at].path)
                return next(of_path, found[0])
        return None


def _ends_with(draw: TrajectoryDraw, tokens: Sequence[int]) -> bool:
    drawn = draw.tokens[: len(draw.tokens) - (draw.finish == "eos")]
    whole = (*draw.prompt, *drawn)
    return len(drawn) <= len(tokens) <= len(whole) and whole[len(whole) - len(tokens) :] == tuple(tokens)
