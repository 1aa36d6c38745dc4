"""`chat` and `prompt`, which start a program's context and append to it alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from typing import Literal as OneOf

from qpdsl.api.arguments import Arguments
from qpdsl.api.composition import Composition, shown
from qpdsl.api.symbols import convert
from qpdsl.grammar import ast
from qpdsl.grammar.source import Span
from qpdsl.grammar.suggest import listed
from qpdsl.grammar.words import ROLES

Role = OneOf["system", "user", "assistant"]


def add_turns(given: Arguments, pairs: tuple[tuple[Role, str], ...], named: Mapping[str, str | None]) -> Composition:
    written: list[tuple[Any, object, Span]] = []
    for index, pair in enumerate(pairs):
        span = given.place("", index)
        if not isinstance(pair, tuple) or len(pair) != 2 or pair[0] not in ROLES:
            raise given.refuse(f"a turn is a pair of a role ({listed(ROLES)}) and a text, not {shown(pair)}", span)
        written.append((pair[0], pair[1], span))
    # Python hands keywords over by name; their order in the file is that of their places.
    roles = sorted((role for role in ROLES if named[role] is not None), key=lambda role: given.place(role).start)
    written += [(role, named[role], given.place(role)) for role in roles]
    if not written:
        raise given.refuse(f"`chat` takes a turn at least: {listed(ROLES)}", given.span)
    turns = (ast.Turn(role, convert(content, span), span=span) for role, content, span in written)
    given.composition.add(ast.Chat(tuple(turns), span=given.span))
    return given.composition


def add_prompt(given: Arguments, text: str) -> Composition:
    given.composition.add(ast.Prompt(given.template("text", text, 0), span=given.span))
    return given.composition
