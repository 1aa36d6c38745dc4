"""What a server may leave out of a request, where the model has no place for it, instead of refusing all of it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from itertools import groupby

from qpdsl.serve.completion_request import CompletionRequest, NoPlace
from qpdsl.serve.served_model import PreparedRequest, ServedModel

# Of an answer: what was left out of its request.
HEADER = "x-qpdsl-left-out"
# What a header tells: clients take a few thousand bytes.
_MAX_TOLD = 1000
_PLAIN = re.compile(r"[\w.-]{1,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Lenience:
    """Leaves these `fields` out where a model has no place for them; with `everything` any field, and turns too."""

    fields: frozenset[str] = frozenset()
    everything: bool = False

    def read(self, model: ServedModel, request: CompletionRequest) -> tuple[PreparedRequest, str]:
        """What the request asks for without what has no place, and what that was; "" where nothing. Raises Refusal."""
        left_out: list[str] = []
        while True:
            try:
                prepared = model.read(request)
            except NoPlace as refusal:
                fields = [name for name in request.body if name in refusal.fields and self._may(name)]
                turns = refusal.turns if self.everything else frozenset()
                if not fields and not turns:
                    if refusal.code != "unknown_parameter" and not self.everything:
                        refusal.message += "; a server with `--lenient` leaves it out"
                    raise
                body = {name: value for name, value in request.body.items() if name not in fields}
                if turns:
                    kept = (turn for number, turn in enumerate(body["messages"]) if number not in turns)
                    body["messages"] = list(kept)
                request = replace(request, body=body)
                left_out += [*fields, *_ranges(turns)]
                continue
            return prepared, _told(left_out)

    def _may(self, name: str) -> bool:
        return self.everything or name in self.fields


def _ranges(turns: Iterable[int]) -> list[str]:
    """Turns of `messages`, those that stand together as a slice."""
    runs = groupby(enumerate(sorted(turns)), lambda at: at[1] - at[0])
    found = []
    for _, run in runs:
        numbers = [number for _, number in run]
        found.append(f"{numbers[0]}" if len(numbers) == 1 else f"{numbers[0]}:{numbers[-1] + 1}")
    return [f"messages[{one}]" for one in found]


def _told(left_out: Iterable[str]) -> str:
    """The value of the header. A field that nobody knows may have any name."""
    named = [name if name.startswith("messages[") or _PLAIN.fullmatch(name) else json.dumps(name) for name in left_out]
    told = ", ".join(named)
    return told if len(told) <= _MAX_TOLD else told[:_MAX_TOLD] + "..."
