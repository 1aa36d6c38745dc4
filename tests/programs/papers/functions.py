"""What the programs here call: a retriever, a tool and a database, as a user would hand them in."""

from __future__ import annotations

import sqlite3

import qpdsl as qp

_PASSAGES = ["Rivers are long.", "Pens are for writing.", "Eggs are eaten."]


@qp.extractor
def retrieve(query: str, k: int) -> list[str]:
    words = set(query.lower().split())
    return sorted(_PASSAGES, key=lambda passage: -len(set(passage.lower().split()) & words))[:k]


@qp.extractor
def call_tool(tool: str | None, argument: str | None) -> str:
    return f"{argument}" if tool == "calc" else "no such tool"


@qp.scorer
def runs(text: str) -> float:
    base = sqlite3.connect(":memory:")
    base.execute("create table people(name, age)")
    try:
        base.execute(text)
    except sqlite3.Error:
        return 0.0
    return 1.0
