"""What real servers answered to the probe, and the table of the documents that is made of it.

A recording is what `qpdsl models --probe` found, without and with a tokenizer, and how the server was started.
`tests/live/test_probes.py` compares it with the server itself, and records it anew.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from qpdsl.executor.remote.server.server_capabilities import ServerCapabilities, capabilities_from_json, in_words
from tests.support.paths import ROOT

FOLDER = ROOT / "tests" / "executor" / "remote" / "probe" / "recorded"
# What depends on the model that is served.
_OF_MODELS = ("context", "reward model scores")
# In the order of the table.
NAMES = ("vllm", "vllm_thinking", "llama_server", "llama_cpp_python", "transformers")


@dataclass(frozen=True)
class Recording:
    """`probes`: what was seen, by whether "text" or "ids" were sent. `kind` and `traits` are those of its stub."""

    server: str
    kind: str
    traits: dict[str, Any]
    probes: dict[str, ServerCapabilities]


def recording(name: str) -> Recording:
    said = json.loads((FOLDER / f"{name}.json").read_text("utf-8"))
    probes = {way: capabilities_from_json(value) for way, value in said["probes"].items()}
    return Recording(said["server"], said["stub"]["kind"], said["stub"]["traits"], probes)


def table() -> str:
    """The table of what servers do, in Markdown."""
    columns = {one.server: _column(one) for one in map(recording, NAMES)}
    lines = [["", *columns], ["---"] * (len(columns) + 1)]
    lines += [[name, *(column[name] for column in columns.values())] for name in next(iter(columns.values()))]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _column(one: Recording) -> dict[str, str]:
    ways = {way: in_words(capabilities) for way, capabilities in one.probes.items()}
    plain, ids = ways["text"], ways.get("ids", ways["text"])
    cells = {name: _cell(words, ids[name]) for name, words in plain.items() if name not in _OF_MODELS}
    cells["accepts and ignores"] = "; ".join(
        note.removeprefix("accepts ") for note in one.probes["text"].notes if note.startswith("accepts ")
    )
    return cells


def _cell(plain: str, ids: str) -> str:
    if plain == ids:
        return plain
    if plain == "no":
        return f"{ids} (with `tokenizer=`)"
    return f"{plain}; {ids} (with `tokenizer=`)"
