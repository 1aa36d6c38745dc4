"""The rows between operators, and the noise keys: which random numbers belong to which sample.

A key hashes what the sample is by its meaning, and nothing of how it is run: the seed, the texts that the model is
shown before its own turn, which `generate` of the program it is, the rounds of the loops around it, and the row path.
What shapes the distribution (temperature, filters, masks) has no part in it, and neither has a width or an argument
that the model is not shown, so plans and settings that are compared share their random numbers. The noise itself is
Philox, under this key, with a counter of the token id and the number of tokens drawn.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from qpdsl.executor.events.events import Path, Rounds
from qpdsl.executor.requests.drawing import DrawFigures
from qpdsl.executor.text.context import Context, Piece
from qpdsl.planner.values.value import Value

if TYPE_CHECKING:
    from qpdsl.executor.text.context import Context

# What a program can return: a value, or the record in a JSON text.
JsonValue = Value | dict[str, Any] | list[Any]
# The version of what a seed means. Results of another version cannot be repeated.
NOISE_VERSION = 2


@dataclass(frozen=True, slots=True)
class ThoughtState:
    """What a model thought in a row since its context was set; the row's tokens have it.

    `text` is None where it thought nothing; `tokens` were drawn for it. `open`: the row stands in the thought, and its
    text is empty. `inside`: its tokens begin in the thought, as the context has opened it, under `switch`. So many of
    the tokens come before the answer `begins`. `figures` are those of its tokens, the marks aside, as far as they are
    told; `before` counts the turn's figures that stand before the answer.
    """

    text: str | None = None
    tokens: int = 0
    open: bool = False
    inside: bool = False
    switch: str = ""
    begins: int = 0
    figures: tuple[DrawFigures, ...] = ()
    before: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """What is known of the draws of the text that one call wrote into a column, as `Generated` has it of all."""

    logprob: float
    sampled: int
    least: float | None
    figures: tuple[DrawFigures, ...]


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool, as a JSON text of its `name` and `arguments`, or a list, and the turn's text before it.

    `id` is the one that its model wrote, empty where models of its format write none.
    """

    spelt: str
    before: str
    id: str = ""

    @property
    def several(self) -> bool:
        return self.spelt.lstrip().startswith("[")

    @property
    def functions(self) -> list[dict[str, Any]]:
        """The calls, each a `name` and its `arguments`."""
        spelt = json.loads(self.spelt)
        return spelt if isinstance(spelt, list) else [spelt]


@dataclass(frozen=True, slots=True)
class Generated:
    """What was generated in a row since its context was set. Columns may say otherwise: a program can assign them.

    `tokens` are those of `model`, without eos. `said` is what a program added behind them, which no model has read yet:
    pieces of text, and whether the program's author wrote them. `text` is the text of both. `logprob` is the sum over
    the `sampled` tokens. `least` is the least log-probability of one of them, and `figures` are those of each, None
    where some have none. `incomplete`: the text had to satisfy a constraint and does not: it was cut off before, or it
    is a record with the fault `invalid`. `closed`: a search has given the row up as it is, and its score stays. Of
    a model that thinks `text` is the answer; `thought` says what came before. `written` has the columns that calls
    wrote, those of earlier turns too. `tools` are those that the model was shown for this turn, as a JSON list, and
    `call` is the call that ends the turn.
    """

    model: str = ""
    tokens: tuple[int, ...] = ()
    text: str = ""
    finished: bool = False
    logprob: float = 0.0
    sampled: int = 0
    incomplete: bool = False
    invalid: str | None = None
    closed: bool = False
    said: tuple[Piece, ...] = ()
    least: float | None = None
    figures: tuple[DrawFigures, ...] | None = ()
    thought: ThoughtState = ThoughtState()
    written: Mapping[str, Written] = field(default_factory=dict)
    tools: str = ""
    call: ToolCall | None = None


@dataclass(frozen=True, slots=True)
class Row:
    """One candidate: its context, its path through the fan-outs, its columns, and what was generated."""

    context: Context | None
    path: Path
    columns: Mapping[str, Value]
    generated: Generated = Generated()

    def with_column(self, name: str, value: Value) -> Row:
        return Row(self.context, self.path, {**self.columns, name: value}, self.generated)


Candidates = tuple[Row, ...]


# The columns of a row whose context was just set.
FRESH: Mapping[str, Value] = {
    "text": "",
    "step": "",
    "finish": None,
    "finished": False,
    "logprob": 0.0,
    "tokens": 0,
    "group": 0,
    "thought": None,
    "thought_tokens": 0,
}


def hash_context(context: Context) -> bytes:
    """A digest, of 16 bytes, of the turns and the text of a context. How a prompt is cut into pieces does not count."""
    # Without a thought, a turn is its role and its text.
    turns = [turn if any(turn[2:]) else turn[:2] for turn in context.turns]
    texts = [turns, "".join(text for text, _ in context.prompt)]
    return blake2b(json.dumps(texts, ensure_ascii=True).encode(), digest_size=16).digest()


def noise_key(seed: int, context: bytes, ordinal: int, rounds: Rounds, path: Path) -> int:
    """The 64-bit key of one sample, as an unsigned integer.

    `context` is `hash_context` of the row's; `ordinal` numbers the program's `generate`s in reading order, from 0.
    """
    text = f"{seed}|{ordinal}|{','.join(map(str, rounds))}|{','.join(map(str, path))}"
    return int.from_bytes(blake2b(context + text.encode(), digest_size=8).digest(), "little")


def uniform(*key: int) -> float:
    """A number between 0 and 1, neither of them included, of a key of 64-bit unsigned integers."""
    digest = blake2b(b"".join(part.to_bytes(8, "little") for part in key), digest_size=8).digest()
    return ((int.from_bytes(digest, "little") >> 11) + 0.5) / 2**53
