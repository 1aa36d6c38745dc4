"""What the routers of earlier runs learned: a state for each program, model, device and router, as plain data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from qpdsl.planner.cost.validation import mapping, text

VERSION = 1
ROUTERS_FILE = "routers.json"
MOST_STATES = 64


@dataclass(slots=True)
class RouterStates:
    """The states by their keys, the latest last; whether one fits a router is for that router to say."""

    states: dict[str, Mapping[str, Any]] = field(default_factory=dict)

    def put(self, key: str, state: Mapping[str, Any]) -> None:
        """Keeps a state in the place of the one with its key; the oldest go."""
        self.states.pop(key, None)
        self.states[key] = state
        for oldest in list(self.states)[:-MOST_STATES]:
            del self.states[oldest]

    def to_text(self) -> str:
        return json.dumps({"version": VERSION, "states": self.states}) + "\n"

    @classmethod
    def from_text(cls, source: str) -> RouterStates:
        """The states in a text. Raises ValueError where it is damaged or of another version."""
        try:
            data = mapping(json.loads(source))
            if data["version"] != VERSION:
                raise ValueError("states of this version are expected")
            return cls({text(key): mapping(state) for key, state in mapping(data["states"]).items()})
        except (KeyError, TypeError, RecursionError) as error:
            raise ValueError("states of routers are expected") from error
