"""What the id of a model says by itself: its adapter, how it thinks, and whether a server elsewhere runs it.

With an adapter it is `ID adapter=PLACE`, and with the marks of its thoughts `ID think=MARKS`, behind the adapter if it
has one: one text, so that it is another model than ID alone. On a server it is `DIALECT:URL#NAME`, and `written_out`
knows shorter names; `executor/remote/server/address.py` takes it apart.
"""

from __future__ import annotations

import json
import os
import re
from typing import Literal, get_args

# How servers are spoken to.
DialectName = Literal["openai", "vllm", "sglang", "llamacpp"]
DIALECTS: tuple[DialectName, ...] = get_args(DialectName)
_ADAPTER, _THINK = " adapter=", " think="
# The bar between two marks, and not one of theirs: `<|think|>|<|end|>`.
_BETWEEN_MARKS = re.compile(r"(?<!<)\|(?!>)")
# What begins the names of models on servers that have one place, and where that is.
_SERVERS = {
    "ollama": "http://127.0.0.1:11434/v1",
    "lmstudio": "http://127.0.0.1:1234/v1",
    "openrouter": "https://openrouter.ai/api/v1",
}
# What may stand before the first colon of an id.
SCHEMES = (*DIALECTS, *_SERVERS, "http", "https", "hf")
# How the models of two companies are called, without a folder or an owner before it.
_OPENAI = "https://api.openai.com/v1"
_HOSTED = (
    (re.compile(r"gpt-\d[\w.:-]*"), _OPENAI),
    (re.compile(r"claude-[\w.:-]+"), "https://api.anthropic.com/v1"),
)
NO_THOUGHTS = "none"
THINK_FORM = 'takes what opens and what closes a thought, as in "<think>|</think>", or `none`'


def dialect_of(id: str) -> DialectName | None:
    """How the server that runs the model is spoken to; None for a model of this machine or the hub."""
    name, colon, _ = id.partition(":")
    return next((dialect for dialect in DIALECTS if colon and dialect == name), None)


def listed_models(text: str) -> list[str]:
    """The ids in a list of them, as JSON or with commas between."""
    try:
        ids = json.loads(text)
    except ValueError:
        ids = text.split(",")
    return [id.strip() for id in ids if id.strip()] if isinstance(ids, list) else [text]


def is_remote(id: str) -> bool:
    """Whether a server elsewhere runs the model."""
    return dialect_of(id) is not None


def written_out(id: str) -> str:
    """The id that a short name of a model stands for, and any other id as it is.

    `ollama:NAME`, `lmstudio:NAME`, `openrouter:NAME`, `gpt-…`, `claude-…` and `http://…` are models on a server that
    speaks OpenAI's API, `gpt-…` on that of `OPENAI_BASE_URL` where the environment has it; `hf:ORG/NAME` is a hub id.
    """
    first, colon, rest = id.partition(":")
    if colon and first in _SERVERS:
        return f"openai:{_SERVERS[first]}#{rest}"
    if colon and first in ("http", "https"):
        return f"openai:{id}"
    if colon and first == "hf":
        return rest
    name, space, options = id.partition(" ")
    url = next((url for form, url in _HOSTED if form.fullmatch(name)), None)
    if url == _OPENAI:
        url = os.environ.get("OPENAI_BASE_URL", "").strip() or url
    return id if url is None else f"openai:{url}#{name}{space}{options}"


def is_taken(name: str) -> bool:
    """Whether `name:` at the beginning of an id says something already."""
    return name in SCHEMES


def with_adapter(id: str, adapter: str | None) -> str:
    """The id of a model, written out, with an adapter in the place of any that it has; None adds none."""
    id = written_out(id)
    return id if adapter is None else with_think(f"{base_of(id)}{_ADAPTER}{adapter}", think_of(id))


def with_think(id: str, think: str | None) -> str:
    """The id of a model that thinks so, whatever it said of that; None leaves the id as it is."""
    return id if think is None else f"{without_think(id)}{_THINK}{think}"


def without_think(id: str) -> str:
    """The id of a model with its adapter, and nothing about how it thinks."""
    return id.partition(_THINK)[0].rstrip()


def base_of(id: str) -> str:
    """The id of a model alone: a built-in name, a folder or a hub id."""
    return without_think(id).partition(_ADAPTER)[0].rstrip()


def adapter_of(id: str) -> str | None:
    """The adapter of a model, a folder or a hub id; None where it has none."""
    _, sign, adapter = without_think(id).partition(_ADAPTER)
    return adapter.strip() if sign else None


def think_of(id: str) -> str | None:
    """What the id says of how the model thinks; None where it says nothing."""
    _, sign, think = id.partition(_THINK)
    return think if sign else None


def thought_marks(think: str) -> tuple[str, str] | None:
    """What opens and what closes a thought; None for `none`, a model that does not think. Raises ValueError."""
    if think == NO_THOUGHTS:
        return None
    marks = _BETWEEN_MARKS.split(think)
    if len(marks) != 2 or not all(mark.strip() for mark in marks):
        raise ValueError(THINK_FORM)
    return marks[0], marks[1]
