"""The tools of the programs here: a calculator of small numbers, and a page of facts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

import qpdsl as qp

Small = Annotated[int, Field(ge=0, le=999)]
FACTS = {"80 + 312": "392", "3 * 4": "12"}


@qp.tool(pure=True)
def calculator(a: Small, op: Literal["+", "-", "*"], b: Small) -> int:
    """Computes a op b."""
    return {"+": a + b, "-": a - b, "*": a * b}[op]


@qp.tool
def search(query: str) -> str:
    """Looks a sum up."""
    if log := os.environ.get("TOOL_LOG"):
        with Path(log).open("a") as file:
            file.write(f"{query}\n")
    return FACTS.get(query.strip(), "nothing found")


@qp.tool(effects=True)
def note(text: str) -> str:
    """Writes a note."""
    return f"noted {len(text)}"
